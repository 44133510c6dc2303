"""The history as a table: a row for each cell, and the drift over its runs."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.record import UNLABELLED, DeviceRecord, Record
from hfmem_widget.features.history.model import CellHistory, drift
from hfmem_widget.text import format_bytes, format_counted, format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view.findings import sentence
from hfmem_widget.view.table import Cell, Column, TableRow, peak_cell, table

NONE_YET = "No watched cell or block has ended yet."
DRIFT = (
    "Small figures: by how much the peak rose from run to run, whatever ran in between, and what a run left "
    "behind, on average. The first run is left out: it may leave what stays for good."
)

MOST_CELLS = 100
MOST_ROWS = 300
MOST_FINDINGS = 20
MOST_OF_NAME = 40  # characters

# Words for the kinds of findings whose names are not plain.
_WORDS = {
    "oom": "out of memory",
    "rerun": "leaves more each run",
    "near_limit": "nearly full",
    "budget": "over budget",
}

_COLUMNS = (Column(is_bold=True), Column("peak"), Column("left behind"))

# The runs of a cell, and the rows of all or of one of them.
_Block = tuple[tuple[Record, ...], list[TableRow]]


def history_bundle(history: CellHistory) -> dict[str, str]:
    """Return the history by MIME type."""
    cells = history.cells
    listed = cells[:MOST_CELLS] if history.sort != "cell" else cells[-MOST_CELLS:]
    shown = [run for runs in listed for run in runs]
    devices = dict.fromkeys(use.key for run in shown for use in run.moved)
    several = len(devices) > 1
    blocks: list[_Block] = []
    for runs in listed:
        count = f"{len(runs)} runs" if len(runs) > 1 else ""
        parts: list[tuple[tuple[Record, ...], str]] = [(runs, count)]
        if history.each_run:
            parts = [((run,), f"run {at} of {len(runs)}") for at, run in enumerate(runs, 1)]
        blocks += [(runs, [*_rows(part, count, with_device=several)]) for part, count in parts]
    blocks = _that_fit(blocks, newest_last=history.sort == "cell")
    listed = tuple(runs for runs in listed if any(runs is shown_runs for shown_runs, _ in blocks))
    about = f"{format_counted(len(cells), 'cell')}, {format_counted(sum(map(len, cells)), 'run')}"
    about = " \u00b7 ".join([about] if several else [about, *devices])
    return kit.bundle(
        kit.headed("memcompare", about if cells else ""),
        table(_COLUMNS, [row for _, rows in blocks for row in rows], scrolls="cells"),
        _findings([runs[-1] for runs in listed]),
        *kit.notes(_notes(history, shown, left_out=len(cells) - len(listed))),
        title=f"memcompare: {about}" if cells else "",
    )


def _that_fit(blocks: list[_Block], *, newest_last: bool) -> list[_Block]:
    """Return the most important blocks, at least one, that have at most `MOST_ROWS` rows in all."""
    by_importance = blocks[::-1] if newest_last else blocks
    kept = (
        sum(rows <= MOST_ROWS for rows in accumulate(len(rows) for _, rows in by_importance)) or 1
    )
    return blocks[-kept:] if newest_last else blocks[:kept]


def _notes(history: CellHistory, shown: Sequence[Record], left_out: int) -> Iterator[str]:
    if not shown:
        yield NONE_YET
    if not history.each_run and len(shown) > len({run.identity for run in shown}):
        yield DRIFT
    if left_out > 0:
        yield f"{format_counted(left_out, 'more cell')} not shown; to_pandas() has them."
    if history.forgotten:
        yield f"{format_counted(history.forgotten, 'older run')} not kept: the history is full."


def _rows(runs: Sequence[Record], count: str, *, with_device: bool) -> Iterator[TableRow]:
    newest = runs[-1]
    devices = [use.key for use in newest.moved]
    facts = [
        "" if newest.number is None else f"cell [{newest.number}]",
        "" if newest.worst_rank is None else f"worst: rank {newest.worst_rank}",
        "" if newest.worst_rank is not None else devices[0] if with_device and devices else "",
        count,
        format_duration(newest.duration),
        "" if newest.outcome == "done" else newest.outcome,
        *dict.fromkeys(_WORDS.get(kind, kind.replace("-", " ")) for kind, _ in newest.findings),
    ]
    first, *others = [_figures(use, runs) for use in newest.moved] or [("", "")]
    yield TableRow((_name(newest), *first), below=(kit.phrases(facts),))
    for use, figures in zip(newest.moved[1:], others, strict=True):
        yield TableRow((kit.faint(use.key), *figures), is_indented=True)


def _name(run: Record) -> kit.Fragment:
    is_code = not run.label and run.identity.startswith(UNLABELLED)
    return kit.code(run.name) if is_code else kit.shown(run.name, MOST_OF_NAME)


def _figures(use: DeviceRecord, runs: Sequence[Record]) -> tuple[Cell, Cell]:
    moved = drift(runs, use.key)
    peak, left = peak_cell(use.peak), format_bytes(use.left_behind, signed=True)
    if math.isnan(use.left_behind):  # of ranks, which have ended
        return peak if moved is None else (peak, _a_run(moved.peak)), ""
    if moved is None:
        return peak, left
    return (peak, _a_run(moved.peak)), (left, _a_run(moved.left_behind))


def _a_run(size: float) -> str:
    if math.isnan(size):
        return ""
    size = 0.0 if abs(size) < NEXT_TO_NOTHING / 10 else size
    return f"{format_bytes(size, signed=True)} a run"


def _findings(newest: Sequence[Record]) -> kit.Fragment:
    titles = [(run, title) for run in newest for _, title in run.findings]
    if not titles:
        return kit.NOTHING
    lines = [
        kit.block("margin:3px 0 0", kit.strong(_name(run)), "\u00b7", sentence(title))
        for run, title in titles[-MOST_FINDINGS:]
    ]
    return kit.fold(format_counted(len(titles), "finding"), *lines, style="margin:8px 0 0")
