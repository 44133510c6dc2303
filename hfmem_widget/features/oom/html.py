"""The card below an out-of-memory error: what was asked, what was there, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.features.oom.bar import bar_html, told_parts
from hfmem_widget.features.oom.model import Advice, Diagnosis, Incident
from hfmem_widget.features.oom.shortage import LiveBlocks
from hfmem_widget.features.oom.techniques import MEASURED_ON
from hfmem_widget.features.oom.words import WHO, batch, where
from hfmem_widget.text import MIB, format_count, format_counted, plain, size_text
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, Row, table

SENTENCE = 500
"""Characters of a sentence of ours at most: labels of the user's may stand in it."""

WITHIN = " \u203a "
TIMES = "\u00d7"

UNRECORDED = "allocated before stacks were recorded"

LEAST_CACHE = MIB
"""Less than that is not worth a figure."""

LEAST_SHARE = 0.0005
"""Of all parts: a smaller one is neither seen in the bar nor told."""

_FRAME = kit.FRAMED.replace("border-radius", f"border-left:4px solid {palette.BAD};border-radius")
_LINE = "margin:8px 0 0;font-size:12px;overflow-wrap:anywhere"


def out_of_memory_bundle(
    incident: Incident, diagnosis: Diagnosis, advice: Sequence[Advice], *, earlier: int = 0
) -> dict[str, str]:
    """Return the card by MIME type.

    Parameters
    ----------
    incident : Incident
    diagnosis : Diagnosis
    advice : sequence of Advice
        Most useful first.
    earlier : int, optional
        How many errors of the same kind were caught before this one.
    """
    html = kit.bundle(
        _header(incident, diagnosis),
        kit.block("margin:7px 0 0;font-size:14px;overflow-wrap:anywhere", diagnosis.sentence),
        kit.figures(figures_of(incident), gap=12),
        kit.Fragment(_parts_html(incident)),
        _place_html(incident),
        _blocks_html(incident),
        _processes_html(incident),
        kit.Fragment(_advice_html(advice)),
        kit.note(" ".join(_foot(advice, earlier))),
        frame=_FRAME,
    )["text/html"]
    return {"text/html": html, "text/plain": _plain(incident, diagnosis, advice, earlier)}


def _header(incident: Incident, diagnosis: Diagnosis) -> kit.Fragment:
    badge = (
        f"padding:0 8px;border:1px solid {palette.BAD};border-radius:9px;font-size:12px;"
        "white-space:nowrap"
    )
    return kit.headed(
        kit.marked(palette.BAD, "Out of memory", kit.BULLET),
        " ".join(filter(None, (incident.device.key, incident.device.name))),
        at_right=kit.quiet(diagnosis.name, style=badge),
    )


def figures_of(incident: Incident) -> list[tuple[str, str, str]]:
    """Return the figures that are known: what each is, what it reads, and what stands small beside it."""
    total = incident.capacity
    on_the_host = incident.on_the_host
    of_total = f"of {size_text(total)}" if total > 0 else ""
    told = [
        ("requested", incident.asked, f"by {WHO[incident.origin]}"),
        ("free on the machine" if on_the_host else "free on the device", incident.free, of_total),
        ("allowed", incident.limit, _whose_limit(incident)),
        ("heap in use" if on_the_host else "allocated", incident.allocated, ""),
    ]
    if not on_the_host and incident.cache >= LEAST_CACHE:
        told.append(("cache", incident.cache, "free, but reserved"))
        told.append(("largest free block", incident.largest_free, "in the cache"))
    return [(name, size_text(value), small) for name, value, small in told if value >= 0]


def _whose_limit(incident: Incident) -> str:
    return f"by {incident.host.command}" if incident.met_a_limit else "to this process"


def _parts(incident: Incident) -> list[tuple[str, str, str]]:
    """Return names, labels and sizes of the parts that can be seen."""
    parts = told_parts(incident)
    least = LEAST_SHARE * sum(part.bytes for part in parts)
    return [
        (part.name, part.label, size_text(part.bytes))
        for part in parts
        if part.bytes > least and part.name != "free"  # which is among the figures
    ]


def _parts_html(incident: Incident) -> str:
    shown_parts = _parts(incident)
    if not shown_parts:
        return ""
    told = kit.phrases(
        [kit.marked(palette.PARTS[name], f"{label} {size}") for name, label, size in shown_parts]
    )
    return (
        f'<div style="margin:12px 0 0">{bar_html(incident)}</div>'
        f"{kit.block('margin:3px 0 0;font-size:12px', told).html}"
    )


def _place(incident: Incident) -> list[tuple[str, str]]:
    told = [
        ("in", WITHIN.join(plain(one) for one in where(incident))),
        ("batch", batch(incident)),
    ]
    return [(name, text) for name, text in told if text]


def _place_html(incident: Incident) -> kit.Fragment:
    told = (kit.words(kit.quiet(name), text, limit=SENTENCE) for name, text in _place(incident))
    return kit.block(_LINE, kit.words(*told, between=" \u00b7 "))


def _size_of(blocks: LiveBlocks) -> str:
    if blocks.count == 1:
        return size_text(blocks.bytes)
    return f"{format_count(blocks.count)} {TIMES} {size_text(blocks.bytes)}"


def _blocks_html(incident: Incident) -> kit.Fragment:
    biggest = incident.blocks.biggest if incident.blocks is not None else ()
    head = kit.quiet("biggest live blocks")
    if not any(one.where for one in biggest):
        sizes = kit.phrases([_size_of(one) for one in biggest])
        return kit.block(_LINE, head, sizes) if biggest else kit.Fragment("")
    rows = [
        Row((_size_of(one), kit.code(one.where, SENTENCE) if one.where else kit.quiet(UNRECORDED)))
        for one in biggest
    ]
    return kit.block(
        _LINE, head, table((Column(is_bold=True), Column(is_words=True)), rows, size=12)
    )


def _processes(incident: Incident) -> str:
    if not incident.processes:
        return ""
    biggest = sorted(incident.processes, key=lambda one: one[1], reverse=True)
    return " \u00b7 ".join(f"process {pid}: {size_text(size)}" for pid, size in biggest[:5])


def _processes_html(incident: Incident) -> kit.Fragment:
    told = _processes(incident)
    return kit.block(_LINE, kit.quiet("other processes"), told) if told else kit.Fragment("")


def _advice_html(advice: Sequence[Advice]) -> str:
    if not advice:
        return ""
    items = "".join(
        f'<li style="margin:5px 0 0;padding:0"><strong>{_shown(one.action)}</strong>'
        f'<div style="margin:0">{_shown(_capitalized(one.reason))}.</div>{_saving_html(one)}</li>'
        for one in advice
    )
    return (
        '<div style="margin:12px 0 0;padding:9px 0 0;border-top:1px solid rgba(128,128,128,.3)">'
        f'<div style="margin:0;{kit.TINY}">what to try, most effective first</div>'
        f'<ol style="margin:0;padding:0 0 0 22px;font-size:13px">{items}</ol></div>'
    )


def _saving_html(advice: Advice) -> str:
    told = f"could save {advice.saving}" if advice.saving else ""
    return kit.block(f"margin:0;font-size:12px;{kit.QUIET}", told).html


def _shown(text: str) -> str:
    return kit.shown(text, SENTENCE).html


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _foot(advice: Sequence[Advice], earlier: int) -> list[str]:
    told = []
    if earlier:
        told.append(f"The code caught {format_counted(earlier, 'earlier out-of-memory error')}.")
    if any(one.is_measured for one in advice):
        told.append(f"Our benchmark: {MEASURED_ON}.")
    return told


def _plain(incident: Incident, diagnosis: Diagnosis, advice: Sequence[Advice], earlier: int) -> str:
    device = incident.device
    about = filter(None, ("out of memory", f"{device.key} {device.name}".strip(), diagnosis.name))
    lines = [" \u00b7 ".join(about), f"  {diagnosis.sentence}"]
    named = [f"{name} {value}" for name, value, _ in figures_of(incident)]
    lines += _row("", " \u00b7 ".join(named))
    lines += _row(
        "parts: ", " \u00b7 ".join(f"{label} {size}" for _, label, size in _parts(incident))
    )
    lines += _row("", " \u00b7 ".join(f"{name} {text}" for name, text in _place(incident)))
    for one in incident.blocks.biggest if incident.blocks is not None else ():
        lines.append(f"  live: {_size_of(one)}" + (f"  {one.where}" if one.where else ""))
    lines += _row("other processes: ", _processes(incident))
    lines += [f"  {at}. {one.sentence()}" for at, one in enumerate(advice, start=1)]
    lines += [f"  {one}" for one in _foot(advice, earlier)]
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + plain(line, SENTENCE) for line in lines
    )


def _row(name: str, text: str) -> list[str]:
    return [f"  {name}{text}"] if text else []
