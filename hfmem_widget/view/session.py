"""A session as one output: what its cell showed at the end, as it stands now."""

from __future__ import annotations

from collections.abc import Iterator

from hfmem_widget.session import Session, Span, outermost
from hfmem_widget.text import format_counted
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import chart_bundle
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.html import BOX
from hfmem_widget.view.one_line import compact_bundle
from hfmem_widget.view.screen import Bundle

MOST_CELLS = 10  # cells of `%memwatch on` that are listed, the newest


def session_bundle(session: Session) -> Bundle:
    """Return card and chart by MIME type; of a session of many cells a line for each and one chart.

    Where a cell has started ranks, those are shown, and the cell as a line between.
    """
    span = _only_span(session)
    if span is not None and session.ranks is None and session.run is not None:
        overview = session.run.overview
        chart, only = chart_html(overview), _only_span(overview)
        lead = _cards(overview, only, with_chart=bool(chart))
        both = compact_bundle(session, span, lead=lead)
        return {**both, "text/html": both["text/html"] + chart}
    chart = chart_html(session, span)
    cards = _cards(session, span, with_chart=bool(chart))
    html = cards.get("text/html", "") + chart
    return {**cards, "text/html": html} if html else cards


def card_of(session: Session, *, with_chart: bool) -> Bundle:
    """Return the card alone, which carries a small picture unless a chart is shown with it."""
    return _cards(session, _only_span(session), with_chart=with_chart)


def still_bundles(session: Session) -> Iterator[Bundle]:
    """Yield what watching leaves behind, an output each: the card, and the chart that can be zoomed."""
    span = _only_span(session)
    chart = chart_bundle(session, span)
    yield _cards(session, span, with_chart=chart is not None)
    if chart is not None:
        yield chart


def _only_span(session: Session) -> Span | None:
    """Return the outermost span, if there is one alone."""
    spans = outermost(session.spans)
    return spans[0] if len(spans) == 1 else None


def _cards(session: Session, span: Span | None, *, with_chart: bool) -> Bundle:
    if span is not None:
        return card_bundle(session, span, with_chart=with_chart)
    spans = outermost(session.spans)
    listed = [compact_bundle(session, each) for each in spans[-MOST_CELLS:]]
    left_out = len(spans) - len(listed)
    before = [f"{format_counted(left_out, 'cell')} before"] if left_out else []
    html = [*(f"{BOX}{text} …</div>" for text in before), *(line["text/html"] for line in listed)]
    text = "\n".join((repr(session), *before, *(line["text/plain"] for line in listed)))
    return {"text/plain": text, **({"text/html": "".join(html)} if html else {})}
