"""A span in one line: as plain text, as a placeholder while it runs, and as the card of a quick cell.

The first watched cell of a kernel waits for what this module imports.
"""

import math
from collections.abc import Mapping

from hfmem_widget.analysis.facts import Facts, end_of, facts_of, findings_of, outcome_of
from hfmem_widget.analysis.others import movement, untouched_text
from hfmem_widget.session import Peak, Ranks, Session, Span, outermost
from hfmem_widget.text import (
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
    number,
    plain,
    time_text,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.findings import findings_html, findings_lines

NAME = 40  # letters of a phase, a node or a device at most
FEW = 2  # ranks up to which there is no median between the lowest and the highest
SAME = 0.01  # share of a peak by which reports of it may differ: one rank's came a moment earlier


def line(session: Session, span: Span, *, brief: bool = False) -> str:
    """Return the cost of a span; several devices have a line each, ranks are summed up.

    Such as ``memwatch "fine-tune" · 11.6 s · cuda:0 · peak 6.99 GiB exact · allocated 0.00 → 3.75 GiB``.
    """
    head = [f'memwatch "{plain(span.label or span.kind)}"', *how_it_went(session, span)]
    if session.ranks is not None:
        return " · ".join((*head, *rank_phrases(session.ranks, brief=brief)))
    devices = [
        " · ".join((plain(facts.device.key), *parts(facts, brief=brief)))
        for facts in facts_of(session, span)
    ]
    moved = movement(session, span)
    if moved.lead:
        head.append(plain(moved.lead))
    elif len(devices) > 1:
        head.append(f"{len(devices)} devices")
    else:
        head, devices = [*head, *devices], []
    return "\n  ".join((" · ".join(head), *devices, *filter(None, [plain(moved.by_children)])))


def how_it_went(session: Session, span: Span) -> list[str]:
    """Return the duration, and the outcome unless it is "done"."""
    outcome = [] if span.outcome == "done" else [outcome_of(session, span)]
    return [duration_text(session, span), *outcome]


def duration_text(session: Session, span: Span) -> str:
    """Return the duration of a span, so far if it is open."""
    return format_duration(end_of(session, span) - span.start)


def length(session: Session) -> float:
    """Return the seconds of a session: those of its only outermost span, else all that passed."""
    spans = outermost(session.spans)
    if len(spans) == 1:
        return end_of(session, spans[0]) - spans[0].start
    stop = session.stopped_at
    return session.last_sample.time if stop is None else max(0.0, stop - session.started_at)


def parts(facts: Facts, *, brief: bool = False) -> list[str]:
    """Return one device's figures as short phrases; in brief the first two."""
    phrases = [f"peak {peak_text(facts.peak)}", f"{facts.allocated_label} {change(facts)}"]
    if brief:
        return phrases
    reserved = in_unit_of(facts.reserved, facts.peak.value)
    headroom = headroom_text(facts.headroom, facts.device.total)
    return [*phrases, f"{facts.reserved_label} {reserved}", f"headroom {headroom}"]


def in_unit_of(size: float, reference: float) -> str:
    """Return bytes, without a unit if it is that of the figure before."""
    divisor, _ = unit_for(reference)
    return number(size, divisor) if unit_for(size)[0] == divisor else format_bytes(size)


def size_of(size: float, capacity: float) -> str:
    """Return bytes and the capacity, in one unit if they have the same: ``6.99 of 22.2 GiB``."""
    if not capacity > 0:
        return format_bytes(size)
    (divisor, unit), (of_divisor, of_unit) = unit_for(size), unit_for(capacity)
    own = "" if unit == of_unit else f" {unit}"
    return f"{number(size, divisor)}{own} of {number(capacity, of_divisor)} {of_unit}"


def change(facts: Facts) -> str:
    """Return both edges and the difference, such as ``0.00 → 3.75 GiB (+3.75)``."""
    divisor, _ = unit_for(max(facts.before, facts.after))
    kept = number(facts.left_behind, divisor, signed=True)
    if unit_for(facts.left_behind)[0] != divisor and facts.left_behind != 0:
        # 3 MiB would vanish among GiB, and a slow leak with them.
        kept = format_bytes(facts.left_behind, signed=True)
    return f"{format_change(facts.before, facts.after)} ({kept})"


def peak_text(peak: Peak) -> str:
    """Return a peak and its certainty, such as ``6.99 GiB exact`` or ``≥ 6.99 GiB``."""
    size = format_bytes(peak.value)
    if math.isnan(peak.value):
        return size
    return f"≥ {size}" if peak.certainty == "at least" else f"{size} {peak.certainty}"


def peak_name(ranks: Ranks | None, peak: Peak) -> str:
    """Return the name of the peak in a chart; the worst rank's has its rank and phase."""
    worst = ranks.worst if ranks is not None and ranks.world > 1 else None
    if worst is None or not abs(worst.peak - peak.value) <= SAME * peak.value:
        return f"peak {peak_text(peak)}"
    phase, own = plain(worst.phase, NAME), Peak(worst.peak, worst.certainty)
    return ", ".join((f"worst: rank {worst.rank}", peak_text(own), *([phase] if phase else [])))


def headroom_text(room: float, total: float) -> str:
    """Return a headroom in the unit of the capacity `total`."""
    if math.isnan(room):
        return format_bytes(room)
    divisor, unit = unit_for(total)
    return f"{number(max(0.0, room), divisor)} {unit}"


def size_text(ranks: Ranks) -> str:
    """Return the size of a run, such as ``1,024 ranks on 128 nodes``."""
    where = f" on {format_counted(ranks.nodes, 'node')}" if ranks.nodes > 1 else ""
    return f"{format_counted(ranks.world, 'rank')}{where}"


def reporting_text(ranks: Ranks) -> str:
    """Return how many ranks report; empty where all do."""
    if ranks.reporting >= ranks.world:
        return ""
    return f"{format_count(ranks.reporting)} of {format_count(ranks.world)} reporting"


def rank_phrases(ranks: Ranks, *, brief: bool = False) -> list[str]:
    """Return the figures of all ranks as short phrases; in brief their number and the worst peak."""
    worst = ranks.worst
    if worst is None:
        return [size_text(ranks)]
    phase = plain(worst.phase, NAME)
    which = f"rank {worst.rank}, {phase}" if phase else f"rank {worst.rank}"
    peak = peak_text(Peak(worst.peak, worst.certainty))
    of_worst = f"peak {peak}" if ranks.world < FEW else f"worst peak {peak} ({which})"
    phrases = [size_text(ranks), of_worst]
    if brief:
        return phrases
    phrases += [f"median {in_unit_of(ranks.median, worst.peak)}"] if ranks.world > FEW else []
    phrases += [f"lowest {in_unit_of(ranks.lowest, worst.peak)}"] if ranks.world > 1 else []
    phrases.append(f"headroom {headroom_text(worst.total - worst.peak, worst.total)}")
    reporting = reporting_text(ranks)
    return [*phrases, reporting] if reporting else phrases


NOTE_LENGTH = 300

_ALONE = kit.root("font-size:13px;line-height:1.45;margin:2px 0")
_ON_ONE_LINE = kit.root("font-size:12px;line-height:1.5;margin:2px 0")


def running_bundle(label: str, began: float) -> dict[str, str]:
    """Return the placeholder of a card while the cell runs; `began` is in seconds since the epoch.

    It must be true, and explain itself, in a notebook that was saved meanwhile and whose kernel is gone.
    """
    # With the zone, since the reader's clock may differ from the kernel's.
    since = time_text(began, "%H:%M %Z, %d %b %Y", is_local=True)
    text = f"watching since {since}; a card replaces this line when it ends"
    html = _on_one_line(palette.ALLOCATED, label, f"· {text}")
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}" running since {since}'}


LOST_CELL = "If the kernel still runs and the cell had --output NAME, show NAME to see its card."
LOST_RUN = "Run this cell again to see its card."


def lost_bundle(label: str, remedy: str = LOST_CELL) -> dict[str, str]:
    """Return the placeholder of a card whose end the page did not see."""
    what = "the page was closed or reloaded, or the kernel stopped"
    text = f"The end of this watch was not seen: {what}. {remedy}"
    html = _on_one_line(palette.DEVICE_USED, label, f"· {text}")
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}": {text}'}


def _on_one_line(colour: str, label: str, text: str) -> str:
    inside = kit.words(
        kit.marked(colour, sign=kit.BULLET),
        kit.strong(label),
        kit.faint(kit.shown(text, NOTE_LENGTH)),
    )
    return f"{_ALONE}{inside.html}</div>"


def compact_bundle(
    session: Session, span: Span, lead: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the card of a quick cell: its change and its peak on one line, below the `lead`."""
    moved, findings = movement(session, span), findings_of(session, span)
    devices = [[facts.device.key, *parts(facts, brief=True)] for facts in facts_of(session, span)]
    if session.ranks is not None:
        devices = [rank_phrases(session.ranks, brief=True)]
    first = moved.lead.split(", ") if moved.lead else devices.pop() if len(devices) == 1 else []
    untouched = untouched_text(session, span)
    devices += [[text] for text in (moved.by_children, untouched) if text]
    inside = kit.words(
        kit.marked(outcome_colour(span), sign=kit.BULLET),
        kit.strong(span.label or span.kind),
        kit.faint(kit.phrases([*how_it_went(session, span), *first])),
        *(kit.block(f"margin-left:14px;{kit.FAINT}", kit.phrases(device)) for device in devices),
        kit.Fragment(findings_html(findings, in_sight=1)),
    )
    more = [f"  {untouched}"] if untouched else []
    texts = (line(session, span, brief=True), *more, *findings_lines(findings, in_sight=1))
    return kit.below(lead, f"{_ON_ONE_LINE}{inside.html}</div>", texts)


def outcome_colour(span: Span) -> str:
    """Return the colour of a span's outcome."""
    colours = {"": palette.ALLOCATED, "done": palette.GOOD, "interrupted": palette.STOPPED}
    return colours.get(span.outcome, palette.BAD)
