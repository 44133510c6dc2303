"""What names hold more than before: two searches, and the difference between them."""

from __future__ import annotations

import re
from collections import Counter

from hfmem_widget.sources.heap.model import Grown, Growth, Holder, Holders, Kind

Key = tuple[str, Kind, str]

_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def grown(before: Holders, after: Holders) -> Growth:
    """Return what names hold more at a later moment than at an earlier one.

    A row is the same at both if its path is, but for the numbers and keys in brackets:
    ``losses[0..49]`` has grown to ``losses[0..99]``.

    Parameters
    ----------
    before, after : Holders
        As `hfmem_widget.holders()` returns them.
    """
    then = {_key(one): one for one in before.rows}
    now = {_key(one): one for one in after.rows}
    # A dict of few keys has a row for each; once they are many, one for all: what it had counts for that one.
    loose = Counter[Key]()
    for key, row in then.items():
        if key not in now:
            loose[_any_of(key)] += row.bytes
    rows = []
    for key, row in now.items():
        known = then.get(key)
        had = min(loose[_any_of(key)], row.bytes) if known is None else known.bytes
        if known is None:
            loose[_any_of(key)] -= had
        tensors = row.tensors - (known.tensors if known is not None else 0)
        rows.append(Grown(row.path, row.kind, row.device, row.bytes - had, tensors, row.bytes))
    less = sum(-one.bytes for one in rows if one.bytes < 0)
    more = sorted((one for one in rows if one.bytes > 0), key=lambda one: -one.bytes)
    bound = after.bound or before.bound
    return Growth(tuple(more), loose.total() + less, after.seconds, bound)


def _key(row: Holder) -> Key:
    return row.pattern or row.path, row.kind, row.device


def _any_of(key: Key) -> Key:
    """Return what a row and those of its single keys have in common."""
    return _IN_BRACKETS.sub("[*]", key[0]), *key[1:]
