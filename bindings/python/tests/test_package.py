"""The package as a whole: what it imports, asking, errors, processes and threads."""
import os
import pickle
import subprocess
import sys
import threading

import numpy
import pytest

import ffpa


def fresh(code, **environment):
    """Run code in a new interpreter; its standard output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, **environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_neither_torch_nor_numpy():
    out = fresh("import sys, ffpa; print(sorted({'torch', 'numpy'} & set(sys.modules)))")
    assert out.strip() == "[]"


def test_selftest_is_green():
    out = fresh("import ffpa; ffpa.selftest()")
    assert "7 passed, 0 failed" in out.splitlines()[-1]


def test_info_and_version():
    found = ffpa.info()
    assert found["ffpa"] == ffpa.__version__ and "backend=auto" in found["context"]
    assert os.path.exists(found["library"])


def test_explain():
    report = ffpa.explain("fwd,f32,b1h8k2,q100k100,d512,causal")
    assert report.problem == "fwd,f32,b1h8k2,q100k100,d512,causal" and report.path.startswith("cpu/")
    assert report.flop == 2 * 8 * (100 * 101 / 2) * 1024
    refused = ffpa.explain("fwd,f64,b1h1,q4k4,d8")
    assert refused.path == "" and refused.reason and refused.refusals
    with pytest.raises(ffpa.FfpaError, match="problem"):
        ffpa.explain("forward please")


def test_explain_a_call():
    q, k = numpy.ones((1, 4, 7, 64), "f4"), numpy.ones((1, 2, 9, 64), "f4")
    report = ffpa.explain(q, k, k, is_causal=True, enable_gqa=True)
    assert report.path.startswith("cpu/") and report.flop == 4 * 2 * 128 * sum(range(1, 8))
    backward = ffpa.explain(q, k, k, numpy.ones((7, 9), "f4"), backward=True, enable_gqa=True, sink=numpy.ones(4, "f4"))
    assert backward.path.endswith("/backward")
    refused = ffpa.explain(*[q.astype("f8")] * 3)
    assert refused.path == "" and "reference" in refused.reason


def test_explain_refuses_what_the_call_would():
    q = numpy.ones((1, 4, 7, 64), "f4")
    for call in (dict(dropout_p=7.0), dict(attn_mask=numpy.ones((7, 7), bool), is_causal=True), dict(key=q[:, :2]),
                 dict(backend="sdpa"), dict(backend="auto,")):
        call = dict(dict(key=q, value=call.get("key", q)), **call)
        with pytest.raises(ffpa.FfpaError):
            ffpa.explain(q, **call)
    for call in (dict(is_causal=True), dict(backward=True), dict(window=(1, 1)), dict(key=q)):
        with pytest.raises(ffpa.FfpaError, match="problem string"):
            ffpa.explain("fwd,f32,b1h1,q4k4,d8", **call)
    assert ffpa.explain(q.astype("f8"), q.astype("f8"), q.astype("f8"), backend="auto,reference").path == "reference/forward"
    assert ffpa.explain("fwd,f64,b1h1,q4k4,d8", backend="auto,reference").path == "reference/forward"


def test_errors_say_what_they_are_and_travel():
    with pytest.raises(ffpa.FfpaError) as caught:
        ffpa.explain("nonsense")
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, RuntimeError) and error.name == "FFPA_E_INVALID" and str(error) == str(caught.value)


def test_a_missing_library_is_an_import_error():
    done = subprocess.run([sys.executable, "-c", "import ffpa"], capture_output=True, text=True,
                          env=dict(os.environ, FFPA_LIBRARY="/nowhere/libffpa.so"))
    assert done.returncode == 1 and "ImportError" in done.stderr and "/nowhere/libffpa.so" in done.stderr


def test_another_library_is_an_import_error():
    import ctypes.util
    done = subprocess.run([sys.executable, "-c", "import ffpa"], capture_output=True, text=True,
                          env=dict(os.environ, FFPA_LIBRARY=ctypes.util.find_library("c")))
    assert done.returncode == 1 and "ImportError" in done.stderr and "ffpa_version" in done.stderr


@pytest.mark.parametrize("stand_in", ["None", "types.ModuleType('torch')"])
def test_torch_that_is_not_there(stand_in):
    out = fresh("import sys, types; sys.modules['torch'] = %s; import ffpa; ffpa.selftest()" % stand_in)
    assert "7 passed, 0 failed" in out.splitlines()[-1]


def test_star_import_needs_no_torch():
    out = fresh("import sys; sys.modules['torch'] = None\nfrom ffpa import *\nprint(register_transformers.__name__)")
    assert out.strip() == "register_transformers"


def test_selftest_fails_under_optimisation():
    done = subprocess.run([sys.executable, "-O", "-c", "import ffpa, ffpa._selftest as s; s.error = lambda *a: 5.0; ffpa.selftest()"],
                          capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1 and "7 of 7 checks failed" in done.stderr


def test_backend_of_the_environment():
    code = "import ffpa, numpy; q = numpy.ones((1, 1, 2, 4), 'f4'); ffpa.ffpa_attn_func(q, q, q); print(ffpa.last_path())"
    assert fresh(code, FFPA_BACKEND="reference").strip() == "reference/forward"


def test_fork_while_a_context_is_made():
    out = fresh("""
import os, ffpa
from ffpa import _library
_library._contexts_lock.acquire()  # as by a thread that the child will not have
child = os.fork()
if child == 0:
    ffpa.info()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))""")
    assert out.strip() == "7"


def test_log_lines_go_to_logging():
    out = fresh("import logging, numpy, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout); import ffpa;"
                "q = numpy.ones((1, 1, 4, 8), 'f4'); ffpa.ffpa_attn_func(q, q, q)")
    assert "INFO:ffpa:plan cpu/" in out


def test_threads():
    q = numpy.random.default_rng(0).standard_normal((1, 4, 60, 64), dtype="f4")
    expected, wrong = ffpa.ffpa_attn_func(q, q, q, is_causal=True), []

    def work():
        for _ in range(20):
            if not numpy.array_equal(ffpa.ffpa_attn_func(q, q, q, is_causal=True), expected):
                wrong.append(ffpa.last_path())

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork():
    q = numpy.random.default_rng(0).standard_normal((1, 4, 60, 64), dtype="f4")
    expected = ffpa.ffpa_attn_func(q, q, q)  # the parent's pool is running now
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os._exit(0 if numpy.array_equal(ffpa.ffpa_attn_func(q, q, q), expected) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]


def test_many_shapes_do_not_pile_up():
    from ffpa import _run
    for n in range(1, 700):
        q = numpy.ones((1, 1, n, 1), "f4")
        ffpa.ffpa_attn_func(q, q, q)
    assert len(_run._forward_problems.entries) <= _run._forward_problems.limit


# ---- the run-time compiler of GPU kernels ----------------------------------------------------------------------

@pytest.mark.parametrize("layout", ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                                    "torch/lib/libnvrtc-b51b459d.so.12"])
def test_nvrtc_beside_the_packages_of_an_environment(monkeypatch, tmp_path, layout):
    """Also of one that nobody activated: its interpreter is a link into another prefix. Where the library looks by
    itself it may choose by the driver's version, so nothing is named there."""
    from ffpa import _library
    packages = tmp_path / "env/lib/python3.12/site-packages"
    compiler = packages / layout
    compiler.parent.mkdir(parents=True)
    for name in (compiler.name, compiler.name.replace("libnvrtc", "libnvrtc-builtins", 1), compiler.name.replace(".so", ".alt.so")):
        (compiler.parent / name).touch()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "nothing"), str(packages)])
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert _library._nvrtc_elsewhere() == str(compiler).encode()
    monkeypatch.setenv("PATH", "%s/env/bin:/bin" % tmp_path)
    assert _library._nvrtc_elsewhere() is None
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    assert _library._nvrtc_elsewhere() is None
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    assert _library._nvrtc_elsewhere() is None


def test_prebuild(tmp_path):
    """With the compiler that pip put beside this package, without a GPU, in an interpreter started by its path."""
    if not any(os.path.isdir(os.path.join(folder, "nvidia")) for folder in sys.path) and not os.environ.get("FFPA_NVRTC"):
        pytest.skip("no package nvidia-cuda-nvrtc here")
    code = "import ffpa, sys; ffpa.prebuild('fwd,f32,b1h1,q4k4,d8', 'sm_80', sys.argv[1])"
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment, timeout=120)
    (kernel,) = tmp_path.iterdir()
    assert kernel.stat().st_size > 1000 and kernel.name.startswith("fwd_sm80_f32_d8v8") and kernel.suffix == ".cubin"
    with pytest.raises(ffpa.FfpaError, match="sm_12"):
        ffpa.prebuild("fwd,f32,b1h1,q4k4,d8", "sm_12", tmp_path)
