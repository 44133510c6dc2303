"""The figures and the card of an out-of-memory error: without a script, fully escaped, also in plain text."""

import math
import re
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import OutOfMemoryText
from hfmem_widget.features.oom.html import (
    bar_html,
    batch,
    drawn_parts,
    figures_of,
    out_of_memory_bundle,
    where,
)
from hfmem_widget.features.oom.incident import (
    SAME_WITHIN,
    belongs_to,
    device_of,
    failure_of,
    incident_of,
)
from hfmem_widget.features.oom.model import Failure, Incident, ModelFacts
from hfmem_widget.features.oom.observer import BACKWARD, LiveBlocks, OomEvent
from hfmem_widget.session import Change, Move, Sample, Session
from hfmem_widget.text import GIB, format_bytes
from tests.data.oom_cases import CASES
from tests.data.oom_incidents import Case, blocks, incident, spans
from tests.data.parted import NAN
from tests.data.recorders import recorder_of
from tests.unit.view.test_hostile_text import Strict


def bundle(incident: Incident, earlier: int = 0) -> dict[str, str]:
    diagnosis = diagnose(incident)
    return out_of_memory_bundle(incident, diagnosis, advise(incident, diagnosis), earlier=earlier)


def incident_named(name: str) -> Incident:
    return next(case.incident for case in CASES if name in case.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_card_is_well_formed(case: Case) -> None:
    """Each element is closed, there is no script, and no unknown figure."""
    card = bundle(case.incident)
    assert Strict(card["text/html"]).seen
    for text in card.values():
        assert not re.search(r"\bn/a\b|\bnan\b|\binf\b", text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_forms_say_the_same(case: Case) -> None:
    """The HTML and the plain text both have the diagnosis and each advice."""
    card = bundle(case.incident)
    diagnosis = diagnose(case.incident)
    plain = card["text/plain"]
    assert diagnosis.sentence in plain
    for number, advice in enumerate(advise(case.incident, diagnosis), start=1):
        assert f"\n{number}. {advice.sentence()}" in plain
        assert escape(advice.action) in card["text/html"]


def test_the_card_with_a_table_of_changes_is_small() -> None:
    """Its HTML has at most 15 kB with eight changes, as many as are tried for most trainings."""
    batch, steps = "per_device_train_batch_size", "gradient_accumulation_steps"
    tried: dict[str, tuple[Any, dict[str, str], str]] = {
        "gradient checkpointing": ("arguments", {"gradient_checkpointing": "True"}, "25 % slower"),
        "2 rows in a batch, 4 batches accumulated": ("arguments", {batch: "2", steps: "4"}, ""),
        "bf16": ("arguments", {"bf16": "True"}, "computes in bfloat16"),
        "weights in bfloat16": (
            *("model", {"dtype": '"bfloat16"'}, "weights, gradients and states in bfloat16"),
        ),
        "8-bit AdamW": ("arguments", {"optim": '"adamw_8bit"'}, "optimizer states in 8 bits"),
        "Adafactor": ("arguments", {"optim": '"adafactor"'}, "another optimizer"),
        "LoRA, r=16": ("peft", {"r": "16"}, "trains adapters alone"),
        "rows of at most 256 tokens": ("data", {"max_length": "256"}, "longer rows lose their end"),
    }
    moves = [
        Move(name, tuple(Change(target, *change) for change in changes.items()), 2, 512, 1, cost,
             int(20 * GIB), 19.0 * GIB, 21.0 * GIB, 80.0 * GIB, largest_batch=12, longest=2048)
        for name, (target, changes, cost) in tried.items()
    ]  # fmt: skip
    known = incident_named("float32 on a card that has")
    diagnosis = diagnose(known)
    card = out_of_memory_bundle(known, diagnosis, advise(known, diagnosis), moves=moves)

    assert len(card["text/html"].encode()) <= 15_000


@pytest.mark.parametrize(
    ("name", "has_request", "scale"),
    [
        # A request that does not fit is drawn past the device's capacity.
        ("another process has most", True, "dashed: the request; line: the capacity"),
        # One of many devices would leave no room for anything else.
        ("more than the device has", False, ""),
        # Where this process may use a part of the device only, the bar is that part.
        ("a limit on this process", True, "limit of this process: 8.00 GiB"),
    ],
)
def test_the_bar_has_request_and_end_of_memory(name: str, *, has_request: bool, scale: str) -> None:
    """The request is dashed, and comes after the parts."""
    bar = bar_html(incident_named(name))
    assert ("stroke-dasharray" in bar) is has_request
    assert scale in bar


def test_without_parts_there_is_no_bar() -> None:
    """An empty one is not drawn either."""
    assert bar_html(incident(asked=9.0, free=1.0)) == ""


@pytest.mark.parametrize(
    ("where", "lines"),
    [
        ("", {"biggest live blocks 3 \u00d7 1.00 GiB \u00b7 512.0 MiB"}),
        (
            "model.py:12 forward",
            {
                "3 \u00d7 1.00 GiB model.py:12 forward",
                "512.0 MiB allocated before stacks were recorded",
            },
        ),
    ],
    ids=["sizes alone", "with a recording"],
)
def test_the_biggest_blocks_have_their_lines(where: str, lines: set[str]) -> None:
    """A block from before the recording has none; without a recording there are only sizes."""
    incident = incident_named("float32 on a card that has")
    assert incident.blocks is not None
    biggest = (LiveBlocks(GIB, 3, where), LiveBlocks(GIB / 2, 1))
    known = replace(incident, blocks=replace(incident.blocks, biggest=biggest))
    shown = {" ".join(line.split()) for line in bundle(known)["text/plain"].splitlines()}
    assert lines <= shown


def test_a_limit_on_the_machines_memory_is_the_end_of_the_bar() -> None:
    """With `ulimit`, the bar shows the mapped memory of this process, not the machine."""
    limited = incident_named("CPU: a limit of the shell's")
    assert limited.met_a_limit
    bar = bar_html(limited)
    assert f"limit of this process: {format_bytes(limited.host.limit)}" in bar
    card = bundle(limited)
    assert f"allowed {format_bytes(limited.host.limit)}" in card["text/plain"]
    assert "rest of the machine" not in card["text/html"]
    widths = [
        float(width) for width in re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%" height', bar)
    ]
    assert sum(widths) <= 100.5


def test_the_capacity_is_the_same_as_everywhere() -> None:
    """It is NVML's figure, since CUDA's is lower by the driver's reserve."""
    own = incident_named("full of 16-bit weights")
    device = replace(own.device, total=own.total + 0.6 * GIB)
    text = bundle(replace(own, device=device))["text/plain"]
    assert format_bytes(device.total) in text
    assert format_bytes(own.total) not in text


def test_the_biggest_five_of_other_processes_are_named() -> None:
    """The largest comes first; each has its id and size."""
    processes = tuple((number, number * GIB) for number in (3, 1, 7, 2, 6, 5))
    card = bundle(replace(incident_named("another process has most"), processes=processes))
    named = " \u00b7 ".join(f"process {number}: {number}.00 GiB" for number in (7, 6, 5, 3, 2))

    assert set(card) == {"text/html", "text/plain"}
    for text in card.values():
        assert named in text.replace("\u00a0", " ")
        assert "process 1:" not in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_parts_are_the_used_memory(case: Case) -> None:
    """Each part has its name and size; free memory is not a part."""
    anatomy = case.incident.anatomy
    lines = [text for text in bundle(case.incident)["text/plain"].splitlines() if "parts: " in text]
    parts = () if anatomy is None else [part for part in anatomy.parts if part.name != "free"]

    assert bool(lines) is bool(parts)
    for part in parts:
        # What malloc keeps is in what is mapped, not private memory, where the whole is a limit of that.
        if part.name != "cache" or "mapped, not private memory" not in lines[0]:
            assert f"{part.label} {format_bytes(part.bytes)}" in lines[0]
    assert not any("free" in text.rpartition("parts: ")[2].split() for text in lines)


PARTS = {"weights": 20.0, "activations": 10.0, "cache": 5.0, "context": 1.0, "others": 4.0}


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (0.0, ["weights", "activations", "cache", "context", "others"]),
        (40.0, ["weights", "activations", "cache"]),
    ],
)
def test_a_limit_counts_what_this_process_reserved(allowed: float, names: list[str]) -> None:
    """The cache counts; the context, other processes and free memory do not."""
    known = incident(asked=9.0, free=40.0, parts=PARTS, others=4.0, allowed=allowed)

    assert [part.name for part in drawn_parts(known)] == names


@pytest.mark.parametrize(("cache", "expected"), [(0.0, False), (4.0, True)])
def test_the_cache_is_a_figure_with_its_largest_block(cache: float, *, expected: bool) -> None:
    """A cache too small to mention has no figure."""
    parts = PARTS | {"cache": cache}
    figures = figures_of(incident(asked=9.0, free=1.0, parts=parts, blocks=blocks(3.0, 2.0)))
    names = [name for name, _, _ in figures]

    assert ("cache" in names) is ("largest free block" in names) is expected
    assert expected is (("cache", "4.00 GiB", "free, but reserved") in figures)
    assert expected is (("largest free block", "2.00 GiB", "in the cache") in figures)


METRICS = ("allocated", "reserved", "others")


def session_of(*readings: tuple[float, float, float]) -> tuple[Session, Sample]:
    """Return a session of GPUs of 80 GiB and its reading: `METRICS` of each in GiB."""
    values = tuple(value * GIB for reading in readings for value in reading)
    keys = [f"cuda:{at}" for at in range(len(readings))]
    session = recorder_of(values, keys=keys, metrics=METRICS).session
    return session, session.last_sample


@pytest.mark.parametrize(
    ("used", "device", "key"),
    [
        ((1.0, 2.0), "", "cuda:1"),
        ((NAN, 0.5), "", "cuda:1"),
        ((0.0, NAN), "", "cuda:0"),
        ((1.0, 2.0), "cuda:0", "cuda:0"),
        ((1.0, 2.0), "xpu:3", "xpu:3"),
    ],
)
def test_an_error_is_about_the_fullest_gpu(used: tuple[float, ...], device: str, key: str) -> None:
    """The text of an error may name another GPU."""
    session, _ = session_of(*((size, size + 1, 0.0) for size in used))

    assert device_of(session, OutOfMemoryText("cuda", device), None).key == key


def test_the_limit_of_apples_allocator_is_its_capacity() -> None:
    """Apple's allocator recommends a limit, and has no other figure."""
    session, sample = session_of((1.0, 2.0, 0.0))
    text = OutOfMemoryText("mps", "mps:0", allowed=20 * GIB, total=5.0)
    incident = incident_of(session, Failure(text, sample))

    assert incident.total == 20 * GIB
    assert math.isnan(incident.allowed)


@pytest.mark.parametrize(
    ("processes", "in_use", "sampled", "foreign", "others"),
    [
        ({1: 60, 2: 10}, NAN, NAN, [1], 60),
        ({1: 60, 2: 11}, NAN, NAN, [1], 60),
        ({1: 60, 2: 12}, NAN, NAN, [1, 2], 72),
        ({1: 60, 2: 8}, NAN, NAN, [1, 2], 68),
        ({1: 10, 2: 10}, NAN, NAN, [2], 10),
        ({2: 10}, NAN, NAN, [], 0),
        ({2: 10}, NAN, 5, [], 5),
        ({2: 10}, NAN, 65, [], 61),
        ({1: 60}, 9, 5, [1], 60),
        ({2: 10}, 9, 5, [2], 10),
        ({}, 20, NAN, [], 50),
        ({}, 75, NAN, [], 0),
        ({}, NAN, NAN, [], 61),
    ],
)
def test_use_by_others_comes_from_the_best_source(
    processes: dict[int, float], in_use: float, sampled: float, foreign: list[int], others: float
) -> None:
    """Of 70 GiB in use this process has 9, and up to 2 for CUDA; in a container it has another id."""
    session, sample = session_of((8.0, 9.0, sampled))
    listed = tuple((number, size * GIB) for number, size in processes.items())
    text = OutOfMemoryText(
        "cuda", "cuda:0", total=80 * GIB, free=10 * GIB, in_use=in_use * GIB, processes=listed
    )
    incident = incident_of(session, Failure(text, sample))

    assert [number for number, _ in incident.processes] == foreign
    assert incident.others == others * GIB


@pytest.mark.parametrize(("used", "others"), [(10.9, NAN), (11.1, 2.1)])
def test_a_little_beyond_what_is_reserved_may_be_a_context(used: float, others: float) -> None:
    """Its owner is then unknown."""
    session, sample = session_of((8.0, 9.0, NAN))
    text = OutOfMemoryText("cuda", "cuda:0", total=80 * GIB, free=(80 - used) * GIB)
    incident = incident_of(session, Failure(text, sample))

    assert incident.others == pytest.approx(others * GIB, nan_ok=True)


@pytest.mark.parametrize(
    ("size", "device", "origin", "same"),
    [
        (1.0, "cuda:0", "cuda", True),
        (1.0 + SAME_WITHIN, "cuda:0", "cuda", True),
        (1.0 + 2 * SAME_WITHIN, "cuda:0", "cuda", False),
        (NAN, "", "cuda", True),
        (NAN, "", "no batch size", True),
        (NAN, "cuda:1", "cuda", False),
        (NAN, "", "cublas", False),
    ],
)
def test_errors_match_events_by_size(size: float, device: str, origin: Any, *, same: bool) -> None:
    """The device must match too; a text has two decimals, and may have no size."""
    event = OomEvent("cuda:0", GIB, 80 * GIB, 0.0)

    assert belongs_to(OutOfMemoryText(origin, device, size * GIB), event) is same


class OddConfig:
    """A configuration that is not filled yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Model:
    """A model whose own fields have its settings; its properties may do anything."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    @property
    def is_gradient_checkpointing(self) -> bool:
        raise AssertionError("not to be run")

    def modules(self) -> list[Any]:
        return [self]


def test_settings_of_models_are_read_from_their_fields() -> None:
    """None of their code runs; a model with an unreadable configuration is skipped."""
    config = SimpleNamespace(vocab_size=50_000, quantization_config=None)
    failure = failure_of(
        MemoryError(),
        Sample(0.0, ()),
        [Model(config=OddConfig()), Model(config=config, gradient_checkpointing=True)],
        ran_out=False,
    )

    assert failure is not None
    assert failure.model == ModelFacts(checkpointing=True, vocabulary=50_000, quantized=False)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"samples": 8, "longest": 512, "tokens": 4096}, "8 \u00d7 512 tokens"),
        ({"samples": 8, "longest": 512, "tokens": 4095}, "4,095 tokens"),
        ({"samples": 0, "longest": 512, "tokens": 0}, ""),
        ({"tokens": 1}, "1 token"),
        ({"samples": 1}, "1 sample"),
        ({"samples": 2, "longest": 0, "tokens": 0}, "2 samples"),
        ({}, ""),
    ],
)
def test_a_batch_is_described_as_far_as_known(counts: dict[str, float], words: str) -> None:
    """It is samples by tokens if the product is right, otherwise the known figure."""
    assert batch(incident(asked=1.0, free=0.5, path=spans("step", **counts))) == words


IN_BACKWARD = (BACKWARD, "torch._tensor.backward", "__main__.train")
AGAIN = ("torch.nn.functional.linear", "torch.utils.checkpoint.unpack_hook", BACKWARD)


@pytest.mark.parametrize(
    ("calls", "open_spans", "words"),
    [
        ((), ("train", "step", "forward"), ("train", "step 3", "forward")),
        (IN_BACKWARD, (), ("backward pass",)),
        (AGAIN, (), ("backward pass", "checkpoint recomputation")),
        (AGAIN, ("train", "backward"), ("train", "backward", "checkpoint recomputation")),
        # Around the backward pass there is a checkpoint, but nothing of it was run there.
        ((BACKWARD, "torch.utils.checkpoint.backward"), (), ("backward pass",)),
        (("torch.nn.functional.linear", "__main__.train"), (), ()),
    ],
)
def test_the_place_of_an_error_is_named_once(
    calls: tuple[str, ...], open_spans: Any, words: tuple[str, ...]
) -> None:
    """Its spans go from the outside in, without the cell; a backward pass needs no span."""
    known = incident(asked=1.0, free=0.5, calls=calls, path=spans(*open_spans, step=3))

    assert where(known) == words
