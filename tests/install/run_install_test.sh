#!/bin/sh
# run_install_test.sh BUILD WORK - install the build into WORK/prefix and build outside programs on it:
# C and C++17, shared and static, by find_package and by pkg-config; then run them all.
set -eu
build=$1
work=$2
here=$(cd "$(dirname "$0")" && pwd)
prefix=$work/prefix
rm -rf "$work"
mkdir -p "$work"

cmake --install "$build" --prefix "$prefix"
libdir=$(dirname "$(find "$prefix" -name ffpa.pc | head -n 1)")/..
libdir=$(cd "$libdir" && pwd)
soname=$(objdump -p "$libdir/libffpa.so" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = libffpa.so.0 ] || { echo "soname is '$soname', not libffpa.so.0"; exit 1; }
leaked=$(nm -g --defined-only "$libdir/libffpa.a" | awk 'NF == 3 && $3 !~ /^ffpa_/ { print $3 }')
[ -z "$leaked" ] || { echo "libffpa.a defines names outside ffpa_:" $leaked; exit 1; }

cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/cmake"

export PKG_CONFIG_PATH="$libdir/pkgconfig"
pc() { pkg-config "$@" ffpa; }
cc -std=c11 "$here/outside_c.c" $(pc --cflags --libs) -Wl,-rpath,"$libdir" -o "$work/pc_c_shared"
cc -std=c11 "$here/outside_c.c" $(pc --cflags --libs --static) -static -o "$work/pc_c_static"
c++ -std=c++17 "$here/outside_cxx.cc" $(pc --cflags --libs) -Wl,-rpath,"$libdir" -o "$work/pc_cxx_shared"
c++ -std=c++17 "$here/outside_cxx.cc" $(pc --cflags --libs --static) -static -o "$work/pc_cxx_static"

ran=0
for program in "$work"/pc_c* "$work"/cmake/outside_c*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    "$program" || { echo "$program failed"; exit 1; }
    ran=$((ran + 1))
done
[ "$ran" = 8 ] || { echo "ran $ran programs, not 8"; exit 1; }
echo "install: $ran outside programs built and run"
