"""What it costs to keep a watched cell in the history, on the user's thread.

A real ipykernel runs `pass`, watched, and counts the CPU time of its own thread. The records of longer cells
are made of scripted runs, in this process, and their size is what Python's allocator has for them.
"""

import gc
import time
import tracemalloc

from common import measure

from hfmem_widget.analysis.history import History
from hfmem_widget.analysis.record import record_of, whole
from hfmem_widget.session import Session
from tests.kernel.drive import Kernel
from tests.scenes import scripted_run

RUNS = ("short", "training", "steps", "eight gpus", "hour with gaps", "100,000 steps")
REPEATS = 15
PASSES = 100

TIMED = """
import time
from hfmem_widget.features.history.companion import Historian
_report, _spent = Historian.report, []
def _timed(*arguments):
    began = time.thread_time()
    try:
        return _report(*arguments)
    finally:
        _spent.append(time.thread_time() - began)
Historian.report = _timed
"""


def around_pass() -> list[float]:
    """Return the seconds of CPU time that the user's thread spends after each of many watched ``pass``."""
    with Kernel() as kernel:
        kernel.run("%load_ext hfmem_widget")
        kernel.run(TIMED)
        for _ in range(PASSES):
            kernel.run("%%memwatch\npass")
        return [float(one) for one in kernel.run("print(*_spent)").text().split()][5:]


def of_run(session: Session) -> tuple[list[float], float]:
    """Return the seconds that the making of a record takes, and its bytes."""
    seconds = []
    history = History()
    for _ in range(REPEATS):
        began = time.perf_counter()
        history.add(record_of(session, whole(session)))
        seconds.append(time.perf_counter() - began)
    gc.collect()
    tracemalloc.start()
    history.add(record_of(session, whole(session)))
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, float(size)


def main() -> None:
    """Measure and print."""
    arguments = measure.cli(__doc__).parse_args()
    passes = around_pass()
    raw = {"pass, in a kernel": passes}
    rows = [["`pass`, in a kernel", measure.estimate(passes).text(1e-3), ""]]
    for name in RUNS:
        seconds, size = of_run(scripted_run(name))
        raw[name] = seconds
        rows.append([name, measure.estimate(seconds).text(1e-3), f"{size / 1024:.0f}"])
    measure.report(
        "Keeping a watched cell, in ms (median and 95 % interval)",
        measure.machine("ipykernel", "ipython", "numpy"),
        ["cell", "ms", "KiB kept"],
        rows,
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
