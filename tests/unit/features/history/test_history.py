"""The history keeps small rows of what was watched, those of a cell together, and forgets the oldest."""

import csv
import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import History
from hfmem_widget.analysis.record import DeviceRecord, Pace, Record, record_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.history.companion import Historian, since_text
from hfmem_widget.features.history.html import MOST_ROWS, history_bundle
from hfmem_widget.features.history.model import CellHistory, drift
from hfmem_widget.session import Certainty, Finding, Peak
from hfmem_widget.text import GIB, MIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.scenes import scripted_run

CLOCK = count()
CELL = Cell(7, "abc", "x = model(**batch)")


def run(
    name: str = "a",
    peak: float = 100.0,
    left: float = 0.0,
    *,
    before: float = 50.0,
    certainty: Certainty = "exact",
    **more: Any,
) -> Record:
    """Return a run of a cell; sizes are MiB."""
    use = use_of("cuda:0", before * MIB, (before + left) * MIB, peak * MIB)
    use = replace(use, peak=Peak(peak * MIB, certainty))
    known: dict[str, Any] = {"number": 1, "kind": "cell", "outcome": "done", "duration": 1.0}
    known |= {"started_at": float(next(CLOCK)), "devices": (use,)}
    return Record(label=name, identity=name, **(known | more))


def use_of(key: str, before: float, after: float, peak: float) -> DeviceRecord:
    """Return what a run did to a device, in bytes."""
    return DeviceRecord(key=key, before=before, after=after, peak=Peak(peak, "exact"))


def table(stored: History, **options: Any) -> CellHistory:
    return CellHistory(tuple(stored.records), stored.forgotten, **options)


def names(history: CellHistory) -> list[str]:
    return [runs[-1].name for runs in history.cells]


@pytest.mark.parametrize(
    "name", ["training", "two gpus", "cpu", "short", "failed", "idle gpu", "leak"]
)
def test_any_session_is_a_row(name: str) -> None:
    """A row has the outcome, the devices that moved with the card's figures, and the findings."""
    session = scripted_run(name)
    span = session.spans[0]

    row = record_of(session, span)

    assert row.name == span.label
    assert (row.outcome, row.duration) == (span.outcome, span.duration)
    assert 1 <= len(row.moved) <= len(session.devices)
    assert row.peak == max(span.peaks[f"{use.key}/allocated"].value for use in row.moved)
    assert len(row.findings) == len(session.findings)


def test_a_row_does_not_keep_its_session_alive() -> None:
    """A row has its own figures, since sessions are large."""
    session = scripted_run("leak")
    watched = weakref.ref(session)
    stored = History()
    Historian(history=stored).conclude(session, session.spans[0])
    label = session.label
    del session
    gc.collect()

    assert watched() is None
    assert names(table(stored)) == [label]


@pytest.mark.parametrize(
    ("kind", "label", "cell", "name", "identity"),
    [
        ("cell", "fine-tune", CELL, "fine-tune", "label fine-tune"),
        ("cell", "cell [7]", CELL, "x = model(**batch)", "cell abc"),
        ("cell", "[7] x = model(**batch)", CELL, "x = model(**batch)", "cell abc"),
        ("cell", "cell [7]", CELL._replace(id=""), "x = model(**batch)", "cell cell [7]"),
        ("cell", "cell [7]", Cell(7, "", ""), "cell [7]", "cell cell [7]"),
        ("cell", "cell [7]", None, "cell [7]", "label cell [7]"),
        ("cell", "training", CELL, "training", "label training"),
        ("block", "load", CELL, "load", "label load"),
        ("block", "block", CELL, "block", "label block in abc"),
        ("block", "training", CELL, "training", "label training in abc"),
        ("block", "training", None, "training", "label training"),
    ],
)
def test_watch_names(kind: Any, label: str, cell: Cell | None, name: str, identity: str) -> None:
    """A label or the first line is the name; runs of a label or of a cell with an id have one identity."""
    session = scripted_run("short")

    row = record_of(session, replace(session.spans[0], kind=kind, label=label), cell=cell)

    assert (row.name, row.identity) == (name, identity)


def test_what_others_found_in_the_session_is_not_this_cells() -> None:
    """A session of many cells has findings of each."""
    session = scripted_run("short")
    session.findings += [Finding("leak", "warn", "mine", span_id=session.spans[0].id)]
    session.findings += [Finding("leak", "warn", "another's", span_id=99)]

    assert record_of(session, session.spans[0]).findings == (("leak", "mine"),)


@pytest.mark.parametrize(
    ("sort", "order"), [("cell", "abcd"), ("peak", "cabd"), ("left", "bacd"), ("time", "acbd")]
)
def test_cells_are_sorted_by_their_newest_run(sort: str, order: str) -> None:
    """The highest comes first, and an unknown figure last."""
    stored = History()
    stored.add(run("a", peak=5000, left=0.0))
    stored.add(run("a", peak=200, left=1.0, duration=9.0))
    stored.add(run("b", peak=100, left=2.0, duration=1.0))
    stored.add(run("c", peak=300, left=0.0, duration=2.0))
    stored.add(run("d", peak=math.nan, left=math.nan, duration=math.nan))

    assert names(table(stored, sort=sort)) == list(order)
    assert names(table(stored, sort=sort, last=2)) == [name for name in order if name in "cd"]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([run(peak=100, left=90)], None),
        ([run(peak=100, left=90), run(peak=130, left=10)], (30, 10)),
        ([run(peak=100, left=90)] + [run(peak=100 + 10 * at, left=10) for at in range(9, 12)], (10, 10)),
        ([run(), run(outcome="interrupted", peak=999), run(), run()], (0, 0)),
        ([replace(run(), devices=()), run()], None),
    ],
)  # fmt: skip
def test_the_drift_of_a_cell(runs: list[Record], expected: tuple[float, ...] | None) -> None:
    """The drift is from run to run, without the first run and without interrupted ones."""
    moved = drift(runs, "cuda:0")

    assert (moved and (moved.peak / MIB, moved.left_behind / MIB)) == expected


@pytest.mark.parametrize(
    ("peaks", "rise"),
    [
        ([379.3, 356.0, 379.4], math.nan),
        ([100, 110, 120, 130], math.nan),  # two rises after the first run
        ([400, 379.3, 356.0, 379.4, 381.0], math.nan),
        ([100, 356.0, 357.0, 379.4, 381.0], math.nan),
        ([100, 100, 100, 100, 100], math.nan),
        ([400, 100, 116, 131, 148], 16),
        ([400, 148, 131, 116, 100], -16),
    ],
)
def test_sampled_peaks_drift_only_if_they_rise_evenly(peaks: list[float], rise: float) -> None:
    """A sample meets a peak by chance: three rises of about the same size are needed."""
    moved = drift([run(peak=peak, left=10, certainty="sampled") for peak in peaks], "cuda:0")

    assert moved is not None
    assert moved.peak / MIB == pytest.approx(rise, nan_ok=True)
    assert moved.left_behind / MIB == 10


def test_no_drift_of_sampled_peaks_stands_in_the_table() -> None:
    """The drift of what runs left behind is shown, since that is read at their ends."""
    stored = History()
    for peak in (379.3, 356.0, 379.4):
        stored.add(run("same", peak, 12, certainty="sampled"))
    lines = history_bundle(table(stored))["text/plain"].splitlines()

    assert lines[3].split() == ["+12.0", "MiB", "a", "run"]


def test_the_oldest_runs_go_and_it_says_so() -> None:
    """The history of a kernel that runs for weeks takes no more room."""
    stored = History(most=3)
    for name in "abcde":
        stored.add(run(name))

    assert names(table(stored)) == ["c", "d", "e"]
    assert "2 older runs not kept" in history_bundle(table(stored))["text/plain"]


def test_a_cell_with_a_watch_of_its_own_is_there_once() -> None:
    """`%memwatch on` watches it a second time; its own watch counts, as with the cards."""
    stored = History()
    stored.add(run("own", number=4, started_at=10.1))
    stored.add(run("[4] own", number=4, started_at=10.0))
    stored.add(run("[5] next", number=5, started_at=11.0))
    stored.add(run("a block in it", number=6, started_at=12.1, kind="block"))
    stored.add(run("[6] another", number=6, started_at=12.0))

    assert names(table(stored)) == ["own", "[5] next", "a block in it", "[6] another"]


def test_the_table_says_what_moved() -> None:
    """A cell has a row with its newest figures, and below it the drift and the findings."""
    stored = History()
    for at in range(4):
        findings = (("rerun", "It leaves more."),) * (at == 3)
        stored.add(run("leaky", 100 + 12 * at, 12, findings=findings))
    stored.add(run("<b>bold</b>", outcome="raised ValueError", number=None))
    shown = history_bundle(table(stored))
    lines = [" ".join(line.split()) for line in shown["text/plain"].splitlines()]

    assert lines[:5] == [
        "memcompare: 2 cells, 5 runs \u00b7 cuda:0",
        "peak left behind",
        "leaky 136.0 MiB exact +12.0 MiB",
        "+12.0 MiB a run +12.0 MiB a run",
        "cell [1] \u00b7 4 runs \u00b7 1.0 s \u00b7 leaves more each run",
    ]
    assert lines[6] == "1.0 s \u00b7 raised ValueError"
    assert "leaky \u00b7 It leaves more." in shown["text/plain"]
    assert "<b>" not in shown["text/html"]


def test_a_long_label_does_not_widen_the_table() -> None:
    """It is shortened like a first line of code."""
    stored = History()
    stored.add(run("x" * 300))
    shown = history_bundle(table(stored))

    assert max(map(len, shown["text/plain"].splitlines())) < 80
    assert "x" * 39 + "\N{HORIZONTAL ELLIPSIS}" in shown["text/html"]


def test_each_run_has_a_row_of_its_own_where_that_is_asked_for() -> None:
    """The row has the run's number among the runs of its cell."""
    stored = History()
    for peak in (100, 120):
        stored.add(run("a", peak))
    lines = history_bundle(table(stored, each_run=True))["text/plain"].splitlines()

    assert [line.split(" \u00b7 ")[1] for line in lines[3:7:2]] == ["run 1 of 2", "run 2 of 2"]


def test_devices_that_moved_have_a_row_each() -> None:
    """Other devices have no row."""
    session = scripted_run("two gpus")
    stored = History()
    stored.add(record_of(session, session.spans[0]))
    lines = history_bundle(table(stored))["text/plain"].splitlines()

    words = [word for line in lines for word in line.split()]
    assert [word for word in words if word.startswith("cuda:")] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(("sort", "missing"), [("peak", "c"), ("cell", "a")])
def test_a_table_that_is_full_has_whole_cells(sort: str, missing: str) -> None:
    """It has the highest or the newest ones, and a note counts the others."""

    def on_many_gpus(name: str, peak: float) -> Record:
        devices = (f"cuda:{index}" for index in range(MOST_ROWS // 2))
        return run(name, devices=tuple(use_of(key, 0.0, MIB, peak * MIB) for key in devices))

    runs = on_many_gpus("a", 30), on_many_gpus("b", 20), on_many_gpus("c", 10)
    text = history_bundle(CellHistory(runs, sort=sort))["text/plain"]

    shown = {line[0] for line in text.splitlines() if line.startswith(("a ", "b ", "c "))}
    assert shown == {"a", "b", "c"} - {missing}
    assert "1 more cell not shown" in text


def test_a_history_of_nothing_says_so() -> None:
    """Its table is empty, with its columns."""
    history = table(History())

    assert "No watched cell" in history_bundle(history)["text/plain"]
    assert list(history.to_pandas().columns)[:2] == ["cell", "name"]
    assert repr(history) == "<CellHistory: 0 cells, 0 runs>"


def test_the_data_frame_and_the_file_have_every_run_on_every_device(tmp_path: Path) -> None:
    """The file is CSV, and never written over another."""
    stored = History()
    for name in ("a", "b, or c", "a"):
        stored.add(run(name, left=3))
    history = table(stored)
    frame = history.to_pandas()

    path = history.save(tmp_path / "h.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert [(row["name"], row["run"]) for row in rows] == [("b, or c", "1"), ("a", "1"), ("a", "2")]
    assert [float(row["left_behind"]) for row in rows] == [3 * MIB] * 3
    assert frame["left_behind"].tolist() == [3 * MIB] * 3
    with pytest.raises(OptionError, match="already exists"):
        history.save(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: table(History(), sort="pek"), "sort must be cell, peak, left or time, not 'pek'"),
        (lambda: table(History(), last=0), "last must be a number of cells, 1 or more, not 0"),
        (lambda: table(History(), last=True), "last must be"),
        (lambda: table(History()).save("h.parquet"), "a name that ends in .csv"),
        (lambda: hfmem_widget.history(sort="x"), "sort must be"),
    ],
)
def test_what_cannot_be_asked_for_is_said(call: Callable[[], object], message: str) -> None:
    """The error is one sentence that names what is possible."""
    with pytest.raises(OptionError, match=message):
        call()


def test_a_cell_that_started_ranks_is_a_row_of_theirs(tmp_path: Path) -> None:
    """Its peak is the worst rank's, which is named, and not that of the process that started them."""
    SimulatedRun(Script(world=4, heavier={2: 1.3}, interval=0.5)).write(tmp_path / "run", 12.0)
    session = scripted_run("cpu")
    session.run = hfmem_widget.open(tmp_path / "run")

    row = record_of(session, session.spans[0], cell=CELL)
    history = CellHistory((row,))

    assert [use.key for use in row.moved] == ["ranks"]
    assert (row.peak, row.worst_rank) == (session.run.ranks[2].peak, session.run.worst)
    assert row.duration == session.spans[0].duration
    assert [kind for kind, _ in row.findings] == [one.kind for one in session.run.findings]
    assert "worst: rank 2 \u00b7 6.2 s \u00b7 rank outlier" in history_bundle(history)["text/plain"]
    assert "nan" not in history_bundle(history)["text/html"].lower()


def ran(
    peak: float = 8 * GIB,
    certainty: Certainty = "exact",
    *,
    seconds: float = 10.0,
    steps: float = float("nan"),
    outcome: str = "done",
) -> Record:
    device = DeviceRecord(key="cuda:0", peak=Peak(peak, certainty))
    pace = Pace(steps_per_second=steps)
    return Record(identity="x", duration=seconds, devices=(device,), outcome=outcome, pace=pace)


SAME = "Since the last run: the same peak."
FAILED = ran(22 * GIB, outcome="raised OutOfMemoryError")
ON_HOST = replace(ran(), devices=(DeviceRecord(key="cpu", peak=Peak(GIB, "sampled")),))


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (ran(), ran(6 * GIB), "Since the last run: peak \u22122.00 GiB (\u221225 %)."),
        (ran(), ran(9 * GIB, seconds=12.0), "Since the last run: peak +1.00 GiB (+12 %), 20 % slower."),
        (ran(), ran(seconds=9.0), "Since the last run: the same peak, 10 % faster."),
        (ran(), ran(8 * GIB + MIB), "Since the last run: peak +1.00 MiB (<0.1 %)."),
        (ran(), ran(seconds=10.2), SAME),
        (ran(), ran(8.05 * GIB, "sampled"), "Since the last run: about the same peak."),
        (ran(), ran(outcome="interrupted"), ""),
        # An evaluation more in the same cell makes no step slower.
        (ran(steps=2.0), ran(seconds=30.0, steps=2.0), SAME),
        (FAILED, ran(), "The last run raised OutOfMemoryError, at a peak of 22.0 GiB."),
        (ran(outcome="interrupted"), ran(), ""),
        # A cell that has moved to a GPU has no earlier peak there.
        (ON_HOST, ran(), ""),
    ],
)  # fmt: skip
def test_a_second_run_is_compared_with_the_first(before: Record, now: Record, text: str) -> None:
    """To the byte if both peaks are exact, without differences by chance; a failed run is named."""
    assert since_text(before, now).replace("(+<", "(<") == text
