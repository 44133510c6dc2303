"""A session as one output: what its cell showed at the end, as it stands now."""

from __future__ import annotations

from hfmem_widget.session import Session, Span
from hfmem_widget.text import format_counted
from hfmem_widget.view.card import card_bundle, compact_bundle
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.html import BOX

MOST_CELLS = 10
"""Cells of `%memwatch on` that are listed, the newest."""


def session_bundle(session: Session) -> dict[str, str]:
    """Return card and chart by MIME type; of a session of many cells a line for each and one chart."""
    outermost = [span for span in session.spans if span.parent is None]
    if len(outermost) == 1:
        return _of_one(session, outermost[0])
    return _of_many(session, outermost)


def _of_one(session: Session, span: Span) -> dict[str, str]:
    chart = chart_html(session, span)
    card = card_bundle(session, span, with_chart=bool(chart))
    return {"text/html": f"{card['text/html']}{chart}", "text/plain": card["text/plain"]}


def _of_many(session: Session, spans: list[Span]) -> dict[str, str]:
    listed = [compact_bundle(session, span) for span in spans[-MOST_CELLS:]]
    left_out = len(spans) - len(listed)
    before = [f"{format_counted(left_out, 'cell')} before"] if left_out else []
    html = "".join(
        (
            *(f"{BOX}{one} …</div>" for one in before),
            *(one["text/html"] for one in listed),
            chart_html(session),
        )
    )
    text = "\n".join((repr(session), *before, *(one["text/plain"] for one in listed)))
    return {"text/html": html, "text/plain": text} if html else {"text/plain": text}
