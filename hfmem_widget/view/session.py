"""A session as one output: its card and its chart as they are now."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hfmem_widget.analysis.facts import facts_of, findings_of, outcome_of
from hfmem_widget.session import Session, Span, outermost
from hfmem_widget.text import format_counted, format_duration, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import chart_bundle
from hfmem_widget.view.chart.scene import AS_HIGH
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.findings import findings_lines, sentence
from hfmem_widget.view.headline import headline, worst_of
from hfmem_widget.view.html import BOX
from hfmem_widget.view.line import NAME, compact_bundle, peak_text, size_of
from hfmem_widget.view.screen import Bundle
from hfmem_widget.view.table import Column, TableRow, table

MOST_SPANS = 40  # in the table of a session's spans, the newest
MOST_CELLS = 10  # cells of `%memwatch on` that are listed, the newest


def session_bundle(session: Session) -> Bundle:
    """Return card and chart by MIME type: many cells have a line each, ranks their card above the cell's."""
    span = _only_span(session)
    if span is not None and session.ranks is None and session.run is not None:
        overview = session.run.overview
        chart = chart_html(overview)
        lead = card_of(overview, with_chart=bool(chart))
        both = compact_bundle(session, span, lead=lead)
        return {**both, "text/html": both["text/html"] + chart}
    chart = chart_html(session, span)
    cards = card_of(session, with_chart=bool(chart))
    html = cards.get("text/html", "") + chart
    return {**cards, "text/html": html} if html else cards


def came_to(session: Session) -> str:
    """Return the outcome, the headline and the findings of an ended session; `cells_text` for many cells."""
    span = _only_span(session)
    if span is None:
        return cells_text(session)
    text = headline(session, span, facts_of(session, span)).text
    name = plain(span.label, NAME) or span.kind
    findings = findings_lines(findings_of(session, span))
    return "\n".join((f"{name}: {outcome_of(session, span)}. {text}", *findings))


def cells_text(session: Session) -> str:
    """Return a sentence with the number of watched cells, the highest peak and the number of findings."""
    spans = outermost(session.spans)
    facts = {span.id: worst_of(each) for span in spans if (each := facts_of(session, span))}
    texts = [f"{format_counted(len(spans), 'cell')} watched"]
    heights = {id_: each.peak.value for id_, each in facts.items() if each.peak.value > 0}
    if heights:
        # The first cell about as high made the peak; later ones have added next to nothing.
        least = AS_HIGH * max(heights.values())
        first = next(span for span in spans if heights.get(span.id, 0.0) >= least)
        peak, capacity = facts[first.id].peak, facts[first.id].capacity
        texts.append(f"peak {size_of(peak.value, capacity)} in {plain(first.label, NAME)}")
    if findings := len({each.title for span in spans for each in findings_of(session, span)}):
        texts.append(format_counted(findings, "finding"))
    return sentence(", ".join(texts))


def still_bundles(session: Session) -> Iterator[Bundle]:
    """Yield the outputs that a watch leaves behind: the card, and the chart that can be zoomed."""
    chart = chart_bundle(session, _only_span(session))
    yield card_of(session, with_chart=chart is not None)
    if chart is not None:
        yield chart


def _only_span(session: Session) -> Span | None:
    spans = outermost(session.spans)
    return spans[0] if len(spans) == 1 else None


def card_of(session: Session, *, with_chart: bool) -> Bundle:
    """Return the card, with a small picture unless it is shown `with_chart`; of many cells a line each."""
    if (span := _only_span(session)) is not None:
        return card_bundle(session, span, with_chart=with_chart)
    spans = outermost(session.spans)
    listed = [compact_bundle(session, each) for each in spans[-MOST_CELLS:]]
    left_out = len(spans) - len(listed)
    before = [f"{format_counted(left_out, 'cell')} before"] if left_out else []
    html = [*(f"{BOX}{text} …</div>" for text in before), *(line["text/html"] for line in listed)]
    text = "\n".join((repr(session), *before, *(line["text/plain"] for line in listed)))
    return {"text/plain": text, **({"text/html": "".join(html)} if html else {})}


def spans_bundle(spans: Sequence[Span]) -> Bundle:
    """Return the newest spans as a table."""
    shown = spans[-MOST_SPANS:]
    rows = []
    for span in shown:
        known = (each for each in span.peaks.items() if math.isfinite(each[1].value))
        peaks = {key: peak for key, peak in known if key.endswith("/allocated")}
        key = max(peaks, key=lambda each: peaks[each].value, default="")
        cells = (
            plain(span.label) or span.kind,
            str(span.id),
            span.kind,
            format_duration(span.start),
            "running" if span.stop is None else format_duration(span.duration),
            peak_text(peaks[key]) if key else "",
            key.partition("/")[0],
        )
        is_within = span.parent is not None
        rows.append(TableRow(cells, is_indented=is_within, is_quiet=is_within))
    heads = ("span", "id", "kind", "began at", "time", "highest peak")
    columns = [*map(Column, heads), Column(is_words=True, is_quiet=True)]
    more = len(spans) - len(shown)
    before = kit.note(f"{format_counted(more, 'older span')} not shown.") if more else kit.NOTHING
    return kit.bundle(kit.headed(format_counted(len(spans), "span")), table(columns, rows), before)
