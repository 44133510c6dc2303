"""The result of a watched cell in one sentence: its peak, where that was, and what stays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.analysis import anatomy as anatomies
from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, Facts
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.session import Peak, Ranks, Session, Span
from hfmem_widget.text import format_bytes, format_counted, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.line import FEW, NAME, in_unit_of, size_of
from hfmem_widget.view.phases import phase_rows, where_text

LEAST_SHARE = 0.05  # share of the memory that stays from which a part is named
EXPLAINED = 0.9  # share from which a single part is named without its size, with "mostly"
ALL = 0.99  # share from which it is named without "mostly"
MOST_NAMED = 3

_MADE_BEFORE = {"before", "rounding"}
"""Parts that say when or how memory was allocated, not its purpose."""


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
    size = kit.strong(f"{format_bytes(abs(left))} {'stay' if left > 0 else 'were freed'}")
    named = grown_text(session, span, facts) if left > 0 else ""
    return _ended(kit.words(size, on), named and f": {named}")


def grown_text(session: Session, span: Span, facts: Facts) -> str:
    """Return the parts of the memory that a span left behind, the largest first; empty where unknown."""
    start, end = (
        {part.name: part.bytes for part in moment(session, span, facts.device).parts}
        for moment in (anatomies.start_of, anatomies.end_of)
    )
    grown = {
        name: rise
        for name in end.keys() & set(OF_ALLOCATED) - _MADE_BEFORE
        if (rise := end[name] - start.get(name, 0.0)) >= LEAST_SHARE * facts.left_behind
    }
    named = sorted(grown, key=lambda name: -grown[name])[:MOST_NAMED]
    if not set(named) - {"unattributed", "activations"}:
        return ""
    is_one = len(named) == 1 and grown[named[0]] >= EXPLAINED * facts.left_behind
    mostly = "mostly " * (grown[named[0]] < ALL * facts.left_behind)
    if is_one:
        return mostly + LABELS[named[0]]
    left = facts.left_behind
    return ", ".join(f"{LABELS[name]} {in_unit_of(grown[name], left)}" for name in named)


def _of_ranks(ranks: Ranks) -> kit.Fragment:
    worst = ranks.worst
    if worst is None or math.isnan(worst.peak):
        return kit.NOTHING
    where = f" on rank {worst.rank}" if ranks.world > 1 else ""
    phase = plain(worst.phase, NAME)
    highest = Peak(worst.peak, worst.certainty)
    peak = _peak(highest, worst.total, where, f" in {phase}" * bool(phase))
    if ranks.world == 1:
        return peak
    others = [f"median {format_bytes(ranks.median)}"] if ranks.world > FEW else []
    others.append(f"lowest {format_bytes(ranks.lowest)}")
    return kit.words(peak, f"Of {format_counted(ranks.world, 'rank')}: {', '.join(others)}.")
