"""What to change so that a training fits: each change with its peak, and whether the loss stays the same."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.session import Move
from hfmem_widget.text import format_bytes
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table

IN_SIGHT = 4
MOST = 40  # of a recording, which may be a stranger's
_FITS = {
    True: (palette.GOOD, "fits"),
    None: (palette.RESERVED, "may fit"),
    False: (palette.BAD, "does not fit"),
}
_HEADS = {True: "What fits", None: "What may fit", False: "Nothing that was tried fits"}
FREES = "%memholders --free errors"
_COLUMNS = (
    Column("change", is_bold=True),
    Column("peak"),
    Column("", is_words=True),
    Column("what else changes", letters=12, is_words=True, is_quiet=True),
)


def moves_table(
    moves: Sequence[Move], *, frees_first: bool = False, can_write: bool = True
) -> kit.Fragment:
    """Return the changes as a table, those after the first few folded; nothing without any.

    With `frees_first`, what an error still holds is counted as free. Without `can_write`, as of a session
    that was opened, nothing is said of how to write them.
    """
    if not moves:
        return kit.NOTHING
    moves = moves[:MOST]
    room = moves[0].room + (0.0 if any(move.fits for move in moves) else moves[0].spare)
    within = f" in {format_bytes(room)}" if room > 0 else ""
    best = next(fits for fits in _HEADS if any(move.fits is fits for move in moves))
    source = f"(by dry runs of this model{f'; run {FREES} first' if frees_first else ''})"
    rows = [_row(number, move) for number, move in enumerate(moves, 1)]
    written = next((number for number, move in enumerate(moves, 1) if move.changes), 0)
    more = table(_COLUMNS, rows[IN_SIGHT:], size=12)
    name = f"{len(rows) - IN_SIGHT} more"
    return kit.words(
        kit.block("margin:10px 0 0", kit.strong(f"{_HEADS[best]}{within}"), kit.faint(source)),
        table(_COLUMNS, rows[:IN_SIGHT], scrolls="changes", size=12),
        kit.fold(name, more, style="margin:2px 0 0") if more.html else kit.NOTHING,
        kit.Fragment(_how_to_write(written).html if written and can_write else ""),
        between="\n",
    )


def _how_to_write(number: int) -> kit.Fragment:
    text = f"puts a new cell below, with change {number} made in your code."
    return kit.note(kit.code(f"%memfit --write {number}"), text)


def _row(number: int, move: Move) -> TableRow:
    colour, word = _FITS[move.fits]
    return TableRow(
        (
            f"{number}. {move.name}",
            format_bytes(move.peak),
            kit.marked(colour, kit.Fragment(word.replace(" ", kit.UNBROKEN), word), kit.BULLET),
            move.cost or "nothing: the same result",
        ),
        below=(_code(move.code),) if move.changes else (),
    )


def _code(text: str) -> kit.Fragment:
    """Return code that breaks between arguments, and in one only where there is little room."""
    pieces = (kit.shown(piece).html.replace("_", "_<wbr>") for piece in text.split(" "))
    html = " ".join(f'<span style="display:inline-block">{piece}</span>' for piece in pieces)
    return kit.code(kit.Fragment(html, text))
