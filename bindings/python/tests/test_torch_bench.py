"""python -m ffpa.bench: its table, its file and its picture."""
import json

import pytest

torch = pytest.importorskip("torch")

import ffpa  # noqa: E402
from ffpa import bench  # noqa: E402

PROBLEMS = ["fwd,f32,b1h2k1,q33k33,d320,causal", "bwd,f32,b1h2,q20k20,d64,bnhd", "fwd,f32,b1h4k1,q1k200,d512"]


def test_table_and_json(tmp_path, capsys, device):
    path = tmp_path / "rows.json"
    bench.main([*PROBLEMS, "--device", device, "--seconds", "0.01", "--json", str(path)])
    shown = capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    for problem in PROBLEMS:
        ours, math = ([r for r in rows if r["problem"] == problem and r["implementation"] == name][0]
                      for name in ("ffpa", "torch math"))
        assert problem in shown and ours["milliseconds"] > 0 and math["difference"] < 1e-3
        assert ours["unit"].endswith("B/s" if "q1k" in problem else "FLOP/s")
    assert all(r["milliseconds"] or r["note"] for r in rows), "a missing time has a reason"


def test_progress_on_terminals_only(monkeypatch, capsys):
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
        for done in range(3):
            bench.progress(done, 2, "fwd,f32")
        shown = capsys.readouterr().err
        assert shown.endswith("[%s] 2/2 %-56s\n" % ("#" * 30, "fwd,f32")) if terminal else shown == ""


def test_json_alone_is_json(capsys):
    bench.main([PROBLEMS[0], "--device", "cpu", "--seconds", "0.01", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("asked, word", [
    (["--seconds", "nan"], "--seconds"), (["--seconds", "-1"], "--seconds"), (["--json", "/nowhere/rows.json"], "--json"),
    (["--plot", "/nowhere/rates.png"], "--plot"), (["--plot", "rates.xyz"], "--plot"), (["--json", "/"], "--json")])
def test_what_cannot_be_done_is_said_before_the_work(monkeypatch, capsys, asked, word):
    if word == "--plot":
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("measured first"))
    with pytest.raises(SystemExit) as caught:
        bench.main([PROBLEMS[0], "--device", "cpu", *asked])
    assert caught.value.code == 2 and word in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys):
    with pytest.raises(SystemExit):
        bench.main([PROBLEMS[0], "--device", "cuda"])
    assert "--device cuda: PyTorch sees no GPU" in capsys.readouterr().err


def test_more_than_the_memory_holds_is_a_row(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    bench.main(["fwd,f32,b1h1,q4k400000000000,d512", "--device", "cpu", "--plot", str(tmp_path / "rates.png")])
    assert "allocate" in capsys.readouterr().out


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.png"
    bench.main([*PROBLEMS, "--device", "cpu", "--seconds", "0.01", "--plot", str(path)])
    assert path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 10000


def test_problems_it_does_not_do(capsys):
    for text in ("fwd,f32,b1h1,q4k4,d8,softcap5", "sideways", "fwd,f32,b0h1,q4k4,d8", "fwd,f32,b1h1,q4k0,d8"):
        with pytest.raises(SystemExit):
            bench.main([text])
        assert text in capsys.readouterr().err
    with pytest.raises(ffpa.FfpaError):
        bench.parse("fwd,f64,b1h1,q4k4,d8")
