"""What a model will need and whether it fits, as a card and as plain text: no script, no kernel."""

from __future__ import annotations

import math
from html import escape

from hfmem_widget.features.fit.model import Fit, Forecast, ForecastPart, Setting, Verdict
from hfmem_widget.text import for_html, format_bytes, format_count, plain
from hfmem_widget.view import palette
from hfmem_widget.view.root import FRAMED, drawing

TIMES = "\u00d7"
UNBROKEN = "\u00a0"
NOTE_LENGTH = 300
MOST_ROWS = 1 << 20

MOMENTS = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's step",
    "": "without activations",
}
BOUNDS = {"exact": "exact", "upper": "at most", "estimate": "about", "lower": "at least"}
KV_CACHE = "#9C8A00"

_QUIET = "opacity:.72"
_SMALL = '<div style="margin:7px 0 0;font-size:11.5px;overflow-wrap:anywhere;opacity:.8">'
_NAME = "flex:9 1 112px;min-width:0;max-width:190px"
_FIGURE = "flex:0 0 66px;text-align:right;white-space:nowrap"
_SAID = f"flex:9 1 210px;min-width:0;{_QUIET}"
_RULE = "border-top:1px solid rgba(128,128,128,.35);margin-top:2px;padding-top:2px"
_HEIGHT = 16


def fit_bundle(fit: Fit) -> dict[str, str]:
    """Return a fit by MIME type."""
    forecast = fit.forecast
    html = "".join(
        (
            FRAMED,
            _header(fit),
            _bar(forecast),
            _table(forecast),
            *(_verdict_html(verdict, fit) for verdict in fit.verdicts),
            *(f"{_SMALL}{escape(plain(note, NOTE_LENGTH))}</div>" for note in notes_of(fit)),
            "</div>",
        )
    )
    return {"text/html": html, "text/plain": fit_text(fit)}


def fit_text(fit: Fit) -> str:
    """Return a fit as plain text."""
    forecast = fit.forecast
    rows = [("", "at the peak", "in full", "how known")]
    rows += [
        (part.label, format_bytes(part.bytes), format_bytes(part.full), _known(part))
        for part in _shown(forecast)
    ]
    rows.append(("allocated", format_bytes(forecast.total), "", _peak_text(forecast)))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    table = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    ]
    said = [_verdict_text(verdict, fit) for verdict in fit.verdicts]
    return "\n".join([" · ".join([_title(fit), *_facts(forecast)]), *table, *said, *notes_of(fit)])


def notes_of(fit: Fit) -> list[str]:
    """Return what must be known to read the figures right, as plain sentences."""
    notes = [*fit.forecast.notes]
    if fit.stored:
        notes.insert(0, f"{fit.stored[:1].upper()}{fit.stored[1:]}.")
    rooms = [verdict.room for verdict in fit.verdicts]
    if any(room.context for room in rooms):
        context = max(room.context for room in rooms)
        notes.append(
            f"CUDA is not up in this process; {format_bytes(context)} are kept for its context and libraries."
        )
    return notes


def _title(fit: Fit) -> str:
    name, model = plain(fit.name), plain(fit.forecast.model)
    return model if name in {model, ""} or name.endswith("Config") else f"{name} ({model})"


def _facts(forecast: Forecast) -> list[str]:
    setting = forecast.setting
    told = [f"{_millions(forecast.parameters)} parameters"]
    if setting.training and forecast.trainable != forecast.parameters:
        told.append(f"{_millions(forecast.trainable)} trained")
    told.append("training" if setting.training else "inference")
    if forecast.moment:  # else nothing in it depends on the batch
        told.append(_shape(setting))
    if setting.accumulation > 1:
        told.append(f"{setting.accumulation} batches a step")
    told.append(plain(setting.precision))
    lora = f"LoRA {setting.lora}" if setting.lora else ""
    told += [plain(one) for one in (setting.quantized, lora, setting.optimizer) if one]
    if setting.checkpointing:
        told.append("gradient checkpointing")
    return told


def _shape(setting: Setting) -> str:
    return f"batch {setting.batch} {TIMES} {format_count(setting.length)}"


def _millions(count: int) -> str:
    for size, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return str(count)


def _shown(forecast: Forecast) -> list[ForecastPart]:
    """Return the parts that do not read as nothing."""
    return [part for part in forecast.parts if format_bytes(part.full) != format_bytes(0)]


def _known(part: ForecastPart) -> str:
    return f"{BOUNDS[part.bound]}: {part.source}"


def _peak_text(forecast: Forecast) -> str:
    others = [
        f"{name} {format_bytes(value)}"
        for name, value in forecast.peaks.items()
        if name != forecast.moment
    ]
    told = f"{'at least: ' if forecast.left_out else ''}the peak, {MOMENTS[forecast.moment]}"
    return f"{told} ({', '.join(others)})" if others else told


def _header(fit: Fit) -> str:
    facts = _facts(fit.forecast)
    told = " ".join(
        f'<span style="white-space:nowrap">{for_html(fact)}{" ·" if at < len(facts) - 1 else ""}</span>'
        for at, fact in enumerate(facts)
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px">'
        f'<strong style="font-size:15px;overflow-wrap:anywhere">{for_html(_title(fit))}</strong> '
        f'<span style="{_QUIET}">{told}</span></div>'
    )


def _colour(name: str) -> str:
    return KV_CACHE if name == "kv_cache" else palette.PARTS[name]


def _bar(forecast: Forecast) -> str:
    """Return the parts at the peak as one bar."""
    left, shapes = 0.0, []
    for part in forecast.parts:
        share = 100 * part.bytes / max(forecast.total, 1)
        shapes.append(
            f'<rect x="{left:.2f}%" width="{share:.2f}%" height="{_HEIGHT}" fill="{_colour(part.name)}">'
            f"<title>{for_html(part.label)} {format_bytes(part.bytes)}</title></rect>"
        )
        left += share
    said = f"allocated at the peak: {format_bytes(forecast.total)}"
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    return drawing(
        f'<svg role="img" aria-label="{said}" width="100%" height="{_HEIGHT}" '
        f'style="display:block;width:100%;height:{_HEIGHT}px;margin:9px 0 0">{"".join(shapes)}</svg>'
    )


def _table(forecast: Forecast) -> str:
    """Return the parts as rows that break where there is little room, which a table's would not."""
    small = f"font-size:11px;{_QUIET}"
    rows = [_row("part", "at the peak", "in full", "how known", small, role="columnheader")]
    rows += [
        _row(
            part.label,
            format_bytes(part.bytes),
            format_bytes(part.full),
            _known(part),
            name=part.name,
        )
        for part in _shown(forecast)
    ]
    total = format_bytes(forecast.total)
    rows.append(_row("allocated", total, "", _peak_text(forecast), _RULE))
    return f'<div role="table" style="margin:8px 0 0;font-size:12px">{"".join(rows)}</div>'


def _row(
    label: str,
    peak: str,
    full: str,
    said: str,
    style: str = "",
    *,
    name: str = "",
    role: str = "cell",
) -> str:
    square = f'<span aria-hidden="true" style="color:{_colour(name)}">■</span> ' if name else ""
    weight = ";font-weight:600" if style == _RULE else ""
    return (
        f'<div role="row" style="display:flex;flex-wrap:wrap;align-items:baseline;gap:0 14px;{style}">'
        f'<span role="{role}" style="{_NAME}{weight}">{square}{for_html(label)}</span>'
        f'<span role="{role}" style="{_FIGURE}{weight}">{peak}</span>'
        f'<span role="{role}" style="{_FIGURE}">{full}</span>'
        f'<span role="{role}" style="{_SAID}">{for_html(said)}</span></div>'
    )


def _verdict_html(verdict: Verdict, fit: Fit) -> str:
    colours = {True: palette.GOOD, False: palette.BAD, None: palette.RESERVED}
    bullet = f'<span aria-hidden="true" style="color:{colours[verdict.fits]}">●</span>'
    where, _, told = _verdict_text(verdict, fit).partition(": ")
    return (
        f'<div style="margin:7px 0 0;overflow-wrap:anywhere">{bullet} '
        f"<strong>{for_html(where)}</strong> {escape(told)}</div>"
    )


def _verdict_text(verdict: Verdict, fit: Fit) -> str:
    room = verdict.room
    where = plain(f"{room.device} {room.name}")
    if verdict.fits is None and math.isnan(room.available):
        return f"{where}: how much is free is not known"
    limit = room.available * (1 - fit.headroom)
    need = fit.forecast.total - verdict.held
    left_alone = f" with {100 * fit.headroom:.3g} % left alone" if fit.headroom else ""
    told = f"{format_bytes(max(need, 0))} of the {format_bytes(limit)} that are free{left_alone}"
    if verdict.held:
        told += f"; {format_bytes(verdict.held)} more are there already"
    if verdict.fits is None:
        return f"{where}: needs more than {told}; whether all fits is not known"
    if verdict.fits:
        told = f"fits, {told}"
    else:
        told = f"does not fit: needs {told}, {format_bytes(need - limit)} too much"
    return f"{where}: {told}; {_batch_text(verdict, fit)}"


def _batch_text(verdict: Verdict, fit: Fit) -> str:
    rows = verdict.largest_batch
    if rows is None or rows >= MOST_ROWS:
        return "any batch fits" if rows else "the largest batch is not known"
    if not rows:
        return "not even one row fits"
    length = format_count(fit.forecast.setting.length)
    return f"the largest batch that fits is {format_count(rows)}{UNBROKEN}{TIMES}{UNBROKEN}{length}"
