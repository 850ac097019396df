#!/bin/bash
# pack_gpu_check.sh [DIR] - what tests/gpu/check_gpu.sh runs, built here for a machine that has a GPU and Python but no
# CMake, cmocka or network: the library, the programs, the libraries that they need. DIR (default build-pack) travels
# with the tree; what it was built from is in DIR/commit.
set -eu
cd "$(dirname "$0")/.."
pack=${1:-build-pack} build=$PWD/build-pack-objects most=60
programs="test_every_kernel test_hopper_kernels test_options_grid test_random_problems test_partial_keys host_time"
for source in tests/cases/test_cases_*.c; do programs="$programs $(basename "$source" .c)"; done
mkdir -p "$build" "$pack"
# shellcheck disable=SC2086 # programs are words
if ! { cmake -S . -B "$build" -G Ninja -DFFPA_TESTS=ON -DCMAKE_BUILD_TYPE=Release &&
    ninja -C "$build" -j "$(nproc)" ffpa_shared ffpa_cli $programs; } >"$build/build.log" 2>&1; then
    tail -n 20 "$build/build.log"
    exit 1
fi
rm -rf "${pack:?}/tests" "${pack:?}/lib"
mkdir -p "$pack/tests" "$pack/lib"
for name in $programs; do cp "$build/tests/$name" "$pack/tests"; done
cp "$build/ffpa" "$pack"
cp -L "$build/libffpa.so" "$pack"
ldd "$pack"/tests/* "$pack/ffpa" | awk '/libcmocka|libcjson/ { print $3 }' | sort -u | while read -r library; do
    cp -L "$library" "$pack/lib"
done
strip --strip-unneeded "$pack"/tests/* "$pack/ffpa" "$pack/libffpa.so"
git describe --always --dirty >"$pack/commit"
size=$(du -sm "$pack" | cut -f 1)
if [ "$size" -gt $most ]; then
    echo "pack-gpu-check: $pack has $size MB, at most $most may travel"
    exit 1
fi
echo "$pack: $size MB, commit $(cat "$pack/commit"). Where the GPU is, in a copy of this tree with $pack:"
echo "  tests/gpu/check_gpu.sh --build $pack --out /tmp/check-gpu"
