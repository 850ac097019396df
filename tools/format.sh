#!/bin/sh
# format.sh [--write] - check (or rewrite) the C sources with the one clang-format that CI uses. Not
# kernels/: its tables and PTX stand in columns by hand.
set -eu
cd "$(dirname "$0")/.."
mode="--dry-run --Werror"
[ "${1:-}" = --write ] && mode=-i
# shellcheck disable=SC2086 # two options
git ls-files -z --cached --others --exclude-standard '*.c' '*.h' '*.cc' ':!kernels' | xargs -0 -n 40 -P "$(nproc)" clang-format-14 $mode
