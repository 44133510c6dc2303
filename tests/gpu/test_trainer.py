"""A Trainer's phases on a real GPU: exact to the byte, and right when it ends badly."""

import pytest

from tests.gpu.conftest import Run

TRAINER = """
import gc, tempfile, torch, hfmem_widget
from hfmem_widget.drivers import install as attaching
attaching.attach()
from transformers import BertConfig, BertForSequenceClassification
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()

class Rows(torch.utils.data.Dataset):
    def __init__(self, lengths, size=4):
        self.lengths, self.size = lengths, size
    def __len__(self):
        return len(self.lengths) * self.size
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1000, 30000, (self.lengths[index // self.size],), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(0)}

def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

def make_trainer(lengths, *, layers=6, size=4, callbacks=(), **options):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16,
                        intermediate_size=4096)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=size, num_train_epochs=1, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
        **{"dataloader_pin_memory": False, **options})
    return InOrder(BertForSequenceClassification(config), arguments, data_collator=collate,
                   train_dataset=Rows(lengths, size), callbacks=list(callbacks))
"""

TRACE = """
import functools
from hfmem_widget.monitor.shared import shared_monitor

def watch_positions(monitor):
    # Where in the allocator's trace each span begins and ends.
    begins, stops = {}, {}
    position = lambda: len(torch.cuda.memory._snapshot()["device_traces"][0])
    opened, closed, turned = monitor.open_span, monitor.close_span, monitor.turn
    def open_span(*args, **kwargs):
        span = opened(*args, **kwargs)
        begins[span.id] = position()
        return span
    def close_span(session, span_id, *args, **kwargs):
        span = closed(session, span_id, *args, **kwargs)
        stops.setdefault(span_id, position())
        return span
    def turn(session, closing, *args, **kwargs):
        span = turned(session, closing, *args, **kwargs)
        begins[span.id] = stops[closing] = position()
        return span
    monitor.open_span, monitor.close_span, monitor.turn = open_span, close_span, turn
    return begins, stops

def requested_curve(trace, start):
    curve, now = [start], start
    for entry in trace:
        if entry["action"] == "alloc":
            now += entry["size"]
        elif entry["action"] == "free_requested":
            now -= entry["size"]
        curve.append(now)
    return curve

def recorded(trainer):
    # Train, and return what was requested after each entry of the allocator's trace.
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
    start = torch.cuda.memory_stats()["requested_bytes.all.current"]
    trainer.train()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return requested_curve(trace, start)

def compare(session, begins, stops, curve):
    # What is wrong, how many spans of each kind there are, how sure all are, and how many peaks differ.
    wrong, kinds, certainties, peaks = [], {}, set(), set()
    for span in session.spans:
        if span.kind in {"block", "save"} or span.id not in begins:
            continue
        truth = max(curve[begins[span.id]:stops[span.id] + 1])
        ours = span.peaks["cuda:0/requested"]
        kinds[span.kind] = kinds.get(span.kind, 0) + 1
        certainties.add(ours.certainty)
        peaks.add(ours.value)
        if ours.value != truth:
            wrong.append([span.kind, span.label, ours.value, truth])
    return [wrong, kinds, sorted(certainties), len(peaks)]
"""


def test_every_phase_of_every_step_equals_a_replay_of_the_trace(run_python: Run) -> None:
    """Steps, micro-batches, forward, backward and optimizer are each 0 bytes off the allocator's trace."""
    wrong, kinds, certainties, distinct = run_python.after(TRAINER + TRACE)("""
lengths = [40 + (number * 137) % 470 for number in range(16)]
trainer = make_trainer(lengths, gradient_accumulation_steps=2)
with hfmem_widget.watch("train", quiet=True, phases="all") as session:
    begins, stops = watch_positions(shared_monitor())
    curve = recorded(trainer)
compared = compare(session, begins, stops, curve)
report(compared)
""")

    assert wrong == []
    counts = {"substep": 16, "forward": 16, "backward": 16, "step": 8, "optimizer": 8}
    assert kinds == {"train": 1, "epoch": 1} | counts
    assert certainties == ["exact"]
    assert distinct > 16


@pytest.mark.parametrize("steps", ["auto", "each"])
def test_steps_without_phases_equal_a_replay_of_the_trace(run_python: Run, steps: str) -> None:
    """Where next to nothing is affordable, each group of steps, epoch and the watch is 0 bytes off."""
    wrong, kinds, certainties, distinct, sentence, block = run_python(
        TRAINER
        + TRACE
        + """
from hfmem_widget.monitor import grouping
grouping.ALLOWANCE, grouping.SHARE = 0.01, 0.005
lengths = [40 + (number * 137) % 470 for number in range(96)]
trainer = make_trainer(lengths, layers=2)
torch.ones(1, device="cuda")
torch.cuda.synchronize()
with hfmem_widget.watch("train", quiet=True, steps=STEPS) as session:
    begins, stops = watch_positions(shared_monitor())
    curve = recorded(trainer)
compared = compare(session, begins, stops, curve)
block = session.spans[0].peaks["cuda:0/requested"]
report([*compared, session.polling.limited, [block.certainty, block.value - max(curve)]])
""".replace("STEPS", repr(steps))
    )

    assert wrong == []
    assert kinds["train"] == kinds["epoch"] == 1
    assert kinds["step"] == 96 if steps == "each" else 3 <= kinds["step"] < 96
    assert 0 < kinds["forward"] == kinds["backward"] == kinds["optimizer"] < 48
    assert certainties == ["exact"]
    assert distinct >= kinds["step"] // 2
    assert sentence.startswith(f"phases on {kinds['forward']} of 96 steps")
    assert block == ["exact", 0]


def test_attempts_of_auto_find_batch_size_are_told_apart(run_python: Run) -> None:
    """A batch that does not fit at first shows as an attempt of its own, and the next one as another."""
    attempts, certainties = run_python.after(TRAINER)("""
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(6 * 2**30 / total)
trainer = make_trainer([256] * 8, layers=6, size=64, auto_find_batch_size=True)
with hfmem_widget.watch("train", quiet=True) as session:
    trainer.train()
report([[[span.label, span.outcome] for span in session.spans if span.kind == "train"],
        sorted({span.peaks["cuda:0/allocated"].certainty for span in session.spans if span.kind == "train"})])
""")

    assert len(attempts) >= 2
    assert [outcome for _, outcome in attempts] == ["tried again"] * (len(attempts) - 1) + ["done"]
    assert attempts[0][0] == "train"
    assert attempts[1][0].startswith("train, attempt 2")
    assert certainties == ["exact"]


HABITS = {
    "defaults": "",
    "bf16": "bf16=True",
    "fp16": "fp16=True",
    "accumulation": "gradient_accumulation_steps=2",
    "checkpointing": "gradient_checkpointing=True",
    "empty cache": "torch_empty_cache_steps=2",
    "workers": "dataloader_num_workers=8, dataloader_pin_memory=True",
    "tracker": "skip_memory_metrics=False",
}

PEAKS = """
torch.ones(1, device="cuda")
trainer = make_trainer([96, 200, 64, 384, 128, 511, 96, 64], OPTIONS)
torch.cuda.reset_peak_memory_stats()
"""

MEASURED = """
metrics = {name: value for name, value in result.metrics.items() if "gpu" in name}
report([torch.cuda.max_memory_allocated(), metrics, result.training_loss, ours])
"""

ALONE = "ours = None\nresult = trainer.train()\n" + MEASURED


@pytest.mark.parametrize("options", HABITS.values(), ids=HABITS.keys())
def test_a_habit_trains_the_same_with_the_same_peak(run_python: Run, options: str) -> None:
    """Peak, the Trainer's own memory metrics and the loss are those of a run without us, to the last bit."""
    setup = TRAINER + PEAKS.replace("OPTIONS", options)
    bare = run_python(setup + ALONE)
    watched = run_python(
        setup
        + """
with hfmem_widget.watch("train", quiet=True) as session:
    result = trainer.train()
train = next(span for span in session.spans if span.kind == "train")
block = session.spans[0]
steps = [group.devices["cuda:0"] for group in session.steps]
ours = [block.peaks["cuda:0/allocated"].value, block.peaks["cuda:0/allocated"].certainty,
        train.outcome, len(steps), max(step.peak for step in steps),
        sorted({step.certainty for step in steps})]
"""
        + MEASURED
    )
    peak, certainty, outcome, steps, highest_step, certainties = watched[3]

    assert watched[:2] == bare[:2]
    if watched[2] != bare[2]:  # atomic additions, as of bf16's embeddings, come in any order
        again = [run_python(setup + ALONE)[2] for _ in range(2)]
        assert len({bare[2], *again}) > 1, (
            "runs without us agree on the loss, the watched one does not"
        )
    assert (certainty, outcome, certainties) == ("exact", "done", ["exact"])
    assert steps == (4 if "accumulation" in options else 8)
    assert highest_step <= peak
    if "skip_memory_metrics" not in options:  # the tracker resets the peak as the training begins
        assert peak == bare[0]
