"""Ranks on several GPUs: the session that started them has each one's own peak, to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hfmem_widget

torch = pytest.importorskip("torch")

WORLD = min(4, torch.cuda.device_count())
pytestmark = pytest.mark.skipif(WORLD < 2, reason="needs two GPUs")

SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
if sys.argv[2] == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    if sys.argv[2] == "oom" and rank == 1 and step == 5:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    batch = torch.randn(4096 * (1 + rank), 2048, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
said = {"peak": torch.cuda.max_memory_allocated(), "loss": loss.item()}
with open(os.path.join(sys.argv[1], f"said-{rank}.json"), "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
"""


def launched(tmp_path: Path, kind: str) -> tuple[hfmem_widget.Session, list[dict[str, float]]]:
    """Return the session of a training with torchrun, and what each rank has said of itself."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    with hfmem_widget.watch(kind, quiet=True) as session:
        subprocess.run(
            [sys.executable, *torchrun, str(script), str(tmp_path), kind], check=False, timeout=300
        )
    return session, [
        json.loads(path.read_text("utf-8")) for path in sorted(tmp_path.glob("said-*.json"))
    ]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_ranks_peak_is_its_own_to_the_byte(tmp_path: Path, kind: str) -> None:
    """And exact; the one with the largest batches is the worst."""
    session, said = launched(tmp_path, kind)
    ranks = session.run.ranks

    assert [ranks[rank].peak for rank in range(WORLD)] == [one["peak"] for one in said]
    assert {row.certainty for row in ranks.values()} == {"exact"}
    assert session.run.worst == WORLD - 1


def test_the_loss_is_what_it_is_without_us(tmp_path: Path) -> None:
    """Bit for bit, in every rank."""
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    _, followed = launched(tmp_path / "with", "ddp")
    script = tmp_path / "with" / "train.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    alone = [sys.executable, *torchrun, str(script), str(tmp_path / "without"), "ddp"]
    subprocess.run(alone, check=True, timeout=300)
    said = [json.loads(path.read_text("utf-8")) for path in sorted(tmp_path.glob("without/said-*"))]

    assert [one["loss"] for one in followed] == [one["loss"] for one in said]


def test_the_rank_that_ran_out_of_memory_is_named(tmp_path: Path) -> None:
    """It alone, with what it asked for."""
    session, _ = launched(tmp_path, "oom")
    findings = [one for one in session.run.findings if one.kind == "rank-oom"]

    assert len(findings) == 1
    assert "Rank 1" in findings[0].title
