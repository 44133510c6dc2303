"""A session sampled by a script, and the messages that a page gets of it."""

from dataclasses import dataclass

import numpy as np
from IPython.display import display

from hfmem_widget.session import Recorder, Sample, Session
from hfmem_widget.session.timeline import Floats
from hfmem_widget.view.wire.protocol import Buffers, Message
from hfmem_widget.view.wire.publisher import Publisher
from hfmem_widget.view.wire.widget import MemoryWidget
from tests.scenes import FakeClock


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, and the time when it was sent."""

    at: float
    message: Message
    buffers: Buffers

    @property
    def kind(self) -> str:
        kind: str = self.message["kind"]
        return kind

    @property
    def size(self) -> int:
        """Bytes of its buffers."""
        return sum(map(len, self.buffers))

    @property
    def times(self) -> list[float]:
        """Seconds of its rows of samples."""
        times: list[float] = np.frombuffer(self.buffers[0], "<f8").tolist()
        return times

    @property
    def steps(self) -> Floats:
        return np.frombuffer(self.buffers[2], "<f8").reshape(self.message["steps"], -1)

    @property
    def breaks(self) -> list[float]:
        """Seconds of the rows at which lines break."""
        values = np.frombuffer(self.buffers[1], "<f4").reshape(self.message["rows"], -1)
        times: list[float] = np.array(self.times)[np.isnan(values).all(axis=1)].tolist()
        return times


class Wire:
    """A publisher that is called after each tick, on a clock of its own."""

    def __init__(self, recorder: Recorder, *, panel: bool = True) -> None:
        self.clock = FakeClock()
        self.recorder, self.session = recorder, recorder.session
        self.sent: list[Sent] = []
        self.publisher = Publisher(self.session, self.send, panel=panel, clock=self.clock)
        recorder.subscribe(self.publisher)

    @property
    def news(self) -> list[Sent]:
        """The messages except snapshots."""
        return [one for one in self.sent if one.kind == "rows"]

    def send(self, message: Message, buffers: Buffers) -> None:
        self.sent.append(Sent(self.clock.now, message, buffers))

    def values(self) -> tuple[float, ...]:
        return (1.0,) * len(self.session.series)

    def run(self, seconds: float, interval: float = 0.1) -> None:
        for _ in range(round(seconds / interval)):
            self.clock.advance(interval)
            self.recorder.append(Sample(self.clock.now, self.values()))
            self.recorder.publish()

    def sleep(self, seconds: float) -> float:
        """Take no samples for some seconds; return the middle of that time."""
        began = self.clock.now
        self.clock.advance(seconds)
        self.session.timeline.add_gap(began, self.clock.now)
        return (began + self.clock.now) / 2


def show(session: Session) -> Publisher:
    """Display a session through the real wire as if it were running, which opens the panel."""

    def send(message: Message, buffers: Buffers) -> None:
        widget.publish(message, buffers)

    session.stopped_at = None
    publisher = Publisher(session, send)
    widget = MemoryWidget(
        session, publisher.run, on_seen=publisher.seen, on_resync=publisher.resync
    )
    display(widget)
    publisher.finish()
    return publisher
