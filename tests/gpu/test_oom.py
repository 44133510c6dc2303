"""Out-of-memory errors of different causes, provoked: the reason is right, the error is the user's own."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.gpu.conftest import Run

HARNESS = """
import contextlib, gc, io, os, re, sys, traceback
{before}
import torch
import hfmem_widget
GIB = 1 << 30
# With the hooks by which a Trainer's model is followed, torch calls it through one function more.
WAYS_INTO_A_MODULE = ("_call_impl", "_wrapped_call_impl", "inner")
SIZE = re.compile(r"[\\d.]+ (?:bytes|[KMG]iB)")

def bytes_of(size, **options):
    return torch.empty(int(size) // 4, device="cuda", **options)

torch.ones(1, device="cuda")
FREE, TOTAL = torch.cuda.mem_get_info()

{scenario}

def told(error):
    frames = [
        (frame.filename.rpartition("/")[2], frame.lineno, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
        if "/hfmem_widget/" not in frame.filename and frame.name not in WAYS_INTO_A_MODULE
    ]
    text = SIZE.sub("SIZE", str(error))
    return [type(error).__module__, type(error).__qualname__, re.sub(r"\\d+", "N", text), frames]

def attempt(watch):
    try:
        with watch as session:
            sessions.append(session)
            scenario()
    except BaseException as error:
        return told(error)

def let_go():
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    for name in ("model", "kept", "optimizer", "trainer"):
        globals().pop(name, None)
    gc.collect()
    torch.cuda.empty_cache()

sessions = []
bare = attempt(contextlib.nullcontext())
let_go()
before = torch.cuda.memory_allocated()
{attach}
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    watched = attempt(hfmem_widget.watch("provoked"))
let_go()
{after}
session = sessions[-1]
finding = next((one for one in session.findings if one.kind == "oom" and one.severity == "critical"), None)
report({{
    "bare": bare, "watched": watched,
    "left": torch.cuda.memory_allocated() - before,
    "finding": finding and [finding.title, dict(finding.evidence), list(finding.advice)],
    "printed": printed.getvalue(), "notes": list(session.notes),
}})
"""


class Provoked(NamedTuple):
    """How an error is provoked, why it then happens, and words of the first thing to change."""

    scenario: str
    cause: str
    advice: str = ""
    before: str = ""
    attach: str = ""
    after: str = ""
    is_observed: bool = True


FULL_OF_WEIGHTS = """
class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList()

def scenario():
    global model
    model = Layers()
    for _ in range(30):
        model.layers.append(torch.nn.Parameter(bytes_of(FREE / 20.5)))
"""

FRAGMENTED = """
def scenario():
    segment = FREE // 12 // (1 << 21) * (1 << 21)
    kept, holes = [], []
    while torch.cuda.mem_get_info()[0] > segment:
        whole = bytes_of(segment)
        del whole  # cached: the next two are cut from it
        kept.append(bytes_of(segment / 8))
        holes.append(bytes_of(segment * 7 / 8))
    del holes
    return bytes_of(segment)
"""

ANOTHER_PROCESS = """
import subprocess
HOLD = '''
import sys, torch
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
'''
other = subprocess.Popen([sys.executable, "-c", HOLD, str(int(FREE * 0.75))], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
assert other.stdout.readline().strip() == "ready"

def scenario():
    return bytes_of(FREE * 0.5)
"""

ATTENTION = """
from transformers import BertConfig, BertModel
TOKENS, HEADS = 32768, 64

def scenario():
    global model
    config = BertConfig(vocab_size=100, hidden_size=512, num_hidden_layers=1, num_attention_heads=HEADS,
                        intermediate_size=512, max_position_embeddings=TOKENS, attn_implementation="eager")
    with torch.device("cuda"):
        model = BertModel(config, add_pooling_layer=False)
        ids = torch.ones(1, TOKENS, dtype=torch.long)
    with torch.no_grad():
        return model(ids)
"""

LOGITS = """
from transformers import GPT2Config, GPT2LMHeadModel
VOCABULARY = 200_000

def scenario():
    global model
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=1024, n_embd=64, n_layer=1, n_head=4)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
        ids = torch.ones(int(0.55 * TOTAL / (4 * VOCABULARY * 1024)), 1024, dtype=torch.long)
    with hfmem_widget.span("step", tokens=ids.numel(), samples=len(ids), longest=1024):
        model(ids, labels=ids).loss.backward()
"""

LIMIT = """
torch.cuda.set_per_process_memory_fraction(0.05)

def scenario():
    kept = bytes_of(TOTAL * 0.03)
    return bytes_of(TOTAL * 0.03)
"""

LEAK = """
def scenario():
    weight = bytes_of(64 << 20, requires_grad=True)
    weight.data.zero_()
    losses = []
    for number in range(200):
        with hfmem_widget.span("step", step=number):
            wide = weight[: 1 << 20].expand(int(FREE / 30) // (4 << 20), -1)
            losses.append(wide.exp().sum())
"""

FIRST_STEP = """
class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(bytes_of(FREE * 0.3 / 16)) for _ in range(16))

def scenario():
    global model, optimizer
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    with hfmem_widget.span("step"), hfmem_widget.span("optimizer"):
        optimizer.step()
"""

TRAINER = """
import tempfile
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        return {"input_ids": torch.full((512,), 7), "labels": torch.tensor(0)}

def arguments(**options):
    return TrainingArguments(tempfile.mkdtemp(), report_to="none", disable_tqdm=True, save_strategy="no",
                             logging_strategy="no", dataloader_pin_memory=False, **options)
"""

EVALUATION = (
    TRAINER
    + """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def forward(self, input_ids, labels=None):
        size = int(FREE / 40) // (4 * len(input_ids))
        return {"loss": self.weight.sum(), "logits": torch.empty(len(input_ids), size, device="cuda")}

def scenario():
    global trainer
    trainer = Trainer(Wide(), arguments(per_device_eval_batch_size=8), eval_dataset=Rows(),
                      compute_metrics=lambda _: {})
    trainer.evaluate()
"""
)

ACTIVATIONS = (
    TRAINER
    + """
def scenario():
    global trainer
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096)
    size = int(4 * TOTAL / (2.6 * GIB))  # with four rows of 512 tokens the activations take about 3 GiB
    trainer = Trainer(BertForSequenceClassification(config),
                      arguments(per_device_train_batch_size=size, max_steps=2), train_dataset=Rows())
    trainer.train()
"""
)

ATTACH = "from hfmem_widget import attaching\nattaching.attach()"

CASES = {
    "full of weights": Provoked(
        FULL_OF_WEIGHTS, "full", "Load the model with dtype=torch.bfloat16"
    ),
    "fragmentation": Provoked(
        FRAGMENTED, "fragmentation", "Set PYTORCH_CUDA_ALLOC_CONF=expandable"
    ),
    "another process": Provoked(
        ANOTHER_PROCESS, "others", "End what else uses the GPU", after="other.kill(); other.wait()"
    ),
    "attention scores": Provoked(
        ATTENTION, "huge", 'Load the model with attn_implementation="sdpa"'
    ),
    "logits": Provoked(LOGITS, "huge", "Compute the loss without all logits"),
    "a limit": Provoked(LIMIT, "limit", "Raise the limit"),
    "losses with their graphs": Provoked(LEAK, "leak", "Let go of what is kept"),
    "states of the first step": Provoked(FIRST_STEP, "full", "adamw_8bit"),
    "predictions of an evaluation": Provoked(
        EVALUATION, "full", "Set eval_accumulation_steps", attach=ATTACH
    ),
    "activations of a training": Provoked(
        ACTIVATIONS, "full", "Turn gradient checkpointing on", attach=ATTACH
    ),
    "full, cudaMallocAsync": Provoked(
        FULL_OF_WEIGHTS,
        "full",
        "Load the model with dtype=torch.bfloat16",
        before='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"',
        is_observed=False,
    ),
    "full, expandable segments": Provoked(
        FULL_OF_WEIGHTS,
        "full",
        "Load the model with dtype=torch.bfloat16",
        before='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reason_is_found(run_python: Run, case: Provoked) -> None:
    """The diagnosis and its advice are right, the error is as it would be, and the memory is free again."""
    seen = run_python(
        HARNESS.format(
            scenario=case.scenario, before=case.before, attach=case.attach, after=case.after
        )
    )

    assert seen["finding"] is not None, seen
    title, evidence, advice = seen["finding"]
    assert evidence["cause"] == case.cause, seen["printed"]
    assert case.advice in " ".join(advice), seen["printed"]
    assert title.startswith("Out of memory on cuda:0")
    assert evidence["observed"] == case.is_observed, seen["notes"]
    assert "out of memory \u00b7 cuda:0" in seen["printed"]
    assert seen["watched"] == seen["bare"]
    assert seen["left"] <= 16 << 20


def test_what_is_noted_allocates_nothing(run_python: Run) -> None:
    """Tens of thousands of blocks are noted, each of them, without a byte of the GPU."""
    before, after, count, biggest = run_python(
        """
import torch
from hfmem_widget.sources.shortages import ShortageObserver
kept = [torch.empty(1 << 18, device="cuda") for _ in range(30_000)]
told = []
observer = ShortageObserver()
observer.listen(told.append)
before = torch.cuda.memory_stats()["allocation.all.allocated"]
try:
    torch.empty(1 << 45, device="cuda")
except torch.OutOfMemoryError:
    pass
after = torch.cuda.memory_stats()["allocation.all.allocated"]
(one,) = told
biggest = one.blocks.biggest[0]
report([before, after, one.blocks.count, [biggest.bytes, biggest.count]])
"""
    )
    assert after == before
    assert count >= 30_000
    assert biggest == [1 << 20, 30_000]


def test_blocks_have_their_lines_where_stacks_are_recorded(run_python: Run) -> None:
    """With a recording on, the biggest live blocks are told by the user's line."""
    (where,) = run_python(
        """
import torch
from hfmem_widget.sources.shortages import ShortageObserver
torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
def attend():
    return torch.empty(1 << 28, device="cuda")
kept = attend()
told = []
observer = ShortageObserver()
observer.listen(told.append)
try:
    torch.empty(1 << 45, device="cuda")
except torch.OutOfMemoryError:
    pass
report([told[0].blocks.biggest[0].where])
"""
    )
    assert where.endswith("in attend"), where


def test_a_batch_size_that_was_found_is_a_note(run_python: Run) -> None:
    """Errors that auto_find_batch_size caught are one note, and no card."""
    findings, printed = run_python(
        """
import contextlib, io, torch, hfmem_widget
from accelerate.utils import find_executable_batch_size
printed = io.StringIO()
with contextlib.redirect_stdout(printed), hfmem_widget.watch("find") as session:
    torch.ones(1, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    with hfmem_widget.span("warm up"):
        torch.cuda.synchronize()

    @find_executable_batch_size(starting_batch_size=64)
    def train(batch_size):
        torch.empty(int(total * batch_size / 40), dtype=torch.uint8, device="cuda")

    import time
    time.sleep(0.3)  # a tick finds that CUDA is up
    train()
found = [one for one in session.findings if one.kind == "oom"]
report([[[one.kind, one.severity, one.title] for one in found], printed.getvalue()])
"""
    )
    ((kind, severity, title),) = findings
    assert (kind, severity) == ("oom", "info")
    assert "caught" in title
    assert "out of memory \u00b7" not in printed
