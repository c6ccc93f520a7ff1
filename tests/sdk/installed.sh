#!/bin/sh
# installed.sh BUILD CMAKE CC: installs into a folder, moves it, builds the templates against what was
# moved, adds them to it, and lets longhaul load them.
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

# Ops of a third party's, with finite differences of their gradients and both devices' results.
for name in acme_ops acme_smooth; do
    cp -r "$moved/share/longhaul/sdk/examples/$name" "$work/$name"
    quiet "$cmake" -S "$work/$name" -B "$work/build-$name" -DCMAKE_PREFIX_PATH="$moved" \
        -DCMAKE_C_COMPILER="$cc" "-DCMAKE_C_FLAGS=-O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
    quiet "$cmake" --build "$work/build-$name"
    quiet "$moved/bin/longhaul-check" --only ops "$work/build-$name/lib/longhaul/parts/$name.so"
    for check in ops.shapes ops.gradients ops.kernels; do
        grep -q "pass.*$check\|$check.*pass" "$work/log" || { cat "$work/log"; echo "$name: $check did not pass"; exit 1; }
    done
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
