"""Whether a cell that is run again and again leaves more memory each time."""

from collections.abc import Sequence
from dataclasses import replace

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.analysis.record import Record, names_of
from hfmem_widget.features.leaks.who_added import KINDS, NEARLY_ALL, search
from hfmem_widget.session import Device, Finding, Session, Span
from hfmem_widget.sources.heap.model import Holders
from hfmem_widget.text import MIB, format_bytes, plain

# Successive runs that left more, not counting the first: it may leave what stays for good.
LEAST_RUNS = 3
LEAST_LEFT = MIB  # bytes by which each run's allocated memory must have grown
LEAST_LEFT_ON_THE_HOST = 16 * MIB
LEAST_KEPT = 0.5  # share of the bytes left by a run that must still be there when the next run ends
# Share of the bytes left by all runs that makes unnamed memory worth a sentence
LEAST_UNNAMED = 0.25
MOST_NAMED = 2  # more candidates than these are not named
EVEN = 0.5  # ratio of the smallest to the largest rise, at least

LOOK = (
    "%memholders lists what holds it; after the next run, %memholders --since shows what was added."
)


def enter_reruns(session: Session, span: Span, cell: Cell | None) -> None:
    """Add findings about all runs of a cell to the session, with the names that may hold the memory."""
    if cell is None or span.kind != "cell":
        return
    findings = reruns(session, span, HISTORY.runs_of(names_of(span, "", cell)[2]))
    if findings:
        held = search()
        session.findings += (with_names(finding, held) for finding in findings)


def with_names(finding: Finding, held: Holders) -> Finding:
    """Return a finding with the names that may hold the memory, or a note that much of it is unnamed."""
    rows, left = held.of(str(finding.evidence["device"])).rows, float(str(finding.evidence["left"]))
    unnamed = left - sum(row.bytes for row in rows)
    if held.bound or unnamed < LEAST_UNNAMED * left:
        may = [row for row in rows if row.kind not in KINDS and row.bytes >= NEARLY_ALL * left]
        if not 0 < len(may) <= MOST_NAMED:
            return finding
        names = " or ".join(f"{plain(row.path, 60)} ({format_bytes(row.bytes)})" for row in may)
        return replace(finding, title=f"{finding.title.removesuffix('.')}; it may be {names}.")
    advice = (
        f"No name leads to at least {format_bytes(unnamed)} of it: %memholders --free garbage frees what "
        "waits for Python's garbage collector, which may be all of that."
    )
    return replace(finding, advice=(advice, *finding.advice))


def reruns(session: Session, span: Span, earlier: Sequence[Record]) -> tuple[Finding, ...]:
    """Return a finding for each device on which every recent run left more; `earlier` is oldest first."""
    if span.after is None:
        return ()
    findings, runs = [], len(earlier) + 1
    for device in session.devices:
        key = f"{device.key}/allocated"
        records = (record.device(device.key) for record in earlier)
        edges = [(before.before, before.after) for before in records if before is not None]
        edges.append((session.value(span.before, key), session.value(span.after, key)))
        left = _left_by_last(edges, device)
        if len(left) < LEAST_RUNS:
            continue
        total = sum(left)
        title = (
            f"This cell has run {runs} times, and each of the last {len(left)} runs left "
            f"{format_bytes(total / len(left))} more on {device.key}: {format_bytes(total)} in total."
        )
        evidence = {"device": device.key, "runs": runs, "last": len(left)}
        evidence |= {"each": round(total / len(left)), "left": round(total)}
        findings.append(Finding("rerun", "warn", title, evidence, (LOOK,), span.id))
    return tuple(findings)


def _left_by_last(edges: Sequence[tuple[float, float]], device: Device) -> list[float]:
    """Return the bytes that each recent run added, newest first; `edges` are before and after, oldest first.

    The list ends at the first run that added too little, or much more or less than the others.
    """
    least = LEAST_LEFT if ":" in device.key else LEAST_LEFT_ON_THE_HOST
    rises: list[float] = []
    for (_, ended), (before, after) in zip(reversed(edges[:-1]), reversed(edges), strict=False):
        left, rise = after - before, after - ended
        # An unknown reading is NaN, and no comparison with it holds.
        if not (left >= least and rise >= LEAST_KEPT * left):
            break
        rise = min(rise, left)  # other cells may have left something in between
        if rises and not EVEN * max(rise, *rises) <= min(rise, *rises):
            break
        rises.append(rise)
    return rises
