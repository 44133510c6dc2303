"""The types of what a stranger may have written as JSON: `msgspec` refuses what is none of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from hfmem_widget.recording.limits import LARGEST, LONGEST_TEXT, MOST_RANKS, MOST_SERIES
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import DEVICE_KEY, plain

Count = Annotated[int, Meta(ge=0, lt=int(LARGEST))]
RankNumber = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Figure = Annotated[float, Meta(gt=-LARGEST, lt=LARGEST)]
Figures = Annotated[list[Figure | None], Meta(max_length=MOST_SERIES)]
"""None is "not available"."""

DeviceKey = Annotated[str, Meta(pattern=f"^(?:{DEVICE_KEY.pattern})$")]
SeriesKey = Annotated[str, Meta(pattern=f"^(?:{DEVICE_KEY.pattern})/[a-z][a-z0-9_]{{0,63}}$")]


class Text(str):
    """A text, made plain and shortened as it is read."""

    __slots__ = ()
    most: ClassVar[int] = LONGEST_TEXT


class Name(Text):  # noqa: D101
    most = 40


class Host(Text):  # noqa: D101
    most = 64


class Sentence(Text):  # noqa: D101
    most = 4 * LONGEST_TEXT


def _made_plain(kind: type[Text], value: object) -> Text:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return kind(plain(value, kind.most))


def decoder(of: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for lines of some types; it raises `MsgspecError` or `RecursionError`."""
    return msgspec.json.Decoder(of, dec_hook=_made_plain)


def available(value: float | None) -> float:
    """Return a figure, NaN where it is not available."""
    return NOT_AVAILABLE if value is None else value


def require(holds: object, complaint: str) -> None:
    """Raise `ValueError` unless something holds that no type can say."""
    if not holds:
        raise ValueError(complaint)
