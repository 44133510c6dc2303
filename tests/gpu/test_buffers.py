"""Buffers of libraries on a real GPU: counted by what owns them, so that hardly anything is unexplained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Run
from tests.gpu.test_trainer import TRAINER
from tests.ranks.launch import TORCHRUN, free_port

MIB = 2**20
MOST_UNEXPLAINED = 0.05

ALONE = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
"""
"""One GPU: on several a Trainer splits its batches, and whose workspaces are where is not known."""

SUM = """
import json, sys
import torch, hfmem_widget
from hfmem_widget.analysis.parts import OF_ALLOCATED

def figures_of(session, key="cuda:0"):
    peak = session.anatomy("peak", device=key)
    parts = {part.name: part.bytes for part in peak.parts if part.name in OF_ALLOCATED}
    return {"peak": session.peak(key + "/allocated"), "total": peak.allocated, "certainty": peak.certainty,
            "parts": parts, "owners": dict(session.contents.libraries), "notes": list(peak.notes)}
"""

LOOP = """
def train(model, batch, steps=4, make=None):
    optimizer = (make or torch.optim.AdamW)(model.parameters(), 1e-4)
    for _ in range(steps):
        with hfmem_widget.span("step"):
            with hfmem_widget.span("forward"):
                loss = model(batch).float().pow(2).mean()
            with hfmem_widget.span("backward"):
                loss.backward()
            with hfmem_widget.span("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
"""

NET = """
def net(width=4096, layers=6):
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
"""


def check(figures: dict[str, Any], label: str) -> None:
    """Require the parts of a peak to come to it, and little of it to be unexplained."""
    parts, peak = figures["parts"], figures["peak"]
    unexplained = (parts.get("unattributed", 0.0) + parts.get("before", 0.0)) / peak
    sizes = {name: round(size / MIB, 1) for name, size in parts.items()}
    share = f"{100 * unexplained:.2f} % of {peak / MIB:.1f} MiB unexplained"
    print(f"{label}: {share}; {sizes}; {figures['owners']}")  # noqa: T201  (for docs/measured)
    assert sum(parts.values()) == figures["total"] == peak
    assert figures["certainty"] == "exact"
    assert unexplained <= MOST_UNEXPLAINED


@pytest.mark.parametrize("habit", ["", "bf16=True"])
def test_cublas_workspaces_are_counted(run_python: Run, habit: str) -> None:
    """By what PyTorch frees when they are cleared: the main thread's and autograd's."""
    figures, there = run_python.after(ALONE + TRAINER + SUM)(f"""
trainer = make_trainer([128] * 8, layers=6, {habit})
with hfmem_widget.watch("train", quiet=True) as session:
    trainer.train()
figures = figures_of(session)
del trainer
import gc; gc.collect()
left = torch.cuda.memory_allocated(0)
torch._C._cuda_clearCublasWorkspaces()
report([figures, left - torch.cuda.memory_allocated(0)])
""")

    check(figures, f"Trainer {habit}")
    assert figures["owners"]["cuBLAS workspaces"] == there > 0
    assert figures["parts"]["libraries"] == there


def test_before_the_first_product_there_is_no_workspace(run_python: Run) -> None:
    """Nor on a device that only holds tensors."""
    owners, libraries = run_python.after(SUM + NET)("""
model = net(1024, 2).cuda()
with hfmem_widget.watch("hold", quiet=True) as session:
    kept = torch.ones(1 << 20, device="cuda")
report([dict(session.contents.libraries), session.anatomy("peak", device="cuda:0").bytes("libraries")])
""")

    assert owners == {}
    assert not libraries > 0  # NaN: no such part


def test_a_graph_keeps_the_sum_of_the_parts(run_python: Run) -> None:
    """A captured forward pass, replayed: its outputs are allocated, and its workspace is counted."""
    report = run_python.after(SUM + NET)("""
model = net(2048, 8).cuda()
batch = torch.randn(512, 2048, device="cuda")
with hfmem_widget.watch("graph", quiet=True) as session, torch.no_grad():
    with hfmem_widget.span("predict"):
        model(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(batch)
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
report(figures_of(session))
""")

    parts = report["parts"]
    print(report)  # noqa: T201  (what of a graph's pool is explained)
    assert sum(parts.values()) == report["total"] == report["peak"]
    assert report["owners"]["cuBLAS workspaces"] > 0


def test_eight_bit_states_are_all_counted(run_python: Run) -> None:
    """The states of bitsandbytes, their scales and their shared code books."""
    pytest.importorskip("bitsandbytes")
    report = run_python.after(SUM + NET + LOOP)("""
import bitsandbytes as bnb
model = net(4096, 6).cuda()
with hfmem_widget.watch("8-bit", quiet=True) as session:
    train(model, torch.randn(256, 4096, device="cuda"), make=bnb.optim.AdamW8bit)
report(figures_of(session))
""")

    check(report, "bitsandbytes AdamW8bit")
    assert 1.9 < 4 * report["parts"]["optimizer"] / report["parts"]["weights"] < 2.3


RANKS = (
    SUM
    + NET
    + LOOP
    + """
import os
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

how, place = sys.argv[1:]
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
inner = net(4096, 12).cuda()
with hfmem_widget.watch(how, quiet=True) as session:
    if how == "fsdp2":
        for layer in inner:
            fully_shard(layer)
        model = fully_shard(inner)
    else:
        model = DistributedDataParallel(inner, device_ids=[rank], gradient_as_bucket_view=how == "views")
    train(model, torch.randn(1024, 4096, device="cuda"), steps=5)
figures = figures_of(session, f"cuda:{rank}")
if how != "fsdp2":
    buckets = model.reducer._get_zeros_like_grad_buckets()
    figures["buckets"] = sum(each.buffer().nbytes for each in buckets)
if rank == 0:
    with open(place, "w") as file:
        json.dump(figures, file)
dist.barrier()
dist.destroy_process_group()
"""
)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("how", ["ddp", "views", "fsdp2"])
def test_on_two_gpus_hardly_anything_is_unexplained(tmp_path: Path, how: str) -> None:
    """DDP's buckets are counted to the byte, and FSDP's gathered parameters."""
    script, place = tmp_path / "ranks.py", tmp_path / "figures.json"
    script.write_text(RANKS)
    command = [sys.executable, *TORCHRUN, free_port(), str(script), how, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    data = json.loads(place.read_text())

    check(data, how)
    assert data["owners"]["cuBLAS workspaces"] > 0
    if "buckets" in data:
        there = [size for name, size in data["owners"].items() if name.startswith("DDP")]
        assert there == [data["buckets"]]


def test_pinned_memory_is_counted_on_the_host(run_python: Run) -> None:
    """By PyTorch's own counter; before CUDA is initialised there is none, and nothing is initialised."""
    up, pinned, truth, notes = run_python.after(SUM)("""
import time
with hfmem_widget.watch("pin", quiet=True) as session:
    time.sleep(1.2)
    up = torch.cuda.is_initialized()
    torch.ones(1, device="cuda")
    kept = torch.empty(96 << 20, dtype=torch.uint8).pin_memory()
    time.sleep(2.5)
truth = torch.cuda.host_memory_stats()["allocated_bytes.current"]
report([up, session.latest("cpu/pinned"), truth, list(session.anatomy("now", device="cpu").notes)])
""")

    assert not up
    assert pinned == truth >= 96 * MIB
    assert any("pinned" in note for note in notes)
