#!/bin/sh
# installed.sh BUILD CMAKE CC: installs into a folder, moves it, builds the templates, examples and a model against what was
# moved, adds the templates to it, and lets longhaul load them.
set -eu
build=$1 cmake=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "failed: $*"; exit 1; }; }

quiet "$cmake" --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved"
moved=$work/moved

if grep -rlI -e "$work/first" -e "$build" "$moved/share" "$moved/include"; then
    echo "the files above name a folder that is gone"
    exit 1
fi

for kind in model optimizer device transport; do
    cp -r "$moved/share/longhaul/sdk/template/$kind" "$work/$kind"
    quiet "$cmake" -S "$work/$kind" -B "$work/build-$kind" -DCMAKE_PREFIX_PATH="$moved" \
        -DCMAKE_C_COMPILER="$cc" "-DCMAKE_C_FLAGS=-O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
    quiet "$cmake" --build "$work/build-$kind"
    exported=$(nm -D --defined-only "$work/build-$kind/lib/longhaul/${kind}s/my_$kind.so" | cut -d' ' -f3 | grep -v '^$')
    [ "$exported" = lh_plugin_v2 ] || { echo "my_$kind exports: $exported"; exit 1; }
    quiet "$cmake" --install "$work/build-$kind" --prefix "$moved"
done

# A model that the docs send an author to, under another name: its rotary positions want libm, which lh_add_plugin links.
mkdir "$work/rotary"
sed s/my_model/my_rotary/g "$work/model/CMakeLists.txt" >"$work/rotary/CMakeLists.txt"
sed 's/"llama", llama_config_t/"my_rotary", llama_config_t/' \
    "$moved/share/doc/longhaul/plugins/models/llama/llama_plugin.c" >"$work/rotary/my_rotary.c"
quiet "$cmake" -S "$work/rotary" -B "$work/build-rotary" -DCMAKE_PREFIX_PATH="$moved" \
    -DCMAKE_C_COMPILER="$cc" "-DCMAKE_C_FLAGS=-O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
quiet "$cmake" --build "$work/build-rotary"
quiet "$moved/bin/longhaul-check" --only model.opens "$work/build-rotary/lib/longhaul/models/my_rotary.so"

# Where two plugins read a model_type none is chosen by chance: the one that is meant is named.
cat >"$work/two.ini" <<INI
[pipeline]
name = two
stages = import
folder = $work/two
[import]
from = $moved/share/doc/longhaul/examples/data/stories260K
[model]
plugin = from_import
INI
two() { "$moved/bin/longhaul" import "$work/two.ini" --print --plugins "$work/build-rotary/lib/longhaul" --plugins "$moved/lib/longhaul" "$@"; }
if two >"$work/log" 2>&1 || ! grep -q 'model_type llama is read by the plugins .*; name one in \[model\] plugin' "$work/log"; then
    cat "$work/log"
    echo "llama and my_rotary read one model_type, and it is not told"
    exit 1
fi
quiet two --set model.plugin=my_rotary
grep -q '^plugin = my_rotary$' "$work/log" || { cat "$work/log"; exit 1; }

# Ops of a third party's, with finite differences of their gradients and both devices' results: devices are those beside the
# program, then those of the second of two folders.
others=
for name in acme_ops acme_smooth; do
    cp -r "$moved/share/longhaul/sdk/examples/$name" "$work/$name"
    quiet "$cmake" -S "$work/$name" -B "$work/build-$name" -DCMAKE_PREFIX_PATH="$moved" \
        -DCMAKE_C_COMPILER="$cc" "-DCMAKE_C_FLAGS=-O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
    quiet "$cmake" --build "$work/build-$name"
    quiet "$moved/bin/longhaul-check" --only ops $others "$work/build-$name/lib/longhaul/parts/$name.so"
    for check in ops.shapes ops.gradients ops.kernels; do
        grep -q "pass.*$check\|$check.*pass" "$work/log" || { cat "$work/log"; echo "$name: $check did not pass"; exit 1; }
    done
    others="--plugins $work/build-model/lib/longhaul --plugins $moved/lib/longhaul"
done

# The same without CMake, by pkg-config.
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$moved/share/pkgconfig pkg-config --cflags longhaul-sdk)
    folder=$(PKG_CONFIG_PATH=$moved/share/pkgconfig pkg-config --variable=plugindir longhaul-sdk)
    sed s/my_model/by_hand/ "$work/model/my_model.c" >"$work/by_hand.c"
    quiet "$cc" -shared -fPIC -fvisibility=hidden $flags "$work/by_hand.c" -o "$folder/models/by_hand.so"
fi

"$moved/bin/longhaul" plugins >"$work/list" || { cat "$work/list"; exit 1; }
for kind in model optimizer device transport; do
    grep -q "^$kind *my_$kind " "$work/list" || { cat "$work/list"; echo "my_$kind is not listed"; exit 1; }
    "$moved/bin/longhaul" help my_$kind >"$work/help"
done
"$moved/bin/longhaul" help my_optimizer | grep -q 'rule my_optimizer:my_rule'
"$moved/bin/longhaul" help my_model | grep -q 'window .*64 .*tokens that a token sees'
echo "$(grep -c 0.1.0 "$work/list") plugins load from the moved tree"
