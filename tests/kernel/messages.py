"""The messages that a kernel published, and those of one cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def points_at(traceback: str, line: int) -> bool:
    """Return whether a traceback names a line of the cell; IPython 7 only draws an arrow to it."""
    return re.search(rf"line {line}\b|> {line} ", traceback) is not None


OUTPUTS = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "error", "clear_output"}
)


@dataclass(frozen=True, slots=True)
class Message:
    kind: str  # its ``msg_type``
    parent: str  # the id of its request; empty if it names none
    content: Mapping[str, Any]
    metadata: Mapping[str, Any]
    buffers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Result:
    request: str  # the id of its execute request
    reply: Mapping[str, Any]  # the content of the execute reply
    messages: tuple[Message, ...]  # until the cell was idle, whoever they belong to

    @property
    def status(self) -> str:
        """The status of the reply: ok, error or aborted."""
        return str(self.reply["status"])

    def of(self, *kinds: str) -> tuple[Message, ...]:
        """Return this cell's own messages of these kinds, in order."""
        return tuple(
            one for one in self.messages if one.kind in kinds and one.parent == self.request
        )

    @property
    def outputs(self) -> tuple[Message, ...]:
        """The outputs of this cell: streams, displays and their updates, its value, errors."""
        return self.of(*OUTPUTS)

    @property
    def errors(self) -> tuple[Message, ...]:
        return self.of("error")

    @property
    def displays(self) -> tuple[Message, ...]:
        """The displays, and updates of displays."""
        return self.of("display_data", "update_display_data")

    @property
    def value(self) -> Mapping[str, Any] | None:
        """The MIME bundle of the cell's last expression."""
        values = self.of("execute_result")
        return values[-1].content["data"] if values else None

    @property
    def value_text(self) -> str:
        """Its plain text; empty without one."""
        return str((self.value or {}).get("text/plain", ""))

    @property
    def shown(self) -> dict[str, Any]:
        """The MIME bundle of the one display of a cell that works."""
        assert self.status == "ok", (self.text(), self.text("stderr"), self.errors)
        (display,) = self.displays
        return dict(display.content["data"])

    def text(self, stream: str = "stdout") -> str:
        """Return all that was printed to a stream."""
        streams = (one.content for one in self.of("stream"))
        return "".join(one["text"] for one in streams if one["name"] == stream)

    @property
    def comms(self) -> tuple[Message, ...]:
        """All comm messages meanwhile, since a thread's messages may name another cell as their parent."""
        return tuple(one for one in self.messages if one.kind.startswith("comm_"))
