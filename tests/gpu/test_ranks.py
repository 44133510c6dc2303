"""Ranks on several GPUs: the session that started them has each one's own peak, to the byte."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from tests.gpu.conftest import Run
from tests.gpu.notebook import execute, printed
from tests.ranks.launch import free_port

torch = pytest.importorskip("torch")

WORLD = torch.cuda.device_count()
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
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
if sys.argv[2] in ("fsdp", "tp"):
    from torch.distributed.fsdp import fully_shard
    mesh = None
    if sys.argv[2] == "tp":
        from torch.distributed import tensor
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        halves = (tensor.parallel.ColwiseParallel, tensor.parallel.RowwiseParallel)
        plan = {str(at): halves[at % 2]() for at in range(8)}
        tensor.parallel.parallelize_module(model, mesh["tp"], plan)
        mesh = mesh["dp"]
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    if sys.argv[2] == "oom" and rank == 1 and step == 5:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    if sys.argv[2] == "keeps" and rank == 1 and step == 5:
        kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    if sys.argv[2] == "late" and rank == 1 and step == 20:
        time.sleep(25)
    larger = rank // 2 if sys.argv[2] == "tp" else 0 if sys.argv[2] == "keeps" else rank
    batch = torch.randn(4096 * (1 + larger), 2048, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
    time.sleep(0.05)
figures = {"peak": torch.cuda.max_memory_allocated(), "loss": loss.item()}
with open(os.path.join(sys.argv[1], f"figures-{rank}.json"), "w") as file:
    json.dump(figures, file)
dist.destroy_process_group()
"""

TRAINER = """
import json, os, sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 128
    def __getitem__(self, at):
        return {"input_ids": torch.arange(128) + at, "labels": torch.tensor(at % 2)}

torch.manual_seed(0)
shape = dict(hidden_size=1024, num_hidden_layers=6, num_attention_heads=16, intermediate_size=4096)
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=8, per_device_train_batch_size=8, report_to=[], save_strategy="no",
    fsdp="full_shard auto_wrap",
    fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]},
)
model = BertForSequenceClassification(BertConfig(**shape))
Trainer(model=model, args=arguments, train_dataset=Rows()).train()
figures = {"peak": torch.cuda.max_memory_allocated()}
with open(os.path.join(sys.argv[1], f"figures-{os.environ['LOCAL_RANK']}.json"), "w") as file:
    json.dump(figures, file)
torch.distributed.destroy_process_group()
"""

IN_A_NOTEBOOK = """
def train():
    import sys
    sys.argv = ["train.py", {folder!r}, "ddp"]
    exec({script!r}, {{"__name__": "train"}})
"""


def launched(tmp_path: Path, kind: str) -> tuple[hfmem_widget.Session, list[dict[str, float]]]:
    """Return the session of a training with torchrun, and each rank's own figures."""
    script = tmp_path / "train.py"
    script.write_text(TRAINER if kind == "trainer" else SCRIPT, encoding="utf-8")
    with hfmem_widget.watch(kind, quiet=True) as session:
        subprocess.run(
            [sys.executable, *TORCHRUN, str(script), str(tmp_path), kind], check=False, timeout=300
        )
    return session, figures_in(tmp_path)


def figures_in(folder: Path) -> list[dict[str, float]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("figures-*.json"))]


WORST = {"ddp": {WORLD - 1}, "fsdp": {WORLD - 1}, "tp": {WORLD - 2, WORLD - 1}, "keeps": {1}}
"""Which rank may have the highest peak; tensor parallel ranks share their batches."""


@pytest.mark.parametrize("kind", WORST)
def test_every_ranks_peak_is_its_own_to_the_byte(tmp_path: Path, kind: str) -> None:
    """And exact; the one with the largest batches, or that keeps 64 MiB more, is the worst."""
    session, figures = launched(tmp_path, kind)
    ranks = session.run.ranks

    assert [ranks[rank].peak for rank in range(WORLD)] == [one["peak"] for one in figures]
    assert {row.certainty for row in ranks.values()} == {"exact"}
    assert session.run.worst in WORST[kind]


def test_a_trainer_with_fsdp_has_every_ranks_peak_and_steps(tmp_path: Path) -> None:
    """To the byte; the script has no word of us."""
    session, figures = launched(tmp_path, "trainer")
    run = session.run

    assert [run.ranks[rank].peak for rank in range(WORLD)] == [one["peak"] for one in figures]
    assert [run.session(rank).steps.count for rank in range(WORLD)] == [8] * WORLD


def test_a_notebooks_own_launch_has_every_ranks_peak(tmp_path: Path) -> None:
    """In a real kernel, with accelerate's notebook_launcher, which forks."""
    launch = f"notebook_launcher(train, num_processes={WORLD}, use_port={free_port()!r})"
    notebook = execute(
        "%load_ext hfmem_widget\nfrom accelerate import notebook_launcher",
        IN_A_NOTEBOOK.format(folder=str(tmp_path), script=SCRIPT),
        f"%%memwatch -o s\n{launch}",
        (
            "import json, torch\n"
            "print(json.dumps([torch.cuda.is_initialized(), [row.peak for row in s.run.ranks.values()]]))"
        ),
    )
    initialised, peaks = json.loads(printed(notebook.cells[-1]))

    assert peaks == [one["peak"] for one in figures_in(tmp_path)]
    assert len(peaks) == WORLD
    assert initialised is False


def test_the_loss_is_what_it_is_without_us(tmp_path: Path) -> None:
    """Bit for bit, in every rank."""
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    _, followed = launched(tmp_path / "with", "ddp")
    script = tmp_path / "with" / "train.py"
    alone = [sys.executable, *TORCHRUN, str(script), str(tmp_path / "without"), "ddp"]
    subprocess.run(alone, check=True, timeout=300)
    figures = figures_in(tmp_path / "without")

    assert [one["loss"] for one in followed] == [one["loss"] for one in figures]


def test_the_rank_that_ran_out_of_memory_is_named(tmp_path: Path) -> None:
    """It alone, with its request."""
    session, _ = launched(tmp_path, "oom")
    findings = [one for one in session.run.findings if one.kind == "rank-oom"]

    assert len(findings) == 1
    assert "Rank 1" in findings[0].title


def test_a_rank_that_waits_for_a_late_one_is_not_called_behind(tmp_path: Path) -> None:
    """Rank 1 slept in step 21; the progress of ranks within short steps is unknown."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    late: list[hfmem_widget.Finding] = []
    command = [sys.executable, *TORCHRUN, str(script), str(tmp_path), "late"]
    with hfmem_widget.watch("late", quiet=True) as session, subprocess.Popen(command) as launcher:
        while launcher.poll() is None:
            time.sleep(0.2)
            found = session.run.findings if session.run else ()
            late += [one for one in found if one.kind == "rank-behind"]

    assert [one.title for one in late if "Rank 1" not in one.title] == []


TOGETHER = """
import json, os, sys
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainerCallback, TrainingArguments

class FromTheSecondStep(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 1:
            torch.cuda.reset_peak_memory_stats()

values = json.loads(sys.argv[2])
fsdp = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2}} if sys.argv[3] == "fsdp" else {}
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=4, per_device_train_batch_size=4, report_to=[], save_strategy="no",
    bf16=True, disable_tqdm=True, **fsdp,
)
row = {"input_ids": torch.arange(512), "labels": torch.arange(512)}
trainer = Trainer(
    Qwen2ForCausalLM(Qwen2Config(**values)), arguments, train_dataset=[row] * 64,
    callbacks=[FromTheSecondStep()],
)
trainer.train()
with open(os.path.join(sys.argv[1], f"figures-{os.environ['LOCAL_RANK']}.json"), "w") as file:
    json.dump({"peak": torch.cuda.max_memory_allocated()}, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_rank_by_itself_takes_what_ranks_of_a_trainer_take(tmp_path: Path, way: str) -> None:
    """Within a percent, on one GPU."""
    from transformers import Qwen2Config

    shape = {
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "use_cache": False,
    }
    shape |= {"num_key_value_heads": 8, "intermediate_size": 2816, "vocab_size": 50_000}
    script = tmp_path / "train.py"
    script.write_text(TOGETHER, encoding="utf-8")
    arguments = [str(script), str(tmp_path), json.dumps(shape), way]
    subprocess.run([sys.executable, *TORCHRUN, *arguments], check=True, timeout=300)
    choices: Any = {"batch": 4, "length": 512, "precision": "bf16", "shards": f"{way}:{WORLD}"}
    tried = hfmem_widget.fit(Qwen2Config(**shape), **choices, attempt=True).tried

    assert tried is not None
    assert all(one["peak"] == pytest.approx(tried.peak, rel=0.01) for one in figures_in(tmp_path))


REPLICAS = """
import tempfile
import torch
import hfmem_widget
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

for device in range(torch.cuda.device_count()):
    share = 8 * 2**30 / torch.cuda.mem_get_info(device)[1]
    torch.cuda.set_per_process_memory_fraction(share, device)
row = {"input_ids": torch.arange(512), "labels": torch.arange(512)}
config = Qwen2Config(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, vocab_size=50_000,
                     intermediate_size=2816, num_key_value_heads=8)
arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=16, report_to=[],
                              save_strategy="no", bf16=True, disable_tqdm=True)
trainer = Trainer(Qwen2ForCausalLM(config), arguments, train_dataset=[row] * 128)
try:
    with hfmem_widget.watch("replicas", quiet=True) as session:
        trainer.train()
except torch.OutOfMemoryError:
    pass
torch.cuda.set_per_process_memory_fraction(1.0, 0)
tried = hfmem_widget.fit(session, attempt=True).moves
report([[move.name, move.batch, move.fits, move.tried] for move in (*session.moves, *tried)])
"""


def test_replicas_that_run_out_have_changes_to_one_process_for_each_gpu(run_python: Run) -> None:
    """As of a Trainer in one process, which takes all GPUs; these have as many rows as now, and are tried."""
    moves = run_python(REPLICAS)

    assert {batch for name, batch, *_ in moves if " accumulated" not in name} == {16}
    assert {name.partition(" on ")[0] for name, *_ in moves} <= {"DistributedDataParallel", "FSDP"}
    assert any(tried for *_, tried in moves)
