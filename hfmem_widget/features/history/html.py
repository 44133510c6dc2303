"""The history as a table: a row for each cell, and how it drifted over its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.features.history.model import CellHistory, CellRun, DeviceUse, drift
from hfmem_widget.text import format_bytes, format_counted, format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.table import Cell, Column, Row, table

NONE_YET = "No watched cell or block has ended yet."
DRIFT = (
    "Small figures: by how much the peak rose from run to run, whatever ran in between, and what a run left "
    "behind, on average. The first run is left out: it may leave what stays for good."
)
EARLIER = "Numbers in parentheses are of earlier kernels."

MOST_CELLS = 100
"""Rows of one table; `last` shows fewer."""

MOST_FINDINGS = 20

_HEADS = ("", "cell", "runs", "duration", "device", "peak", "left behind", "outcome")

_WORDS = {"oom": "out of memory", "rerun": "leaves more each run"}
"""What is said of a kind of finding whose name does not say it."""


def history_bundle(history: CellHistory) -> dict[str, str]:
    """Return the history by MIME type."""
    cells = history.cells
    listed = cells[:MOST_CELLS] if history.sort != "cell" else cells[-MOST_CELLS:]
    shown = [run for runs in listed for run in runs]
    if history.each_run:
        each = [runs[:count] for runs in listed for count in range(1, len(runs) + 1)]
        rows = [row for runs in each[-MOST_CELLS:] for row in _rows(runs, history)]
    else:
        rows = [row for runs in listed for row in _rows(runs, history)]
    columns = [
        Column(
            "run" if head == "runs" and history.each_run else head,
            head == "outcome",
            is_bold=not head,
        )
        for head in _HEADS
    ]
    about = f"{format_counted(len(cells), 'cell')}, {format_counted(sum(map(len, cells)), 'run')}"
    return kit.bundle(
        kit.headed("memhistory", about if cells else ""),
        table(columns, rows, scrolls="cells"),
        _findings([runs[-1] for runs in listed]),
        *kit.notes(_notes(history, shown, left_out=len(cells) - len(listed))),
        title=f"memhistory: {about}" if cells else "",
    )


def _notes(history: CellHistory, shown: Sequence[CellRun], left_out: int) -> Iterator[str]:
    if not shown:
        yield NONE_YET
    if not history.each_run and len(shown) > len({run.identity for run in shown}):
        yield DRIFT
    if any(run.kernel != history.kernel for run in shown):
        yield EARLIER
    if left_out > 0:
        yield f"{format_counted(left_out, 'more cell')} not shown; to_pandas() has them."
    if history.forgotten:
        yield f"{format_counted(history.forgotten, 'older run')} not kept: the history is full."
    if history.file:
        yield f"Kept in {history.file}."


def _rows(runs: Sequence[CellRun], history: CellHistory) -> Iterator[Row]:
    newest = runs[-1]
    number = "" if newest.number is None else str(newest.number)
    if number and newest.kernel != history.kernel:
        number = f"({number})"
    about = (newest.name, number, str(len(runs)), format_duration(newest.duration))
    outcome = "" if newest.outcome == "done" else newest.outcome
    kinds = dict.fromkeys(_WORDS.get(kind, kind) for kind, _ in newest.findings)
    found = "; ".join(filter(None, (outcome, *kinds)))
    compared = () if history.each_run else runs
    first, *others = [_figures(use, compared) for use in newest.devices] or [("", "", "")]
    yield Row((*about, *first, found))
    yield from (Row(("", "", "", "", *figures)) for figures in others)


def _figures(use: DeviceUse, runs: Sequence[CellRun]) -> tuple[Cell, ...]:
    moved = drift(runs, use.key)
    peak, left = peak_text(use.known_peak), format_bytes(use.left_behind, signed=True)
    if moved is None:
        return use.key, peak, left
    return use.key, (peak, _each(moved.peak)), (left, _each(moved.left_behind))


def _each(size: float) -> str:
    size = 0.0 if abs(size) < NEXT_TO_NOTHING / 10 else size
    return f"{format_bytes(size, signed=True)} a run"


def _findings(newest: Sequence[CellRun]) -> kit.Fragment:
    """Return the sentences of what was found in the newest run of each cell, behind a click."""
    found = [(run, sentence) for run in newest for _, sentence in run.findings]
    if not found:
        return kit.NOTHING
    lines = [
        kit.block("margin:3px 0 0;overflow-wrap:anywhere", kit.strong(f"{run.name}:"), sentence)
        for run, sentence in found[-MOST_FINDINGS:]
    ]
    return kit.fold(format_counted(len(found), "finding"), *lines, style="margin:8px 0 0")
