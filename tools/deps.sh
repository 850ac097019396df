#!/bin/sh
# deps.sh [--install] build|check|fmt - are the tools for this job here? With --install, and as root or
# with sudo that asks nothing, the missing Debian packages are installed; else one line names them.
set -u
install=no
[ "${1:-}" = --install ] && install=yes && shift
job=${1:?usage: deps.sh [--install] build|check|fmt}

missing=
command_of() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
header_of() { [ -f "/usr/include/$1" ] || [ -f "/usr/local/include/$1" ] || missing="$missing $2"; }

if [ "$job" != fmt ]; then
    command_of cc gcc
    command_of cmake cmake
    command_of ninja ninja-build
    command_of pkg-config pkg-config
    header_of pthread.h libc6-dev
    header_of cjson/cJSON.h libcjson-dev
    header_of xxhash.h libxxhash-dev
    command_of python3 python3
fi
if [ "$job" != build ]; then
    command_of git git
    command_of clang-format-14 clang-format-14
fi
if [ "$job" = check ]; then
    command_of g++ g++
    command_of clang-14 clang-14
    [ -d /usr/lib/llvm-14/lib/clang ] && ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-* \
        >/dev/null 2>&1 || missing="$missing libclang-rt-14-dev"
    header_of cmocka.h libcmocka-dev
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi
[ -z "$missing" ] && exit 0

as_root=
[ "$(id -u)" = 0 ] || as_root="sudo -n"
if [ $install = yes ] && command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    echo "installing:$missing"
    log=$(mktemp)
    # shellcheck disable=SC2086 # the packages and "sudo -n" are words
    if $as_root apt-get update >"$log" 2>&1 &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing \
            >>"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log"
    rm -f "$log"
fi
echo "missing packages; install them with: sudo apt-get install$missing" >&2
exit 1
