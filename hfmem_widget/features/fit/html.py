"""A forecast and whether it fits, as a card without scripts and as plain text."""

import math
from collections.abc import Mapping

from hfmem_widget.features.fit.model import MOST_ROWS, Fit, Forecast, Verdict, size_text
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.text import format_bytes, format_count, format_duration, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy import text_if_known
from hfmem_widget.view.line import size_of
from hfmem_widget.view.table import Column, TableRow, table
from hfmem_widget.view.what_fits import moves_table, what_if_html

_LARGE = "margin:4px 0 8px;font-size:15px"

MOMENTS = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's step",
    "": "without activations",
}
BOUNDS = {"exact": "exact", "upper": "at most", "estimate": "about", "lower": "at least"}


def fit_bundle(fit: Fit) -> dict[str, str]:
    """Return a fit by MIME type."""
    forecast, name, model = fit.forecast, plain(fit.name), plain(fit.forecast.model)
    is_known = name in {model, ""} or name.endswith("Config")
    title = model if is_known else f"{name} ({model})"
    return kit.bundle(
        kit.headed("memfit", title, kit.phrases(_facts(forecast))),
        *(_verdict(verdict, fit) for verdict in fit.verdicts),
        _bar(forecast),
        _table(forecast, fit.measured),
        *kit.notes(plain(note, 300) for note in (_peak_text(forecast), *_notes(fit))),
        moves_table(fit.moves, can_write=fit.can_write),
        what_if_html(fit.what_if),
        title=" · ".join([title, *_facts(forecast)]),
    )


def _notes(fit: Fit) -> list[str]:
    notes = [f"{fit.stored[:1].upper()}{fit.stored[1:]}."] if fit.stored else []
    if (tried := fit.tried) and math.isnan(tried.seconds):
        notes.append(f"A real step ran out of memory when it had {format_bytes(tried.peak)}.")
    elif tried:
        figures = f"{format_bytes(tried.peak)} and {format_duration(tried.seconds)}"
        share = 100 * (fit.forecast.total / tried.peak - 1)
        notes.append(f"A real step took {figures}; the forecast is {share:+.1f} % off.")
    notes += [fit.calibration] if fit.calibration else []
    if fit.measured.get("weights", 0.0) > 1.02 * max(1, fit.forecast.bytes("weights")):
        notes.append(
            "The measured figures are of all models of this process, not of this one alone."
        )
    low, high = map(format_bytes, fit.forecast.interval)
    if low != high and not fit.forecast.left_out:
        notes.append(f"The real peak is expected between {low} and {high}.")
    notes += fit.forecast.notes
    context = max((verdict.room.context for verdict in fit.verdicts), default=0.0)
    if context:
        notes.append(
            f"CUDA is not initialised in this process; {format_bytes(context)} is set aside for its context "
            "and libraries."
        )
    return notes


def _facts(forecast: Forecast) -> list[str]:
    setting = forecast.setting
    is_partly_trained = setting.training and forecast.trainable != forecast.parameters
    rank, layers = setting.lora or (0, ())
    adapters = " on ".join(filter(None, (f"LoRA r={rank}", ", ".join(layers))))
    facts = (
        f"{_millions(forecast.parameters)} parameters",
        f"{_millions(forecast.trainable)} trained" if is_partly_trained else "",
        "training" if setting.training else "inference",
        f"batch {size_text(setting.batch, setting.length)}"
        if forecast.moment
        else "",  # otherwise no part depends on the batch
        f"{setting.accumulation} batches per step" if setting.accumulation > 1 else "",
        plain(setting.precision),
        plain(setting.quantized),
        plain(adapters) if setting.lora else "",
        plain(setting.optimizer),
        "gradient checkpointing" if setting.checkpointing else "",
        "Liger's kernels" if setting.liger else "",
        plain(f"KV cache in {setting.kv}") if setting.kv else "",
        plain(setting.shards.replace(":", " over ") + " ranks") if setting.shards else "",
    )
    return [fact for fact in facts if fact]


def _millions(count: int) -> str:
    rounded = float(f"{count:.3g}")  # which may take it to the next unit
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if rounded >= size:
            return f"{rounded / size:.3g} {name}"
    return str(count)


def _peak_text(forecast: Forecast) -> str:
    peaks = forecast.peaks.items()
    others = [f"{name} {format_bytes(size)}" for name, size in peaks if name != forecast.moment]
    peak = f"{'At least: peak' if forecast.left_out else 'Peak'} {MOMENTS[forecast.moment]}"
    return f"{peak} ({', '.join(others)})." if others else f"{peak}."


def _bar(forecast: Forecast) -> kit.Fragment:
    pieces = (
        (palette.PARTS[part.name], part.bytes, f"{part.label} {format_bytes(part.bytes)}")
        for part in forecast.parts
    )
    label = f"allocated at the peak: {format_bytes(forecast.total)}"
    return kit.Fragment(kit.bar(pieces, max(forecast.total, 1), label))


def _table(forecast: Forecast, measured: Mapping[str, float]) -> kit.Fragment:
    def measured_cell(name: str) -> tuple[str, ...]:
        size = measured.get(name, math.nan)
        return (text_if_known(size, format_bytes(size)),) if measured else ()

    rows = []
    for part in forecast.parts:
        if format_bytes(part.full) != format_bytes(0):
            name = kit.marked(palette.PARTS[part.name], part.label)
            source = f"{BOUNDS[part.bound]}: {part.source}"
            sizes = format_bytes(part.bytes), *measured_cell(part.name), format_bytes(part.full)
            rows.append(TableRow((name, *sizes), source))
    total = "allocated", format_bytes(forecast.total), *measured_cell("allocated")
    rows.append(TableRow(total, is_sum=True, is_ruled=True))
    if forecast.reserved:
        cached = "with what PyTorch's allocator keeps, if there is room"
        rows.append(TableRow(("reserved", format_bytes(forecast.reserved)), below=(cached,)))
    heads = "at the peak", *["measured"] * bool(measured), "in full"
    return table([Column(letters=22), *map(Column, heads)], rows, scrolls="parts", size=12)


def _verdict(verdict: Verdict, fit: Fit) -> kit.Fragment:
    room = verdict.room
    where = plain(f"on {room.device} {room.name}")
    colour = {True: palette.GOOD, False: palette.BAD, None: palette.RESERVED}[verdict.fits]
    answer = {True: "Fits", False: "Does not fit", None: "It is unknown whether it fits"}
    lead = kit.marked(colour, kit.strong(answer[verdict.fits]), kit.BULLET)
    if verdict.fits is None and math.isnan(room.available):
        return kit.block(_LARGE, kit.words(lead, f"{where}: its free memory is unknown."))
    limit = room.available * (1 - fit.headroom)
    need = max(fit.forecast.total - verdict.held, 0)
    size = kit.strong(size_of(need, limit) if limit > 0 else format_bytes(need))
    needs = "needs more than" if verdict.fits is None else "needs"
    left_alone = f" after {100 * fit.headroom:.3g} % headroom" if fit.headroom else ""
    excess = f", {format_bytes(need - limit)} too much" if verdict.fits is False else ""
    held = ""
    if verdict.held:
        total = format_bytes(need + verdict.held)
        held = f"; with the {format_bytes(verdict.held)} allocated already, {total} in all"
    sentence = kit.words(lead, f"{where}: {needs}", size, f"available{left_alone}{excess}{held}.")
    most = [] if verdict.fits is None else [f"{_most_text(verdict, fit.forecast.setting)}."]
    return kit.block(_LARGE, sentence, *most)


def _most_text(verdict: Verdict, setting: Setting) -> str:
    rows, tokens = verdict.largest_batch, verdict.longest
    if rows is None:
        text = "Largest batch unknown"
    elif rows >= MOST_ROWS:
        text = f"At least {format_count(MOST_ROWS)} rows fit"
    elif rows:
        size = size_text(rows, setting.length).replace(" ", kit.UNBROKEN)
        text = f"Largest batch {size}"
    else:
        text = "Not even one row fits"
    if tokens is None:
        return text
    longest = f"longest {format_count(tokens)} tokens" if tokens else "no length fits"
    return f"{text}; {longest} with batch {format_count(setting.batch)}"
