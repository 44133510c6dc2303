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


class Example(NamedTuple):
    """A text, its origin, and its figures in bytes; None for those that it does not have."""

    version: str
    origin: str
    says: dict[str, Any]
    text: str


_FILE = json.loads((DATA / "oom_corpus.json").read_text(encoding="utf-8"))

CORPUS = tuple(Example(**one) for one in _FILE["errors"])
"""As the versions named wrote them; figures are made up."""

NUMPY = tuple((one["text"], one["asked"]) for one in _FILE["numpy"])
"""What numpy says, from 1.17 on, and the bytes."""

NOT_ABOUT_MEMORY = tuple(_FILE["not_about_memory"])


TorchsOwn = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch.cuda"})
AcceleratorError = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})


def read(text: str) -> OutOfMemoryText:
    figures = read_text(text)
    assert figures is not None
    return figures


def out_of_memory(error: BaseException | None) -> OutOfMemoryText | None:
    """Return the figures of an error about memory, or of one in its chain."""
    found = about_memory(error)
    return None if found is None else found[1]


SomebodyElses = type("OutOfMemoryError", (Exception,), {"__module__": "game.inventory"})


@pytest.mark.parametrize("example", CORPUS, ids=lambda example: example.version)
def test_a_text_is_parsed(example: Example) -> None:
    """The texts of every version give origin, size and device of the request."""
    figures = read(example.text)
    assert figures.origin == example.origin
    for name, expected in example.says.items():
        figure = getattr(figures, name)
        if expected is None:
            assert math.isnan(figure), name
        elif isinstance(expected, float | int) and not isinstance(expected, bool):
            assert figure == pytest.approx(expected, rel=1e-12), name
        elif name == "processes":
            assert figure == tuple(map(tuple, expected))
        else:
            assert figure == expected, name


@pytest.mark.parametrize("example", CORPUS, ids=lambda example: example.version)
def test_a_runtime_error_with_such_a_text_is_about_memory(example: Example) -> None:
    """It is so as the cause of another error too; an error of another type may quote anything."""
    error = RuntimeError(example.text)
    outer = ValueError("no")
    outer.__cause__ = error
    for one in (error, outer):
        figures = out_of_memory(one)
        assert figures is not None
        assert figures.origin == example.origin
    assert out_of_memory(ValueError(example.text)) is None
    assert out_of_memory(KeyboardInterrupt(example.text)) is None


@pytest.mark.parametrize("text", NOT_ABOUT_MEMORY)
def test_words_about_memory_are_not_enough(text: str) -> None:
    """The words must begin the text; within a sentence they mean nothing."""
    assert out_of_memory(RuntimeError(text)) is None


@pytest.mark.parametrize(("text", "size"), NUMPY)
def test_numpys_errors_are_read(text: str, size: float | None) -> None:
    """NumPy's MemoryError has the size, in its own notation."""
    figures = out_of_memory(MemoryError(text))
    assert figures is not None
    assert (figures.origin, figures.device) == ("numpy", "cpu")
    assert math.isnan(figures.asked) if size is None else figures.asked == size


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
    figures = out_of_memory(error)

    assert (figures and figures.origin) == origin


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
    """Reading never fails for any text."""
    read_text(text)


@given(st.sampled_from(CORPUS), st.text(max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_no_damaged_text_raises(example: Example, added: str, start: float, end: float) -> None:
    """A text that is cut anywhere, with anything inserted, is read without an exception or negative bytes."""
    first, last = sorted((int(start * len(example.text)), int(end * len(example.text))))
    oom = read_text(example.text[:first] + added + example.text[last:])
    if oom is not None:
        sizes = (oom.asked, oom.total, oom.free, oom.allocated, oom.unallocated, oom.allowed)
        assert all(math.isnan(size) or size >= 0 for size in sizes)


@given(st.sampled_from(CORPUS), st.integers(0, 10**30))
def test_no_figure_makes_it_raise(example: Example, figure: int) -> None:
    """Any figure is read, or called unknown."""
    read_text(re.sub(r"\d+", str(figure), example.text))


RECORDED = json.loads((DATA / "oom_recorded.json").read_text(encoding="utf-8"))
H200 = 150_754_820_096.0


def segments_of(error: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks as the allocator listed them."""
    return [
        {**segment, "blocks": [{"size": size, "state": state} for size, state in segment["blocks"]]}
        for segment in error["segments"]
    ]


def event_of(error: dict[str, Any]) -> OomEvent | None:
    """Replay the allocator's call of its observer."""
    if "arguments" not in error:
        return None
    cuda = FakeCuda(segments_of(error))
    cuda.stats = error["stats"]
    events: list[OomEvent] = []
    OomObserver(CudaAllocator(cuda.modules)).listen(events.append)
    _, size, ceiling, free = error["arguments"]
    cuda.run_out(size, free, ceiling)
    return events[0]


def session() -> Session:
    """Return a session that knows only its devices."""
    recorder = Recorder("recorded")
    recorder.adopt((Device("cuda:0", "NVIDIA H200", "", H200), Device("cpu", "", "", 128e9)), ())
    return recorder.session


@pytest.mark.parametrize("error", RECORDED, ids=lambda error: error["name"])
def test_the_cause_is_found(error: dict[str, Any]) -> None:
    """It is the provoked one, by the allocator's figures as well as by the text alone."""
    for event in (event_of(error), None):
        incident = incident_of(session(), Failure(read(error["text"]), Sample(0.0, ())), event)
        assert diagnose(incident).cause == error["cause"]


@pytest.mark.parametrize(
    "error", [error for error in RECORDED if "arguments" in error], ids=lambda error: error["name"]
)
def test_text_and_observer_agree(error: dict[str, Any]) -> None:
    """The figures of the text, with two decimals, are those of the observer."""
    figures, event = read(error["text"]), event_of(error)
    assert event is not None
    assert belongs_to(figures, event)
    assert figures.asked == pytest.approx(event.asked, rel=0.01)
    assert figures.free == pytest.approx(event.free, rel=0.01)
    assert figures.allocated == pytest.approx(event.readings["allocated"], rel=0.01)
    if math.isfinite(figures.allowed):
        assert figures.allowed == pytest.approx(event.ceiling, rel=0.01)
