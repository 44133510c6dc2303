"""What a session's models and optimizers consist of, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.session import Contents
from hfmem_widget.text import format_bytes, format_count, plain

MOST_NAMES = 3
ALL = 0.9995
"""From this share on all parameters are said to be trainable."""


def contents_text(contents: Contents) -> str:
    """Return what was found, such as ``BertModel, AdamW · 110,000,000 parameters, all trainable · float32``.

    Empty where nothing was. Weights of several types are told with their bytes.
    """
    told = [", ".join((*_named(contents.modules), *_named(contents.optimizers)))]
    if contents.parameters:
        told.append(
            f"{format_count(contents.parameters)} parameters, {_trainable(contents)} trainable"
        )
    types = sorted(contents.dtypes.items(), key=lambda one: one[1], reverse=True)[:MOST_NAMES]
    if len(types) == 1:
        told.append(plain(types[0][0]))
    else:
        told += [f"{plain(name)} {format_bytes(size)}" for name, size in types]
    return " \u00b7 ".join(one for one in told if one)


def _trainable(contents: Contents) -> str:
    share = contents.trainable / contents.parameters
    if share >= ALL:
        return "all"
    if not contents.trainable:
        return "none"
    return f"{format_count(contents.trainable)} ({100 * share:.2g} %)"


def _named(names: Sequence[str]) -> list[str]:
    """Return the names, each once, the first few of them."""
    unique = [plain(name) for name in dict.fromkeys(names)]
    more = len(unique) - MOST_NAMES
    return unique if more <= 0 else [*unique[:MOST_NAMES], f"{more} more"]
