"""Who is named for what a cell left behind, and where nobody is."""

import math
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfmem_widget.analysis.left_behind import LeftBehind
from hfmem_widget.features.leaks import companion as of_a_watch
from hfmem_widget.features.leaks import who_added
from hfmem_widget.features.leaks.companion import Leaks
from hfmem_widget.features.leaks.who_added import NOT_NOTED, Before, named, unnamed
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import HELD, Finding, Session
from hfmem_widget.sources.heap import search
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import NO_MONITOR, Stage

NONE = dict.fromkeys(HELD, 0.0)
NOTHING_BEFORE = Before()
DEVICE = "cuda:0"


def row(path: str, size: float, kind: Any = "tensors", graphs: int = 0, graph: float = 0) -> Holder:
    return Holder(path, kind, DEVICE, int(size), 3, (1,), "float32", int(graph), graphs)


def left(size: float = GIB, before: float = 0.0, **attributed: float) -> LeftBehind:
    return LeftBehind(DEVICE, before, before + size, 80 * GIB, NONE | attributed)


def named_for(
    rest: LeftBehind, *rows: Holder, known: Before = NOTHING_BEFORE, bound: str = "", **more: bool
) -> Finding:
    finding = named(rest, Holders(rows, seconds=0.12, objects=1500, bound=bound), known, 1, **more)
    assert finding is not None
    return finding


def title(
    rest: LeftBehind, *rows: Holder, earlier: tuple[Holder, ...] = (), new: tuple[str, ...] = ()
) -> str:
    known = Before(Holders(earlier) if earlier else NOT_NOTED, new)
    finding = named(rest, Holders(rows, seconds=0.12, objects=1500), known, 1)
    return "" if finding is None else finding.title


GRAPHS = row("losses[0..99]", GIB, graphs=100, graph=0.99 * GIB)
FOUR = [row(name, size * GIB) for name, size in zip("abcd", (0.3, 0.5, 0.15, 0.05), strict=True)]
CACHES = row("cache1[0..9]", 4 * GIB), row("cache2[0..39]", 4 * GIB)
LISTED = row("losses", 3 * GIB), row("cache['a']", 0.95 * GIB), row("Out[7]", 0.2 * GIB)
WEIGHTS = row("model", 2 * GIB, "weights")
IN_AN_ERROR = [row(f"the error of cell [4] → train() → {name}", 0.4 * GIB) for name in ("a", "b")]

TITLES: dict[str, tuple[str, str]] = {
    "one of all": (title(left(), row("losses[0..99]", GIB)), " is held by losses[0..99]"),
    "graphs": (title(left(), GRAPHS), " is held by losses[0..99] (the graphs of 100 tensors)"),
    "keys of one name": (
        title(left(), *[row(f"d['{key}']", 0.25 * GIB) for key in "abcd"]),
        " is held by d",
    ),
    "five": (
        title(left(), *[row(name, 0.2 * GIB) for name in "abcde"]),
        " is held by a (204.8 MiB), b (204.8 MiB), c (204.8 MiB) and 2 more",
    ),
    "several": (
        title(left(), *FOUR),
        " is held by b (512.0 MiB), a (307.2 MiB) and c (153.6 MiB)",
    ),
    "a part": (title(left(), row("a", 0.4 * GIB)), ", of which 409.6 MiB is held by a"),
    "counted weights": (title(left(weights=2 * GIB), WEIGHTS, row("a", GIB)), " is held by a"),
    "other weights": (title(left(2 * GIB), WEIGHTS), " is held by model"),
    "more than before": (
        title(
            left(1.5 * GIB, before=1.5 * GIB),
            row("losses[0..199]", 2 * GIB), row("cache['a']", GIB),
            earlier=(row("losses[0..149]", 1.5 * GIB),),
        ),
        " is held by cache['a'] (1.00 GiB) and losses[0..199] (512.0 MiB)",
    ),
    "names that differ by a digit": (
        title(
            left(3 * GIB, before=5 * GIB), *CACHES,
            earlier=(CACHES[0], row("cache2[0..9]", GIB)),
        ),
        " is held by cache2[0..39]",
    ),
    "nobody looked before": (
        title(left(before=3 * GIB), row("losses[0..99]", 3 * GIB)),
        "; most of the allocated memory is held by losses[0..99] (3.00 GiB)",
    ),
    "new names": (
        title(left(before=3 * GIB), *LISTED, new=("cache", "Out[7]")),
        " is held by cache['a'] (972.8 MiB) and Out[7] (204.8 MiB)",
    ),
    "one error": (
        title(left(), *IN_AN_ERROR, row("kept", 0.2 * GIB), new=("kept",)),
        " is held by the error of cell [4] (819.2 MiB) and kept (204.8 MiB)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TITLES)
def test_a_finding_names_who_holds_what_was_left(name: str) -> None:
    """The largest comes first, with sizes if there are several; memory from before has no name."""
    text, ending = TITLES[name]

    assert text.partition(" left behind")[2] == ending


def test_new_memory_is_not_called_left_behind_where_as_much_was_freed() -> None:
    """On the card, what a cell left behind is the difference between its end and its start."""
    freed = replace(left(), more=-0.8 * GIB)

    assert title(freed, row("keep", GIB)) == "1.00 GiB of new memory is held by keep"


def test_a_finding_of_a_search_that_ended_early_says_at_least() -> None:
    """More may be held; where graphs keep a part of it, detached tensors are advised."""
    half = row("preds[0..19]", 0.4 * GIB, graphs=20, graph=0.12 * GIB)
    finding = named_for(left(), half, bound="the search ran out of time")
    held = "preds[0..19] (the graphs of 20 tensors)"
    assert finding.title == f"1.00 GiB left behind, of which at least 409.6 MiB is held by {held}"
    assert ".detach()" in finding.advice[0]
    assert finding.advice[-1] == "%memholders searches longer (the search ran out of time)."


def test_a_name_that_cannot_have_added_it_is_left_out() -> None:
    """A holder of a twentieth; a tensor that was there before, which cannot have got longer."""
    assert title(left(), row("a", 0.05 * GIB)) == ""
    assert title(left(before=3 * GIB), replace(row("table", 3 * GIB), tensors=1)) == ""


def test_a_name_that_came_between_the_last_search_and_the_watch_is_not_blamed() -> None:
    """Its memory was there when the watch began, by another name at the time of that search."""
    noted = Before(Holders((row("a", MIB),)), new=("x",), unnoted=("k",))
    finding = named_for(left(before=GIB), row("x", GIB), row("k[0..3]", GIB), known=noted)

    assert finding.title == "1.00 GiB left behind is held by x"


def test_a_possible_holder_has_most_of_all_that_is_allocated() -> None:
    """Beside 70 GiB of weights, 3 GiB that nobody noted before is not most of the memory."""
    losses = row("losses[0..99]", 3 * GIB)
    assert "most of the allocated memory" in title(left(before=3 * GIB), losses)
    assert title(left(before=3 * GIB, weights=70 * GIB), losses) == ""


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (row("the error of cell [7] \u2192 train() \u2192 x", GIB), "%memholders --free errors"),
        (row("Out[12]", GIB), "%memholders --free outputs"),
        (row("_", GIB), "%memholders --free outputs"),
        (row("losses", GIB, graphs=100, graph=GIB), ".detach()"),
    ],
)
def test_the_advice_frees_an_error_or_an_output_by_name(holder: Holder, expected: str) -> None:
    """If graphs are held, the advice is to detach."""
    assert expected in named_for(left(), holder).advice[0]


def test_the_evidence_is_in_bytes() -> None:
    """The finding is a remark on its span, with each holder's bytes; the cost of the search is no advice."""
    finding = named_for(left(), row("losses", GIB))
    assert finding.advice[-1] == "%memholders lists everything that is held."
    assert finding.evidence["holders"] == {"losses": GIB}
    assert (finding.severity, finding.span_id) == ("info", 1)


@pytest.mark.parametrize(
    ("size", "total", "is_much"),
    [
        (63 * MIB, GIB, False),
        (64 * MIB, GIB, True),
        (0.7 * GIB, 80 * GIB, False),
        (0.9 * GIB, 80 * GIB, True),
        (GIB, math.nan, True),
        (math.nan, 80 * GIB, False),
    ],
)
def test_much_is_64_mib_and_1_percent_of_a_device(size: float, total: float, is_much: bool) -> None:
    """Less than 64 MiB, or than one percent of the device, is not looked into."""
    assert LeftBehind(DEVICE, 0.0, size, total, NONE).is_much is is_much


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the bounds of each search, all of which find one holder of 3 GiB."""
    bounds: list[dict[str, Any]] = []

    def scan(*_: Any, **options: Any) -> Holders:
        bounds.append(options)
        return Holders((row("losses", 3 * GIB),))

    monkeypatch.setattr("hfmem_widget.sources.heap.scan.scan", scan)
    return bounds


def watched(
    seconds: float = 2.0, parts: float = 0.0, *, start: float = 0.0, ends: bool = True
) -> Session:
    """Return a session in which a cell left 3 GiB behind, of which so many are weights."""
    stage = Stage("run", gpus=1)
    companion = Leaks()
    stage.find(["cuda:0"], dict.fromkeys(HELD, 0.0))
    stage.hold({"cuda:0": start}, 0.1)
    with stage.span("cell", "run") as span:
        stage.hold({"cuda:0": start + 3 * GIB}, seconds, {"weights": parts})
    if ends:
        stage.finish()
    companion.end(stage.recorder, span, None)
    companion.report(stage.session, stage.session.span(span.id))
    return stage.session


def test_the_search_for_the_holder_is_bounded(searches: list[dict[str, Any]]) -> None:
    """It comes after the span has ended, with bounds on time and objects."""
    (finding,) = watched().findings
    assert finding.title == "3.00 GiB left behind is held by losses"
    assert searches[-1].items() >= {"most_seconds": 0.3, "most_objects": 300_000}.items()


@pytest.mark.parametrize("before", [0.0, 3 * GIB])
def test_the_advice_says_what_a_name_has_if_it_surely_holds_it(before: float) -> None:
    """Where nobody looked before, and it may hold what was there, the only advice is to look."""
    *stored, look = named_for(left(before=before), row("losses[0..2]", 3 * GIB)).advice
    assert look == "%memholders lists everything that is held."
    start = "losses[0..2] has 3 tensors without graphs, the largest 1 float32: "
    advised = f"{start}store less in it, or delete it when it is no longer needed."
    assert stored == ([] if before else [advised])


def test_a_quick_cell_is_not_searched(searches: list[dict[str, Any]]) -> None:
    """A quick cell of a running session is not, nor one that left only a new model's weights."""
    watched(0.5, ends=False)
    assert watched(parts=2.9 * GIB).findings == []
    assert searches == []
    watched(0.5)
    watched(1.5, ends=False)
    assert len(searches) == 2


def test_a_holder_is_named_once(searches: list[dict[str, Any]]) -> None:
    """A second run that began with its 3 GiB gets no finding."""
    assert len(watched().findings) == 1
    assert watched(start=3 * GIB).findings == []
    assert len(searches) == 3  # the last one for memory that no name leads to


def test_nothing_of_the_users_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real search of real variables leaves texts and figures alone."""
    monkeypatch.setattr(search, "user_modules", dict)
    last = process_state(who_added.LastSearch)
    monkeypatch.setattr("hfmem_widget.analysis.left_behind.LEAST_SHARE", 0.0)
    module = SimpleNamespace(losses=[])
    monkeypatch.setitem(sys.modules, "__main__", module)
    stage = Stage("run", gpus=0)
    companion = Leaks()
    with stage.span("cell", "run") as span:
        companion.begin(NO_MONITOR, stage.recorder, span)
        module.losses = [torch.zeros(20 * 2**20)]
        stage.hold({"cpu": 0.4 * GIB}, 2.0)
    references = sys.getrefcount(module.losses[0])
    companion.report(stage.finish(), stage.session.span(span.id))
    references_after = sys.getrefcount(module.losses[0])
    (finding,) = stage.session.findings
    assert finding.title.endswith(", of which 80.0 MiB is held by losses[0]")
    assert references_after == references
    assert [(each.path, each.bytes) for each in last.held.rows] == [("losses[0]", 80 * 2**20)]


def test_notes_from_before_a_cell_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes on a hundred thousand numbers take less than 32 KiB; they would count as the cell's memory."""
    module = SimpleNamespace(**{f"v{number}": number for number in range(100_000)})
    vars(module).update({f"kept{number}": {} for number in range(1000)})
    monkeypatch.setitem(sys.modules, "__main__", module)
    stage = Stage("run", gpus=0)
    companion = Leaks()
    with stage.span("cell", "run") as span:
        companion.begin(NO_MONITOR, stage.recorder, span)  # the cell does not pay for its imports
        tracemalloc.start()
        try:
            companion.begin(NO_MONITOR, stage.recorder, span)
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert size < 32 * 1024


def test_a_name_that_was_bound_anew_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its former object does not matter: a number, another object, or none."""
    names: list[set[str]] = []
    monkeypatch.setattr(
        of_a_watch, "named", lambda _left, _found, known, _span, **_: names.append(set(known.new))
    )
    monkeypatch.setattr("hfmem_widget.analysis.left_behind.LEAST_SHARE", 0.0)
    holders = Holders((), seconds=0.1, objects=1)
    monkeypatch.setattr("hfmem_widget.sources.heap.scan.scan", lambda *_, **__: holders)
    before = [1], [2]
    module = SimpleNamespace(number=1, other=before[0], same=before[1], Out={1: before[1]})
    monkeypatch.setitem(sys.modules, "__main__", module)
    stage = Stage("run", gpus=0)
    companion = Leaks()
    with stage.span("cell", "run") as span:
        companion.begin(NO_MONITOR, stage.recorder, span)
        module.number, module.other, module.fresh = [3], [4], [5]
        module.Out[2] = [6]
        stage.hold({"cpu": 0.4 * GIB}, 2.0)
    companion.report(stage.finish(), stage.session.span(span.id))

    assert names == [{"number", "other", "fresh", "Out[2]"}]


def test_memory_that_no_name_leads_to_is_named_as_far_as_it_is_new() -> None:
    """Such as garbage that nobody collects; less than a tenth is not mentioned."""
    holders = Holders((row("objects that no name leads to", 1.5 * GIB),))
    finding = unnamed(left(before=GIB), holders, 1)

    assert finding is not None
    held = "objects that no name of yours leads to hold at least 512.0 MiB of it"
    assert finding.title == f"1.00 GiB left behind; {held}"
    assert "%memholders --free garbage" in finding.advice[0]
    assert unnamed(left(before=1.45 * GIB), holders, 1) is None


def test_memory_that_no_name_leads_to_is_named_beside_the_name_that_holds_the_rest() -> None:
    """Garbage does not get lost behind a variable that holds memory of the same kind."""
    known = named_for(left(), row("kept", 0.25 * GIB))
    holders = Holders((row("objects that no name leads to", 2 * GIB),))
    finding = unnamed(left(), holders, 1, known)

    assert finding is not None
    assert finding.title.startswith(f"{known.title}; objects that no name of yours leads to hold")
    assert "at least 768.0 MiB of it" in finding.title
    assert finding.advice[: len(known.advice)] == known.advice
    assert "%memholders --free garbage" in finding.advice[-1]


def test_a_search_that_ended_early_without_a_holder_says_so() -> None:
    """The advice is a longer search; after an error, to free that first."""
    bound = "the search ended early, for time"
    finding, after_an_error = (
        named_for(left(), bound=bound, raised=raised) for raised in (False, True)
    )

    assert finding.title == "1.00 GiB left behind; a quick search did not find what holds it"
    assert finding.advice == (f"%memholders searches longer ({bound}).",)
    assert "%memholders --free errors frees it" in after_an_error.advice[0]
    assert title(left()) == ""
