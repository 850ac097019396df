"""The shared library: found, opened, asked for contexts; its errors as exceptions."""
import ctypes
import glob
import logging
import os
import pathlib
import sys
import threading

from . import _abi

log = logging.getLogger("ffpa")

_STATUS_NAMES = {value: name for name, value in vars(_abi).items() if name == "FFPA_OK" or name.startswith("FFPA_E_")}


class FfpaError(RuntimeError):
    """What a call could not do. `status` is the library's code (FFPA_E_INVALID, ...), `name` its name, and the
    text a sentence that names the argument, its value and the rule."""

    def __init__(self, status, sentence):
        self.status, self.sentence = status, sentence

    @property
    def name(self):
        return _STATUS_NAMES.get(self.status, str(self.status))

    def __str__(self):
        return self.sentence


class FfpaTypeError(FfpaError, TypeError):
    """An argument of a type that cannot mean anything: for PyTorch's functions that is a TypeError."""


def invalid(sentence):
    return FfpaError(_abi.FFPA_E_INVALID, sentence)


def wrong_type(sentence):
    return FfpaTypeError(_abi.FFPA_E_INVALID, sentence)


def unsupported(sentence):
    return FfpaError(_abi.FFPA_E_UNSUPPORTED, sentence)


def _open():
    path = os.environ.get("FFPA_LIBRARY") or str(pathlib.Path(__file__).with_name("libffpa.so"))
    try:
        opened = ctypes.CDLL(path)
        version = opened.ffpa_version()
    except (OSError, AttributeError) as error:  # not there, not a library, not this one
        raise ImportError("ffpa: cannot open its library: %s" % error) from None
    if (version >> 16, version >> 8 & 255) != (_abi.FFPA_VERSION_MAJOR, _abi.FFPA_VERSION_MINOR):
        raise ImportError("ffpa: %s has version %d.%d, this package needs %d.%d" % (
            path, version >> 16, version >> 8 & 255, _abi.FFPA_VERSION_MAJOR, _abi.FFPA_VERSION_MINOR))
    return _abi.declare(opened), path


lib, library_path = _open()


def check(status):
    if status:
        raise FfpaError(status, lib.ffpa_last_error().decode(errors="replace"))


def new(struct, **values):
    """A zeroed struct with its size set."""
    made = struct(**values)
    made.struct_size = ctypes.sizeof(struct)
    return made


# ---- contexts: one for each backend name, made at first use and kept ------------------------------------

BACKENDS = ("auto", "cuda", "cpu", "reference", "naive")
_contexts = {}
_contexts_lock = threading.Lock()


def _after_fork():
    global _contexts_lock
    _contexts_lock = threading.Lock()  # a thread that the child does not have may have held it


os.register_at_fork(after_in_child=_after_fork)

_LOG_LEVELS = {_abi.FFPA_LOG_ERROR: logging.ERROR, _abi.FFPA_LOG_INFO: logging.INFO, _abi.FFPA_LOG_DEBUG: logging.DEBUG}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
def _log_line(user, level, line):
    log.log(_LOG_LEVELS.get(level, logging.DEBUG), "%s", line.decode(errors="replace"))


def _nvrtc_elsewhere():
    """NVRTC beside a package that Python finds and the library would not: in an environment whose interpreter was
    started without activating it, in a folder of PYTHONPATH. The library looks under `seen` by itself."""
    variables, path = os.environ.get, os.environ.get("PATH", "").split(":")
    interpreter = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable or "/usr/bin/python3")))
    seen = {variables("VIRTUAL_ENV"), variables("CONDA_PREFIX"), interpreter, os.path.expanduser("~/.local"),
            *[folder[:-4] for folder in path if folder.endswith("/bin")]}
    for folder in filter(None, sys.path):
        prefix, _, rest = folder.rpartition("/lib/python3")
        if prefix in seen and rest.endswith(("/site-packages", "/dist-packages")):
            continue
        for pattern in ("nvidia/cu[0-9]*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*",
                        "torch/lib/libnvrtc[.-]*so*"):
            found = [f for f in sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
                     if "builtins" not in f and ".alt." not in f]
            if found:
                return found[-1].encode()
    return None


def context(backend="auto"):
    """The context of a backend by name; a name that is none of BACKENDS is a family of GPU kernels. What goes wrong
    while making it is raised each time."""
    found = _contexts.get(backend)
    if found is None:
        with _contexts_lock:
            found = _contexts.get(backend) or _contexts.setdefault(backend, _make(backend))
    return found


def _make(backend):
    name = backend if backend in BACKENDS or "/" in backend else "cuda/" + backend
    options = new(_abi.ffpa_context_options)
    if name != "auto":  # which leaves the choice to FFPA_BACKEND
        options.backend = name.encode()
    if not os.environ.get("FFPA_NVRTC"):
        options.nvrtc_path = _nvrtc_elsewhere()
    if log.isEnabledFor(logging.INFO):
        options.log = ctypes.cast(_log_line, ctypes.c_void_p).value
    made = ctypes.c_void_p()
    check(lib.ffpa_context_create(ctypes.byref(options), ctypes.byref(made)))
    return made


def describe(backend="auto"):
    return lib.ffpa_context_describe(context(backend)).decode()


def version():
    packed = lib.ffpa_version()
    return "%d.%d.%d" % (packed >> 16, packed >> 8 & 255, packed & 255)
