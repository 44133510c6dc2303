"""What a watched cell came to, in one sentence and one bar: its peak, where that was, and what stays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hfmem_widget.analysis import anatomy as anatomies
from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, Facts, findings_of
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.session import HELD, Anatomy, Part, Peak, Ranks, Session, Span
from hfmem_widget.text import format_bytes, format_counted, number, plain, unit_for
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy import BESIDE, bar_html, colour_of, drawn_parts, full_width
from hfmem_widget.view.line import FEW, NAME, in_unit_of
from hfmem_widget.view.phases import phase_rows, where_text

LEAST_SHARE = 0.05
"""Of what stays: a part that has less is not named."""

EXPLAINED = 0.9
"""Share of what stays from which on the parts that have grown are said to be all of it."""

ALL = 0.99
"""The same, without a "mostly"."""

MOST_NAMED = 3

AS_MUCH = 0.1
"""Share by which what is not attributed may differ from the end's, where a name's part of that is told."""

LEAST_SEEN = 0.02
"""Share of what the process has from which on a part has a label below the bar."""

KEPT = "kept"

_MADE_BEFORE = {"before", "rounding"}
"""Parts that say when memory was allocated, or how, and not what it is for."""


def worst_of(facts: Sequence[Facts]) -> Facts:
    """Return the facts of the device that came nearest to its capacity, or else peaked highest."""

    def order(each: Facts) -> tuple[float, float]:
        peak = each.peak.value if math.isfinite(each.peak.value) else -1.0
        return peak / each.capacity if each.capacity > 0 else 0.0, peak

    return max(facts, key=order)


def headline(session: Session, span: Span, facts: Sequence[Facts]) -> kit.Fragment:
    """Return the sentence; nothing where no peak is known."""
    if session.ranks is not None:
        return _of_ranks(session.ranks)
    if not facts:
        return kit.NOTHING
    worst = worst_of(facts)
    if math.isnan(worst.peak.value):
        return kit.NOTHING
    on = f"on {worst.device.key}" if len(facts) > 1 else ""
    where = where_text(phase_rows(session, span), worst.device.key, worst.peak)
    return kit.words(
        _peak(worst.peak, worst.capacity, on, where),
        _others(worst, facts),
        _stays(session, span, worst, on),
    )


def _peak(peak: Peak, capacity: float, on: str, where: str) -> kit.Fragment:
    is_bound = peak.certainty == "at least"
    size = kit.strong(size_of(peak.value, capacity))
    known = "" if is_bound else f", {peak.certainty}"
    return _ended(kit.words("Peak", "at least" * is_bound, size, on), known, where and f", {where}")


def _ended(*contents: kit.Content) -> kit.Fragment:
    return kit.words(*contents, ".", between="")


def size_of(size: float, capacity: float) -> str:
    """Return bytes and the capacity, in one unit if they have the same: ``6.99 of 22.2 GiB``."""
    if not capacity > 0:
        return format_bytes(size)
    (divisor, unit), (of_divisor, of_unit) = unit_for(size), unit_for(capacity)
    own = "" if unit == of_unit else f" {unit}"
    return f"{number(size, divisor)}{own} of {number(capacity, of_divisor)} {of_unit}"


def _others(worst: Facts, facts: Sequence[Facts]) -> str:
    peaks = [each.peak.value for each in facts if each is not worst]
    known = sorted(filter(math.isfinite, peaks))
    if not known:
        return ""
    low, high = in_unit_of(known[0], known[-1]), format_bytes(known[-1])
    what = f"the other {len(peaks)}" if len(peaks) > 1 else "the other one"
    return f"Peak of {what}: {f'{low} to ' * (not high.startswith(f'{low} '))}{high}."


def _stays(session: Session, span: Span, facts: Facts, on: str) -> kit.Fragment:
    left = facts.left_behind
    if math.isnan(left) or span.stop is None:
        return kit.NOTHING
    if abs(left) < NEXT_TO_NOTHING:
        return kit.shown("Nothing stays." if left == 0 else "Next to nothing stays.")
    named, is_net = grown_text(session, span, facts) if left > 0 else ("", False)
    does = "were freed" if left < 0 else "more than before" if is_net else "stay"
    size = kit.strong(f"{format_bytes(abs(left))} {does}")
    return _ended(kit.words(size, on), named and f": {named}")


def grown_text(session: Session, span: Span, facts: Facts) -> tuple[str, bool]:
    """Return which parts have what a span left behind, the largest first, and whether others have shrunk.

    The text is empty where no part was counted.
    """
    start, end = (
        {part.name: part.bytes for part in moment(session, span, facts.device).parts}
        for moment in (anatomies.start_of, anatomies.end_of)
    )
    changes = {name: end.get(name, 0.0) - start.get(name, 0.0) for name in OF_ALLOCATED}
    grown = {name: changes[name] for name in sorted(changes, key=changes.__getitem__)[::-1]}
    shrunk = min(changes, key=changes.__getitem__)
    is_net = -changes[shrunk] > (1 - EXPLAINED) * facts.left_behind
    least = LEAST_SHARE * (facts.left_behind + max(0.0, -changes[shrunk]))
    named = [name for name in grown if grown[name] >= least and name not in _MADE_BEFORE]
    named = named[: MOST_NAMED - is_net]
    if not set(named) - {"unattributed", "activations"}:
        return "", False
    if is_net:
        texts = [
            f"{LABELS[name]} {format_bytes(changes[name], signed=True)}"
            for name in (*named, shrunk)
        ]
    elif len(named) == 1 and (share := grown[named[0]] / facts.left_behind) >= EXPLAINED:
        texts = ["mostly " * (share < ALL) + LABELS[named[0]]]
    else:
        texts = [f"{LABELS[name]} {in_unit_of(grown[name], facts.left_behind)}" for name in named]
    return ", ".join(texts), is_net


def _of_ranks(ranks: Ranks) -> kit.Fragment:
    worst = ranks.worst
    if worst is None or math.isnan(worst.peak):
        return kit.NOTHING
    where = f" on rank {worst.rank}" if ranks.world > 1 else ""
    phase = plain(worst.phase, NAME)
    peak = _peak(
        Peak(worst.peak, worst.certainty), worst.total, where, f" in {phase}" * bool(phase)
    )
    if ranks.world == 1:
        return peak
    others = [f"median {format_bytes(ranks.median)}"] if ranks.world > FEW else []
    others.append(f"lowest {format_bytes(ranks.lowest)}")
    return kit.words(peak, f"Of {format_counted(ranks.world, 'rank')}: {', '.join(others)}.")


def kept_of(session: Session, span: Span, peak: Anatomy) -> Part | None:
    """Return what a search found a name to have added, of what is not attributed; None if it found none.

    The search was at the end: it counts only where as much was not attributed then as at the peak.
    """
    for finding in findings_of(session, span):
        grown = finding.evidence.get("holder_grown")
        if finding.evidence.get("device") != peak.device.key or not isinstance(grown, int | float):
            continue
        end = anatomies.end_of(session, span, peak.device).bytes("unattributed")
        rest = peak.bytes("unattributed")
        if abs(rest - end) <= AS_MUCH * end and grown <= (1 + AS_MUCH) * rest:
            holder = plain(str(finding.evidence.get("holder", "")), NAME)
            return Part(KEPT, f"kept by {holder}", min(grown, rest))
    return None


def bar_of(anatomy: Anatomy, capacity: float, kept: Part | None = None) -> kit.Fragment:
    """Return the memory at the peak as one bar with its labels; nothing where that is not known."""
    names = (*drawn_parts([anatomy]), KEPT)
    anatomy = replace(anatomy, parts=_with(anatomy.parts, kept))
    known = [part for part in anatomy.parts if part.name != "free"]
    parts = [part for part in known if part.name in names]
    used = sum(part.bytes for part in parts)
    full = full_width(used, capacity)
    bar = bar_html(anatomy, [part.name for part in parts], full)
    if not bar:
        return kit.NOTHING
    least = LEAST_SEEN * sum(part.bytes for part in parts if part.name not in BESIDE)
    labels: list[kit.Content] = [
        kit.marked(colour_of(part), f"{part.label} {format_bytes(part.bytes)}")
        for part in parts
        if part.bytes >= least
    ]
    if full < capacity:
        whole = "in all" if len(parts) == len(known) else "this process"
        labels.append(f"{whole} {size_of(used, capacity)}")
    free = anatomy.bytes("free")
    labels += [f"free {format_bytes(free)}"] if free > 0 else []
    return kit.Fragment(f"{bar}{kit.keys(labels, ';font-size:12px;margin:6px 0 0').html}")


def parts_text(anatomy: Anatomy) -> str:
    """Return the parts of what a device's allocator has given, the largest first; empty where unknown."""
    known = [part for part in anatomy.parts if part.name in OF_ALLOCATED and part.bytes > 0]
    least = LEAST_SEEN * sum(part.bytes for part in known)
    seen = sorted((part for part in known if part.bytes >= least), key=lambda part: -part.bytes)
    if not {part.name for part in seen} & set(HELD):
        return ""
    return ", ".join(f"{plain(part.label, NAME)} {format_bytes(part.bytes)}" for part in seen)


def _with(parts: Iterable[Part], kept: Part | None) -> tuple[Part, ...]:
    """Return the parts with what is kept taken out of what is not attributed, below the rest of it."""
    found: list[Part] = []
    for part in parts:
        if kept and part.name == "unattributed":
            found += [kept, replace(part, bytes=part.bytes - kept.bytes)]
        else:
            found.append(part)
    return tuple(found)
