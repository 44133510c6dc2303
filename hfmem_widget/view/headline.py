"""The result of a watched cell in one sentence: its peak, where that was, and what stays."""

import math
from collections.abc import Sequence

from hfmem_widget.analysis import anatomy as anatomies
from hfmem_widget.analysis.facts import NEXT_TO_NOTHING, Facts
from hfmem_widget.analysis.parts import OF_ALLOCATED
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
    named, is_net = grown_text(session, span, facts) if left > 0 else ("", False)
    does = "were freed" if left < 0 else "more than before" if is_net else "stay"
    size = kit.strong(f"{format_bytes(abs(left))} {does}")
    return _ended(kit.words(size, on), named and f": {named}")


def grown_text(session: Session, span: Span, facts: Facts) -> tuple[str, bool]:
    """Return the parts that a span left behind, if any was counted, and whether other parts have shrunk."""
    parts = [
        moment(session, span, facts.device).parts
        for moment in (anatomies.start_of, anatomies.end_of)
    ]
    start, end = ({part.name: part.bytes for part in each} for each in parts)
    labels = {part.name: part.label for each in parts for part in each}
    left = facts.left_behind
    changes = {name: end.get(name, 0.0) - start.get(name, 0.0) for name in OF_ALLOCATED}
    shrunk, *others = sorted(changes, key=changes.__getitem__)
    is_net = -changes[shrunk] > (1 - EXPLAINED) * left
    least = LEAST_SHARE * (left + max(0.0, -changes[shrunk]))
    grown = (name for name in (*others[::-1], shrunk) if changes[name] >= least)
    named = [name for name in grown if name not in _MADE_BEFORE][: MOST_NAMED - is_net]
    if not set(named) - {"unattributed", "activations"}:
        return "", False
    if is_net:
        sizes = {name: format_bytes(changes[name], signed=True) for name in (*named, shrunk)}
    else:
        sizes = {name: in_unit_of(changes[name], left) for name in named}
    share = changes[named[0]] / left
    if not is_net and len(named) == 1 and share >= EXPLAINED:
        return "mostly " * (share < ALL) + labels[named[0]], False
    texts = [f"{labels[name]} {size}" for name, size in sizes.items()]
    rest = left - sum(changes[name] for name in sizes)
    if abs(rest) >= least:  # so that the sizes add up
        size = format_bytes(rest, signed=True) if is_net else in_unit_of(rest, left)
        texts.append(f"others {size}")
    return ", ".join(texts), is_net


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
