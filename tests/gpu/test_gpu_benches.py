"""The benches of a GPU without one: on a processor, with small problems, clocks in place of events. A row for each problem,
a comment for one that fails or is too late, a heading with date and commit."""
import importlib
import os
import pathlib
import re
import sys
import time

import pytest

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import cpu  # noqa: E402
import gpu_case  # noqa: E402

GOOD, CAUSAL, BROKEN = "fwd,bf16,b1h4k2,q40k40,d64", "bwd,bf16,b1h2,q40k40,d64v32,causal,bnhd", "fwd,bf16,b1h3k2,q8k8,d64"


def library():
    path = os.environ.get("FFPA_LIBRARY")
    if not path:
        path = pathlib.Path(importlib.import_module("ffpa").__file__).with_name("libffpa.so")
    return str(path)


class Clock:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


class SmallGemm:
    FLOP = 2.0 * 64**3

    def __init__(self):
        a = torch.randn(64, 64)
        self.run = lambda: a @ a


@pytest.fixture
def processor(monkeypatch):
    for name, value in dict(Event=Clock, synchronize=lambda: None, empty_cache=lambda: None, get_device_name=lambda: "a processor",
                            current_stream=lambda: type("Stream", (), {"cuda_stream": None})).items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gpu_case, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_case, "Gemm", SmallGemm)
    monkeypatch.setattr(gpu_case.Ffpa, "tensor", cpu.Ffpa.tensor)
    monkeypatch.setenv("COMMIT", "abc1234")


def run(monkeypatch, script, *args, **replaced):
    """(exit code, lines of the CSV) of bench/SCRIPT.py."""
    module = importlib.reload(importlib.import_module(script))  # takes the small GEMM
    for name, value in replaced.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", [script + ".py", library(), "--backend", "cpu", *args])
    with pytest.raises(SystemExit) as stopped:
        sys.exit(module.main(*(("doc", {"a table": [GOOD]}) if script == "gpu_turns" else ())))
    return stopped.value.code, pathlib.Path(args[args.index("--csv") + 1]).read_text().splitlines()


def rows_of(lines):
    return [re.sub(r'^"([^"]*)".*', r"\1", line) for line in lines if line.startswith('"')]


def test_turns(processor, monkeypatch, tmp_path):
    code, lines = run(monkeypatch, "gpu_turns", GOOD, BROKEN, CAUSAL, "nonsense", "--turns", "3", "--ms", "2", "--csv",
                      str(tmp_path / "a.csv"))
    assert code == 1 and rows_of(lines) == [GOOD, CAUSAL]
    assert re.match(r"# a processor; torch .*; \d{4}-\d\d-\d\d; commit abc1234; gpu_turns.py, 3 rounds, 2 ms", lines[0])
    assert lines[1].count(",") == 10
    assert all(re.sub('"[^"]*"', "", line).count(",") == 10 for line in lines if line.startswith('"'))
    failures = [line for line in lines if line.startswith("# FAILED")]
    assert BROKEN in failures[0] and "Hk" in failures[0] and "cannot read the problem nonsense" in failures[1]


def test_turns_stop_in_time_and_go_on_in_one_file(processor, monkeypatch, tmp_path):
    csv = str(tmp_path / "a.csv")
    assert run(monkeypatch, "gpu_turns", GOOD, "--turns", "0", "--csv", csv)[0] == 0
    code, lines = run(monkeypatch, "gpu_turns", "--seconds", "-1", "--csv", csv)
    assert code == 0 and f"# {GOOD}: cpu/" in lines[2] and lines[-1] == f"# not run within -1 s: {GOOD}"


def test_short_table(processor, monkeypatch, tmp_path):
    parts = {"forward": [GOOD, BROKEN, "fwd,bf16,b1h2,q8k40,d64"], "backward": ["bwd,bf16,b1h2,q40k40,d64"] * 3,
             "decode": ["fwd,bf16,b2h4k2,q1k300,d64"]}
    first = []
    code, lines = run(monkeypatch, "gpu", "--csv", str(tmp_path / "b.csv"), PARTS=parts, copy_tbytes=lambda: 1.0,
                      first_calls=lambda *args: first.append(args))
    assert code == 1 and len(first) == 1
    assert rows_of(lines) == [GOOD, parts["backward"][0], parts["decode"][0], parts["backward"][0], parts["forward"][2],
                              parts["backward"][0]]
    assert all(re.sub('"[^"]*"', "", line).count(",") == 9 for line in lines if line.startswith('"'))
    assert lines[-1].startswith("# roofs: GEMM")


def test_every_table_is_of_problems():
    tables = [importlib.import_module(name).TABLE for name in ("gpu_backward", "hopper_forward")]
    tables += list(importlib.import_module("hopper_small").TABLES.values())
    tables += [importlib.import_module("gpu").PARTS[part] for part in ("forward", "backward", "decode")]
    for table in tables:
        assert len(set(table)) == len(table) > 0
        assert all(gpu_case.Case(text).flop() > 0 for text in table)


def test_amounts():
    assert gpu_case.Case("fwd,f16,b2h4k2,q3k5,d8v16,causal").pairs() == 3 + 4 + 5
    assert gpu_case.Case("fwd,f16,b2h4k2,q5k3,d8").flop() == 2 * 2 * 4 * 15 * 16
    assert gpu_case.Case("bwd,f16,b1h1,q1k1,d8v16").flop() == 2 * (3 * 8 + 2 * 16)
    assert gpu_case.Case("fwd,bf16,b8h32k4,q1k32768,d512").kv_bytes() == 2**31


def test_training_layer(monkeypatch, tmp_path):
    module = importlib.import_module("train_layer")
    monkeypatch.setattr(sys, "argv", ["train_layer.py", "--device", "cpu", "--small", "--rounds", "1", "--csv", str(tmp_path / "c.csv")])
    module.main()
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[1].split(",")[2:4] == ["ffpa_ms", "ffpa_mib"] and lines[2].startswith("1,40,") and lines[2].count(",") == 7
