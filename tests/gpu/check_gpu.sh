#!/bin/bash
# check_gpu.sh - everything that needs a GPU, in one call: builds, then runs the parts asked for.
#
#   --part LIST       of library,sanitize,host,bench,python,cases (default: all, in this order)
#   --backend NAME    cuda (default) or cuda/FAMILY: that family of kernels alone (one with forward and backward: cuda/sm80)
#   --build DIR       use what is built there (by tools/pack_gpu_check.sh, or a build folder) instead of building into build-gpu
#   --out DIR         logs and tables (default build-gpu/results)
#   --seconds N       in all (default 460): nothing begins later, and what was not run fails the check
#   --quick           the case table at two head dimensions and two dtypes
#   --processes N     at a time (default: all processors); they share the GPU
#
# library   problems of several tiles against float64 on the GPU (DIR/error_ratios.csv), graph capture, two devices
# sanitize  the smallest problem of every kernel under memcheck, racecheck, initcheck and synccheck
# host      host microseconds of a warm call; seconds of a first one
# bench     beside PyTorch, in the same process; the table goes to DIR/gpu.csv
# python    what the Python package adds to a call; python -m ffpa.bench (DIR/ffpa_bench.json, .png); its tests (pytest)
# cases     the C programs: the case table by id, options, random problems, each call staged between guards
# The parts share the seconds as `share` below says; the last one has all that are left.
set -u
shopt -s lastpipe # `jobs | many` may say what failed
from=$PWD
cd "$(dirname "$0")/../.."
parts=library,sanitize,host,bench,python,cases backend=cuda build= out= jobs=$(nproc) seconds=460 failed=() summary=()
declare -A share=([library]=60 [sanitize]=130 [host]=40 [bench]=120 [python]=180 [cases]=200)
usage() { sed -n '2,/^set/p' "$0" | sed '$d' && exit 2; }
while [ $# -gt 0 ]; do
    [ "$1" = --quick ] && export FFPA_TEST_EFFORT=quick && shift && continue
    [ $# -ge 2 ] || usage
    case $1 in
    --part) parts=$2 ;;
    --backend) backend=$2 ;;
    --build) build=$(cd "$from" && realpath "$2") ;;
    --out) out=$(cd "$from" && realpath -m "$2") ;;
    --seconds) seconds=$2 ;;
    --processes) jobs=$2 ;;
    *) usage ;;
    esac
    shift 2
done
shares=0
for part in ${parts//,/ }; do
    [ -n "${share[$part]:-}" ] || { echo "no part is called $part" && exit 2; }
    shares=$((shares + share[$part]))
done
begin=$EPOCHSECONDS
if [ -z "$build" ]; then
    build=$PWD/build-gpu
    mkdir -p "$build"
    if ! { cmake -S . -B "$build" -G Ninja -DFFPA_TESTS=ON && cmake --build "$build" -j "$jobs"; } >"$build/build.log" 2>&1; then
        tail -n 20 "$build/build.log"
        echo "check-gpu: cannot build here ($build/build.log); build elsewhere: tools/pack_gpu_check.sh"
        exit 1
    fi
fi
out=${out:-$PWD/build-gpu/results}
mkdir -p "$out"
# A cache of its own keeps runs apart; a pack brings cmocka, and the commit that it was built from.
[ -f "$build/commit" ] && : "${COMMIT:=$(cat "$build/commit")}"
export COMMIT=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export FFPA_CACHE_DIR=${FFPA_CACHE_DIR:-$out/cache} FFPA_TEST_PATH=$backend build out backend deadline

# bounded COMMAND...: until the part's time is up, five minutes at most; 124 when it is.
bounded() {
    local left=$((deadline - EPOCHSECONDS))
    [ $left -gt 0 ] || return 124
    timeout -k 5 $((left < 300 ? left : 300)) "$@"
}

# why LOG: what it says of failures, on one line.
why() {
    grep -E 'FAILED  \] [a-z]|^FAIL|ERROR SUMMARY: [1-9]|========= (Error|Invalid|Race|Uninit|Barrier)|rror:|off by|must be|not found|No such' "$1" |
        grep -v '   LINE   ' | awk '!seen[$0]++' | head -n 4 | cut -c 1-150 | tr '\n' ';'
}

# job NAME COMMAND...: one process; a line of verdict, its log in $out/NAME.log.
job() {
    local name=$1 begin=$EPOCHSECONDS code
    shift
    [ "$EPOCHSECONDS" -lt "$deadline" ] || { echo "late $name" && return; }
    bounded "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    0) echo "ok   $name $((EPOCHSECONDS - begin)) s" ;;
    124 | 137) echo "late $name stopped after $((EPOCHSECONDS - begin)) s: $(grep -c '\[       OK \]\|^ok' "$out/$name.log") passed until then" ;;
    *) echo "FAIL $name $((EPOCHSECONDS - begin)) s, exit $code: $(why "$out/$name.log")" ;;
    esac
}
export -f job bounded why

# many NAME: run the jobs of stdin, one a line, several at a time.
many() {
    xargs -P "$jobs" -I '{}' bash -c 'job {}' | tee "$out/$1.txt" | grep -v '^ok'
    counted "$1" "$(grep -c '^ok' "$out/$1.txt")" "$(grep -c '^FAIL' "$out/$1.txt")" "$(grep -c '^late' "$out/$1.txt")"
}

# counted NAME PASSED FAILED LATE: a row of the table; a part without a success has failed, too.
counted() {
    summary+=("$(printf '%-9s %6d passed %5d failed %5d out of time' "$@") $((EPOCHSECONDS - began)) s")
    [ "$3" = 0 ] && [ "$4" = 0 ] && [ "$2" != 0 ] || failed+=("$1")
}

# alone NAME COMMAND...: one process whose output is shown and kept in $out/NAME.txt.
alone() {
    local name=$1 code
    shift
    bounded "$@" 2>&1 | tee "$out/$name.txt"
    code=${PIPESTATUS[0]}
    [ "$code" = 124 ] && echo "$name: out of time"
    counted "$name" $((code == 0)) $((code != 0 && code != 124)) $((code == 124))
}

# Programs that may be shared among processes, the first share of each before the second of any.
case_jobs() {
    local shard third program
    echo "test_partial_keys $build/tests/test_partial_keys"
    for shard in 1 2 3 4 5 6; do
        for program in "$build"/tests/test_cases_*; do
            [ -x "$program" ] && [ ! -d "$program" ] || continue
            echo "$(basename "$program")_$shard env FFPA_TEST_SHARD=$shard/6 $program"
        done
        for third in 0 6 12; do
            for program in test_options_grid test_random_problems; do
                echo "${program}_$((shard + third)) env FFPA_TEST_EFFORT=quick FFPA_TEST_SHARD=$((shard + third))/18 $build/tests/$program"
            done
        done
    done
}

library_jobs() {
    for shard in 1 2 3 4 5 6 7 8; do
        echo "library_$shard python3 tests/gpu/library_check.py $build/libffpa.so --backend $backend --shard $shard/8 --ratios $out/ratios_$shard.part"
    done
}

# The tests of the Python package, a process a file: the GPU's machine need not have pytest-xdist.
python_jobs() {
    local file
    for file in bindings/python/tests/test_*.py; do
        echo "pytest_$(basename "$file" .py) python3 -m pytest $file -p no:cacheprovider -q"
    done
}

every_kernel() {
    local program
    for program in test_every_kernel test_hopper_kernels; do
        grep -o 'cmocka_unit_test([a-z0-9_]*)' tests/numeric/$program.c | sed "s/.*(\(.*\))/$program \1/"
    done
}

# racecheck follows an order between threads only where each arrives itself (kernels/README.md).
lanes="env FFPA_KERNEL_DEFINES=FFPA_EVERY_LANE=1"

# Compiling first: under the tools it would be slow.
sanitize() {
    local program test tool with
    every_kernel | while read -r program test; do
        echo "smallest_$test $build/tests/$program $test"
        echo "lanes_$test $lanes $build/tests/$program $test"
    done | many smallest
    command -v compute-sanitizer >/dev/null || { echo "sanitize: there is no compute-sanitizer" && counted sanitize 0 1 0 && return; }
    for tool in memcheck racecheck synccheck initcheck; do
        with=
        [ $tool = racecheck ] && with="$lanes "
        every_kernel | while read -r program test; do
            echo "${tool}_$test ${with}compute-sanitizer --tool $tool --error-exitcode 9 $build/tests/$program $test"
        done
    done | many sanitize
}

python_part() {
    local picture=()
    export FFPA_LIBRARY=$build/libffpa.so PYTHONPATH=$PWD/bindings/python
    alone overhead python3 bench/python_overhead.py --commit "$COMMIT"
    python3 -c 'import matplotlib' 2>/dev/null && picture=(--plot "$out/ffpa_bench.png")
    alone ffpa_bench python3 -m ffpa.bench --seconds 0.5 --commit "$COMMIT" --json "$out/ffpa_bench.json" "${picture[@]}" \
        fwd,bf16,b1h32,q4096k4096,d512 fwd,bf16,b1h32,q4096k4096,d512,causal bwd,bf16,b1h32,q4096k4096,d512 \
        fwd,bf16,b8h16k2,q1k16384,d512
    python_jobs | many pytest
    tail -qn 1 "$out"/pytest_test_*.log | grep -oE '[0-9]+ [a-z]+' | awk '{ n[$2] += $1 } END { for (k in n) printf "%d %s; ", n[k], k; print "" }'
}

end=$((begin + seconds)) last=${parts##*,}
for part in ${parts//,/ }; do
    began=$EPOCHSECONDS deadline=$((EPOCHSECONDS + share[$part] * seconds / shares))
    [ "$part" != "$last" ] && [ $deadline -lt $end ] || deadline=$end
    echo "-- $part, until second $((deadline - begin))"
    case $part in
    cases) case_jobs | many cases ;;
    library)
        rm -f "$out"/ratios_*.part
        library_jobs | many library
        { echo "problem,path,tensor,share_of_bound,relative_error" && sort -V "$out"/ratios_*.part 2>/dev/null; } >"$out/error_ratios.csv"
        ;;
    sanitize) sanitize ;;
    host) alone host_time "$build/tests/host_time" ;;
    python) python_part ;;
    bench) alone bench python3 bench/gpu.py "$build/libffpa.so" --backend "$backend" --csv "$out/gpu.csv" --seconds $((deadline - EPOCHSECONDS - 15)) ;;
    esac
done
{
    echo "check-gpu: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort -u | tr '\n' ';') $(date +%F), commit $COMMIT, backend $backend${FFPA_TEST_EFFORT:+, $FFPA_TEST_EFFORT}"
    printf '%s\n' "${summary[@]}"
    if [ ${#failed[@]} -gt 0 ]; then
        echo "check-gpu: FAILED in $((EPOCHSECONDS - begin)) s: ${failed[*]} (logs in $out)"
    else
        echo "check-gpu: all green in $((EPOCHSECONDS - begin)) s"
    fi
} | tee "$out/summary.txt"
[ ${#failed[@]} = 0 ]
