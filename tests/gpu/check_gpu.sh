#!/bin/bash
# check_gpu.sh - everything that needs a GPU, in one call: builds, then runs the parts asked for.
#
#   --part LIST       of cases,library,sanitize,host,python,bench (default: all, in this order)
#   --backend NAME    cuda (default) or cuda/FAMILY: that family of kernels alone
#   --build DIR       use what is built there (libffpa.so, tests/) instead of building into build-gpu
#   --out DIR         logs and tables (default build-gpu/results)
#   --quick           the case table at two head dimensions and two dtypes
#   --processes N     at a time (default: all processors); they share the GPU
#
# cases     the C programs: the case table by id, options, random problems, each call staged between guards
# library   problems of several tiles against float64 on the GPU (DIR/error_ratios.csv), graph capture, two devices
# sanitize  the smallest problem of every kernel under memcheck, racecheck, initcheck and synccheck
# host      host microseconds of a warm call
# python    the tests of the Python package (pytest, hypothesis), and what it adds to a call
# bench     beside PyTorch, in the same process; the table goes to DIR/gpu.csv
set -u
shopt -s lastpipe # `jobs | many` may say what failed
from=$PWD
cd "$(dirname "$0")/../.."
parts=cases,library,sanitize,host,python,bench backend=cuda build= out= jobs=$(nproc) failed=()
while [ $# -gt 0 ]; do
    case $1 in
    --part) parts=$2 ;;
    --backend) backend=$2 ;;
    --build) build=$(cd "$from" && realpath "$2") ;;
    --out) out=$(cd "$from" && realpath -m "$2") ;;
    --processes) jobs=$2 ;;
    --quick) export FFPA_TEST_EFFORT=quick && shift && continue ;;
    *) sed -n '2,20p' "$0" && exit 2 ;;
    esac
    shift 2
done
if [ -z "$build" ]; then
    build=$PWD/build-gpu
    mkdir -p "$build"
    if ! { cmake -S . -B "$build" -G Ninja -DFFPA_TESTS=ON && cmake --build "$build" -j "$jobs"; } >"$build/build.log" 2>&1; then
        tail -n 20 "$build/build.log"
        exit 1
    fi
fi
out=${out:-$PWD/build-gpu/results}
mkdir -p "$out"
# The test programs read where the compiler is from the library's own search; a cache of their own keeps runs apart.
export FFPA_CACHE_DIR=${FFPA_CACHE_DIR:-$out/cache} FFPA_TEST_PATH=$backend build out backend

# job NAME COMMAND...: one process; a line of verdict, its log in $out/NAME.log.
job() {
    local name=$1 begin=$SECONDS
    shift
    if timeout 300 "$@" >"$out/$name.log" 2>&1; then
        echo "ok   $name $((SECONDS - begin)) s"
    else
        echo "FAIL $name $((SECONDS - begin)) s: $(grep -E 'FAILED  \] [a-z]|^FAIL|ERROR SUMMARY: [1-9]' "$out/$name.log" | sort -u | head -n 4 | cut -c 1-110 | tr '\n' ';')"
    fi
}
export -f job

# many NAME: run the jobs of stdin, one a line, several at a time.
many() {
    xargs -P "$jobs" -I '{}' bash -c 'job {}' | tee "$out/$1.txt" | grep -v '^ok'
    echo "$1: $(grep -c '^ok' "$out/$1.txt") passed, $(grep -c '^FAIL' "$out/$1.txt") failed, $SECONDS s so far"
    grep -q '^FAIL' "$out/$1.txt" && failed+=("$1")
}

case_jobs() {
    for shard in 1 2 3 4 5 6; do
        for program in "$build"/tests/test_cases_*; do
            [ -x "$program" ] && [ ! -d "$program" ] || continue
            echo "$(basename "$program")_$shard env FFPA_TEST_SHARD=$shard/6 $program"
        done
    done
    for shard in $(seq 18); do
        for program in test_options_grid test_random_problems; do
            echo "${program}_$shard env FFPA_TEST_EFFORT=quick FFPA_TEST_SHARD=$shard/18 $build/tests/$program"
        done
    done
}

library_jobs() {
    for shard in 1 2 3 4 5 6 7 8; do
        echo "library_$shard python3 tests/gpu/library_check.py $build/libffpa.so --backend $backend --shard $shard/8 --ratios $out/ratios_$shard.part"
    done
}

every_kernel() { grep -o 'cmocka_unit_test([a-z_]*)' tests/numeric/test_every_kernel.c | sed 's/.*(\(.*\))/\1/'; }

# Compiling first: under the tools it would be slow.
sanitize() {
    for test in $(every_kernel); do echo "smallest_$test $build/tests/test_every_kernel $test"; done | many smallest
    for tool in memcheck racecheck initcheck synccheck; do
        for test in $(every_kernel); do
            echo "${tool}_$test compute-sanitizer --tool $tool --error-exitcode 9 $build/tests/test_every_kernel $test"
        done
    done | many sanitize
}

for part in ${parts//,/ }; do
    case $part in
    cases) case_jobs | many cases ;;
    library)
        rm -f "$out"/ratios_*.part
        library_jobs | many library
        { echo "problem,share_of_bound,relative_error" && sort -V "$out"/ratios_*.part; } >"$out/error_ratios.csv"
        ;;
    sanitize) sanitize ;;
    host) "$build/tests/host_time" 2>&1 | tee "$out/host_time.txt" ;;
    python)
        export FFPA_LIBRARY=$build/libffpa.so PYTHONPATH=$PWD/bindings/python
        python3 -m pytest bindings/python/tests -p no:cacheprovider >"$out/python.log" 2>&1 || failed+=(python)
        tail -n 1 "$out/python.log"
        python3 bench/python_overhead.py 2>&1 | tee "$out/python_overhead.txt"
        ;;
    bench) python3 bench/gpu.py "$build/libffpa.so" --backend "$backend" --csv "$out/gpu.csv" 2>"$out/bench.log" || failed+=(bench) ;;
    *) echo "no part is called $part" && failed+=("$part") ;;
    esac
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "check-gpu: FAILED in $SECONDS s: ${failed[*]} (logs in $out)"
    exit 1
fi
echo "check-gpu: all green in $SECONDS s"
