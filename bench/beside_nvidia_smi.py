"""Our figures beside nvidia-smi's, at four moments of one process.

Not a measurement of speed: it shows which of nvidia-smi's numbers each of ours is. Where there is no
nvidia-smi it says so.
"""

import csv
import io
import math
import shutil
import subprocess
import time

from common import measure

import hfmem_widget

MIB = 2**20
METRICS = ("allocated", "reserved", "device_used", "driver_reserved", "process")


def ask(*query: str) -> list[list[str]]:
    """Return the rows of one query of nvidia-smi."""
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(csv.reader(io.StringIO(answer.stdout), skipinitialspace=True))


def row(moment: str, session: hfmem_widget.Session) -> str:
    """Return one line of the table: ours, then nvidia-smi's, in MiB."""
    time.sleep(1.5)
    ours = [session.latest(f"cuda:0/{metric}") / MIB for metric in METRICS]
    used, reserved, total = ask("--query-gpu=memory.used,memory.reserved,memory.total")[0]
    apps = ask("--query-compute-apps=pid,used_memory")
    theirs = [used, reserved, total, "+".join(memory for _, memory in apps) or "none"]
    cells = [moment, *("none" if math.isnan(value) else f"{value:,.0f}" for value in ours), *theirs]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    if shutil.which("nvidia-smi") is None:
        measure.not_here("this compares with nvidia-smi, and there is none here.")
    import torch

    theirs = ("smi used", "smi reserved", "smi total", "smi processes")
    print("| MiB |", " | ".join((*METRICS, *theirs)), "|")
    print("| --- |" + " ---: |" * (len(METRICS) + len(theirs)))
    with hfmem_widget.watch("beside nvidia-smi", quiet=True) as session:
        print(row("before CUDA", session))
        small = torch.ones(1, device="cuda")
        print(row("a first tensor", session))
        block = torch.ones(2**30, device="cuda")
        print(row("4 GiB more", session))
        del block
        print(row("4 GiB freed, kept by the allocator", session))
        del small
    for device in session.devices:
        print(f"{device.key}: {device.name}, {device.total / MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
