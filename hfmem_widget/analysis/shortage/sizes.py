"""Sizes that may be beyond any machine, as people read them."""

from __future__ import annotations

from hfmem_widget.units import GIB, format_bytes, number

TIB = 1024 * GIB
PIB = 1024 * TIB

_MOST = 999.5
"""From so many of a unit on the next one is used."""


def size_text(size: float) -> str:
    """Return bytes as text, such as ``6.99 GiB``; from 1000 GiB on as TiB, from 1000 TiB on as PiB."""
    if size >= _MOST * TIB:
        return f"{number(size, PIB)} PiB"
    return f"{number(size, TIB)} TiB" if size >= _MOST * GIB else format_bytes(size)
