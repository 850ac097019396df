#!/bin/sh
# demo.sh - the main job on real tensors: attention of a sentence encoder's layer against float64
# answers, full and causal; then how fast a layer of head dimension 512 runs forward, backward and as a
# decoding step, and how.
set -eu
cd "$(dirname "$0")/.."
ffpa=${BUILD:-build}/ffpa
[ -x "$ffpa" ] || make --no-print-directory all
data=examples/data/minilm_l4_d384

show() {
    printf '\n$ %s\n' "$(echo "$*" | sed "s|^$ffpa|ffpa|")"
    "$@"
}
show "$ffpa" run $data.safetensors --expect ${data}_expected.safetensors
show "$ffpa" run $data.safetensors --causal --expect ${data}_expected.safetensors --expect-suffix _causal
show "$ffpa" bench fwd,bf16,b1h8,q1024k1024,d512 bwd,bf16,b1h8,q1024k1024,d512 fwd,bf16,b1h8k1,q1k16384,d512
show "$ffpa" explain fwd,bf16,b1h32k4,q4096k4096,d512,causal
