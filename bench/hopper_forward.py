#!/usr/bin/env python3
"""Forward of wide heads on a Hopper GPU under sustained load, the most telling problems first.

  hopper_forward.py LIBRARY [--seconds S] [--csv FILE] [PROBLEM...]"""
import gpu_turns

N = "q8192k8192"
WIDTHS = ("d320", "d1024", "d384", "d448", "d576", "d576v512", "d640", "d768", "d896")

TABLE = (
    [f"fwd,bf16,b1h32,{n},d512{c}" for n in (N, "q16384k16384") for c in ("", ",causal")]
    + [f"fwd,bf16,b1h32k8,{N},d512", "fwd,bf16,b1h32,q1024k8192,d512", f"fwd,f16,b1h32,{N},d512"]
    + [f"fwd,bf16,b1h32,{N},{d}{c}" for d in WIDTHS for c in ("", ",causal")]
    + ["fwd,bf16,b1h32,q8191k8191,d512", f"fwd,bf16,b1h32,{N},d512,bnhd"]
    + [f"fwd,bf16,b1h1,q{n}k{n},d512" for n in (16384, 4096)]
    + [f"fwd,bf16,b4h32,q{n}k{n},d512" for n in (512, 1024, 2048, 4096)])

if __name__ == "__main__":
    gpu_turns.main(__doc__, {"wide": TABLE})
