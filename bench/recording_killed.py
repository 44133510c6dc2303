"""What is lost of a recording when its process is killed without warning, 24 times at random moments."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import measure

from hfmem_widget.recording.file import read

WATCHED = """
import sys, time
import hfmem_widget
with hfmem_widget.watch("killed", quiet=True, record=sys.argv[1]) as session:
    print("begun", flush=True)
    kept = []
    while True:
        with hfmem_widget.span("step"):
            kept.append(bytearray(1 << 16))
            time.sleep(0.02)
"""


def kill_one(path: Path, seconds: float) -> tuple[float, bool]:
    """Kill a process some seconds into its watch; return the seconds lost, and whether a line was torn."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdout.readline() != "begun\n":
            sys.exit("the watched process did not begin")
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        killed = time.time()
    session = read(path, now=killed + 3600)
    until = session.started_at + session.last_sample.time
    return killed - until, not path.read_bytes().endswith(b"\n")


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--times", type=int, default=24)
    arguments = parser.parse_args()
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [
            kill_one(Path(folder) / f"{at}.hfmem.jsonl", chance.uniform(1.5, 4.0))
            for at in range(arguments.times)
        ]
    lost = np.array([seconds for seconds, _ in outcomes])
    measure.report(
        f"Killed {arguments.times} times",
        measure.machine(),
        ["seconds lost, median", "most", "torn recordings"],
        [[f"{np.median(lost):.2f}", f"{lost.max():.2f}", f"{sum(torn for _, torn in outcomes)}"]],
        raw={"seconds lost": lost.tolist()},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
