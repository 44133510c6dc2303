"""The anatomy as a table with its bars: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfmem_widget.session import HELD, Anatomy
from hfmem_widget.text import format_bytes, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy_bar import bars_html
from hfmem_widget.view.anatomy_table import anatomy_table

NOTE_LENGTH = 300
NOTHING_FOUND = (
    "No model or optimizer with tensors on this device was found, so nothing is attributed."
)

Predicted = Mapping[str, Mapping[str, float]]
"""Bytes by the name of a part, or of a sum ("allocated", "reserved", "process"), by device key."""


def anatomy_bundle(
    anatomies: Sequence[Anatomy],
    predicted: Predicted | None = None,
    *,
    title: str = "",
    contents: str = "",
) -> dict[str, str]:
    """Return anatomies by MIME type: one table a device, one column a moment.

    Parameters
    ----------
    anatomies : sequence of Anatomy
        Those of one device stand beside each other, in this order.
    predicted : mapping of str to mapping of str to float, optional
        What was forecast, in bytes: by device key, then by the name of a part or a sum. It is
        compared with the last moment of the device; the difference is the forecast less that.
    title : str, optional
        What the memory is of.
    contents : str, optional
        What is known of the models in it, in one line; see `contents_text`.
    """
    told: dict[str, list[Anatomy]] = {}
    for one in anatomies:
        told.setdefault(one.device.key, []).append(one)
    forecasts = predicted or {}
    title, about = plain(title), plain(contents, NOTE_LENGTH)
    return kit.bundle(
        kit.headed("memanatomy", title),
        kit.block(f"margin:0 0 6px;font-size:12px;{kit.QUIET}", about),
        *(_section(group, forecasts.get(key, {})) for key, group in told.items()),
        title=title,
    )


def notes_of(anatomies: Sequence[Anatomy]) -> list[str]:
    """Return what must be known to read the figures right, as plain sentences."""
    notes = [
        note if len(anatomies) == 1 else f"{one.moment.capitalize()}: {note}"
        for one in anatomies
        for note in one.notes
    ]
    if any(one.allocated > 0 for one in anatomies) and not any(
        one.bytes(name) > 0 for one in anatomies for name in HELD
    ):
        notes.append(NOTHING_FOUND)
    return [plain(note, NOTE_LENGTH) for note in notes]


def _heading(anatomy: Anatomy) -> tuple[str, str]:
    device = anatomy.device
    told = [plain(device.name)] if device.name else []
    if device.total > 0:
        told.append(format_bytes(device.total))
    return plain(device.key), " \u00b7 ".join(told)


def _section(anatomies: Sequence[Anatomy], predicted: Mapping[str, float]) -> kit.Fragment:
    key, about = _heading(anatomies[0])
    bars = kit.Fragment(bars_html(anatomies))
    table = anatomy_table(anatomies, predicted)
    return kit.section(key, about, bars, table, *kit.notes(notes_of(anatomies)))


def shown_anatomy(anatomy: Anatomy) -> Mapping[str, str]:
    """Return how one anatomy shows itself."""
    return anatomy_bundle([anatomy])
