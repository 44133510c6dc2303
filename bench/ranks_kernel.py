"""What 1,024 ranks cost a real kernel with a page connected, and what the page is sent.

As `bench/ranks.py`, but the one that follows the ranks is an ipykernel under a real Jupyter server, by
`%memwatch open`. The page is a websocket client that reads everything and says that someone watches, as the
front end does: a browser would take the cores that are measured.

    python bench/ranks_kernel.py [--seconds 60]
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ranks
from common import measure

from hfmem_widget.ranks.directory import make_or_join
from tests.browser.channel import Channel
from tests.browser.jupyter import JupyterLab

NAMES = (
    "8 ranks, a write a second",
    "1,024 ranks, at their own pace",
    "1,024 ranks, a line a second",
    "1,024 ranks, a write a second",
)

SEEN_EVERY = 10.0
"""Seconds between two words of the page that someone watches."""

# The kernel itself notes when lines were made, and the clocks of its threads.
PREPARE = """
import json, sys, threading, time
sys.path[:0] = {path!r}
import ranks
from hfmem_widget.ranks.collector import Collector
%load_ext hfmem_widget
latencies, plain = [], Collector.feed
def feed(self, stream, data, at=float("nan")):
    plain(self, stream, data, at)
    if (known := self._streams[stream]).head is not None:
        latencies.append(time.time() - known.last_sign)
Collector.feed = feed
def mark():
    found = {{"process": time.process_time(), "at": time.time(), "rss": ranks.rss()}}
    for thread in threading.enumerate():
        clock = time.pthread_getcpuclockid(thread.ident)
        found["threads"] = found.get("threads", {{}}) | {{str(thread.ident): time.clock_gettime(clock)}}
    tails = [one._ticker._thread.ident for one in alive]
    return found | {{"tails": list(map(str, tails)), "late": list(latencies)}}
from hfmem_widget.ranks.tail import Tail
alive, plain_start = [], Tail.start
def start(self):
    plain_start(self)
    alive.append(self)
Tail.start = start
def print_mark():
    print("MARK" + json.dumps(mark()))
"""
FOLLOW = "%memwatch open {directory}"
END = """
streams = [one for tail in alive for one in tail.collector.all_streams.values()]
print("MARK" + json.dumps({{
    "holes": sum(one.holes for one in streams), "bad": sum(one.dropped for one in streams),
    "steps": sum(one.newest_step for one in streams), "ends": sum(one.is_over for one in streams),
    "findings": [one.title for tail in alive for one in tail.collector.session.findings],
}}))
"""


@dataclass(slots=True)
class Page:
    """What a page was sent."""

    channel: Channel
    messages: int = 0
    bytes: int = 0
    comms: set[str] = field(default_factory=set)
    _seen: float = 0.0

    def read_until(self, deadline: float) -> None:
        """Read all that comes, and say now and then that someone watches."""
        while (left := deadline - time.time()) > 0:
            if (message := self.channel.read_within(min(left, 1.0))) is not None:
                self.take(message)
            if time.time() - self._seen > SEEN_EVERY:
                self._seen = time.time()
                for comm in self.comms:
                    self.channel.say(comm, {"kind": "seen"})

    def take(self, message: dict[str, Any]) -> None:
        """Count a message of ours."""
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "comm_open":
            self.comms.add(content["comm_id"])
        if kind == "comm_msg":
            self.messages += 1
            self.bytes += len(json.dumps(content)) + sum(map(len, message.get("buffers", ())))


def marked(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a cell has printed."""
    texts = [one["content"].get("text", "") for one in messages]
    line = next(line for text in texts for line in text.splitlines() if line.startswith("MARK"))
    found: dict[str, Any] = json.loads(line.removeprefix("MARK"))
    return found


def follow(server: JupyterLab, name: str, seconds: float) -> list[str]:
    """Have the ranks of a script play, a kernel follow them, and a page read what it sends."""
    script = ranks.SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder, Channel(server) as channel:
        directory = Path(folder) / "run"
        make_or_join(directory, "bench")
        page = Page(channel)
        folders = [str(Path(__file__).parent), str(measure.ROOT)]
        channel.run(PREPARE.format(path=folders))
        began = time.time() + 6.0  # until the senders have begun
        command = [sys.executable, ranks.__file__, "--send", name, str(directory)]
        command += [str(began), str(seconds)]
        senders = [
            subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE)
            for at in range(ranks.SENDERS)
        ]
        before = marked(channel.run("print_mark()"))
        for message in channel.run(FOLLOW.format(directory=directory)):
            page.take(message)
        page.read_until(began)
        page.messages = page.bytes = 0
        first = marked(channel.run("print_mark()"))
        page.read_until(began + seconds - 1.0)  # before the ranks end, and the thread with them
        last = marked(channel.run("print_mark()"))
        wanted = sum(int(sender.communicate()[0]) for sender in senders)
        page.read_until(time.time() + 6.0)
        end = marked(channel.run(END.format()))
    passed = last["at"] - first["at"]
    tail = sum(last["threads"][one] - first["threads"].get(one, 0.0) for one in last["tails"])
    p50, p95, p99 = np.percentile(last["late"], [50, 95, 99])
    return [
        name,
        f"{100 * tail / passed:.1f} %",
        f"{1e6 * tail / (len(last['late']) - len(first['late'])):.0f}",
        f"{100 * (last['process'] - first['process']) / passed:.1f} %",
        f"{(last['rss'] - before['rss']) / 1e6:.0f}",
        f"{1e3 * p50:.0f} / {1e3 * p95:.0f} / {1e3 * p99:.0f}",
        f"{page.bytes / passed / 1e3:.1f}",
        f"{page.messages / passed:.1f}",
        f"{end['holes']}, {end['bad']}",
        f"{end['steps']:,} of {wanted:,}",
        f"{end['ends']} of {script.world}",
    ]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="the runs whose names have this in them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, JupyterLab(Path(home)) as server:
        rows = [follow(server, name, arguments.seconds) for name in NAMES if arguments.only in name]
    measure.report(
        f"Ranks followed by a kernel with a page for {arguments.seconds:.0f} s",
        measure.machine("numpy", "ipykernel"),
        [
            "ranks",
            "CPU of the thread",
            "µs of it a write",
            "CPU of the kernel",
            "MB added",
            "latency p50 / p95 / p99 in ms",
            "kB/s to the page",
            "messages/s",
            "blocks lost, lines bad",
            "steps",
            "ends",
        ],
        rows,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
