"""``hfmem check RUN`` of a directory: what the ranks have written, and what is damaged or missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from hfmem_widget.cli.output import FINE, NO, say
from hfmem_widget.ranks.run import Run
from hfmem_widget.ranks.stream import RankStream
from hfmem_widget.session import Finding
from hfmem_widget.text import format_bytes, format_count, format_counted, plain
from hfmem_widget.view.findings import MOST, findings_lines
from hfmem_widget.view.table import aligned

MOST_NAMED = 8


def check_run(path: Path) -> int:
    """Say what is in the directory of a run; the code is `NO` where something is damaged or missing."""
    run = Run(path)
    run.look()
    return print_contents(_rows(run), list(_damage(run)), run.findings, run.overview.notes)


def print_contents(
    rows: Iterable[tuple[str, str]],
    damage: Sequence[str],
    findings: Sequence[Finding],
    notes: Iterable[str],
) -> int:
    """Print what is in a recording, a row for each name, and return the exit code."""
    damaged = zip_longest(["damage"], damage or ["none"], fillvalue="")
    lines = [[name, plain(text, 300)] for name, text in (*rows, *damaged)]
    noted = (f"  note: {plain(note, 300)}" for note in notes)
    say("\n".join((aligned(lines, {0, 1}), *findings_lines(findings, MOST), *noted)))
    return NO if damage else FINE


def _rows(run: Run) -> Iterator[tuple[str, str]]:
    ranks, session = run.overview.ranks, run.overview
    yield "run", run.id
    yield "label", session.label or "none"
    yield "state", "running" if run.running else "finished"
    yield "ranks", f"{format_count(len(run))} of {format_count(run.world)}"
    yield "nodes", format_count(len(run.nodes))
    yield "engine", (ranks.engine if ranks else "") or "unknown"
    begun = [(one.head.version, one.rank.attempt) for one in _streams(run) if one.head is not None]
    versions = sorted({version for version, _ in begun})
    yield "format", ", ".join(f"version {version}" for version in versions) or "none"
    yield "attempts", format_count(len({attempt for _, attempt in begun}))
    yield "steps", format_count(session.steps.count)
    if ranks is not None and run.worst is not None:
        highest = run.ranks[run.worst]
        yield "highest peak", f"rank {highest.rank}: {format_bytes(highest.peak)}"
        yield "median peak", format_bytes(ranks.median)
        yield "lowest peak", f"rank {ranks.lowest_rank}: {format_bytes(ranks.lowest)}"
    clocks = [
        f"{plain(host)} {by:+.1f} s"
        for host, by in list(run.collector.offsets.items())[:MOST_NAMED]
    ]
    yield "clocks", ", ".join(clocks) or "agree"


def _damage(run: Run) -> Iterator[str]:
    """Yield what is damaged or missing, a sentence each."""
    missing = run.world - len(run)
    if missing or not run.world:
        yield f"{format_counted(missing, 'rank')} missing" if run.world else "no rank has written"
    if dropped := sum(stream.dropped for stream in _streams(run)):
        yield f"{format_counted(dropped, 'line')} could not be read"
    if holes := sum(stream.holes for stream in _streams(run) if stream.head is not None):
        yield f"{format_counted(holes, 'block')} of samples missing"
    endless = [stream for stream in run.collector.streams.values() if not stream.is_over]
    if endless and not run.running:
        yield f"no end: {_named(endless)}"
    yield from run.collector.notes_on_left_out()


def _streams(run: Run) -> Collection[RankStream]:
    """Return what was read of every file, also of those that do not count."""
    return run.collector.all_streams.values()


def _named(streams: Sequence[RankStream]) -> str:
    names = [str(stream.rank.rank) for stream in streams[:MOST_NAMED]]
    more = [f"{format_count(len(streams) - MOST_NAMED)} more"] if len(streams) > MOST_NAMED else []
    return f"rank{'s' if len(streams) > 1 else ''} {', '.join((*names, *more))}"
