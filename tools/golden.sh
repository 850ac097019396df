#!/bin/sh
# golden.sh - rewrite the golden files from what the tree does now. Reviewing the diff is the test.
set -eu
cd "$(dirname "$0")/.."
cmake -S . -B build-check/gcc -G Ninja -DCMAKE_C_COMPILER=gcc >/dev/null
cmake --build build-check/gcc
mkdir -p tests/golden
python3 tests/abi/abi_dump.py build-check/gcc/libffpa.so --write tests/golden/abi_lp64.txt
FFPA_GOLDEN=write python3 tests/cli/cli_golden.py build-check/gcc/ffpa
FFPA_GOLDEN=write build-check/gcc/tests/test_cuda_plans >/dev/null
git --no-pager diff --stat -- tests
