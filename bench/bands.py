"""Whether the picture of ``--stacks`` is the allocator's own, at a thousand moments of what people do.

While a workload runs, a second thread reads the allocator's counter of requested bytes, as often as it can.
Each reading must be in the recorded history, at the microsecond when it was taken (within `CLOCKS`), and the
bands of that moment must add up to it. What was live at the peak is counted once more from torch's own
snapshot, event by event, by the first lines of the stacks. Each workload has a process of its own. Only
where there is a GPU.
"""

import json
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from typing import Any, Final

import torch
from common import measure
from common.workloads import WORKLOADS

import hfmem_widget
from hfmem_widget.features.stacks.call_sites import place_of
from hfmem_widget.features.stacks.live_at_peak import over_time, replay

NAMES: Final = (
    *("Trainer, fp32", "Trainer, bf16", "Trainer, checkpointing", "Trainer, LoRA", "BERT", "ViT"),
    *("ResNet-50", "Mixtral, 8 experts", "two players", "plain loop, CUDA graph", "generate"),
)
HEAD: Final = (
    *("workload", "events", "readings", "in the history", "of these, the bands' sum"),
    *("peak, bytes off", "lines", "lines, bytes off"),
)
CLOCKS: Final = 0.002
"""Seconds by which torch's clock may be off from Python's."""
READINGS: Final = 1000


class Readings(threading.Thread):
    """Reads the counter until it is ended: seconds since the epoch before and after, and the bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.all: list[tuple[float, float, int]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Read now and then."""
        while not self.ended.wait(0.0005):
            before = time.time()
            stats = torch.cuda.memory.memory_stats_as_nested_dict()
            self.all.append((before, time.time(), stats["requested_bytes"]["all"]["current"]))


def live_at(events: list[dict[str, Any]], last: int) -> Counter[tuple[str, int]]:
    """Return the bytes that are live after an event by the line of their innermost Python frame."""
    blocks: dict[int, tuple[int, tuple[str, int]]] = {}
    for event in events[:last]:
        if event["action"] == "alloc":
            blocks[event["addr"]] = (event["size"], place(event["frames"]))
        elif event["action"] == "free_requested":
            blocks.pop(event["addr"], None)
    lines: Counter[tuple[str, int]] = Counter()
    for size, line in blocks.values():
        lines[line] += size
    return lines


def place(frames: list[dict[str, Any]]) -> tuple[str, int]:
    """Return the innermost line of a stack."""
    return (frames[0]["filename"], frames[0]["line"]) if frames else ("", 0)


def one(name: str) -> dict[str, Any]:
    """Run a workload in this process; return how many readings its history has."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    run = WORKLOADS[name]()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    readings = Readings()
    with hfmem_widget.watch(name, quiet=True, stacks=True) as session:
        readings.start()
        deadline = time.monotonic() + 60
        while len(readings.all) < READINGS and time.monotonic() < deadline:
            run()
        torch.cuda.synchronize()
        readings.ended.set()
        readings.join()
        requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert session.stacks is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "it.pickle")
        session.stacks.save(path)
        snapshot = pickle.loads(path.read_bytes())
    found = replay(snapshot, 0)
    every = over_time(found, [place_of(frames, {}) for frames in found.table.frames], 1 << 60)
    sums = [sum(sizes) for sizes in zip(*(band.sizes for band in every.bands["line"]), strict=True)]
    times = [(moment or 0) / 1e6 for moment in found.times]
    seen = right = 0
    later = [each for each in readings.all if each[0] > times[0]]
    for before, after, size in later[:READINGS]:
        low, high = bisect_left(times, before - CLOCKS), bisect_right(times, after + CLOCKS)
        at = [k for k in range(low, high + 1) if found.allocated[k] == size]
        seen += bool(at)
        right += bool(at) and all(sums[k] == size for k in at)
    peak = session.stacks.peaks[0]
    highest = int(found.allocated.argmax())
    lines = live_at(snapshot["device_traces"][0], highest)
    ours: Counter[tuple[str, int]] = Counter()
    for row in found.live.tolist():
        if found.table.born[row]:
            ours[place(found.table.frames[found.table.stacks[row]] or [])] += int(
                found.table.sizes[row]
            )
    return {
        "events": len(times),
        "readings": len(later[:READINGS]),
        "seen": seen,
        "right": right,
        "off": peak.highest - requested,
        "wrapped": peak.wrapped,
        "lines": len(lines),
        "lines_off": sum(((lines - ours) + (ours - lines)).values()),
        "sites_off": sum(site.bytes for site in peak.sites) - int(found.allocated[highest]),
    }


def in_a_process(name: str) -> dict[str, Any]:
    """Run a workload in a process of its own."""
    command = [sys.executable, __file__, "--in-this-process", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode:
        return {
            "error": (done.stderr.strip().splitlines() or ["ended without an error message"])[-1]
        }
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return the line of a workload in the table."""
    if "error" in found:
        return [name, *[""] * (len(HEAD) - 2), f"not run: {found['error'][:90]}"]
    keys = ("events", "readings", "seen", "right", "off", "lines", "lines_off")
    return [name, *(f"{found[key]:,}" for key in keys)]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, metavar="NAME", help="workloads to run")
    parser.add_argument("--in-this-process", metavar="NAME", help="one, and print what it found")
    arguments = parser.parse_args()
    if arguments.in_this_process:
        print(json.dumps(one(arguments.in_this_process)))
        return
    if not torch.cuda.is_available():
        measure.not_here("this compares with the allocator's counter, which only a GPU has.")
    found = {name: in_a_process(name) for name in arguments.only}
    measure.report(
        "The bands of --stacks beside the allocator's own figure",
        f"{measure.machine('torch', 'transformers')}; {torch.cuda.get_device_name(0)}",
        HEAD,
        [row(name, each) for name, each in found.items()],
        raw=found,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
