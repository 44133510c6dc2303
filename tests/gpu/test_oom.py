"""Out-of-memory errors of different causes, provoked: the reason is right, the error is the user's own."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from tests.gpu.conftest import Run

pytestmark = pytest.mark.whole_card

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
printed, complained = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
    watched = attempt(hfmem_widget.watch("provoked"))
let_go()
{after}
session = sessions[-1]
finding = next((one for one in session.findings if one.kind == "oom" and one.severity == "critical"), None)
report({{
    "bare": bare, "watched": watched,
    "left": torch.cuda.memory_allocated() - before,
    "finding": finding and [finding.title, dict(finding.evidence), list(finding.advice)],
    "printed": printed.getvalue(), "stderr": complained.getvalue(), "notes": list(session.notes),
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

ATTACH = "from hfmem_widget.drivers import install\ninstall.attach()"

CASES = {
    "full of weights": Provoked(
        FULL_OF_WEIGHTS, "full", "Load the model with dtype=torch.bfloat16"
    ),
    "fragmentation": Provoked(
        FRAGMENTED, "fragmentation", "Set PYTORCH_CUDA_ALLOC_CONF=expandable"
    ),
    "another process": Provoked(
        ANOTHER_PROCESS,
        "others",
        "Stop other processes on the GPU",
        after="other.kill(); other.wait()",
    ),
    "attention scores": Provoked(
        ATTENTION, "huge", 'Load the model with attn_implementation="sdpa"'
    ),
    "logits": Provoked(LOGITS, "huge", "Compute the loss without all logits"),
    "a limit": Provoked(LIMIT, "limit", "Raise the limit"),
    "losses with their graphs": Provoked(LEAK, "leak", "Store values in"),
    "states of the first step": Provoked(FIRST_STEP, "training", "adamw_8bit"),
    "predictions of an evaluation": Provoked(
        EVALUATION, "full", "Set eval_accumulation_steps", attach=ATTACH
    ),
    "activations of a training": Provoked(
        ACTIVATIONS, "full", "Turn on gradient checkpointing", attach=ATTACH
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


IN_BACKWARD = """
import contextlib, io, sys
import torch
import hfmem_widget
from hfmem_widget.features.oom.observer import OBSERVER
GIB = 1 << 30
torch.cuda.set_per_process_memory_fraction(8 * GIB / torch.cuda.mem_get_info()[1])

def wide(x):
    # 3.1 GiB each for the product and its square, as much again for the gradient of either
    return x.unsqueeze(0).expand(200, -1, -1).mul(1.5)

{scenario}

noted, printed, complained, error = [], io.StringIO(), io.StringIO(), None
OBSERVER.listen(noted.append)
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
    try:
        with hfmem_widget.watch("backward") as session:
            scenario()
    except RuntimeError as caught:
        error = f"{{type(caught).__qualname__}}: {{caught}}"
last = noted[-1] if noted else None
found = [one for one in session.findings if one.kind == "oom" and one.severity == "critical"]
report({{
    "error": error, "printed": printed.getvalue(), "stderr": complained.getvalue(),
    "notes": list(session.notes), "calls": last and list(last.calls), "asked": last and last.asked,
    "readings": last and dict(last.readings), "blocks": bool(last and last.blocks),
    "autocast": last and last.autocast,
    "evidence": [dict(one.evidence) for one in found],
}})
"""

SQUARE = """
def forward(x):
    return wide(x).pow(2).sum()

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    forward(x).backward()
"""

RECOMPUTED = """
from torch.utils.checkpoint import checkpoint

# Forward keeps nothing: two blocks of 3.1 GiB, and a third of which it has cut its results. Made again for
# the backward pass, each of the five is kept.
torch.cuda.set_per_process_memory_fraction(12 * GIB / torch.cuda.mem_get_info()[1])

def block(x):
    for _ in range(5):
        x = wide(x).pow(2).sum(0)
    return x

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    checkpoint(block, x, use_reentrant={reentrant}).sum().backward()
"""

OWN_FUNCTION = """
class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        one = wide(x)
        two = one + 1
        return (one * two).sum(0) * gradient

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    Squared.apply(x).sum().backward()
"""

COMPILED = """
from torch._dynamo import compiled_autograd

def scenario():
    x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
    loss = wide(x).pow(2).sum()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
"""

PARALLEL = """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2048, 2048))

    def forward(self, x):
        return wide(self.weight * x.mean()).pow(2).sum().unsqueeze(0)

def scenario():
    for number in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(8 * GIB / torch.cuda.mem_get_info(number)[1], number)
    model = torch.nn.DataParallel(Wide().cuda())
    model(torch.ones(8, 1, device="cuda")).sum().backward()
"""

BACKWARDS = {
    "native": (SQUARE, "", ""),
    "checkpoint": (RECOMPUTED.format(reentrant=False), "checkpoint recomputation", "block"),
    "reentrant checkpoint": (
        RECOMPUTED.format(reentrant=True),
        "checkpoint recomputation",
        "block",
    ),
    "a Function of one's own": (OWN_FUNCTION, "", "backward"),
    "compiled autograd": (COMPILED, "", ""),
    "DataParallel": (PARALLEL, "", ""),
}


@pytest.mark.parametrize(("scenario", "place", "call"), BACKWARDS.values(), ids=BACKWARDS)
def test_a_backward_pass_has_the_whole_card(
    run_python: Run, scenario: str, place: str, call: str
) -> None:
    """Whatever thread ran out, and with Python on it or without: all figures, the place, and no complaint."""
    if scenario is PARALLEL and len(run_python(COUNT)) < 2:
        pytest.skip("DataParallel takes two GPUs")

    seen = run_python(IN_BACKWARD.format(scenario=scenario))

    everything = json.dumps(seen, indent=1)
    assert seen["error"] is not None, everything
    assert "out of memory" in seen["error"], everything
    assert "memwatch:" not in seen["stderr"], everything
    (evidence,) = seen["evidence"]
    assert evidence["observed"] is True, everything
    assert {"asked", "free", "allocated", "reserved", "allowed"} <= set(evidence), everything
    assert evidence["cause"] in {"limit", "huge"}, everything
    assert seen["blocks"], everything
    assert seen["autocast"] is None or scenario == COMPILED, everything
    assert seen["asked"] >= 1 << 30, everything
    assert "torch.autograd.graph._engine_run_backward" in seen["calls"], everything
    assert "__main__.scenario" in seen["calls"], everything
    if call.isidentifier():
        assert any(one.endswith(f".{call}") for one in seen["calls"]), everything
    words = ("requested", "allocated", "parts: ", "in backward pass", place, "\n1. ")
    assert [one for one in words if one not in seen["printed"]] == [], everything


COUNT = "import torch\nreport(list(range(torch.cuda.device_count())))"

CHECKPOINTED_TRAINER = (
    TRAINER
    + """
def scenario():
    global trainer
    config = BertConfig(hidden_size=1024, num_hidden_layers=4, num_attention_heads=16,
                        intermediate_size=4096, attn_implementation="eager")
    # One layer's scores take a fifth of the device: three of them fit, as forward makes, and not five.
    size = int(0.2 * TOTAL / (16 * 512 * 512 * 4))
    model = BertForSequenceClassification(config)
    model.gradient_checkpointing_enable()
    trainer = Trainer(model, arguments(per_device_train_batch_size=size, max_steps=2), train_dataset=Rows())
    trainer.train()
"""
)


def test_a_checkpointed_training_is_explained(run_python: Run) -> None:
    """A Trainer that recomputes activations has its card, with nothing on stderr, wherever it ran out."""
    seen = run_python(
        HARNESS.format(scenario=CHECKPOINTED_TRAINER, before="", attach=ATTACH, after="")
    )
    everything = json.dumps(seen, indent=1)
    assert seen["finding"] is not None, everything
    _, evidence, advice = seen["finding"]
    assert evidence["observed"], everything
    assert "not looked at" not in seen["stderr"], everything
    assert "checkpointing on" not in " ".join(advice), everything
    assert "parts: " in seen["printed"], everything
    assert "\nin train" in seen["printed"], everything


OBSERVED = """
import torch
from hfmem_widget.features.oom.observer import OomObserver
{before}
told = []
observer = OomObserver()
observer.listen(told.append)
counts = [torch.cuda.memory_stats()["allocation.all.allocated"]]
try:
    torch.empty(1 << 45, device="cuda")
except torch.OutOfMemoryError:
    pass
counts.append(torch.cuda.memory_stats()["allocation.all.allocated"])
(one,) = told
biggest = one.blocks.biggest[0]
report([counts, one.blocks.count, [biggest.bytes, biggest.count], biggest.where])
"""


def test_what_is_noted_allocates_nothing(run_python: Run) -> None:
    """Tens of thousands of blocks are noted, each of them, without a byte of the GPU."""
    before = 'kept = [torch.empty(1 << 18, device="cuda") for _ in range(30_000)]'
    (first, then), count, biggest, _ = run_python(OBSERVED.format(before=before))
    assert then == first
    assert count >= 30_000
    assert biggest == [1 << 20, 30_000]


RECORDED = """
torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
def attend():
    return torch.empty(1 << 28, device="cuda")
kept = attend()
"""


def test_blocks_have_their_lines_where_stacks_are_recorded(run_python: Run) -> None:
    """With a recording on, the biggest live blocks are told by the user's line."""
    *_, where = run_python(OBSERVED.format(before=RECORDED))
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
