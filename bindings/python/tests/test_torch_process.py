"""Beside PyTorch in one process: OpenMP runtimes, DataLoader workers, threads, streams and graphs."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import ffpa  # noqa: E402
from ffpa._torch_autograd import SDPA  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_no_second_openmp_runtime():
    code = """
import re, torch
mapped = lambda: {m for m in re.findall(r"/\\S*lib[gi]?omp\\S*", open("/proc/self/maps").read())}
q = torch.randn(1, 2, 64, 64)
torch.mm(q[0, 0], q[0, 0])
before = mapped()
import ffpa
ffpa.ffpa_attn_func(q, q, q)
assert mapped() == before, (before, mapped())
print("one" if len(before) <= 1 else before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.strip() == "one", done.stdout + done.stderr


def test_import_brings_no_compiler():
    """torch._dynamo takes seconds to import; whoever compiles nothing does without."""
    code = """
import torch, sys
before = "torch._dynamo" in sys.modules
import ffpa
q = torch.randn(1, 2, 5, 16, requires_grad=True)
ffpa.ffpa_attn_func(q, q, q, torch.ones(5, 5)).sum().backward()
print(before, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    before, after = done.stdout.split()
    assert before == after, done.stderr


class Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        q = torch.full((1, 2, 20, 32), 0.1 * i)
        return ffpa.ffpa_attn_func(q, q, q, is_causal=True)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method, workers", [("fork", 2), ("spawn", 1)])  # a spawned one imports PyTorch for seconds
def test_data_loader_workers(method, workers):
    here = torch.stack([Attended()[i] for i in range(12)])  # the parent has used the library
    loader = torch.utils.data.DataLoader(Attended(), batch_size=4, num_workers=workers, multiprocessing_context=method)
    assert torch.cat(list(loader)).equal(here)


def test_threads_and_gradients(device):
    import threading
    q = torch.randn(1, 2, 40, 64, device=device)
    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(ffpa.ffpa_attn_func(leaf, leaf, leaf).square().sum(), leaf)[0]
    wrong = []

    def work():
        mine = q.clone().requires_grad_()
        for _ in range(15):
            grad = torch.autograd.grad(ffpa.ffpa_attn_func(mine, mine, mine).square().sum(), mine)[0]
            if not grad.equal(expected):
                wrong.append(grad)

    threads = [threading.Thread(target=work) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


@needs_gpu
def test_current_stream_is_used():
    q = torch.randn(1, 4, 500, 512, device="cuda", dtype=torch.bfloat16)
    expected = ffpa.ffpa_attn_func(q, q, q)
    torch.cuda.synchronize()
    side, late = torch.cuda.Stream(), torch.zeros_like(q)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # until the copy below, the input is zero
        late.copy_(q)
        out = ffpa.ffpa_attn_func(late, late, late)
    side.synchronize()
    assert out.equal(expected)


@needs_gpu
def test_cuda_graph_with_gradients_and_dropout():
    leaves = [torch.randn(1, 2, 100, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    step = lambda p: torch.autograd.grad(ffpa.ffpa_attn_func(*leaves, is_causal=True, dropout_p=p).float().square().sum(), leaves)
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        step(0.0), step(0.3)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain, dropped = step(0.0), step(0.3)
    seen = []
    for _ in range(3):
        with torch.no_grad():
            leaves[0].copy_(torch.randn_like(leaves[0]))
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(plain, step(0.0)):
            assert a.equal(b)
        graph.replay()
        torch.cuda.synchronize()
        seen.append(dropped[2].clone())
    assert not seen[0].equal(seen[1])


@needs_gpu
@pytest.mark.parametrize("backward", [False, True])
def test_workspace_comes_from_pytorchs_allocator(backward):
    q = torch.randn(1, 4, 600, 640, device="cuda", dtype=torch.bfloat16, requires_grad=backward)
    workspace = ffpa.explain(q, q, q, backward=backward).workspace_bytes
    assert workspace > 0 or not backward
    call = lambda: torch.autograd.grad(ffpa.ffpa_attn_func(q, q, q).sum(), q) if backward else ffpa.ffpa_attn_func(q, q, q)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before >= workspace + q.numel() * 2 and kept is not None
    assert torch.cuda.memory_allocated() - before <= 4 * q.numel() * 2, "the workspace went back"


@needs_gpu
def test_mixed_devices_name_the_argument():
    q = torch.randn(1, 2, 4, 8)
    for call in (lambda: ffpa.ffpa_attn_func(q.cuda(), q.cuda(), q.cuda(), torch.ones(4, 4, dtype=torch.bool)),
                 lambda: ffpa.ffpa_attn_func(q.cuda(), q, q)):
        with pytest.raises(ffpa.FfpaError, match="is on cpu, query on cuda:0"):
            call()


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")


@two_gpus
def test_device_of_the_tensors_is_used():
    q = torch.randn(1, 2, 30, 64, device="cuda:1")
    assert torch.cuda.current_device() == 0
    out = ffpa.ffpa_attn_func(q, q, q)
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    torch.testing.assert_close(out, SDPA(q, q, q), rtol=1e-3, atol=1e-4)


@two_gpus
@pytest.mark.parametrize("d", [64, 512])
def test_both_devices_give_the_same_bits(d):
    inputs = [torch.randn(1, 4, 300, d, device="cuda:0", dtype=torch.bfloat16) for _ in range(4)]
    results = []
    for device in ("cuda:0", "cuda:1"):
        q, k, v, dout = (t.detach().to(device) for t in inputs)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        out = ffpa.ffpa_attn_func(*leaves, is_causal=True)
        results.append([out, *torch.autograd.grad(out, leaves, dout)])
        assert torch.cuda.current_device() == 0
    for here, there in zip(*results):
        assert there.device.index == 1 and here.equal(there.to("cuda:0"))


@two_gpus
def test_threads_use_a_device_each():
    inputs = torch.randn(1, 4, 500, 128)

    def outputs(device):
        with torch.cuda.device(device):
            q = inputs.to(device, torch.bfloat16)
            return [ffpa.ffpa_attn_func(q, q, q).cpu() for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(outputs, ("cuda:0", "cuda:1"))
    assert all(a.equal(here[0]) for a in here + there)
