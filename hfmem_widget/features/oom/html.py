"""The card below an out-of-memory error: the request, the memory, the cause and the advice."""

from collections.abc import Sequence

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.features.oom.diagnosis import in_backward, recomputing
from hfmem_widget.features.oom.errors import Origin
from hfmem_widget.features.oom.model import Advice, Incident, OomDiagnosis
from hfmem_widget.features.oom.observer import LiveBlocks
from hfmem_widget.session import Move, Part
from hfmem_widget.text import MIB, format_bytes, format_count, format_counted
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table
from hfmem_widget.view.what_fits import moves_table

SENTENCE = 500  # characters at most, since it may quote the user's labels
UNRECORDED = "allocated before stacks were recorded"
LEAST_CACHE = MIB  # a smaller cache is not shown
LEAST_SHARE = 0.0005  # of all parts; a smaller part is invisible in the bar, and not listed

OF_THE_PROCESS = tuple(LABELS)[: tuple(LABELS).index("cache") + 1]
"""The parts that count against a limit on this process: all memory that PyTorch has reserved."""

WHO: dict[Origin, str] = {
    "cuda": "PyTorch's allocator",
    "cuda async": "CUDA's own allocator (cudaMallocAsync)",
    "cuda runtime": "the CUDA runtime",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "bitsandbytes": "bitsandbytes",
    "mps": "PyTorch's allocator for MPS",
    "xpu": "PyTorch's allocator for XPU",
    "cpu": "PyTorch's CPU allocator",
    "numpy": "NumPy",
    "python": "Python",
    "no batch size": "the search for a batch size",
    "other": "a library",
}

_HEIGHT, _INSET = 18, 2

_BADGE = f"padding:0 8px;border:1px solid {palette.BAD};border-radius:9px;font-size:12px;display:inline-block"
_LINE = "margin:8px 0 0;font-size:12px"
_DOT = " \u00b7 "


def out_of_memory_bundle(
    incident: Incident,
    diagnosis: OomDiagnosis,
    advice: Sequence[Advice],
    *,
    moves: Sequence[Move] = (),
    earlier: int = 0,
) -> dict[str, str]:
    """Return the card by MIME type.

    The `moves` are the changes that would fit, by dry runs. `earlier` is the number of errors caught before.
    """
    device = f"{incident.device.key} {incident.device.name}".strip()
    heading = kit.headed(
        kit.marked(palette.BAD, "Out of memory", kit.BULLET),
        device,
        at_right=kit.faint(diagnosis.name, style=_BADGE),
    )
    errors = format_counted(earlier, "earlier out-of-memory error")
    biggest = sorted(incident.processes, key=lambda process: -process[1])[:5]
    listed = _DOT.join(f"process {pid}: {format_bytes(size)}" for pid, size in biggest)
    figures = figures_of(incident)
    text = _DOT.join(f"{name} {value}" for name, value, _ in figures)
    return kit.bundle(
        heading,
        kit.block("margin:7px 0 0;font-size:14px", diagnosis.sentence),
        kit.Fragment(kit.figures(figures).html, text),
        _parts(incident),
        _place(incident),
        _blocks(incident),
        kit.block(_LINE, kit.faint("other processes"), listed) if listed else kit.NOTHING,
        moves_table(moves, [change.sentence() for change in advice]),
        advice_list(advice, beside_moves=bool(moves)),
        kit.note(f"{errors} did not end the cell." if earlier else ""),
        title=kit.words("out of memory", device, diagnosis.name, between=_DOT).text,
    )


def figures_of(incident: Incident) -> list[tuple[str, str, str]]:
    """Return the known figures, each with its name, its value and its small print."""
    total = incident.capacity
    on_the_host = incident.on_the_host
    owner = f"by {incident.host.command}" if incident.met_a_limit else "to this process"
    of_total = f"of {format_bytes(total)}" if total > 0 else ""
    figures = [
        ("requested", incident.asked, f"by {WHO[incident.origin]}"),
        ("free on the machine" if on_the_host else "free on the device", incident.free, of_total),
        ("allowed", incident.limit, owner),
        ("private memory" if on_the_host else "allocated", incident.allocated, ""),
    ]
    if not on_the_host and incident.cache >= LEAST_CACHE:
        figures.append(("cache", incident.cache, "free, but reserved"))
        figures.append(("largest free block", incident.largest_free, "in the cache"))
    return [(name, format_bytes(value), small) for name, value, small in figures if value >= 0]


def _parts(incident: Incident) -> kit.Fragment:
    parts = parts_of(incident)
    least = LEAST_SHARE * sum(part.bytes for part in parts)
    # Free memory is among the figures already.
    seen = [part for part in parts if part.bytes > least and part.name != "free"]
    if not seen:
        return kit.NOTHING
    named = [
        kit.marked(palette.PARTS[part.name], f"{part.label} {format_bytes(part.bytes)}")
        for part in seen
    ]
    keys = kit.keys(named, ";margin:3px 0 0;font-size:12px").html
    html = f'<div style="margin:12px 0 0">{bar_html(incident)}</div>{keys}'
    return kit.Fragment(html, f"parts: {kit.phrases(named).text}")


def _place(incident: Incident) -> kit.Fragment:
    within = kit.words(*where(incident), between=" \u203a ").text
    phrases = [
        kit.words(kit.faint(name), text, limit=SENTENCE)
        for name, text in (("in", within), ("batch", batch(incident)))
        if text
    ]
    return kit.block(_LINE, kit.words(*phrases, between=_DOT))


def where(incident: Incident) -> tuple[str, ...]:
    """Return the running code as short phrases, outermost first."""
    spans = (span for span in incident.path if span.kind not in {"cell", "block"})
    phrases = [span.label or span.kind for span in spans]
    if in_backward(incident) and incident.within("backward") is None:
        phrases.append("backward pass")
    if recomputing(incident):
        phrases.append("checkpoint recomputation")
    return tuple(dict.fromkeys(phrases))


def batch(incident: Incident) -> str:
    """Return the size of the batch, such as ``8 \u00d7 512 tokens``; empty if unknown."""
    samples, longest = incident.batch_samples, incident.count("longest")
    tokens = incident.batch_tokens
    if samples > 0 and longest > 0 and samples * longest == tokens:
        return f"{format_count(samples)} \u00d7 {format_count(longest)} tokens"
    if tokens > 0:
        return format_counted(tokens, "token")
    return format_counted(samples, "sample") if samples > 0 else ""


def _size_of(blocks: LiveBlocks) -> str:
    count = "" if blocks.count == 1 else f"{format_count(blocks.count)} \u00d7 "
    return count + format_bytes(blocks.bytes)


def _blocks(incident: Incident) -> kit.Fragment:
    biggest = incident.blocks.biggest if incident.blocks is not None else ()
    if not biggest:
        return kit.NOTHING
    head = kit.faint("biggest live blocks")
    if not any(blocks.where for blocks in biggest):
        return kit.block(_LINE, head, kit.phrases([_size_of(blocks) for blocks in biggest]))
    unrecorded = kit.faint(UNRECORDED)
    places = [kit.code(each.where, SENTENCE) if each.where else unrecorded for each in biggest]
    rows = list(map(TableRow, zip(map(_size_of, biggest), places, strict=True)))
    drawn = table((Column(is_bold=True), Column(is_words=True)), rows, size=12)
    return kit.block(_LINE, kit.words(head, drawn, between="\n"))


def advice_list(advice: Sequence[Advice], *, beside_moves: bool = False) -> kit.Fragment:
    """Return the advice as a list, numbered unless `beside_moves`; nothing without advice."""
    if not advice:
        return kit.NOTHING
    items, lines = [], []
    for number, change in enumerate(advice, start=1):
        action, reason = kit.shown(change.action, SENTENCE), kit.shown(change.because, SENTENCE)
        saving = f"could save {change.saving}" if change.saving not in change.reason else ""
        items.append(
            f'<li style="margin:5px 0 0"><strong>{action.html}</strong>'
            f"<div>{reason.html}.</div>{kit.block(f'font-size:12px;{kit.FAINT}', saving).html}</li>"
        )
        mark = "-" if beside_moves else f"{number}."
        lines.append(f"{mark} {kit.shown(change.sentence(), SENTENCE).text}")
    head = "what else to do" if beside_moves else "what to try, most effective first"
    tag = "ul" if beside_moves else "ol"
    html = (
        '<div style="margin:12px 0 0;padding:9px 0 0;border-top:1px solid rgba(128,128,128,.3)">'
        f'<div style="{kit.TINY}">{head}</div>'
        f'<{tag} style="margin:0;padding:0 0 0 22px;font-size:13px">{"".join(items)}</{tag}></div>'
    )
    return kit.Fragment(html, "\n".join(lines))


def parts_of(incident: Incident) -> tuple[Part, ...]:
    """Return the parts of the device, or of this process' mapped memory if that met a limit."""
    parts = incident.anatomy.parts if incident.anatomy is not None else ()
    if not (parts and incident.met_a_limit):
        return parts
    heap = tuple(part for part in parts if part.name in OF_ALLOCATED)
    others = incident.host.used - sum(part.bytes for part in heap)
    is_known = incident.is_over_limit and others > 0  # of the instant at which memory ran out
    return (*heap, Part("cache", "mapped, not private memory", others)) if is_known else heap


def drawn_parts(incident: Incident) -> tuple[Part, ...]:
    """Return the parts in the bar: those of the device, or those that count against a limit."""
    parts = parts_of(incident)
    if incident.allowed > 0:
        return tuple(part for part in parts if part.name in OF_THE_PROCESS)
    return tuple(part for part in parts if part.name != "free")


def bar_html(incident: Incident) -> str:
    """Return the bar with its scale; empty if the parts or the capacity are unknown."""
    parts, capacity = drawn_parts(incident), incident.limit
    if not capacity > 0:
        whole = sum(part.bytes for part in incident.anatomy.parts) if incident.anatomy else 0.0
        capacity = max(whole, incident.capacity if incident.capacity > 0 else 0.0)
    if not (parts and capacity > 0):
        return ""
    total = sum(part.bytes for part in parts)
    # A larger request would leave no room for the parts.
    asked = incident.asked if incident.asked <= capacity else 0.0
    full = max(capacity, total + asked)
    end = 100 * capacity / full
    # The line of the capacity is drawn over the parts, in the colour of text.
    over = (
        f'<line x1="{end:.2f}%" x2="{end:.2f}%" y1="0" y2="{_HEIGHT}" stroke="currentColor" '
        f'stroke-width="{2 if end < 99.9 else 0}"/>'
    )
    owner = "limit of this process" if incident.limit > 0 else incident.place
    scale = [f"{owner}: {format_bytes(capacity)}"]
    if asked:
        line = "limit" if incident.limit > 0 else "capacity"
        scale.insert(0, f"dashed: the request{f'; line: the {line}' if full > capacity else ''}")
        over = (
            f'<rect x="{100 * total / full:.2f}%" y="{_INSET / 2}" width="{100 * asked / full:.2f}%" '
            f'height="{_HEIGHT - _INSET}" fill="none" stroke="{palette.BAD}" stroke-width="{_INSET}" '
            f'stroke-dasharray="4 3"><title>requested {format_bytes(asked)}</title></rect>{over}'
        )
    drawn = kit.bar(
        (
            (palette.PARTS[part.name], part.bytes, f"{part.label} {format_bytes(part.bytes)}")
            for part in parts
        ),
        full,
        f"{owner}: {format_bytes(total)} used of {format_bytes(capacity)}",
        height=_HEIGHT,
        over=over,
        style=f";background:{palette.PARTS['free']}",
    )
    scale_html = "".join(f"<span>{kit.shown(text).html}</span>" for text in scale)
    return (
        f'{drawn}<div style="display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 12px;'
        f'font-size:11px;{kit.FAINT}">{scale_html}</div>'
    )
