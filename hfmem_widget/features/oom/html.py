"""The card below an out-of-memory error: what was asked, what was there, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hfmem_widget.features.oom.bar import bar_html, told_parts
from hfmem_widget.features.oom.model import Advice, Diagnosis, Incident
from hfmem_widget.features.oom.shortage import LiveBlocks
from hfmem_widget.features.oom.techniques import MEASURED_ON
from hfmem_widget.features.oom.words import WHO, batch, where
from hfmem_widget.text import MIB, for_html, format_count, plain, size_text
from hfmem_widget.view import palette
from hfmem_widget.view.root import LETTERS, root

SENTENCE = 500
"""Characters of a sentence of ours at most: labels of the user's may stand in it."""

WITHIN = " \u203a "
TIMES = "\u00d7"
UNBROKEN = "\u00a0"
DOT = "\u00a0\u00b7"

LEAST_CACHE = MIB
"""Less than that is not worth a figure."""

LEAST_SHARE = 0.0005
"""Of all parts: a smaller one is neither seen in the bar nor told."""

_QUIET = "opacity:.72"
_BOX = root(
    "box-sizing:border-box;max-width:860px;margin:2px 0;padding:10px 14px 12px;"
    f"border:1px solid var(--jp-border-color2,rgba(128,128,128,.35));border-left:4px solid {palette.BAD};"
    f"border-radius:6px;font-size:13px;line-height:1.45;overflow-wrap:anywhere;{LETTERS}"
)
_CODE = (
    "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.95em;background:none;"
    "padding:0;color:inherit;white-space:normal"
)
_LINE = '<div style="margin:8px 0 0;font-size:12px">'
_SMALL = f'<div style="margin:9px 0 0;font-size:11px;{_QUIET}">'
_HEAD = f"margin:0;font-size:11px;font-weight:normal;{_QUIET}"


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
    html = "".join(
        (
            _BOX,
            _header(incident, diagnosis),
            f'<div style="margin:7px 0 0;font-size:14px">{_sentence(diagnosis.sentence)}</div>',
            _figures(incident),
            _parts_html(incident),
            _place_html(incident),
            _blocks_html(incident),
            _processes_html(incident),
            _advice_html(advice),
            _foot_html(advice, earlier),
            "</div>",
        )
    )
    return {"text/html": html, "text/plain": _plain(incident, diagnosis, advice, earlier)}


def _sentence(text: str) -> str:
    return escape(plain(text, SENTENCE), quote=True)


def _header(incident: Incident, diagnosis: Diagnosis) -> str:
    device = incident.device
    about = " ".join(filter(None, (device.key, device.name)))
    badge = (
        f"margin-left:auto;padding:0 8px;border:1px solid {palette.BAD};border-radius:9px;font-size:12px;"
        "white-space:nowrap"
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px">'
        f'<strong style="font-size:15px;white-space:nowrap"><span aria-hidden="true" '
        f'style="color:{palette.BAD}">\u25cf</span> Out of memory</strong> '
        f'<span style="{_QUIET}">{for_html(about)}</span> '
        f'<span style="{badge}">{for_html(diagnosis.name)}</span></div>'
    )


def figures_of(incident: Incident) -> list[tuple[str, str, str]]:
    """Return the figures that are known: what each is, what it reads, and what stands small beside it."""
    total = incident.capacity
    on_the_host = incident.on_the_host
    of_total = f"of {size_text(total)}" if total > 0 else ""
    told = [
        ("asked for", incident.asked, f"by {WHO[incident.origin]}"),
        ("free on the machine" if on_the_host else "free on the device", incident.free, of_total),
        ("allowed", incident.limit, _whose_limit(incident)),
        ("heap in use" if on_the_host else "allocated", incident.allocated, ""),
    ]
    if not on_the_host and incident.cache >= LEAST_CACHE:
        told.append(("cache", incident.cache, "free, but reserved"))
        told.append(("largest free block", incident.largest_free, "of the cache"))
    return [(name, size_text(value), small) for name, value, small in told if value >= 0]


def _whose_limit(incident: Incident) -> str:
    return f"by {incident.host.command}" if incident.met_a_limit else "to this process"


def _figures(incident: Incident) -> str:
    drawn = [
        '<div style="flex:1 1 96px;min-width:max-content;white-space:nowrap">'
        f'<div style="{_HEAD}">{name}</div>'
        f'<div style="margin:0;font-size:15px;font-weight:600">{for_html(value)}</div>'
        f'<div style="{_HEAD}">{for_html(small) or UNBROKEN}</div></div>'
        for name, value, small in figures_of(incident)
    ]
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px 12px;margin:10px 0 0">{"".join(drawn)}</div>'


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
    shown = _parts(incident)
    if not shown:
        return ""
    phrases = f"{DOT} ".join(
        f'<span style="white-space:nowrap"><span aria-hidden="true" style="color:{palette.PARTS[name]}">'
        f"\u25a0</span>{UNBROKEN}{for_html(label)} {size}</span>"
        for name, label, size in shown
    )
    return (
        f'<div style="margin:12px 0 0">{bar_html(incident)}</div>'
        f'<div style="margin:3px 0 0;font-size:12px">{phrases}</div>'
    )


def _place(incident: Incident) -> list[tuple[str, str]]:
    told = [
        ("in", WITHIN.join(plain(one) for one in where(incident))),
        ("batch", batch(incident)),
    ]
    return [(name, text) for name, text in told if text]


def _place_html(incident: Incident) -> str:
    told = _place(incident)
    if not told:
        return ""
    phrases = " \u00b7 ".join(
        f'<span style="{"" if name == "in" else "white-space:nowrap"}"><span style="{_QUIET}">{name}</span> '
        f"{_sentence(text)}</span>"
        for name, text in told
    )
    return f"{_LINE}{phrases}</div>"


def _size_of(blocks: LiveBlocks) -> str:
    if blocks.count == 1:
        return size_text(blocks.bytes)
    return f"{format_count(blocks.count)} {TIMES} {size_text(blocks.bytes)}"


def _blocks_html(incident: Incident) -> str:
    biggest = incident.blocks.biggest if incident.blocks is not None else ()
    if not biggest:
        return ""
    head = f'<span style="{_QUIET}">biggest live blocks</span> '
    if not any(one.where for one in biggest):
        sizes = f"{DOT} ".join(_size_of(one).replace(" ", UNBROKEN) for one in biggest)
        return f"{_LINE}{head}{sizes}</div>"
    cell = "padding:1px 0;text-align:left;vertical-align:top;border:0"
    rows = "".join(
        # JupyterLab stripes rows; here they are the card's own.
        f'<tr style="background:none"><td style="{cell};padding-right:14px;text-align:right;'
        f'white-space:nowrap;font-weight:600">{_size_of(one)}</td><td style="{cell}">'
        f"{_where_html(one)}</td></tr>"
        for one in biggest
    )
    return (
        f'{_LINE}{head}<table style="border-collapse:collapse;border:0;margin:2px 0 0;font-size:12px;'
        f'color:inherit"><tbody>{rows}</tbody></table></div>'
    )


def _where_html(blocks: LiveBlocks) -> str:
    if not blocks.where:
        return f'<span style="{_QUIET}">made before stacks were recorded</span>'
    # MathJax, which reads what stands between dollars, leaves code alone.
    return f'<code style="{_CODE}">{_sentence(blocks.where)}</code>'


def _processes(incident: Incident) -> str:
    if not incident.processes:
        return ""
    biggest = sorted(incident.processes, key=lambda one: one[1], reverse=True)
    return " \u00b7 ".join(f"process {pid}: {size_text(size)}" for pid, size in biggest[:5])


def _processes_html(incident: Incident) -> str:
    told = _processes(incident)
    return (
        f'{_LINE}<span style="{_QUIET}">besides this one</span> {for_html(told)}</div>'
        if told
        else ""
    )


def _advice_html(advice: Sequence[Advice]) -> str:
    if not advice:
        return ""
    items = "".join(
        f'<li style="margin:5px 0 0;padding:0"><strong>{_sentence(one.action)}</strong>'
        f'<div style="margin:0">{_sentence(_capitalized(one.reason))}.</div>{_saving_html(one)}</li>'
        for one in advice
    )
    return (
        '<div style="margin:12px 0 0;padding:9px 0 0;border-top:1px solid rgba(128,128,128,.3)">'
        f'<div style="{_HEAD}">what to change, most useful first</div>'
        f'<ol style="margin:0;padding:0 0 0 22px;font-size:13px">{items}</ol></div>'
    )


def _saving_html(advice: Advice) -> str:
    if not advice.saving:
        return ""
    return f'<div style="margin:0;font-size:12px;{_QUIET}">saves {_sentence(advice.saving)}</div>'


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _foot(advice: Sequence[Advice], earlier: int) -> list[str]:
    told = []
    if earlier:
        errors = (
            "1 earlier out-of-memory error was" if earlier == 1 else f"{earlier} earlier ones were"
        )
        told.append(f"{errors} caught by the code itself.")
    if any(one.is_measured for one in advice):
        told.append(f"Measured: {MEASURED_ON}.")
    return told


def _foot_html(advice: Sequence[Advice], earlier: int) -> str:
    told = _foot(advice, earlier)
    return f"{_SMALL}{_sentence(' '.join(told))}</div>" if told else ""


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
    lines += _row("besides this one: ", _processes(incident))
    lines += [f"  {at}. {one.sentence()}" for at, one in enumerate(advice, start=1)]
    lines += [f"  {one}" for one in _foot(advice, earlier)]
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + plain(line, SENTENCE) for line in lines
    )


def _row(name: str, text: str) -> list[str]:
    return [f"  {name}{text}"] if text else []
