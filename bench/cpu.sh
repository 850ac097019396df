#!/usr/bin/env bash
# The CPU bench of the README: sets up PyTorch in a venv of its own, then runs bench/cpu.py.
# Arguments go to cpu.py; a full run writes its rows to bench/results/cpu-<date>.csv.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${FFPA_BENCH_VENV:-.venv/bench}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import torch' 2>/dev/null || "$venv/bin/pip" install --quiet torch==2.13.0 numpy
if [ $# -eq 0 ]; then
    mkdir -p bench/results
    set -- --csv "bench/results/cpu-$(date +%F).csv"
fi
exec "$venv/bin/python" bench/cpu.py --library build/libffpa.so "$@"
