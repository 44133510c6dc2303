"""Texts of out-of-memory errors of many versions, and whole errors of an H200 (torch 2.11)."""

import errno
import json
import math
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import MOST_ERRORS, OutOfMemoryText, about_memory, read_text
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import Failure
from hfmem_widget.features.oom.observer import OomEvent, OomObserver
from hfmem_widget.session import Device, Recorder, Sample, Session
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data import DATA
from tests.fakes.torch_oom import FakeCuda


class Said(NamedTuple):
    """A text, its origin, and its figures in bytes; None for those that it does not have."""

    version: str
    origin: str
    says: dict[str, Any]
    text: str


_FILE = json.loads((DATA / "oom_corpus.json").read_text(encoding="utf-8"))

CORPUS = tuple(Said(**one) for one in _FILE["errors"])
"""As the versions named wrote them; figures are made up."""

NUMPY = tuple((one["text"], one["asked"]) for one in _FILE["numpy"])
"""What numpy says, from 1.17 on, and the bytes."""

NOT_ABOUT_MEMORY = tuple(_FILE["not_about_memory"])


TorchsOwn = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch.cuda"})
AcceleratorError = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})


def read(text: str) -> OutOfMemoryText:
    told = read_text(text)
    assert told is not None
    return told


def out_of_memory(error: BaseException | None) -> OutOfMemoryText | None:
    """Return the figures of an error about memory, or of one in its chain."""
    found = about_memory(error)
    return None if found is None else found[1]


SomebodyElses = type("OutOfMemoryError", (Exception,), {"__module__": "game.inventory"})


@pytest.mark.parametrize("said", CORPUS, ids=lambda said: said.version)
def test_a_text_is_parsed(said: Said) -> None:
    """The texts of every version give origin, size and device of the request."""
    told = read(said.text)
    assert told.origin == said.origin
    for name, value in said.says.items():
        found = getattr(told, name)
        if value is None:
            assert math.isnan(found), name
        elif isinstance(value, float | int) and not isinstance(value, bool):
            assert found == pytest.approx(value, rel=1e-12), name
        elif name == "processes":
            assert found == tuple(map(tuple, value))
        else:
            assert found == value, name


@pytest.mark.parametrize("said", CORPUS, ids=lambda said: said.version)
def test_a_runtime_error_with_such_a_text_is_about_memory(said: Said) -> None:
    """Also as the cause of another error; an error of another type may quote anything."""
    error = RuntimeError(said.text)
    outer = ValueError("no")
    outer.__cause__ = error
    for one in (error, outer):
        told = out_of_memory(one)
        assert told is not None
        assert told.origin == said.origin
    assert out_of_memory(ValueError(said.text)) is None
    assert out_of_memory(KeyboardInterrupt(said.text)) is None


@pytest.mark.parametrize("text", NOT_ABOUT_MEMORY)
def test_words_about_memory_are_not_enough(text: str) -> None:
    """The words must begin the text; within a sentence they mean nothing."""
    assert out_of_memory(RuntimeError(text)) is None


@pytest.mark.parametrize(("text", "asked"), NUMPY)
def test_numpys_errors_are_read(text: str, asked: float | None) -> None:
    """NumPy's MemoryError has the size, in its own notation."""
    told = out_of_memory(MemoryError(text))
    assert told is not None
    assert (told.origin, told.device) == ("numpy", "cpu")
    assert math.isnan(told.asked) if asked is None else told.asked == asked


ArrowMemoryError = type("ArrowMemoryError", (MemoryError,), {"__module__": "pyarrow.lib"})
CuPys = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})


@pytest.mark.parametrize(
    ("error", "origin"),
    [
        (TorchsOwn("?"), "cuda"),
        (MemoryError(), "python"),
        (MemoryError("std::bad_alloc"), "python"),
        (OSError(errno.ENOMEM, "fork"), "python"),
        (AcceleratorError("CUDA error: out of memory\nSearch for"), "cuda runtime"),
        # A type knows better than a general text; CuPy's is of a GPU.
        (MemoryError("out of memory"), "python"),
        (TorchsOwn("out of memory"), "cuda"),
        (ArrowMemoryError("malloc of size 8589934592 failed"), "python"),
        (CuPys("Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes)."), "other"),
        # Somebody else's of the same name says nothing about ours.
        (SomebodyElses("the backpack is full"), None),
        (OSError(errno.ENOENT, "no such file"), None),
    ],
)  # fmt: skip
def test_types_decide_where_they_can(error: BaseException, origin: str | None) -> None:
    """MemoryError, ENOMEM and torch's OutOfMemoryError are about memory, whatever their texts."""
    told = out_of_memory(error)

    assert (told and told.origin) == origin


def test_an_error_from_none_hides_what_was_before() -> None:
    """``raise … from None`` means that the earlier error is not the cause."""
    error = ValueError("handled")
    error.__context__, error.__suppress_context__ = MemoryError(), True
    assert out_of_memory(error) is None


def test_an_error_while_handling_one_is_about_it() -> None:
    """Errors raised in an ``except`` block, and members of a group, are followed."""
    error = KeyError("model")
    error.__context__ = MemoryError()
    assert out_of_memory(error) is not None
    assert out_of_memory(ExceptionGroup("two", [ValueError(), MemoryError()])) is not None


def test_a_cycle_of_errors_ends() -> None:
    """Errors that cause each other, and very long chains, are followed only so far."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert out_of_memory(first) is None
    last: BaseException = MemoryError()
    for _ in range(MOST_ERRORS + 1):
        outer = ValueError()
        outer.__cause__ = last
        last = outer
    assert out_of_memory(last) is None


def test_an_error_whose_text_raises_is_unknown() -> None:
    """An error with a failing ``__str__`` is not recognised."""

    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert out_of_memory(Mute()) is None


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    """Reading never fails, whatever the text."""
    read_text(text)


@given(st.sampled_from(CORPUS), st.text(max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_no_damaged_text_makes_it_raise(said: Said, put: str, begin: float, end: float) -> None:
    """A text that is cut anywhere, with anything inserted, is read without an exception or negative bytes."""
    first, last = sorted((int(begin * len(said.text)), int(end * len(said.text))))
    told = read_text(said.text[:first] + put + said.text[last:])
    if told is not None:
        sizes = (told.asked, told.total, told.free, told.allocated, told.unallocated, told.allowed)
        assert all(math.isnan(one) or one >= 0 for one in sizes)


@given(st.sampled_from(CORPUS), st.integers(0, 10**30))
def test_no_figure_makes_it_raise(said: Said, figure: int) -> None:
    """Any figure in the place of each is read, or called unknown."""
    read_text(re.sub(r"\d+", str(figure), said.text))


RECORDED = json.loads((DATA / "oom_recorded.json").read_text(encoding="utf-8"))
H200 = 150_754_820_096.0


def segments_of(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks as the allocator listed them."""
    return [
        {**segment, "blocks": [{"size": size, "state": state} for size, state in segment["blocks"]]}
        for segment in one["segments"]
    ]


def event_of(one: dict[str, Any]) -> OomEvent | None:
    """Replay the allocator's call of its observer."""
    if "arguments" not in one:
        return None
    cuda = FakeCuda(segments_of(one))
    cuda.stats = one["stats"]
    told: list[OomEvent] = []
    OomObserver(CudaAllocator(cuda.modules)).listen(told.append)
    _, asked, ceiling, free = one["arguments"]
    cuda.run_out(asked, free, ceiling)
    return told[0]


def session() -> Session:
    """Return a session that knows only its devices."""
    recorder = Recorder("recorded")
    recorder.adopt((Device("cuda:0", "NVIDIA H200", "", H200), Device("cpu", "", "", 128e9)), ())
    return recorder.session


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: one["name"])
def test_the_cause_is_found(one: dict[str, Any]) -> None:
    """With the allocator's figures, or by the text alone, it is the one that was provoked."""
    for event in (event_of(one), None):
        incident = incident_of(session(), Failure(read(one["text"]), Sample(0.0, ())), event)
        assert diagnose(incident).cause == one["cause"]


@pytest.mark.parametrize(
    "one", [one for one in RECORDED if "arguments" in one], ids=lambda one: one["name"]
)
def test_text_and_observer_agree(one: dict[str, Any]) -> None:
    """The figures of the text, with two decimals, are those of the observer."""
    told, event = read(one["text"]), event_of(one)
    assert event is not None
    assert belongs_to(told, event)
    assert told.asked == pytest.approx(event.asked, rel=0.01)
    assert told.free == pytest.approx(event.free, rel=0.01)
    assert told.allocated == pytest.approx(event.readings["allocated"], rel=0.01)
    if math.isfinite(told.allowed):
        assert told.allowed == pytest.approx(event.ceiling, rel=0.01)
