#!/bin/sh
# headers.sh INCLUDE CXX_FILE: each header compiles by itself as C17 and C++20; so does a plugin in C++.
set -eu
include=$1 plugin=$2
flags="-fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -I$include"
ran=0

check() { # COMPILER LANGUAGE STANDARD
    command -v "$1" >/dev/null || { echo "$1 is not installed: not tried"; return 0; }
    for header in "$include"/longhaul/*.h "$include"/longhaul/draft/*.h; do
        echo "#include <${header#"$include"/}>" | "$1" -x "$2" "-std=$3" $flags - || exit 1
        ran=$((ran + 1))
    done
}

check gcc c c17
check clang c c17
check g++ c++ c++20
# g++ warns of fields that a designated initialiser leaves zero, which is how every table is written.
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    $compiler -std=c++20 $flags -Wno-missing-field-initializers "$plugin"
done
[ $ran -gt 0 ] || { echo "no compiler here"; exit 77; }
echo "$ran headers compiled"
