"""Two elastic agents of torchrun, as on two nodes of two ranks; the second stands still, then is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import hfmem_widget

directory, folder, port = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
SCRIPT = str(Path(__file__).with_name("trains_on.py"))
QUICK = "join_timeout=240,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"
AGENT = [
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "2"),
    *("--max-restarts", "3", "--rdzv-id", "job", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", QUICK, "--monitor-interval", "0.2"),
    *(SCRIPT, str(folder / "checkpoint"), str(folder / "lost")),
]


def agent(node: str) -> subprocess.Popen[str]:
    environ = os.environ | {"NODE": node}
    return subprocess.Popen(AGENT, stdout=subprocess.PIPE, text=True, env=environ)


def send(one: subprocess.Popen[str], what: signal.Signals) -> None:
    """Send a signal to an agent and its ranks, which are in sessions of their own."""
    whole = psutil.Process(one.pid)
    for process in (*whole.children(recursive=True), whole):
        process.send_signal(what)


def found() -> dict[str, str]:
    """Return what is said of the ranks now."""
    return {finding.kind: finding.title for finding in session.run.findings}


def keeps_the_store(one: subprocess.Popen[str]) -> bool:
    """Return whether an agent has the store at which they meet, without which nobody goes on."""
    listening = psutil.Process(one.pid).net_connections()
    return any(each.laddr.port == int(port) and each.status == "LISTEN" for each in listening)


def wait(seconds: float, world: int) -> None:
    """Wait until all ranks of a world of that size have made steps."""
    deadline = time.monotonic() + seconds
    while True:
        run = session.run
        rows = list(run.ranks.values()) if run is not None else []
        if len(rows) == world == run.world and all(row.step > 5 for row in rows):
            return
        assert time.monotonic() < deadline, (rows, run and run.world)
        time.sleep(0.2)


with hfmem_widget.watch("elastic", quiet=True, ranks=directory) as session:
    both = [agent("node-a"), agent("node-b")]
    try:
        wait(240.0, 4)
        left, lost = sorted(both, key=keeps_the_store, reverse=True)
        whole = found()
        before = {number: row.step for number, row in session.run.ranks.items()}
        send(lost, signal.SIGSTOP)
        deadline = time.monotonic() + 240.0
        while not (still := found()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(3.0)  # whatever else would be said
        still = found()
        send(lost, signal.SIGKILL)
        wait(240.0, 2)
        smaller = found()
        (folder / "lost").touch()
        out, _ = left.communicate(timeout=240)
    finally:
        for one in both:
            if one.poll() is None:
                send(one, signal.SIGKILL)
            one.wait()
run = session.run
print(
    json.dumps(
        {
            "code": left.returncode,
            "said": out,
            "before": before,
            "seen": [whole, still, smaller, found()],
            "world": run.world,
            "ranks": {number: row.step for number, row in run.ranks.items()},
            "outcome": run.overview.spans[0].outcome,
            "files": sorted(run.collector.all_streams),
        }
    )
)
