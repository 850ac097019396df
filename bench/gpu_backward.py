#!/usr/bin/env python3
"""Backward of libffpa on an NVIDIA GPU under sustained load, the most telling problems first.

  gpu_backward.py LIBRARY [--seconds S] [--csv FILE] [PROBLEM...]"""
import gpu_turns

N = "q8192k8192"
FULL_AND_CAUSAL = ("", ",causal")

TABLE = (
    [f"bwd,bf16,b1h32,{N},d512{c}" for c in FULL_AND_CAUSAL]
    + [f"bwd,bf16,b1h32,q16384k16384,d512{c}" for c in FULL_AND_CAUSAL]
    + [f"bwd,bf16,b1h32k8,{N},d512{c}" for c in FULL_AND_CAUSAL]
    + [f"bwd,bf16,b1h32,{N},d{d}{c}" for d in (320, 256, 1024, 128, 384, 448, 64, 576, 640, 768) for c in FULL_AND_CAUSAL]
    + [f"bwd,bf16,b1h32k8,{N},d256,causal", f"bwd,bf16,b1h32,{N},d192v128,causal", f"bwd,bf16,b1h32,{N},d576v512",
       f"bwd,bf16,b1h32,{N},d512,bnhd", f"bwd,f16,b1h32,{N},d512"]
    + [f"bwd,bf16,b1h1,q{n}k{n},d512" for n in (4096, 16384)] + [f"bwd,bf16,b1h8k1,{N},d512"]
    + [f"bwd,bf16,b4h32,q{n}k{n},d512" for n in (512, 1024, 2048, 4096)])

if __name__ == "__main__":
    gpu_turns.main(__doc__, {"backward": TABLE})
