"""Shared by all tests. The PyTorch half is skipped where torch is not installed, unless WITH_TORCH=1 says that it
must be there."""
import importlib.util
import os
import shutil

import pytest
from hypothesis import settings

os.environ.setdefault("FFPA_THREADS", "2")  # before a context exists

HAS_TORCH = importlib.util.find_spec("torch") is not None
if os.environ.get("WITH_TORCH") == "1" and not HAS_TORCH:
    raise RuntimeError("WITH_TORCH=1, and there is no torch in this environment")

settings.register_profile("ffpa", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ffpa")


def devices():
    if not HAS_TORCH:
        return ["cpu"]
    import torch
    return ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=devices())
def device(request):
    return request.param


@pytest.fixture(params=["aot_eager", "inductor"])
def compiler(request):
    """A backend of torch.compile that can work here."""
    if request.param == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    return request.param
