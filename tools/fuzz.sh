#!/bin/sh
# fuzz.sh SUBJECT [SECONDS] - fuzz one harness (params, problem, npy, safetensors) with libFuzzer under
# the address and undefined-behaviour sanitizers. New inputs go to build-check/fuzz/found/SUBJECT; a
# crasher is left there as crash-*: minimise it, fix the cause, add it to tests/fuzz/corpus/SUBJECT.
set -eu
cd "$(dirname "$0")/.."
subject=${1:?usage: fuzz.sh SUBJECT [SECONDS]}
build=build-check/fuzz
found=$build/found/$subject
mkdir -p "$found"
cmake -S . -B $build -G Ninja -DCMAKE_C_COMPILER=clang-14 -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g1" -DFFPA_FUZZ=ON -DFFPA_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build $build --target "fuzz_$subject"
exec $build/tests/fuzz/fuzz_"$subject" -max_total_time="${2:-60}" -timeout=20 -rss_limit_mb=4096 \
    -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$subject"
