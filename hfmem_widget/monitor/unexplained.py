"""The memory of a session's devices that nothing known explains: from before the session, and since.

Memory in use that no known tensor holds either was there before the session, or came later. The first part
can only shrink, since memory that was freed or explained does not return to it. The second counts from the
begin of a span that makes activations, and is known while that span is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from hfmem_widget.session import Session, SpanKind
from hfmem_widget.session.model import FINE_KINDS
from hfmem_widget.session.series import COUNTED

Row = Sequence[float]

BASED_KINDS: frozenset[SpanKind] = frozenset({"step", "forward", "evaluate", "predict"})
BASED_BLOCKS = frozenset({"generate", "diffusion"})
"""Kinds of spans in which unexplained memory that came since they began is activations and temporaries."""

_IN_USE = ("requested", "allocated")
"""The metrics for the bytes in use on a device: the first that is known counts."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a device in a session: bytes in use, bytes with a known holder, and the rest."""

    in_use: tuple[int, ...]
    held: tuple[int, ...]
    before: int | None
    since: int | None

    @classmethod
    def of(cls, device: str, session: Session) -> Self:
        def columns_of(*metrics: str) -> tuple[int, ...]:
            columns = (session.index(f"{device}/{metric}") for metric in metrics)
            return tuple(column for column in columns if column is not None)

        before, since = (session.index(f"{device}/{name}") for name in ("before", "unattributed"))
        return cls(columns_of(*_IN_USE), columns_of(*COUNTED), before, since)


class Unexplained:
    """Computes the columns *before* and *unattributed* of a session, which no source reads.

    Rows have the values of the session's series; call `adopt` before the first. `based_on` is the span at
    whose begin the unexplained bytes are known, `bases` has these by column.
    """

    def __init__(self) -> None:
        self.based_on: int | None = None
        self.bases: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._based_on_forward = False
        self._has_begun = False
        self._columns: tuple[_Columns, ...] = ()

    def adopt(self, session: Session) -> None:
        """Take over the devices and series of a session; values of earlier ones stay."""
        self._columns = tuple(_Columns.of(device.key, session) for device in session.devices)

    def begin(self, values: Row) -> None:
        """Record the first reading: its unexplained bytes were there before."""
        if not self._has_begun:
            self._since(values)

    def fill(self, values: Row) -> tuple[float, ...]:
        """Return the values of a sample, completed with the computed columns."""
        filled = list(values)
        for at, value in (self._before | self.bases).items():
            if at < len(filled):  # else another thread has added series meanwhile
                filled[at] = value
        return tuple(filled)

    def base(
        self, span_id: int, kind: SpanKind, label: str, values: Row, *, is_inner: bool
    ) -> None:
        """Keep the unexplained bytes at the begin of a span, if it makes activations."""
        # The label of a watch, and of a span in it, is the user's: it may be the same by chance. A model that
        # was not known when such a span began is known by now.
        is_block = label in BASED_BLOCKS and is_inner
        is_based = self.based_on is not None
        if (is_block and not self.bases) or (not is_based and (is_block or kind in BASED_KINDS)):
            self.rebase(values)
            self.based_on = span_id
            self._based_on_forward = kind == "forward"
        elif kind not in FINE_KINDS:
            self._since(values)

    def rebase(self, values: Row) -> None:
        """Keep the unexplained bytes of a reading; whatever comes on top of them is activations."""
        # Whole, for the poller goes through them on its own thread.
        self.bases = self.bases | self._since(values)

    def ended(self, span_id: int, *, was_last: bool) -> None:
        """Record that a span has ended, and whether it `was_last` of those that were open."""
        if span_id == self.based_on:
            self.based_on = None
            # What a separate forward pass leaves behind is kept for the backward pass.
            if not self._based_on_forward:
                self.bases = {}
        if was_last:
            # Steps known only from an optimizer end with the span that they were in.
            self.bases = {}

    def _since(self, values: Row) -> dict[int, float]:
        """Return the unexplained bytes that came since the base, by column."""
        before, since = dict(self._before), {}
        # Another thread may have added series meanwhile: what is beyond the row is not known.
        width = len(values)
        for columns in self._columns:
            total = held = 0.0
            for at in columns.in_use:
                if at < width and values[at] == values[at]:
                    total = values[at]
                    break
            for at in columns.held:
                if at < width and values[at] > 0:
                    held += values[at]
            remainder, here, there = max(0.0, total - held), columns.before, 0.0
            if here is not None and (here in before or not self._has_begun):
                there = min(remainder, before.get(here, remainder))
                if total > 0:
                    before[here] = there
            if columns.since is not None:
                since[columns.since] = remainder - there
        self._before, self._has_begun = before, True
        return since
