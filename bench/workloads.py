"""How much of the peak of what people do is unexplained: what no tensor, library or activation accounts for.

Each workload runs in a process of its own. What it needs is built before the watch begins, as in an earlier
cell of a notebook. The truth is the allocator's own peak, read after the watch; *unexplained* is what the
anatomy of the peak calls not attributed, or here before. Only where there is a GPU; with ``--small`` the
workloads just run, on any machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from common import measure
from common.workloads import TRAINING, WORKLOADS

import hfmem_widget
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.drivers.install import attach

HEAD: Final = (
    *("workload", "peak MiB", "bytes off", "sum of the parts, bytes off", "unexplained MiB"),
    *("unexplained %", "largest parts, MiB"),
)
UNEXPLAINED: Final = ("unattributed", "before")
MIB: Final = 2**20
MARK: Final = "@@"
PATIENCE: Final = 280.0
"""Seconds for one workload."""


def one(name: str, device: str) -> dict[str, Any]:
    """Run a workload in this process; return what its peak was, and of what."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    attach()
    run = WORKLOADS[name]()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    with hfmem_widget.watch(name, quiet=True, phases="all") as session:
        run()
    if device == "cpu":
        return {"steps": len(session.steps), "spans": sorted({span.kind for span in session.spans})}
    peak = session.anatomy("peak", device=device)
    return {
        "truth": torch.cuda.max_memory_allocated(),
        "peak": session.peak(f"{device}/allocated"),
        "parts": {part.name: part.bytes for part in peak.parts if part.name in OF_ALLOCATED},
        "certainty": peak.certainty,
        "libraries": dict(session.contents.libraries),
        "notes": list(peak.notes),
    }


def in_a_process(name: str) -> dict[str, Any]:
    """Run a workload in a process of its own."""
    command = [sys.executable, __file__, "--in-this-process", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    told = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not told:
        return {"error": (done.stderr.strip().splitlines() or ["ended without a word"])[-1]}
    found: dict[str, Any] = json.loads(told[-1].removeprefix(MARK))
    return found


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return the line of a workload in the table."""
    if "error" in found:
        return [name, *[""] * (len(HEAD) - 2), f"not run: {found['error'][:90]}"]
    parts, truth = found["parts"], found["truth"]
    largest = sorted(parts.items(), key=lambda part: -part[1])[:4]
    return [
        name,
        f"{truth / MIB:,.0f}",
        f"{found['peak'] - truth:+,.0f}",
        f"{sum(parts.values()) - truth:+,.0f}",
        f"{unexplained(found) / MIB:,.1f}",
        f"{100 * unexplained(found) / truth:.2f}",
        ", ".join(f"{part} {size / MIB:,.0f}" for part, size in largest if size >= MIB),
    ]


def unexplained(found: dict[str, Any]) -> float:
    """Return how many bytes of a peak are."""
    return float(sum(found["parts"].get(part, 0.0) for part in UNEXPLAINED))


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="workloads to run")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--small", action="store_true", help="just run, on any machine")
    parser.add_argument("--in-this-process", metavar="NAME", help="one, and print it as JSON")
    arguments = parser.parse_args()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if arguments.in_this_process:
        print(MARK + json.dumps(one(arguments.in_this_process, device)))
        return
    if device == "cpu" and not arguments.small:
        measure.not_here("this compares with the allocator's counter, which only a GPU has.")
    names = arguments.only or list(WORKLOADS)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        found = dict(zip(names, pool.map(in_a_process, names), strict=True))
    if device == "cpu":
        print(json.dumps(found, indent=1))
        return
    known = {name: one for name, one in found.items() if "error" not in one}
    shares = [100 * unexplained(one) / one["truth"] for one in known.values()]
    ran = f"{len(known)} of {len(names)} ran, {len(known.keys() & TRAINING.keys())} of them trainings."
    told = (
        f" Unexplained: median {statistics.median(shares):.2f} %, worst {max(shares):.2f} %."
        if shares
        else ""
    )
    measure.report(
        "The peak of what people do, and how much of it is unexplained",
        f"{measure.machine('torch', 'transformers')}; {torch.cuda.get_device_name(0)}",
        HEAD,
        [row(name, one) for name, one in found.items()],
        notes=[ran + told],
        raw=found,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
