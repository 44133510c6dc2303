"""The card of a cell, of many cells, and of a session: HTML without script, style sheet and kernel."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from hfmem_widget.analysis import anatomy as anatomies
from hfmem_widget.analysis.facts import Facts, end_of, facts_of, findings_of, outcome_of, ran_out
from hfmem_widget.analysis.others import Movement, children_text, movement, untouched_text
from hfmem_widget.session import Polling, Session, Span, outermost
from hfmem_widget.text import (
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy import bar_of, parts_text, text_if_known
from hfmem_widget.view.chart.figure import chart_bundle
from hfmem_widget.view.chart.scene import AS_HIGH
from hfmem_widget.view.chart.svg import chart_html, sparkline
from hfmem_widget.view.findings import findings_html, findings_lines, next_steps, sentence
from hfmem_widget.view.headline import headline, worst_of
from hfmem_widget.view.line import (
    NAME,
    NOTE_LENGTH,
    compact_bundle,
    duration_text,
    headroom_text,
    line,
    outcome_colour,
    peak_text,
    reporting_text,
    size_of,
    size_text,
)
from hfmem_widget.view.phases import pace_text, phase_rows, phases_html
from hfmem_widget.view.ranks import rank_figures, ranks_html
from hfmem_widget.view.screen import Bundle
from hfmem_widget.view.table import Column, TableRow, table
from hfmem_widget.view.tokens import kv_cache_text, token_cost
from hfmem_widget.view.what_fits import moves_table, what_if_html

MOST_NOTES = 3
MOST_SPANS = 40  # in the table of a session's spans, the newest
MOST_CELLS = 10  # cells of `%memwatch on` that are listed, the newest
MOST_ON_LINE = 220  # characters
MOST_TEXT = 1500  # characters of text, with the lead: programs read little of a cell's output
_LEFT_OUT = "  (more: display the session)"

MANY_MISSED = 0.05  # share of the samples that were due
LONG_GAP, LONG_GAP_INTERVALS = 1.0, 5  # seconds, and intervals between samples, whichever is longer


def card_bundle(
    session: Session,
    span: Span,
    *,
    with_chart: bool,
    lead: Mapping[str, str] | None = None,
    notes_shown: int = 0,
) -> dict[str, str]:
    """Return the card by MIME type, with a small picture unless it is shown `with_chart`.

    `lead` goes above the card: it says by MIME type why memory ran out, and what would fit, which the card
    then leaves out. The first `notes_shown` notes of the session are on the cards of earlier cells.
    """
    facts, moved = facts_of(session, span), movement(session, span)
    findings = findings_of(session, span)
    errors = [each for each in findings if ran_out(each)]
    others = tuple(each for each in findings if not ran_out(each))
    what_fits = kit.NOTHING
    if lead is not None:
        findings = others
    elif errors:
        advice = [text for each in errors for text in each.advice]
        what_fits = moves_table(session.moves, advice, can_write=session.is_of_here)
    picture = ""
    if not with_chart:
        part = session.between(span.start, end_of(session, span))
        samples = format_counted(part.samples, "sample")
        short = f"Too short to chart: {samples} in {duration_text(session, span)}."
        picture = sparkline(session, span) or kit.note(short).html
    texts = (kv_cache_text, children_text, untouched_text)
    sentences = list(filter(None, (text(session, span) for text in texts)))
    cost = None
    if facts and session.ranks is None and not moved.lead:
        most = worst_of(facts)
        cost = token_cost(session, span, most.device)
        sentences += [cost.text(most.capacity)] if cost else []
    trained = errors or any(phase.kind == "step" for phase in session.phases(span.id))
    remark = session.remarks.get(span.id, "")
    notes = _notes(session, span, facts, session.notes[notes_shown : notes_shown + MOST_NOTES])
    counted = [format_counted(sum(map(bool, notes)), "note")] if any(notes) else []
    phases = "" if session.ranks and session.ranks.phases else phases_html(session, span)
    steps = [kit.Fragment(phases), *([cost.picture()] if cost else [])]
    pace = pace_text(session, span)
    header = _header(session, span.label or span.kind, span, facts, moved)
    sentence_, bar = _sentence_and_bar(session, span, facts, moved)
    card = kit.bundle(
        # Without styles, the card begins with the sentence.
        kit.block("display:flex;flex-direction:column-reverse", sentence_, header),
        kit.NOTHING if lead else bar,  # the lead has a bar of its own
        kit.note(remark),
        kit.Fragment(findings_html(findings)),
        what_fits,
        what_if_html(session.what_if if trained else None),
        *kit.notes(sentences),
        ranks_html(session),
        kit.Fragment(picture),
        kit.folds(
            ("steps and phases", [*steps, kit.note(pace)] if phases else []),
            (", ".join(["all figures", *counted]), [*_figures(session, facts, moved), *notes]),
        ),
    )
    # The text is one line, with the worst step and the throughput where they fit, and one for each finding.
    text = line(session, span)
    worst = next((f"worst {row.worst}" for row in phase_rows(session, span) if row.worst), "")
    for more in filter(None, (worst, pace)):
        if "\n" not in text and len(f"{text} · {more}") <= MOST_ON_LINE:
            text = f"{text} · {more}"
    parts = _parts_line(session, span, facts)
    steps_after = next_steps(session, span, has_parts=bool(parts))
    below = [
        parts,
        *filter(None, [remark, what_fits.text]),
        *sentences,
        *findings_lines(findings),
        "  next: " * bool(steps_after)
        + ", ".join(f"{name} ({does})" for name, does in steps_after),
    ]
    whole = kit.below(lead, card["text/html"], (text, *filter(None, below)))
    text = whole["text/plain"]
    if len(text) > MOST_TEXT:
        # The last line, with what to type next, stays.
        *lines, last = text.split("\n")
        lengths = list(accumulate(len(each) + 1 for each in lines))
        count = bisect_right(lengths, MOST_TEXT - len(last) - len(_LEFT_OUT))
        text = "\n".join((*lines[:count], _LEFT_OUT, last))
    return {**whole, "text/plain": text}


def _parts_line(session: Session, span: Span, facts: Sequence[Facts]) -> str:
    if session.ranks is not None or not facts or span.kind != "cell":
        return ""
    worst = worst_of(facts)
    text = parts_text(anatomies.peak_of(session, span, worst.device))
    of = f" of {plain(worst.device.key, NAME)}" * (len(facts) > 1)
    return text and f"  at the peak{of}: {text}"


def summary_html(session: Session, span: Span, most_notes: int) -> str:
    """Return the figures of the card and the notes, for a report, which has the rest elsewhere."""
    facts, moved = facts_of(session, span), movement(session, span)
    return kit.bundle(
        _header(session, span.kind, span, facts, moved),
        *_sentence_and_bar(session, span, facts, moved),
        *_figures(session, facts, moved),
        *_notes(session, span, facts, session.portable_notes[:most_notes]),
    )["text/html"]


def _header(
    session: Session, name: str, span: Span, facts: tuple[Facts, ...], moved: Movement
) -> kit.Fragment:
    devices = [each.device for each in (moved.devices if moved.lead else facts)]
    names, count = {device.name for device in devices}, len(devices)
    if (ranks := session.ranks) is not None:
        about = [size_text(ranks), plain(ranks.engine, NAME), reporting_text(ranks)]
    elif count < 2:
        about = [f"{device.key} {device.name}" for device in devices]
    else:
        alike = f"{count} \N{MULTIPLICATION SIGN} {names.pop()}" if len(names) == 1 else ""
        about = [alike or f"{count} devices"]
    # The first budget, which the chart draws only where the data come near.
    budgets = (guide for guide in session.guides if guide.kind == "budget")
    keys = {each.device.key for each in facts}
    about += [guide.label for guide in budgets if guide.device in keys][:1]
    outcome = kit.marked(outcome_colour(span), outcome_of(session, span), kit.BULLET)
    return kit.headed(name, kit.phrases([duration_text(session, span), *about]), at_right=outcome)


def _sentence_and_bar(
    session: Session, span: Span, facts: tuple[Facts, ...], moved: Movement
) -> tuple[kit.Fragment, kit.Fragment]:
    if moved.lead:
        return kit.block("margin:7px 0 0;font-size:14px", f"{moved.lead}."), _moved(moved)
    device, capacity, bar = None, 0.0, kit.NOTHING
    if session.ranks is not None and (worst := session.ranks.worst) is not None:
        key, capacity = f"rank:{worst.rank}", worst.total
        device = next((each for each in session.devices if each.key == key), None)
    elif facts:
        most = worst_of(facts)
        device, capacity = most.device, most.capacity
    if device is not None:
        bar = bar_of(anatomies.peak_of(session, span, device), capacity)
    return kit.block("margin:4px 0 0;font-size:17px", headline(session, span, facts)), bar


def _figures(session: Session, facts: tuple[Facts, ...], moved: Movement) -> list[kit.Fragment]:
    if session.ranks is not None:
        return [kit.figures(rank_figures(session.ranks))]
    own = kit.block(f"margin:10px 0 0;font-size:12px;{kit.FAINT}", "this process itself")
    return [
        *([own] if moved.lead else ()),
        kit.figures(_columns(facts[0])) if len(facts) == 1 else _table(facts),
        *([kit.note(f"{moved.by_children}.")] if moved.by_children else []),
    ]


def _notes(
    session: Session, span: Span, facts: tuple[Facts, ...], notes: list[str]
) -> list[kit.Fragment]:
    has_steps = any(phase.kind == "step" for phase in session.phases(span.id))
    return [
        *([kit.note(_use(facts[0]))] if len(facts) == 1 else []),
        *kit.notes(plain(note, NOTE_LENGTH) for note in notes),
        kit.note(plain(_polling(session.polling, has_steps=has_steps), NOTE_LENGTH)),
    ]


def _columns(facts: Facts) -> list[tuple[str, str, str]]:
    certainty = "" if math.isnan(facts.peak.value) else f" ({facts.peak.certainty})"
    bound = "≥ " if facts.peak.certainty == "at least" else ""
    above, reserved = facts.above_start, facts.reserved_peak
    return [
        (f"{facts.allocated_label}, start → end", format_change(facts.before, facts.after), ""),
        ("left behind", format_bytes(facts.left_behind, signed=True), ""),
        (
            f"peak{certainty}",
            bound + format_bytes(facts.peak.value),
            text_if_known(above, f"{format_bytes(above, signed=True)} above start"),
        ),
        (
            facts.reserved_label,
            format_bytes(facts.reserved),
            text_if_known(reserved, f"{format_bytes(reserved)} at its peak"),
        ),
        (
            "headroom at the peak",
            headroom_text(facts.headroom, facts.device.total),
            text_if_known(facts.device.total, f"of {format_bytes(facts.device.total)}"),
        ),
    ]


def _moved(moved: Movement) -> kit.Fragment:
    devices = moved.devices
    columns = {
        "device": [each.device.key for each in devices],
        "in use, start \N{RIGHTWARDS ARROW} end": [
            format_change(each.before, each.after) for each in devices
        ],
        "rose by": [format_bytes(each.rise, signed=True) for each in devices],
        "child processes": [format_bytes(each.children, signed=True) for each in devices],
        "highest": [format_bytes(each.highest) for each in devices],
    }
    if not moved.has_children:
        del columns["child processes"]
    rows = [*zip(*columns.values(), strict=True)] if len(devices) > 1 else []
    return _table_of([*columns], rows)


def _table(facts: tuple[Facts, ...]) -> kit.Fragment:
    rows, heads = [], ["device"]
    for each in facts:
        labels, values, _ = zip(*_columns(each), strict=True)
        heads = ["device", *labels[:2], "peak", *labels[3:]]
        rows.append((each.device.key, *values[:2], peak_text(each.peak), *values[3:]))
    return _table_of(heads, rows)


def _table_of(heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> kit.Fragment:
    columns = [Column(head, is_bold=at == 0) for at, head in enumerate(heads)]
    return table(columns, list(map(TableRow, rows)))


def _use(facts: Facts) -> kit.Fragment:
    if math.isnan(facts.used):
        return kit.NOTHING
    total = facts.device.total
    divisor, _ = unit_for(total if total > 0 else facts.used)
    users = {"this process": facts.process, "other processes": facts.others}
    use = f"{facts.used_label} {number(facts.used, divisor)} of {format_bytes(total)}"
    if facts.device.shared:
        users = {"this process": facts.process, "rest of the machine": facts.others}
        free = number(total - facts.used, divisor)
        use = f"memory shared with the CPU {format_bytes(total)}, {free} free at the end"
    known = ((user, size) for user, size in users.items() if math.isfinite(size))
    return kit.phrases([use, *(f"{user} {number(size, divisor)}" for user, size in known)])


def _polling(polling: Polling, *, has_steps: bool) -> str:
    texts = []
    due = polling.ticks + polling.missed
    if due and polling.missed / due > MANY_MISSED:
        texts.append(
            f"{format_count(polling.missed)} of {format_counted(due, 'sample')} were missed."
        )
    if polling.longest_gap > max(LONG_GAP, LONG_GAP_INTERVALS * polling.interval):
        texts.append(f"There were no samples for up to {format_duration(polling.longest_gap)}.")
    if polling.stopped:
        texts.append(f"Sampling stopped early: {sentence(polling.stopped)}")
    if has_steps and polling.limited:
        texts.append(sentence(polling.limited[0].upper() + polling.limited[1:]))
    return " ".join(texts)


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
    html = [
        *(f"{kit.BOX}{text} …</div>" for text in before),
        *(line["text/html"] for line in listed),
    ]
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
