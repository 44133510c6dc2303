"""``%memwatch ranks``: the engines of ipyparallel as ranks of what is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from IPython.core.error import UsageError

from hfmem_widget.features.ranks.companion import engines_in_use, take
from hfmem_widget.magics.usage import usage_errors
from hfmem_widget.text import format_counted, plain

USAGE = "name a client of ipyparallel, such as: %memwatch ranks rc; or %memwatch ranks off"


@usage_errors()
def take_engines(words: Sequence[str], names: Mapping[str, Any]) -> str:
    """Do what the words after ``%memwatch ranks`` say, and return what to print."""
    if words == ["off"]:
        had = engines_in_use() is not None
        take(None)
        return (
            "The engines are no longer shown as ranks." if had else "No engines are shown as ranks."
        )
    if len(words) != 1:
        raise UsageError(USAGE)
    name = words[0]
    if name not in names:
        raise UsageError(f"no variable {plain(name)!r}; {USAGE}")
    engines = take(names[name])
    count = format_counted(0 if engines is None else len(engines), "engine")
    return f"{count} of {plain(name)} will be shown as ranks of every watched cell."
