"""Where the memory of a run went: at most 40 lines of text, and data for a program."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from textwrap import wrap
from typing import Any, ClassVar

from hfmem_widget.analysis import anatomy as anatomies
from hfmem_widget.analysis.facts import Facts, facts_of, findings_of, outcome_of, ran_out
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.display import Shown
from hfmem_widget.session import (
    HELD,
    VERDICTS,
    Certainty,
    Finding,
    Move,
    Part,
    Session,
    Span,
    outermost,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import OVERVIEW
from hfmem_widget.session.stacks import Row
from hfmem_widget.text import (
    format_bytes,
    format_counted,
    format_duration,
    format_share,
    json_data,
    plain,
)
from hfmem_widget.view.findings import MARKS, next_steps, sentence
from hfmem_widget.view.front_end import magics_of, running_shell
from hfmem_widget.view.headline import headline, worst_of
from hfmem_widget.view.line import NAME, size_of
from hfmem_widget.view.phases import PhaseRow, phase_rows
from hfmem_widget.view.screen import with_calls
from hfmem_widget.view.table import aligned
from hfmem_widget.view.terminal import ranks_data

SCHEMA = "hfmem.explanation/1"
"""The form of the data: the number goes up where a key is renamed or changes its meaning."""

MOST_LINES = 40
MOST_ROWS = 6  # of a list in the text
MOST_ITEMS = 40  # of a list in the data
WIDTH = 110  # letters of a line


@dataclass(frozen=True, slots=True)
class ExplainedDevice:
    """One device during the run, in bytes; NaN where not known."""

    key: str
    name: str
    capacity: float
    peak: float  # of allocated memory
    certainty: Certainty
    reserved_peak: float
    before: float  # allocated when it began
    after: float
    headroom: float  # at the peak
    parts: tuple[Part, ...]  # at the peak, the largest first


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """Where the memory of a run went; shown as text.

    Attributes
    ----------
    label, outcome : str
    seconds : float
    sentence : str
        The peak, where it was, and what stays; empty where no peak is known.
    runs : int
        The number of watched cells or blocks. The explained one ran out of memory, or peaked highest.
    devices : tuple of ExplainedDevice
        The device that came nearest to its capacity comes first.
    phases : tuple of PhaseRow
    lines : tuple of Row
        The memory that each line of code held at the peak, if stacks were recorded.
    findings : tuple of Finding
        The gravest come first.
    moves : tuple of Move
        Changes that would take less memory, if dry runs have tried them.
    next : mapping
        Commands to type next in a notebook, and what each shows.
    ranks : mapping or None
        The figures of a distributed run.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.view.explained:bundle_of"

    label: str
    outcome: str
    seconds: float = NOT_AVAILABLE
    sentence: str = ""
    runs: int = 0
    devices: tuple[ExplainedDevice, ...] = ()
    phases: tuple[PhaseRow, ...] = ()
    lines: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    moves: tuple[Move, ...] = ()
    next: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        bundle: Mapping[str, str] = bundle_of(self)
        return (bundle if magics_of(running_shell()) else with_calls(bundle))["text/plain"]

    def to_dict(self) -> dict[str, Any]:
        """Return the data for JSON, as in ``docs/schemas/explanation.json``; unknown values are None."""
        moves = [{**asdict(each), "code": each.code, "fits": each.fits} for each in self.moves]
        data: dict[str, Any] = json_data({"schema": SCHEMA, **asdict(self), "moves": moves})
        return data


def explain(session: Session) -> Explanation:
    """Return the explanation of a session."""
    spans = outermost(session.spans)
    span = max(spans, key=lambda each: _order(session, each), default=None)
    if span is None:
        return Explanation(plain(session.label, NAME), "nothing was watched")
    facts = facts_of(session, span)
    devices = [_device(session, span, each) for each in facts]
    if facts:
        worst = facts.index(worst_of(facts))
        devices = [devices[worst], *devices[:worst], *devices[worst + 1 :]]
    stacks = session.stacks
    has_parts = any(part.name in HELD for each in devices for part in each.parts)
    return Explanation(
        label=plain(span.label, NAME) or span.kind,
        outcome=outcome_of(session, span),
        seconds=span.duration if span.stop is not None else NOT_AVAILABLE,
        sentence=headline(session, span, facts).text,
        runs=len(spans),
        devices=tuple(devices),
        phases=tuple(phase_rows(session, span)[:MOST_ITEMS]),
        lines=stacks.rows()[:MOST_ITEMS] if stacks else (),
        findings=findings_of(session, span)[:MOST_ITEMS],
        moves=tuple(session.moves[:MOST_ITEMS]),
        next=dict(next_steps(session, span, has_parts=has_parts)),
        ranks=None if session.ranks is None else ranks_data(session.ranks),
    )


def _order(session: Session, span: Span) -> tuple[bool, float]:
    has_run_out = any(map(ran_out, findings_of(session, span)))
    peaks = [each.peak.value for each in facts_of(session, span)]
    return has_run_out, max((each for each in peaks if each >= 0), default=-1.0)


def _device(session: Session, span: Span, facts: Facts) -> ExplainedDevice:
    is_of_ranks = facts.device.key == OVERVIEW  # the parts are in the recording of each
    parts = () if is_of_ranks else anatomies.peak_of(session, span, facts.device).parts
    return ExplainedDevice(
        facts.device.key,
        facts.device.name,
        facts.capacity,
        facts.peak.value,
        facts.peak.certainty,
        facts.reserved_peak,
        facts.before,
        facts.after,
        facts.headroom,
        tuple(sorted(parts, key=lambda part: -part.bytes)),
    )


def bundle_of(explanation: Explanation) -> dict[str, str]:
    """Return the explanation by MIME type: text alone."""
    return {"text/plain": text_of(explanation)}


def text_of(explanation: Explanation) -> str:
    """Return the explanation as lines of text."""
    texts = _lines(explanation)
    wrapped = (line for text in texts for line in wrap(text, WIDTH, subsequent_indent="    "))
    lines = list(islice(wrapped, MOST_LINES + 1))
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "\u2026"])


def _lines(explanation: Explanation) -> Iterator[str]:
    took = f" after {format_duration(explanation.seconds)}" if explanation.seconds >= 0 else ""
    of = (
        f"; the highest of {format_counted(explanation.runs, 'run')}"
        if explanation.runs > 1
        else ""
    )
    yield f"{explanation.label}: {explanation.outcome}{took}{of}"
    if explanation.sentence:
        yield explanation.sentence
    for finding in explanation.findings[:MOST_ROWS]:
        yield f"{MARKS[finding.severity][2]}: {sentence(finding.title)}"
        texts = (finding.evidence.get("diagnosis"), *finding.advice[:2])
        yield from (f"  {sentence(str(text))}" for text in texts if text)
    for device in explanation.devices[:1]:
        parts = [part for part in device.parts if part.name in OF_ALLOCATED][:MOST_ROWS]
        sizes = [(part.label, part.bytes, part.bytes / (device.peak or math.nan)) for part in parts]
        rows = [[label, format_bytes(size), format_share(share)] for label, size, share in sizes]
        is_kept = device.key != "cpu" and device.reserved_peak > device.peak
        kept = f"; at most {format_bytes(device.reserved_peak)} reserved" if is_kept else ""
        yield from _section(f"On {device.key} at the peak{kept}", rows)
    others = explanation.devices[1 : 1 + MOST_ROWS]
    rows = [[each.key, size_of(each.peak, each.capacity)] for each in others]
    yield from _section("The other devices", rows)
    if explanation.ranks is not None:
        ranks = explanation.ranks["table"][:MOST_ROWS]
        peaks = [math.nan if each["peak"] is None else each["peak"] for each in ranks]
        rows = [
            [f"rank {each['rank']}", format_bytes(peak), each["flag"]]
            for each, peak in zip(ranks, peaks, strict=True)
        ]
        yield from _section("Ranks, by their peak", rows)
    phases = [
        [each.name, f"{each.count} \u00d7", format_bytes(each.peak.value), each.worst]
        for each in explanation.phases[:MOST_ROWS]
    ]
    yield from _section("Phases, by their highest peak", phases)
    lines = [[each.name, format_bytes(each.bytes)] for each in explanation.lines[:MOST_ROWS]]
    has_peak = any(each.peak >= 0 for each in explanation.devices[:1])
    yield from _section("Lines that held most" + " at the peak" * has_peak, lines)
    moves = [
        [each.name, each.need, VERDICTS[each.fits], each.cost or "the same result"]
        for each in explanation.moves[:MOST_ROWS]
    ]
    yield from _section("What would take less, by dry runs", moves)
    # Not in columns: a call of Python, which takes the place of a magic, is longer.
    commands = [[f"{command}: {shows}"] for command, shows in explanation.next.items()]
    yield from _section("Next", commands)


def _section(title: str, rows: list[list[str]]) -> Iterator[str]:
    if rows:
        yield plain(title)
        rows = [[plain(cell) for cell in row] for row in rows]
        words = {0, *(at for at, cell in enumerate(rows[0]) if not cell[:1].isdigit())}
        yield from (f"  {line}" for line in aligned(rows, words).split("\n"))
