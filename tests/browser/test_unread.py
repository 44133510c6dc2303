"""What a page that is closed, or does not read, costs a real Jupyter server."""

import json
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from hfmem_widget.view.wire.publisher import ENVELOPE
from tests.browser.channel import Channel, ours_in
from tests.browser.jupyter import JupyterLab

MOST = 5_000_000
PREPARE = """
import time
from hfmem_widget.session import Device, DeviceSteps, Recorder, Sample, Series, StepGroup
from tests.scenes import FakeClock
from tests.scenes.groups import add_group
from hfmem_widget.view.live import Broadcast
from hfmem_widget.view.wire.publisher import Publisher

def watch(hours, gpus):
    recorder, clock = Recorder("fine-tune"), FakeClock()
    session = recorder.session
    keys = [f"cuda:{gpu}" for gpu in range(gpus)]
    metrics = ("allocated", "reserved", "device_used")
    recorder.adopt(
        [Device(key, "NVIDIA H200", total=150e9) for key in keys],
        [Series(key, metric, metric) for key in keys for metric in metrics],
    )
    broadcast = Broadcast(session, panel=True)
    broadcast._publisher = Publisher(session, broadcast._send, clock=clock)
    recorder.subscribe(broadcast)
    for kind in ("cell", "train", "epoch"):
        recorder.open_span(kind, kind, Sample(0.0, ()))
    for number in range(round(hours * 3600)):
        for tenth in range(10):
            clock.advance(0.1)
            recorder.append(Sample(clock.now, (1.2345678e10 + number,) * len(session.series)))
            if tenth % 5 == 4:
                made = DeviceSteps(2e10, "exact", 1e10, number, 4096.0, 1e10, {"forward": 1.5e10})
                add_group(session.steps, StepGroup(
                    3, 2 * number + tenth // 5, 2 * number + tenth // 5, clock.now - 0.45, clock.now,
                    8.0, 512.0, 4096.0, 4000.0, dict.fromkeys(keys, made),
                ))
            recorder.publish()
        # Neither the kernel's socket nor a limit of the server's is asked to take an hour in a second.
        time.sleep(0.001)
    print("seq", broadcast._publisher._seq)
    return broadcast
"""


def memory(server: JupyterLab) -> int:
    """Return the bytes that the server's process has resident."""
    return int(psutil.Process(server.pid).memory_info().rss)


def kept(received: list[dict[str, Any]]) -> int:
    """Return the bytes that the server kept of these messages: their text, their buffers, their envelopes."""
    sizes = (
        ENVELOPE + len(json.dumps(one["content"])) + sum(map(len, one.get("buffers", ())))
        for one in received
    )
    return sum(sizes)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def hour(mark: Path, gpus: int) -> str:
    """Return a cell that watches a simulated hour and then makes a file."""
    return f"kept = watch(1.0, {gpus})\nopen({str(mark)!r}, 'w').close()"


TRIES = 3
"""A busy system gives a process more than it needs, never less: the least of a few tries is what counts."""


def least(tmp_path: Path, cost: Callable[[JupyterLab, Path], int]) -> int:
    """Return the least that something costs a server in bytes, each time one of its own."""
    costs = []
    for number in range(TRIES):
        home = tmp_path / str(number)
        home.mkdir()
        with JupyterLab(home) as server:
            costs.append(cost(server, home / "ended"))
        if costs[-1] < MOST:
            break
    return min(costs)


def arrived(received: list[dict[str, Any]]) -> bool:
    """Return whether the newest is among what came, and the server kept little enough of it."""
    printed = "".join(one["content"].get("text", "") for one in received)
    return kept(received) < MOST and f"seq {ours_in(received)[-1]['seq']}" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "is_closed"), [(8, True), (1, False)], ids=["a closed tab", "a tab that never reads"]
)
def test_a_page_unread_for_an_hour_is_cheap(tmp_path: Path, gpus: int, *, is_closed: bool) -> None:
    """A closed tab, or a laptop asleep with its socket open, costs the server less than 5 MB."""

    def cost(server: JupyterLab, mark: Path) -> int:
        with Channel(server) as page:
            page.run(f"{PREPARE}\nkept = watch(0.02, {gpus})")
            page.hang_up()
            # Else the system's own buffers hold the whole hour, and the server has nothing to keep.
            page.connect(receive_buffer=None if is_closed else 4096)
            before = memory(server)
            request = page.send(hour(mark, gpus))
            if is_closed:
                page.hang_up()
            wait_for(mark)
            # The newest messages are still on their way.
            time.sleep(1.0)
            growth = memory(server) - before
            if is_closed:
                page.connect()
            assert arrived(page.read_until_idle(request))
        return growth

    assert least(tmp_path, cost) < MOST


FLOOD = """%%memwatch --label flood
import os, time
from IPython.display import display
time.sleep(1.0)
for number in range(6000):
    display(number)
open({flooded!r}, 'w').close()
while not os.path.exists({enough!r}):
    time.sleep(0.05)
"""


def is_after(message: dict[str, Any], flooded: Path) -> bool:
    """Return whether this is a snapshot from after the flood: nothing of ours is dropped any more."""
    if not any(one["kind"] == "snapshot" for one in ours_in([message])) or not flooded.exists():
        return False
    sent: datetime = message["header"]["date"]
    return sent.timestamp() > flooded.stat().st_mtime + 1.0


@pytest.mark.slow
def test_a_display_flood_costs_messages_and_not_the_end(tmp_path: Path) -> None:
    """The server drops ours with the user's own; a snapshot heals what is missing, and the end arrives."""
    flooded, enough = tmp_path / "flooded", tmp_path / "enough"
    # A tenth of what is usual: a busy machine floods more slowly.
    limit = "--ZMQChannelsWebsocketConnection.iopub_msg_rate_limit=100"
    with JupyterLab(tmp_path, limit) as server, Channel(server) as page:
        page.run("%load_ext hfmem_widget")
        request = page.send(FLOOD.format(flooded=str(flooded), enough=str(enough)))
        received = [page.read()]
        while not is_after(received[-1], flooded):
            received.append(page.read())
        enough.touch()
        messages = ours_in(received + page.read_until_idle(request))
    seqs = [one["seq"] for one in messages]
    lost = max(pairwise(seqs), key=lambda pair: pair[1] - pair[0])

    assert lost[1] - lost[0] > 1
    assert any(one["kind"] == "snapshot" and one["seq"] >= lost[1] for one in messages[:-1])
    assert messages[-1]["status"]["state"] == "stopped"
