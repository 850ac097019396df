#!/bin/bash
# check.sh - everything that must hold before a commit lands on main: text rules; four builds: gcc with every
# test, clang with all but the long sweeps, address and undefined-behaviour sanitizers with every test,
# thread sanitizer with what has threads; an install, the Python package. Logs: build-check/*.log. Goes on
# after a failure, so one run tells all; the last line is the verdict and says what could not run here.
set -u
cd "$(dirname "$0")/.."
work=$PWD/build-check
jobs=$(nproc)
mkdir -p "$work"
rm -f "$work/failed"

# step NAME COMMAND...: run it quietly; when it fails, show what each failed test printed and the log's end.
step() {
    local name=$1 begin=$SECONDS
    shift
    if "$@" >"$work/$name.log" 2>&1; then
        printf '  ok    %-12s %4d s  %s\n' "$name" $((SECONDS - begin)) "$(tail -n 1 "$work/$name.log" | cut -c 1-60)"
    else
        printf '  FAIL  %-12s %4d s  %s\n' "$name" $((SECONDS - begin)) "build-check/$name.log; of it:"
        grep -A 30 -E '\*\*\*(Failed|Timeout|Exception)' "$work/$name.log" | head -n 120
        tail -n 40 "$work/$name.log"
        echo "$name" >>"$work/failed"
    fi
}

# build FOLDER TARGET CMAKE-OPTIONS...
build() {
    local folder=$work/$1 target=$2
    shift 2
    cmake -S . -B "$folder" -G Ninja "$@" && cmake --build "$folder" -j "$jobs" --target "$target" &&
        echo "built: $target"
}

# tests FOLDER OPTIONS...: its ctests; finding none is a failure.
tests() {
    ctest --test-dir "$work/$1" -j "$jobs" --output-on-failure --timeout 300 --no-tests=error "${@:2}"
}
quick_tests() { FFPA_TEST_EFFORT=quick tests "$@"; }
portable_tests() { FFPA_TEST_PATH=portable quick_tests "$@"; }

# Paths that this machine has no processor for, and what needs a GPU: tests pass them over.
passed_over() {
    local isa
    for isa in avx2 avx512 avx512_bf16 amx_bf16; do
        "$work/gcc/ffpa" info --isa "$isa" >/dev/null 2>&1 || printf 'cpu/%s, ' "$isa"
    done
    echo 'cuda (make check-gpu)'
}

# Test counts, where a person and CI look for them.
closing_lines() { grep -E 'tests passed|Total Test time|No tests were found|[0-9]+ passed' "$work/$1.log"; }

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

begin=$SECONDS
echo "check: $(git rev-parse --short HEAD 2>/dev/null), $jobs processors"
step format tools/format.sh
step layers python3 tools/check_layers.py
step docs python3 tools/check_docs.py

# Beside all that follows: pip and the interpreter keep one processor busy, and now and then none.
step python tools/python_tests.sh "$work/python" &

step gcc build gcc all -DCMAKE_C_COMPILER=gcc
step gcc-tests tests gcc
closing_lines gcc-tests
step install tests/install/run_install_test.sh "$work/gcc" "$work/install"

step clang build clang all -DCMAKE_C_COMPILER=clang-14 -DFFPA_FUZZ=ON
step clang-tests quick_tests clang -L 'unit|cases|abi|cli|fake|fuzz'
closing_lines clang-tests

# The sanitizers cost a factor of 3 to 10; FFPA_TEST_EFFORT=quick lets long sweeps thin themselves out.
sanitized=(-DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=RelWithDebInfo)
step asan build asan all "${sanitized[@]}" "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g1" -DFFPA_SANITIZE=address,undefined
step asan-tests quick_tests asan
closing_lines asan-tests
step asan-portable portable_tests asan -R 'accept_edges|random_problems'

step tsan build tsan threaded_tests "${sanitized[@]}" "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O0 -g1" \
    -DFFPA_VECTOR_OPTIMISE=-O0 -DFFPA_SANITIZE=thread
step tsan-tests tests tsan -L threaded
closing_lines tsan-tests

wait
closing_lines python

if [ -s "$work/failed" ]; then
    echo "check: FAILED in $((SECONDS - begin)) s: $(tr '\n' ' ' <"$work/failed")"
    exit 1
fi
echo "check: all green in $((SECONDS - begin)) s; not run here: $(passed_over)"
