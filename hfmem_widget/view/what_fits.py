"""The changes with which a training fits, and its memory at other sizes."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import VERDICTS, Move, WhatIf
from hfmem_widget.text import format_bytes, format_count, format_counted, format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table

IN_SIGHT = 4
MOST = 40  # of a recording, which may come from outside
_COLOURS = {True: palette.GOOD, None: palette.RESERVED, False: palette.BAD}
_HEADS = {True: "What fits", None: "What may fit", False: "Nothing that was tried fits"}
FREES = "%memholders --free errors"
_COLUMNS = (
    Column("change", is_bold=True),
    Column("peak"),
    Column("", is_words=True),
    Column("fits up to", letters=12, is_words=True),
    Column("what else changes", letters=12, is_words=True, is_quiet=True),
)


def moves_table(
    moves: Sequence[Move], advice: Sequence[str] = (), *, can_write: bool = True
) -> kit.Fragment:
    """Return a table of changes; memory that an error holds counts as free if the `advice` is to free it."""
    if not moves:
        return kit.NOTHING
    moves = moves[:MOST]
    room = moves[0].room + (0.0 if any(move.fits for move in moves) else moves[0].spare)
    within = f" in {format_bytes(room)}" if room > 0 else ""
    best = next(fits for fits in _HEADS if any(move.fits is fits for move in moves))
    frees_first = f"; run {FREES} first" if any(FREES in text for text in advice) else ""
    source = f"(by dry runs of this model{frees_first})"
    is_known = any(map(_up_to, moves))
    columns = tuple(each for each in _COLUMNS if is_known or each.head != "fits up to")
    rows = [_row(number, move, is_known=is_known) for number, move in enumerate(moves, 1)]
    written = next((number for number, move in enumerate(moves, 1) if move.changes), 0)
    command = kit.code(f"%memfit --write {written}")
    how = kit.note(command, f"puts a new cell below, with change {written} made in your code.")
    unsure = any(move.fits is None and move.tried is None for move in moves)
    tries = kit.note(
        kit.code("%memfit --try"), "tries each change in real steps, in a new process."
    )
    more = table(columns, rows[IN_SIGHT:], size=12)
    return kit.words(
        kit.block("margin:10px 0 0", kit.strong(f"{_HEADS[best]}{within}"), kit.faint(source)),
        table(columns, rows[:IN_SIGHT], scrolls="changes", size=12),
        kit.fold(f"{len(rows) - IN_SIGHT} more", more, style="margin:2px 0 0") if more else more,
        # Plain text does without.
        kit.Fragment(how.html if written and can_write else ""),
        kit.Fragment(tries.html if unsure and can_write else ""),
        between="\n",
    )


def _up_to(move: Move) -> str:
    # The largest batch with rows of its length, or the longest rows in its batch.
    counts = {"row": move.largest_batch, "token": move.longest}
    return " or ".join(format_counted(count, noun) for noun, count in counts.items() if count)


def _row(number: int, move: Move, *, is_known: bool) -> TableRow:
    colour, word = _COLOURS[move.fits], VERDICTS[move.fits]
    return TableRow(
        (
            f"{number}. {move.name}",
            move.need,
            kit.marked(colour, kit.unbroken(word), kit.BULLET),
            *[_up_to(move)] * is_known,
            move.cost or "nothing: the same result",
        ),
        below=tuple(filter(None, (_code(move.code) if move.changes else "", _tried(move)))),
    )


def _tried(move: Move) -> str:
    if move.tried is None:
        return ""
    if move.seconds is None:
        return f"tried: out of memory, with {format_bytes(move.tried)} allocated"
    return f"tried: {format_bytes(move.tried)}, {format_duration(move.seconds)} a step"


def _code(text: str) -> kit.Fragment:
    # It breaks between arguments, and within one only where there is little room.
    wbr = ["_", "_<wbr>"]
    pieces = [(each, wbr[len(each) > kit.SHORT]) for each in text.split(" ")]
    html = " ".join(kit.whole(kit.shown(each).html.replace("_", to), each) for each, to in pieces)
    return kit.code(kit.Fragment(html, text))


_OF_SIZES = (
    Column("batch \N{MULTIPLICATION SIGN} tokens", is_bold=True),
    *(Column("peak"), Column("expected", is_words=True), Column(is_words=True)),
)


def what_if_html(what: WhatIf | None, *, scripted: bool = True) -> kit.Fragment:
    """Return the table, and the script unless the page has it already; nothing without data."""
    if what is None:
        return kit.NOTHING
    source = kit.faint("(by dry runs of this model; no kernel is needed)")
    title = kit.block("margin:10px 0 4px", kit.strong("What if"), source)
    batch, length = what.batch, what.length
    sizes = [(rows, length) for rows in (batch, batch // 2, 2 * batch)]
    sizes += [(batch, tokens) for tokens in (length // 2, 2 * length)]
    rows = [_size_row(what, *size) for size in sizes if what.knows(*size)]
    few = table(_OF_SIZES, rows, size=12)
    fold = kit.fold("a few sizes as a table", few, is_open=True)
    data, script = json.dumps(_data(what), separators=(",", ":")), kit.script("what_if") * scripted
    drawn = kit.drawn_by_script("data-hfmem-what-if", data, fold, script)
    return kit.Fragment(f"{title.html}{drawn.html}", f"{title.text}\n{few.text}")


def _size_row(what: WhatIf, rows: int, length: int) -> TableRow:
    own = what.variants[0]
    peak = own.peak(rows, length)
    fits = what.fits(peak * own.low, peak * own.high)
    between = f"{format_bytes(peak * own.low)} to {format_bytes(peak * own.high)}"
    name = f"{format_count(rows)} \N{MULTIPLICATION SIGN} {format_count(length)}"
    word = "" if math.isnan(what.room) else VERDICTS[fits]
    return TableRow((name, format_bytes(peak), between, word))


def _data(what: WhatIf) -> dict[str, object]:
    variants = []
    for each in what.variants:
        moments = [[float(f"{size:.8g}") for size in astuple(moment)] for moment in each.moments]
        shares = {name: round(getattr(each, name), 4) for name in ("low", "high", "off")}
        variants.append({**asdict(each), "moments": moments, **shares})
    names = {*what.variants[0].held, "gradients", "activations"}
    return {
        **asdict(what),
        "room": what.room if math.isfinite(what.room) else None,
        "variants": variants,
        "parts": {name: (LABELS[name], palette.PARTS.get(name, palette.SAVE)) for name in names},
    }
