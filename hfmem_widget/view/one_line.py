"""What a cell shows as one line: while it runs, where its end was not seen, and where it was quick.

The first watched cell of a kernel waits for what this module imports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from hfmem_widget.analysis.facts import facts_of, findings_of
from hfmem_widget.analysis.others import movement, untouched_text
from hfmem_widget.session import Session, Span
from hfmem_widget.text import plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.findings import findings_html, findings_lines
from hfmem_widget.view.line import how_it_went, line, parts, rank_phrases

NOTE_LENGTH = 300

_ALONE = kit.root("font-size:13px;line-height:1.45;margin:2px 0")
_ON_ONE_LINE = kit.root("font-size:12px;line-height:1.5;margin:2px 0")


def running_bundle(label: str, began: float) -> dict[str, str]:
    """Return what stands in the card's place while the cell runs; `began` is in seconds since the epoch.

    It must be true, and explain itself, in a notebook that was saved meanwhile and whose kernel is gone.
    """
    # With the zone: the kernel's clock need not be that of who reads it.
    since = time.strftime("%H:%M %Z, %d %b %Y", time.localtime(began))
    text = f"watching since {since}; a card replaces this line when it ends"
    html = _on_one_line(palette.ALLOCATED, label, f"· {text}")
    return {"text/html": html, "text/plain": f'memwatch "{plain(label)}" running since {since}'}


LOST_CELL = "If the kernel still runs and the cell had --output NAME, show NAME to see its card."
LOST_RUN = "Run this cell again to see its card."


def lost_bundle(label: str, remedy: str = LOST_CELL) -> dict[str, str]:
    """Return what stands in the card's place where the page did not see the end."""
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
    """Return the card of a quick cell: its change and its peak on one line; `lead` stands above."""
    moved, findings = movement(session, span), findings_of(session, span)
    devices = [[facts.device.key, *parts(facts, brief=True)] for facts in facts_of(session, span)]
    if session.ranks is not None:
        devices = [rank_phrases(session.ranks, brief=True)]
    first = devices.pop(0) if len(devices) == 1 and not moved.lead else []
    first = moved.lead.split(", ") if moved.lead else first
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
