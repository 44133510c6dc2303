"""A session as one output: what its cell showed at the end, as it stands now."""

from __future__ import annotations

from hfmem_widget.session import Session
from hfmem_widget.text import format_counted
from hfmem_widget.view.card import card_bundle, compact_bundle
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.html import BOX

MOST_CELLS = 10  # cells of `%memwatch on` that are listed, the newest


def session_bundle(session: Session) -> dict[str, str]:
    """Return card and chart by MIME type; of a session of many cells a line for each and one chart."""
    outermost = [span for span in session.spans if span.parent is None]
    if len(outermost) == 1:
        chart = chart_html(session, outermost[0])
        card = card_bundle(session, outermost[0], with_chart=bool(chart))
        return {**card, "text/html": f"{card['text/html']}{chart}"}
    listed = [compact_bundle(session, span) for span in outermost[-MOST_CELLS:]]
    left_out = len(outermost) - len(listed)
    before = [f"{format_counted(left_out, 'cell')} before"] if left_out else []
    html = "".join(
        (
            *(f"{BOX}{text} …</div>" for text in before),
            *(line["text/html"] for line in listed),
            chart_html(session),
        )
    )
    text = "\n".join((repr(session), *before, *(line["text/plain"] for line in listed)))
    return {"text/html": html, "text/plain": text} if html else {"text/plain": text}
