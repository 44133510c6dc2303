"""Judgements over ranks, a sentence with a figure each, and their table. A healthy run says nothing.

Every threshold is a constant here, in `roster` or in `aggregate`; docs/ranks.md lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.ranks.aggregate import LEAST_STEPS, Outlier, outliers, peers, spread
from hfmem_widget.ranks.roster import LOST, MOST_IN_EVIDENCE, SILENT_PACES, SILENT_SECONDS, Look
from hfmem_widget.session import FINE_KINDS, Finding, PhaseSkew, RankRow, SpanKind
from hfmem_widget.session.rank_records import TABLE_ROWS, Flag
from hfmem_widget.session.steps import PHASES
from hfmem_widget.session.timeline import Floats
from hfmem_widget.text import (
    GIB,
    MIB,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_list,
    ordinal,
    plain,
)

IMBALANCE_SHARE, IMBALANCE_BYTES = 0.15, GIB
"""By both the highest peak must exceed the median of its peers'."""

BEHIND = 8.0
"""Seconds for which a rank must have finished no step while the others did."""

USUAL_STEPS = 3
"""Times a usual step for which the others must have waited in one, and at least `BEHIND`."""

CLOCK = 0.5
"""Seconds by which a clock must be off to be worth a sentence."""

_OF_A_STEP: tuple[SpanKind, ...] = ("forward", "backward", "optimizer")
_OUTSIDE_STEPS: tuple[SpanKind, ...] = ("evaluate", "predict", "save")

MOST_NAMED = 4
"""Ranks that a sentence names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The findings, and the positions of the ranks that are worth a look."""

    findings: tuple[Finding, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    behind: tuple[int, ...] = ()


def judge(look: Look) -> Judged:
    """Return the findings over all ranks, the gravest first."""
    groups = peers(np.array([stream.latest("weights") for stream in look.streams]))
    # The peak of a rank that ran out of memory says nothing about the needs of the others.
    failed = {place for place, stream in enumerate(look.streams) if stream.oom is not None}
    far_off = [rank for rank in outliers(look.peaks.newest, groups) if rank.place not in failed]
    behind = [int(place) for place in np.flatnonzero(look.waits >= BEHIND)]
    findings = [
        *_oom(look),
        *_gone(look),
        *_silent(look),
        *(_behind(look, behind) if behind else _waited_for(look)),
        *_outliers(look, far_off),
        *_imbalance(look, groups, failed | {outlier.place for outlier in far_off}),
        *_restarts(look),
        *_clocks(look),
    ]
    return Judged(tuple(findings), tuple(far_off), tuple(behind))


def _oom(look: Look) -> Iterator[Finding]:
    failed = [place for place, stream in enumerate(look.streams) if stream.oom is not None]
    if not failed:
        return

    def when(place: int) -> tuple[float, int]:
        stream = look.streams[place]
        at = stream.reached if math.isnan(stream.oom_at) else stream.oom_at
        return at - look.offsets.get(stream.rank.host, 0.0), place

    first = min(failed, key=when)
    stream = look.streams[first]
    oom = stream.oom or Finding("oom", "critical", "")
    # The step that failed is the newest; before it is known where, that is the last that was finished.
    of = "of" if stream.raised in FINE_KINDS else "after"
    where = f" in {stream.raised}" if stream.raised else ""
    step = f" {of} step {format_count(stream.newest_step)}" if stream.newest_step else ""
    figures = [
        f"{format_bytes(float(value))} {what}"
        for name, what in (("asked", "requested"), ("free", "free"))
        if isinstance(value := oom.evidence.get(name), int | float)
    ]
    figures = figures or [f"peak {format_bytes(stream.peak.value)}"]
    more = f"; {format_counted(len(failed) - 1, 'other rank')} followed" if len(failed) > 1 else ""
    evidence = {
        **oom.evidence,
        **look.rank_evidence(first),
        "phase": stream.raised,
        "step": stream.newest_step,
        "ranks": look.numbers(sorted(failed, key=when)),
    }
    title = f"{look.named(first)} ran out of memory{where}{step}: {', '.join(figures)}{more}."
    yield Finding("rank-oom", "critical", title, evidence, oom.advice)


def _gone(look: Look) -> Iterator[Finding]:
    gone = [place for place, stream in enumerate(look.streams) if stream.is_gone]
    failed = [stream for stream in look.streams if stream.outcome not in {"", "done"}]
    is_known = look.was_interrupted or any(
        stream.oom is not None or stream.outcome == "interrupted" for stream in failed
    )
    if not gone or is_known:
        return
    steps = max(look.streams[place].newest_step for place in gone)
    after = f" after step {format_count(steps)}" if steps else ""
    other = f"; rank {failed[0].rank.rank} {plain(failed[0].outcome)}" if failed else ""
    evidence = {"ranks": look.numbers(gone), "count": len(gone), "step": steps}
    yield Finding(
        "rank-gone",
        "warn" if failed else "critical",
        f"{_subject_and_verb(look, gone, 'was', 'were')} killed{after}, or left by os._exit{other}.",
        evidence,
        (
            "A launcher ends the other ranks where one fails."
            if failed or len(gone) > 1
            else "Where the host's memory runs out, the system kills a process: dmesg shows it.",
        ),
    )


def _silent(look: Look) -> Iterator[Finding]:
    silent = {
        place
        for place in np.flatnonzero(look.silent > 0).tolist()
        if look.streams[place].oom is None and not look.streams[place].is_gone
    }
    hosts = [stream.rank.host for stream in look.streams]
    if len(silent) == len(hosts) > 1:
        subject = f"All {format_count(len(hosts))} ranks have"
        yield _silence(look, sorted(silent), subject, "run-silent")
        return
    on_host, counts = Counter(hosts), Counter(hosts[place] for place in silent)
    lost = sorted(host for host, count in counts.items() if count == on_host[host] > 1)
    gone = [place for place in sorted(silent) if hosts[place] in lost]
    if len(lost) == 1:
        ranges = _ranges(look.streams[place].rank.rank for place in gone)
        subject = f"{plain(lost[0]) or 'A node'} has"
        yield _silence(look, gone, subject, "node-silent", f" (ranks {ranges})")
    elif lost:
        subject = (
            f"{format_count(len(lost))} nodes ({format_list(map(plain, lost), MOST_NAMED)}) have"
        )
        yield _silence(look, gone, subject, "node-silent")
    if alone := sorted(silent.difference(gone)):
        yield _silence(look, alone, _subject_and_verb(look, alone, "has", "have"), "rank-silent")


def _silence(
    look: Look, places: Sequence[int], subject: str, kind: str, ranges: str = ""
) -> Finding:
    seconds = float(look.silent[list(places)].min())
    # Rounded: a sentence that changes every second would be written every second.
    whole = 5 * int(seconds // 5) if seconds < 60 else 60 * int(seconds // 60)
    shown_seconds = max(whole, int(SILENT_PACES + SILENT_SECONDS))
    time = f"{shown_seconds} s" if shown_seconds < 60 else format_duration(shown_seconds)
    more = " or more" if len(places) > 1 else ""
    steps = [look.streams[place].newest_step for place in places]
    last = f", since step {format_count(max(steps))}" if max(steps) else ""
    title = f"{subject} been silent for {time}{more}{last}{ranges}."
    ranks = look.numbers(places)
    hosts = sorted({look.streams[place].rank.host for place in places})[:MOST_IN_EVIDENCE]
    evidence = {"ranks": ranks, "count": len(places), "hosts": hosts, "seconds": whole}
    return Finding(
        kind,
        "critical" if seconds >= LOST else "warn",
        title,
        evidence,
        ("It was killed, has hung, or lost its connection to the run's directory.",),
    )


def _behind(look: Look, behind: Sequence[int]) -> Iterator[Finding]:
    place = min(behind, key=lambda place: (look.streams[place].newest_step, place))
    stream = look.streams[place]
    others = [
        other.newest_step
        for at, other in enumerate(look.streams)
        if at not in behind and not other.is_over
    ]
    if not others:
        return
    theirs, waits = int(np.median(others)), _waited(look.waits[place])
    title = (
        f"{look.named(place)} has finished no step after step {format_count(stream.newest_step)} for "
        f"{waits} s; the others are at step {format_count(theirs)}{_others_too(behind)}."
    )
    evidence = look.rank_evidence(
        place, step=stream.newest_step, others=theirs, seconds=waits, ranks=look.numbers(behind)
    )
    yield Finding("rank-behind", "warn", title, evidence)


_STAGES: Mapping[str, int] = {"step": 1, "substep": 1, "forward": 2, "backward": 3, "optimizer": 4}
"""The progress of a step, by the innermost span that is open in it."""


def _waited_for(look: Look) -> Iterator[Finding]:
    stages = {
        place: 0 if (within := stream.within) is None else _STAGES.get(within.kind, 0)
        for place, stream in enumerate(look.streams)
        if not (stream.is_over or look.silent[place])
    }
    # Of a step whose phases are not measured it is not known how far it has come.
    live = [place for place in stages if stages[place] != 1 or not look.peaks.lack_phases[place]]
    farthest = max((stages[place] for place in live), default=0)
    waiting = [place for place in live if stages[place] == farthest]
    late = [place for place in live if stages[place] < farthest]
    if farthest < _STAGES["backward"] or not late or 2 * len(waiting) <= len(live):
        return
    waits = [
        look.streams[place].reached - within.start
        for place in waiting
        if (within := look.streams[place].within)
    ]
    usual = np.array([look.streams[place].step_seconds for place in waiting])
    seconds = float(np.median(waits)) - float(look.unread[late].max())
    if np.isnan(usual).all() or seconds < max(BEHIND, USUAL_STEPS * float(np.nanmedian(usual))):
        return
    place = min(late, key=lambda place: (stages[place], place))
    stream, other = look.streams[place], look.streams[waiting[0]]
    theirs = other.within.kind if other.within else ""
    step = format_count(other.newest_step + 1)
    phase = stream.within.kind if stream.within and stages[place] > 1 else ""
    its = f"is in {phase} of" if phase else "has not begun the forward pass of"
    whole = _waited(seconds)
    title = (
        f"{look.named(place)} {its} step {step}{_others_too(late)}. {format_counted(len(waiting), 'rank')} "
        f"have waited in its {theirs} for {whole} s."
    )
    where = {"step": stream.newest_step, "phase": phase, "others": theirs}
    evidence = look.rank_evidence(place, **where, seconds=whole, ranks=look.numbers(late))
    yield Finding("rank-behind", "warn", title, evidence)


def _outliers(look: Look, far_off: Sequence[Outlier]) -> Iterator[Finding]:
    for outlier in far_off[:1]:
        share = f"{abs(outlier.value / outlier.peers - 1):.1%}".replace("%", " %")
        how = "more" if outlier.value > outlier.peers else "less"
        more = _others_too(far_off, " So does", " So do")
        title = (
            f"{look.named(outlier.place)} peaks at {format_bytes(outlier.value)} in its steps, {share} {how} "
            f"than its peers ({format_bytes(outlier.peers)}).{more and f'{more}.'}"
        )
        peaks = {"peak": round(outlier.value), "peers": round(outlier.peers)}
        ranks = look.numbers(other.place for other in far_off)
        evidence = look.rank_evidence(outlier.place, **peaks, ranks=ranks)
        advice = ("Compare its batches, its shard of the model and its software with the others'.",)
        yield Finding("rank-outlier", "warn", title, evidence, advice)


def _imbalance(look: Look, groups: NDArray[np.int64], explained: set[int]) -> Iterator[Finding]:
    peaks = np.array([stream.peak.value for stream in look.streams])
    steps = np.array([stream.newest_step for stream in look.streams])
    far_above: list[tuple[float, int, float]] = []
    for group in np.unique(groups):
        places = np.flatnonzero((groups == group) & ~np.isnan(peaks))
        if len(places) < 2 or steps[places].min() < LEAST_STEPS:
            continue
        place = int(places[np.argmax(peaks[places])])
        median = float(np.median(peaks[places[places != place]]))
        above = float(peaks[place]) - median
        if above > max(IMBALANCE_SHARE * median, IMBALANCE_BYTES) and place not in explained:
            far_above.append((above, place, median))
    if not far_above:
        return
    above, place, median = max(far_above)
    stream = look.streams[place]
    phase = phase_of_peak(look, place)
    where = f", in {phase}" if phase else ""
    title = (
        f"{look.named(place)} peaked at {format_bytes(stream.peak.value)}, its peers at "
        f"{format_bytes(median)} (+{100 * above / median:.0f} %){where}."
    )
    peak = round(stream.peak.value)
    evidence = look.rank_evidence(place, peak=peak, peers=round(median), phase=phase)
    yield Finding("rank-imbalance", "warn", title, evidence)


def phase_of_peak(look: Look, place: int) -> str:
    """Return the phase in which a rank's peak was, as far as that is known; otherwise nothing."""
    stream, phases = look.streams[place], look.peaks.highest_phases[place]
    near = stream.peak.value - MIB
    highest = max(range(len(PHASES)), key=lambda at: np.nan_to_num(phases[at]))
    if phases[highest] >= near:
        return PHASES[highest]
    others: tuple[SpanKind, ...] = (*_OUTSIDE_STEPS, "load")
    return next((kind for kind in others if stream.span_peak(kind).value >= near), "")


def _restarts(look: Look) -> Iterator[Finding]:
    for restart in look.restarts[-1:]:
        after = f" after step {format_count(restart.step)}" if restart.step else ""
        if restart.world != restart.before:
            before = format_counted(restart.before, "rank")
            title = f"The run went on with {format_count(restart.world)} instead of {before}{after}"
        else:
            is_all = restart.ranks == restart.world
            ranks = f"All {restart.ranks}" if is_all else format_count(restart.ranks)
            title = f"{ranks} {'rank was' if restart.ranks == 1 else 'ranks were'} restarted{after}"
        times = f", for the {ordinal(len(look.restarts))} time" if len(look.restarts) > 1 else ""
        evidence = {**asdict(restart), "times": len(look.restarts)}
        yield Finding("rank-restarted", "warn", f"{title}{times}.", evidence)


def _clocks(look: Look) -> Iterator[Finding]:
    off = {host: by for host, by in look.offsets.items() if abs(by) > CLOCK}
    if not off:
        return
    worst = max(off, key=lambda host: abs(off[host]))
    by = off[worst]
    name = plain(worst) or "A host"
    how = "ahead" if by > 0 else "behind"
    if len(off) == 1:
        title = f"{name}'s clock is {abs(by):.1f} s {how}; its times are corrected."
    else:
        title = (
            f"The clocks of {format_count(len(off))} of {format_count(look.nodes)} nodes are off, "
            f"{name}'s most ({abs(by):.1f} s {how}); their times are corrected."
        )
    rounded = {host: round(seconds, 2) for host, seconds in list(off.items())[:MOST_IN_EVIDENCE]}
    yield Finding("clock", "info", title, {"offsets": rounded, "count": len(off)})


def _waited(seconds: float) -> int:
    """Return the seconds of a sentence: one that changed every second would be written every second."""
    return max(5 * int(seconds // 5), int(BEHIND))


def _others_too(
    ranks: Sequence[object], singular: str = "; so is", several: str = "; so are"
) -> str:
    count = len(ranks) - 1
    others = format_counted(count, "other rank")
    return f"{singular if count == 1 else several} {others}" if count else ""


def _subject_and_verb(look: Look, places: Sequence[int], singular: str, several: str) -> str:
    if len(places) == 1:
        return f"{look.named(places[0])} {singular}"
    ranks = format_list((str(look.streams[place].rank.rank) for place in places), MOST_NAMED)
    return f"{format_count(len(places))} ranks ({ranks}) {several}"


def _ranges(ranks: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return format_list((" to ".join(map(str, run)) for run in runs), MOST_NAMED)


WORST_ROWS = 8
"""Rows of the table for the ranks with the highest peaks, if there are more ranks than rows."""

_GRAVITY: tuple[Flag, ...] = ("oom", "outlier", "behind", "lost", "silent")


def flags_of(look: Look, judged: Judged) -> Mapping[int, Flag]:
    """Return why a rank is worth looking at, by place."""
    flags: dict[int, Flag] = {outlier.place: "outlier" for outlier in judged.outliers}
    flags |= dict.fromkeys(judged.behind, "behind")
    for place in np.flatnonzero(look.silent > 0).tolist():
        is_lost = look.silent[place] >= LOST or look.streams[place].is_gone
        flags[place] = "lost" if is_lost else "silent"
    flags |= {place: "oom" for place, stream in enumerate(look.streams) if stream.oom is not None}
    return flags


def table_of(look: Look, flags: Mapping[int, Flag], peaks: Floats) -> tuple[RankRow, ...]:
    """Return at most `TABLE_ROWS` rows: the worst first, then the lowest and those worth looking at."""
    order: list[int] = np.argsort(-np.nan_to_num(peaks, nan=-1.0), kind="stable").tolist()
    if len(order) > TABLE_ROWS:
        lowest = [spread(peaks).lowest] if not np.isnan(peaks).all() else []
        flagged = sorted(flags, key=lambda place: (_GRAVITY.index(flags[place]), place))
        order = list(dict.fromkeys([*order[:WORST_ROWS], *lowest, *flagged]))[:TABLE_ROWS]
    return rows_of(look, flags, order)


def rows_of(look: Look, flags: Mapping[int, Flag], places: Sequence[int]) -> tuple[RankRow, ...]:
    """Return the rows of some ranks."""
    return tuple(_row(look, place, flags.get(place, "")) for place in places)


def _row(look: Look, place: int, flag: Flag) -> RankRow:
    stream = look.streams[place]
    rank = stream.rank
    row = RankRow(rank.rank, rank.attempt, rank.host, step=stream.newest_step, flag=flag)
    try:
        device, peak = stream.described, stream.peak
        innermost = next(reversed(stream.open.values()), None)
        running = "" if innermost is None or stream.is_over else innermost.label or innermost.kind
        return replace(
            row,
            device=device.name,
            total=device.total,
            peak=peak.value,
            certainty=peak.certainty,
            allocated=stream.latest("allocated"),
            weights=stream.latest("weights"),
            activations=stream.activations,
            phase=stream.raised or phase_of_peak(look, place) or running,
            silent=float(look.silent[place]),
        )
    except Exception:  # noqa: BLE001  (a fault of ours costs the figures of one rank)
        return row


def phases_of(look: Look) -> tuple[PhaseSkew, ...]:
    """Return how the peaks of each phase spread over the ranks."""
    # Short steps have their phases measured so rarely that the newest may have none.
    newest = look.peaks.newest_phases
    peaks = np.where(np.isnan(newest), look.peaks.highest_phases, newest)
    columns = dict(zip(_OF_A_STEP, peaks.T, strict=True))
    for other in _OUTSIDE_STEPS:
        columns[other] = np.array([stream.span_peak(other).value for stream in look.streams])
    skews = []
    for kind, peaks in columns.items():
        over = spread(peaks)
        if over.high > 0:
            rank = look.streams[over.highest].rank.rank
            skews.append(PhaseSkew(kind, over.low, over.median, over.high, rank))
    return tuple(skews)
