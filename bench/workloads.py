"""How much of the peak of what people do is unexplained: what no tensor, library or activation accounts for.

Each workload runs in a process of its own. What it needs is built before the watch begins, as in an earlier
cell of a notebook. The truth is the allocator's own peak, read after the watch; *unexplained* is what the
anatomy of the peak calls not attributed, or here before. Only where there is a GPU; with ``--small`` the
workloads just run, on any machine. Those of several ranks run under torchrun, one rank on each GPU, and each
rank has its own line; ``--ranks`` runs these alone.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from common import measure
from common.workloads import INFERENCE, RANKS, WORKLOADS

import hfmem_widget
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.drivers.install import attach

HEAD: Final = (
    *("workload", "peak MiB", "bytes off", "sum of the parts, bytes off", "unexplained MiB"),
    *("unexplained %", "largest parts, MiB"),
)
UNEXPLAINED: Final = ("unattributed", "before")
MIB: Final = 2**20
PATIENCE: Final = 280.0
"""Seconds for one workload."""


def one(name: str) -> dict[str, Any]:
    """Run a workload in this process; return what its peak was, and of what."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    attach()
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    run = WORKLOADS[name]()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with hfmem_widget.watch(name, quiet=True, phases="all") as session:
        run()
    libraries = dict(session.contents.libraries)
    if not on_gpu:
        kinds = sorted({span.kind for span in session.spans})
        return {"steps": len(session.steps), "spans": kinds, "libraries": libraries}
    peak = session.anatomy("peak", device=device)
    return {
        "truth": torch.cuda.max_memory_allocated(),
        "peak": session.peak(f"{device}/allocated"),
        "parts": {part.name: part.bytes for part in peak.parts if part.name in OF_ALLOCATED},
        "certainty": peak.certainty,
        "libraries": libraries,
        "notes": list(peak.notes),
    }


def ranks() -> int:
    """Return how many processes share a workload of several: one for each GPU."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 2


def in_processes(name: str) -> dict[str, dict[str, Any]]:
    """Run a workload in a process of its own, or in one for each GPU; return what each found."""
    world = ranks() if name in RANKS else 1
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, *(torchrun if name in RANKS else ()), __file__]
        done = subprocess.run(
            [*command, "--in-this-process", name, place],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        results = [json.loads(each.read_text()) for each in sorted(Path(place).glob("*.json"))]
    if done.returncode or len(results) < world:
        return {name: {"error": raised(done.stderr)}}
    if name not in RANKS:
        return {name: results[0]}
    return {f"{name}, rank {rank} of {world}": each for rank, each in enumerate(results)}


def raised(text: str) -> str:
    """Return what a process died of, as it wrote it; torchrun puts a rank before it, and more after it."""
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line).strip() for line in text.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (
        [one for one in errors if "ChildFailedError" not in one]
        or lines
        or ["ended without a word"]
    )[-1]


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
    parser.add_argument("--ranks", action="store_true", help="those of several ranks alone")
    parser.add_argument(
        "--in-this-process", nargs=2, metavar=("NAME", "FOLDER"), help="one, into it"
    )
    arguments = parser.parse_args()
    if arguments.in_this_process:
        name, place = arguments.in_this_process
        result = json.dumps(one(name))
        Path(place, f"{os.environ.get('RANK', '0')}.json").write_text(result)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        return
    on_gpu = torch.cuda.is_available()
    if not (on_gpu or arguments.small):
        measure.not_here("this compares with the allocator's counter, which only a GPU has.")
    usual = [name for name in WORKLOADS if name not in RANKS or not on_gpu or ranks() > 1]
    names = arguments.only or (list(RANKS) if arguments.ranks else usual)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        each = list(pool.map(in_processes, names))
    found = {name: result for one in each for name, result in one.items()}
    if not on_gpu:
        print(json.dumps(found, indent=1))
        return
    known = {name: one for name, one in found.items() if "error" not in one}
    shares = [100 * unexplained(one) / one["truth"] for one in known.values()]
    ran = f"{len(known)} of {len(found)} ran, {len(known.keys() - INFERENCE.keys())} of them trainings."
    summary = (
        f" Unexplained: median {statistics.median(shares):.2f} %, worst {max(shares):.2f} %."
        if shares
        else ""
    )
    measure.report(
        "The peak of what people do, and how much of it is unexplained",
        f"{measure.machine('torch', 'transformers')}; {torch.cuda.get_device_name(0)}",
        HEAD,
        [row(name, one) for name, one in found.items()],
        notes=[ran + summary],
        raw=found,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
