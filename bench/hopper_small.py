#!/usr/bin/env python3
"""Forward of small heads on a Hopper GPU under sustained load: long sequences, or short ones (--table short).

  hopper_small.py LIBRARY [--table small|short] [--seconds S] [--csv FILE] [PROBLEM...]"""
import gpu_turns

N = "q8192k8192"
TABLES = {
    "small": [f"fwd,bf16,b1h32,{N},{d}{c}" for d in ("d64", "d128", "d256", "d96", "d160", "d192", "d192v128")
              for c in ("", ",causal")] + [f"fwd,bf16,b1h32k8,{N},{d},causal" for d in ("d64", "d128", "d256")]
             + [f"fwd,f16,b1h32,{N},d128", f"fwd,bf16,b1h32,{N},d128,bnhd", "fwd,bf16,b1h32,q8191k8191,d128"],
    "short": [f"fwd,bf16,b4h32,q{n}k{n},d{d}{c}" for n in (512, 1024, 2048, 4096) for d in (64, 128, 256)
              for c in ("", ",causal")],
}

if __name__ == "__main__":
    gpu_turns.main(__doc__, TABLES)
