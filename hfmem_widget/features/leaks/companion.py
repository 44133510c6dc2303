"""Follows trends during a watch; at its end names the variables that hold what grew or was left."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.facts import QUICK, findings_of
from hfmem_widget.analysis.kept import kept_since
from hfmem_widget.analysis.left_behind import left_behind
from hfmem_widget.features.leaks.findings import draw
from hfmem_widget.features.leaks.reruns import enter_reruns
from hfmem_widget.features.leaks.trends import Trend, trends_of
from hfmem_widget.features.leaks.who_added import (
    LONGER_AFTER_AN_ERROR,
    NEARLY_ALL,
    QUICK_OBJECTS,
    QUICK_SECONDS,
    Before,
    LastSearch,
    growers,
    named,
    names_now,
    search,
    unnamed,
)
from hfmem_widget.guard import harmless
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Sample, Session, Span
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.roots import NotedNames, lengths_of, remedy
from hfmem_widget.sources.source import Looks
from hfmem_widget.text import KIB, format_bytes, plain
from hfmem_widget.view.front_end import running_cell

# Bounds of the search when a watch begins, and the least bytes of a row that is noted.
MOST_SECONDS_BEFORE = 0.05
MOST_OBJECTS_BEFORE = 20_000
MOST_NAMES_BEFORE = 5_000
LEAST_NOTED = 64 * KIB

NOT_SEEN = (
    "%memholders lists what is held; after more steps, %memholders --since shows what has grown."
)
BETWEEN = 1.0  # seconds between two trend tests, which take at most 1 % of the time
# Limits the searches at the beginning of watches to 1 % of this process' time.
_SEARCHES = Looks(unchanged=0.0)


class Leaks(Companion):
    """Draws trends while the code runs; at the end names what holds memory that grew or was left behind.

    A quiet watch only compares the runs of its cell. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        options: WatchOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Session, Span], Iterable[Trend]] = trends_of,
    ) -> None:
        self._clock = clock
        self._look = look
        self._span: Span | None = None
        self._looks = Looks(BETWEEN)
        self._seen = -math.inf
        self._names = NotedNames({})
        self._lengths: Mapping[str, int] = {}
        # By the name of a list: its length, and the session's time at which it was first seen.
        self._lasting: Mapping[str, tuple[int, float]] = {}
        self._before = Before()
        self._raised = False
        self._is_quiet = options is not None and options.quiet
        self._cell: Cell | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note what is held now, and begin to test new samples for trends."""
        self._span, self._cell = span, running_cell()
        if self._is_quiet:
            return
        recorder.subscribe(self._on_tick)
        self._names = NotedNames(*names_now())
        self._lengths = lengths_of(main_variables())
        now = self._clock()
        if len(self._names) <= MOST_NAMES_BEFORE and _SEARCHES.is_due(now, 0.0):
            holders = search(MOST_OBJECTS_BEFORE, MOST_SECONDS_BEFORE)
            _SEARCHES.took(now, 0.0, holders.seconds)
            rows = (row for row in holders.rows if row.bytes >= LEAST_NOTED)
            self._before = Before(replace(holders, rows=tuple(rows)))

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop testing: the span is judged as a whole."""
        recorder.unsubscribe(self._on_tick)
        self._raised = error is not None

    def report(self, session: Session, span: Span) -> None:
        """Add findings about the runs of the cell, and the names that hold what grew or was left."""
        harmless(enter_reruns, session, span, self._cell)
        if not self._is_quiet:
            harmless(self._name_holders, session, span)

    def _name_holders(self, session: Session, span: Span) -> None:
        leaks = [finding for finding in findings_of(session, span) if finding.kind == "leak"]
        is_one_line = session.running and span.duration < QUICK
        much = () if is_one_line else [left for left in left_behind(session, span) if left.is_much]
        if not leaks and not much:
            return
        # An error that it has raised may hold it, and nobody waits for a result.
        longer = LONGER_AFTER_AN_ERROR if self._raised else 1
        bounds = () if leaks else (QUICK_OBJECTS * longer, QUICK_SECONDS * longer)
        holders, known, named_already = search(*bounds), self._known_before(), set()
        for leak in leaks:
            device = str(leak.evidence["device"])
            spans = [span, *(later for later in session.spans if later.start >= span.start)]
            began, *later = (session.value(span.before, f"{device}/allocated") for span in spans)
            freed, idle = began - min(later, default=began), self._idle(session, device)
            before = replace(known, freed=freed, idle=idle)
            finding = with_holder(leak, holders, before)
            session.findings[session.findings.index(leak)] = finding
            if "holder" in finding.evidence:
                named_already.add(device)
        last = process_state(LastSearch)
        thoroughly = cache(partial(search, *bounds, is_thorough=True))  # once, for all devices
        for left in (each for each in much if each.device not in named_already):
            before = known
            if known.held.bound:
                unnoted = last.names.new(*names_now()) - set(known.new)
                before = replace(known, held=last.held_before(left), unnoted=unnoted)
            left_finding = named(left, holders, before, span.id, raised=self._raised)
            evidence = {"holder_grown": 0} if left_finding is None else left_finding.evidence
            if float(str(evidence.get("holder_grown", math.inf))) < NEARLY_ALL * left.bytes:
                left_finding = unnamed(left, thoroughly(), span.id, left_finding)
            session.findings += [left_finding] if left_finding is not None else []
        for at, finding in enumerate(session.findings):
            grown = finding.evidence.get("holder_grown")
            if finding.span_id == span.id and isinstance(grown, int | float):
                kept = kept_since(session, span, str(finding.evidence["device"]), grown)
                session.findings[at] = replace(finding, evidence={**finding.evidence, "kept": kept})
        if not holders.bound:
            last.held, last.names = holders, NotedNames(*names_now())
            last.unexplained = {left.device: left.after for left in left_behind(session, span)}

    def _known_before(self) -> Before:
        """Return what was noted when the watch began, with the changes since."""
        new = self._names.new(*names_now())
        added = {
            name: max(0.0, 1 - self._lengths[name] / max(length, 1))
            for name, length in lengths_of(main_variables()).items()
            if name in self._lengths and name not in new
        }
        return replace(self._before, new=new, added=added)

    def _idle(self, session: Session, device: str) -> set[str]:
        """Return the lists that did not grow during the second half of a device's growth."""
        trends = [
            guide for guide in session.guides if (guide.kind, guide.device) == ("trend", device)
        ]
        middle = max(((trend.start + trend.stop) / 2 for trend in trends), default=-math.inf)
        lengths, seen = lengths_of(main_variables()), self._lasting.items()
        return {name for name, (n, at) in seen if at <= middle and lengths.get(name) == n}

    def _on_tick(self, session: Session, samples: Sequence[Sample]) -> None:
        began, span = self._clock(), self._span
        if span is None or not self._looks.is_due(began, 0.0):
            return
        before, now = self._lasting, samples[-1].time
        self._lasting = {
            name: before[name] if before.get(name, (-1,))[0] == length else (length, now)
            for name, length in lengths_of(main_variables()).items()
        }
        if session.steps.ended_at != self._seen:
            self._seen = session.steps.ended_at
            draw(session, span, self._look(session, span))
        ended = self._clock()
        self._looks.took(ended, 0.0, ended - began)


def with_holder(finding: Finding, holders: Holders, before: Before) -> Finding:
    """Return the finding of a leak with the names that `growers` finds for it."""
    device, growth = str(finding.evidence["device"]), float(str(finding.evidence["grown"]))
    before = replace(before, held=before.held.of(device))
    sure, may = growers(holders.of(device), before, growth)
    bound = [f"{holders.bound[0].upper()}{holders.bound[1:]}."] if holders.bound else []
    rows = [replace(row, path=plain(row.path, 60)) for row, _ in (*sure, *may)]
    if not rows:
        return replace(finding, advice=(*finding.advice, *bound))
    evidence, advice = dict(finding.evidence), [NOT_SEEN, *bound]
    holds = " or ".join(f"{row.path} ({format_bytes(row.bytes)})" for row in rows)
    holds = f"what grows may be {holds}"
    if sure:
        holds = " and ".join(map(_holds, rows, (grown for _, grown in sure)))
        evidence["holder"], evidence["seconds"] = rows[0].path, holders.seconds
        evidence["holder_grown"] = sure[0][1]
        for key, field in (("held", "bytes"), ("graph_bytes", "graph_bytes")):
            evidence[key] = sum(getattr(row, field) for row in rows)
        stop = "{} keeps growing: store less in it, or clear it when it is no longer needed."
        advice = [remedy(row) or stop.format(row.path) for row in rows]
        advice = [*dict.fromkeys(advice), *bound, "%memholders lists them all."]
    title = f"{finding.title.removesuffix('.')}; {holds}."
    return replace(finding, title=title, evidence=evidence, advice=tuple(advice))


def _holds(row: Holder, grown: float) -> str:
    size = format_bytes(row.bytes)
    if row.graph_bytes:
        graphs = "graph" if row.graphs == 1 else "graphs"
        return f"{row.path} and the autograd {graphs} behind it hold {size}"
    more = f", {format_bytes(grown)} more than before" if grown < NEARLY_ALL * row.bytes else ""
    return f"{row.path} holds {size}{more}"
