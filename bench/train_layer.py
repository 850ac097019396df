#!/usr/bin/env python3
"""A training step of one attention layer (causal, grouped heads 512 wide, bf16, projections included): forward and backward,
libffpa beside PyTorch's attention. The methods take turns; milliseconds are medians, memory is the peak of a step above the
layer's weights and its input.

    train_layer.py --csv bench/results/train_layer_h200.csv      a GPU; --device cpu --small tries it

PyTorch once as it takes grouped heads itself (enable_gqa), once with keys and values repeated first, which lets its
memory-efficient kernels run."""
import argparse
import datetime
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

import ffpa

SIZES = ((1, 2048), (1, 8192), (4, 2048))  # batch, rows
WIDTH, HEADS, SHARED, D = 4096, 32, 8, 512


class Layer(nn.Module):
    def __init__(self, width, heads, shared, d, device):
        super().__init__()
        make = {"bias": False, "device": device, "dtype": torch.bfloat16}
        self.q, self.k, self.v = (nn.Linear(width, n * d, **make) for n in (heads, shared, shared))
        self.out = nn.Linear(heads * d, width, **make)
        self.d = d

    def forward(self, x, attention):
        q, k, v = (p(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for p in (self.q, self.k, self.v))
        return self.out(attention(q, k, v).transpose(1, 2).flatten(2))


def repeated(q, k, v):
    times = q.shape[1] // k.shape[1]
    return functional.scaled_dot_product_attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1),
                                                   is_causal=True)


METHODS = {"ffpa": lambda q, k, v: ffpa.ffpa_attn_func(q, k, v, is_causal=True, enable_gqa=True),
           "torch": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
           "torch_repeated": repeated}


class Meter:
    """Seconds and peak bytes of a step."""

    def __init__(self, device):
        self.gpu = device == "cuda"

    def __call__(self, step):
        if self.gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        step()
        if not self.gpu:
            return time.perf_counter() - begin, 0
        torch.cuda.synchronize()
        return time.perf_counter() - begin, torch.cuda.max_memory_allocated() - before


def measure(layer, x, upstream, rounds, meter):
    """{method: (milliseconds, MiB)}; a method that runs out of memory is left out."""
    seconds, peak = {name: [] for name in METHODS}, {}

    def step(attention):
        layer(x, attention).backward(upstream)
        layer.zero_grad(set_to_none=True)
        x.grad = None

    for n in range(rounds + 1):  # the first round only warms up
        for name in list(seconds):
            try:
                took, peak[name] = meter(lambda name=name: step(METHODS[name]))
            except torch.cuda.OutOfMemoryError:
                del seconds[name]
                continue
            if n:
                seconds[name].append(took)
    return {name: (statistics.median(s) * 1e3, peak[name] / 2**20) for name, s in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    width, heads, shared, d = (64, 4, 2, 32) if asked.small else (WIDTH, HEADS, SHARED, D)
    layer = Layer(width, heads, shared, d, asked.device)
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    with open(asked.csv, "w", encoding="utf-8") as out:
        def tell(line):
            print(line, flush=True)
            out.write(line + "\n")
        tell(f"# {device}; torch {torch.__version__}; commit {asked.commit}; {datetime.date.today()}; width {width}, "
             f"{heads}:{shared} heads of {d}, causal, bf16; median of {asked.rounds} steps")
        tell("batch,rows," + ",".join(f"{name}_ms,{name}_mib" for name in METHODS))
        for batch, rows in ((1, 40),) if asked.small else SIZES:
            x = torch.randn(batch, rows, width, device=asked.device, dtype=torch.bfloat16, requires_grad=True)
            found = measure(layer, x, torch.randn_like(x), asked.rounds, Meter(asked.device))
            tell(f"{batch},{rows}," + ",".join("%.2f,%.0f" % found[name] if name in found else "," for name in METHODS))
        tell(f"# {ffpa.last_path()}")


if __name__ == "__main__":
    main()
