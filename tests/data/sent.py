"""What a page is sent: ``python -m tests.data.sent`` writes `sent.txt` anew.

Of each message: when, what it is, how many rows, steps and bytes it has, which spans, what its figures add
up to, and whatever else is new in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hfmem_widget.session import Finding, Sample
from hfmem_widget.text import GIB
from hfmem_widget.view.wire.protocol import Buffers, Message
from tests.data.wire import Wire
from tests.unit.view.chart.test_guides import budget, trend
from tests.unit.view.wire.test_protocol import add_steps, make_recorder

FILE = Path(__file__).with_name("sent.txt")


class Lines(Wire):
    """What is sent, as lines of text."""

    def __init__(self, *, gpus: int = 1, parts: bool = False, panel: bool = True) -> None:
        super().__init__(make_recorder(gpus, samples=0, parts=parts), panel=panel)
        self.publisher.run = "run"
        self.lines: list[str] = []
        self._told: dict[str, Any] = {}

    def values(self) -> tuple[float, ...]:
        return (GIB * (1 + self.clock.now % 3),) * len(self.session.series)

    def send(self, message: Message, buffers: Buffers) -> None:
        spans = [f"{one['id']}{'' if one.get('stop') is None else '.'}" for one in message["spans"]]
        told = [
            f"{self.clock.now:.2f} {message['kind']} {message['seq']}",
            f"rows={message['rows']}",
        ]
        told += [
            f"{name}={message[name]}" for name in ("steps", "coarse", "run") if name in message
        ]
        told.append(f"bytes={[len(one) for one in buffers]} spans={' '.join(spans)}")
        wide = (np.frombuffer(buffers[0], "<f8"), np.frombuffer(buffers[1], "<f4"))
        sums = [float(np.nansum(one.astype(float))) for one in wide]
        told.append(f"{sums[0]:.6g} {sums[1] / GIB:.6g}")
        self.lines.append(" ".join(told))
        for name in sorted({*message} - {"kind", "seq", "rows", "spans", "steps", "coarse", "run"}):
            now = json.dumps(message[name], ensure_ascii=False, default=str)
            if name == "status" and len(self.lines) > 3:
                continue
            if self._told.get(name) != now:
                self._told[name] = now
                self.lines.append(f"  {name}: {now}")


def a_cell() -> Lines:
    """Return what is sent of a cell with steps, a gap and guides, while somebody watches."""
    wire = Lines(parts=True)
    recorder, session = wire.recorder, wire.session
    wire.run(1.0)
    cell = recorder.open_span("cell", "a cell", session.last_sample)
    wire.run(1.0)
    for first in (1, 6, 11):
        add_steps(recorder, 5, first=first, duration=0.1)
        wire.run(0.6)
    wire.sleep(2.0)
    wire.run(1.0)
    session.guides += [budget(2.5), trend(1.0, 3.0)]
    wire.run(2.0)
    session.findings.append(Finding("leak", "warn", "It grows.", {"device": "cuda:0"}, ("Look.",)))
    wire.run(1.5)
    recorder.close_span(cell.id, session.last_sample, {})
    wire.publisher.resync()
    wire.run(0.5)
    wire.publisher.finish()
    return wire


def nobody_watches() -> Lines:
    """Return what is sent while nobody is seen, slower and slower, until somebody is."""
    wire = Lines(panel=False)
    for seconds in (5.0, 28.0, 120.0, 150.0):
        wire.run(3.0)
        wire.clock.advance(seconds)
    wire.run(9.0)
    wire.publisher.seen()
    wire.run(1.0)
    return wire


def many_devices() -> Lines:
    """Return what is sent of eight devices, with more steps and samples than there is room for."""
    wire = Lines(gpus=8)
    wire.run(0.3)
    for at in range(40):
        wire.recorder.append(Sample(wire.clock.now, tuple(float(at) for _ in wire.session.series)))
    add_steps(wire.recorder, 30, duration=0.01)
    wire.run(6.0)
    return wire


EVERY: dict[str, Callable[[], Lines]] = {
    "a cell": a_cell,
    "nobody watches": nobody_watches,
    "many devices": many_devices,
}


def kept() -> dict[str, list[str]]:
    blocks = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {head.removeprefix("== "): lines for head, *lines in map(str.splitlines, blocks)}


if __name__ == "__main__":
    text = "\n\n".join("\n".join((f"== {name}", *make().lines)) for name, make in EVERY.items())
    FILE.write_text(text + "\n", encoding="utf-8")
