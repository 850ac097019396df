#!/bin/bash
# check_kernels.sh [FAMILY...] - compile what every family of GPU kernels ships, for every architecture, without a
# GPU, and compare registers, shared memory and code size with tests/golden/resources_FAMILY.csv. A stack frame, a
# spill, a C75xx warning or a drift fails. With FFPA_GOLDEN=write the golden files are rewritten instead; what is
# wrong in itself fails all the same. NVRTC comes from pip, in the version that the golden files were made with.
set -u
cd "$(dirname "$0")/.."
version=13.0.88
work=$PWD/build-check/kernels
jobs=$(nproc)
build=$PWD/build-check/gcc # of `make check`, where it has run
[ -f "$build/build.ninja" ] || build=$work/build
mkdir -p "$work"

prepare() {
    cmake -S . -B "$build" -G Ninja -DFFPA_TESTS=ON && cmake --build "$build" -j "$jobs" --target shipped_variants || return
    [ -n "${FFPA_NVRTC:-}" ] && return
    [ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv" || return
    "$work/venv/bin/python" -m pip install --quiet "nvidia-cuda-nvrtc==$version"
}

# family NAME: compile its list, judge it.
family() {
    local golden=tests/golden/resources_$1.csv table=$work/resources_$1.csv log=$work/$1.log
    local python=$work/venv/bin/python
    [ -x "$python" ] || python=python3
    if ! "$python" tools/compile_kernels.py --shipped "$build/tests/shipped_variants" --family "$1" --jobs "$jobs" \
        --csv "$table" >"$log" 2>&1; then
        grep -E -A 5 "WRONG|does not compile" "$log" || tail -n 20 "$log"
        echo "kernels: $1: a variant does not compile, has a stack frame, spills or draws a warning ($log)"
        return 1
    fi
    [ "${FFPA_GOLDEN:-}" = write ] && cp "$table" "$golden"
    if ! diff -u "$golden" "$table"; then
        echo "kernels: $1: resources differ from $golden; review, then: make golden-kernels"
        return 1
    fi
    echo "kernels: $1: $(tail -n 1 "$log"), resources as in $golden"
}

begin=$SECONDS failed=0
if ! prepare >"$work/prepare.log" 2>&1; then
    tail -n 20 "$work/prepare.log"
    echo "kernels: no list of variants or no NVRTC $version ($work/prepare.log)"
    exit 1
fi
[ $# -gt 0 ] || set -- $(ls kernels/*/shipped_*.txt | sed 's/.*shipped_\(.*\)\.txt/\1/')
for name in "$@"; do
    family "$name" || failed=1
done
[ $failed = 0 ] && echo "kernels: all green in $((SECONDS - begin)) s"
exit $failed
