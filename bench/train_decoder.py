#!/usr/bin/env python3
"""Train a small decoder with heads 512 wide (grouped, causal, bf16 autocast) on this repository's own text, once with
PyTorch's attention and once with libffpa's, from the same weights and batches. A third run, PyTorch's with another
order of batches, shows how far apart two curves of one method lie.

    train_decoder.py --csv bench/results/train_h200.csv        run (a GPU; --device cpu --steps 3 --small tries it)
    train_decoder.py --plot bench/results/train_h200.csv       draw the picture beside a csv
"""
import argparse
import csv
import datetime
import pathlib
import statistics
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ("PyTorch", "libffpa", "PyTorch, other batches")


def corpus():
    import torch
    names = sorted(p for pattern in ("src/**/*.[ch]", "kernels/**/*.cuh", "docs/**/*.md") for p in ROOT.glob(pattern))
    return torch.frombuffer(bytearray(b"\n".join(p.read_bytes() for p in names)), dtype=torch.uint8)


def decoder(width, layers, heads, shared, d):
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v = (nn.Linear(width, n * d, bias=False) for n in (heads, shared, shared))
            self.out = nn.Linear(heads * d, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, attention):
            y = self.before(x)
            q, k, v = (f(y).unflatten(-1, (-1, d)).transpose(1, 2) for f in (self.q, self.k, self.v))
            x = x + self.out(attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.between(x))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(8192, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(width, 256)

        def forward(self, tokens, attention):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for layer in self.layers:
                x = layer(x, attention)
            return self.head(x)

    torch.manual_seed(0)
    return Decoder()


def train(attention, sizes, asked, seed):
    """(loss, seconds) of each step."""
    import torch
    model = decoder(*sizes).to(asked.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data, draw = corpus().to(asked.device).long(), torch.Generator().manual_seed(seed)
    finish = torch.cuda.synchronize if asked.device == "cuda" else lambda: None
    curve = []
    for _ in range(asked.steps):
        starts = torch.randint(0, len(data) - asked.length - 1, (asked.batch,), generator=draw)
        rows = torch.stack([data[s:s + asked.length + 1] for s in starts.tolist()])
        finish()
        begin = time.perf_counter()
        with torch.autocast(asked.device, torch.bfloat16):
            logits = model(rows[:, :-1], attention)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        finish()
        curve.append((loss.item(), time.perf_counter() - begin))
    return curve


def smooth(values, span=10):
    return [statistics.fmean(values[max(0, i - span + 1):i + 1]) for i in range(len(values))]


def summary(columns, milliseconds):
    ours, theirs, other = (smooth(columns[name]) for name in ("libffpa", "PyTorch", "PyTorch, other batches"))
    apart = max(abs(a - b) for a, b in zip(ours, theirs))
    noise = max(abs(a - b) for a, b in zip(other, theirs))
    return ("final loss: PyTorch %.4f, libffpa %.4f; largest distance of the curves (means of 10 steps) %.4f, with other "
            "batches %.4f; median step: PyTorch %.1f ms, libffpa %.1f ms" % (
                theirs[-1], ours[-1], apart, noise, milliseconds["PyTorch"], milliseconds["libffpa"]))


def run(asked):
    import torch
    import ffpa
    sizes = (64, 2, 2, 1, 512) if asked.small else (1024, 3, 4, 2, 512)
    if asked.small:
        asked.batch, asked.length = 1, 64
    sdpa = torch.nn.functional.scaled_dot_product_attention
    methods = ((sdpa, 0), (ffpa.ffpa_attn_func, 0), (sdpa, 1))
    curves = {}
    for name, (attention, seed) in zip(RUNS, methods):
        curves[name] = train(attention, sizes, asked, seed)
        print("%s: loss %.4f after %.1f s" % (name, curves[name][-1][0], sum(t for _, t in curves[name])), flush=True)
    columns = {name: [loss for loss, _ in curve] for name, curve in curves.items()}
    milliseconds = {name: statistics.median(t for _, t in curve[len(curve) // 4:]) * 1e3 for name, curve in curves.items()}
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    about = "%s; torch %s; %s; commit %s; %s; batch %d x %d, width %d, %d layers, %d:%d heads of %d; %s" % (
        device, torch.__version__, ffpa.info()["context"], asked.commit, datetime.date.today(), asked.batch, asked.length,
        *sizes, ffpa.last_path())
    with open(asked.csv, "w", newline="", encoding="utf-8") as file:
        file.write("# %s\n# %s\n" % (about, summary(columns, milliseconds)))
        out = csv.writer(file)
        out.writerow(("step",) + RUNS)
        out.writerows([step] + ["%.5f" % columns[name][step] for name in RUNS] for step in range(asked.steps))
    print(about + "\n" + summary(columns, milliseconds))


def plot(path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    notes, rows = [x[2:] for x in lines if x.startswith("#")], list(csv.DictReader(x for x in lines if not x.startswith("#")))
    figure, panel = pyplot.subplots(figsize=(8, 4.5))
    for name, style in zip(RUNS, (dict(color="#34495e", linewidth=2.5), dict(color="#c0392b", linewidth=1.2),
                                  dict(color="#aab7b8", linewidth=1, linestyle="--"))):
        panel.plot([int(r["step"]) for r in rows], smooth([float(r[name]) for r in rows]), label=name, **style)
    panel.set_xlabel("step")
    panel.set_ylabel("loss, mean of 10 steps (nats per byte)")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(notes[1].replace("; median", ";\nmedian").replace("; largest", ";\nlargest"), fontsize=8, loc="left")
    figure.tight_layout()
    figure.savefig(pathlib.Path(path).with_suffix(".png"), dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", help="train, and write the curves to this file")
    parser.add_argument("--plot", metavar="CSV", help="draw a csv written before")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if asked.csv:
        run(asked)
    if asked.plot:
        plot(asked.plot)


if __name__ == "__main__":
    main()
