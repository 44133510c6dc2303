"""What it costs to keep a watched cell for comparing: on the user's thread, and on one that nobody waits for.

A real ipykernel runs `pass`, watched, and counts the CPU time of its own thread between the card and
the reply. The records of longer cells are made of scripted runs, in this process, and their size is what
Python's allocator has for them.
"""

from __future__ import annotations

import gc
import time
import tracemalloc

from common import measure

from hfmem_widget.analysis.history import History
from hfmem_widget.session import Session
from hfmem_widget.testing import scripted_run
from tests.kernel.drive import Kernel

RUNS = ("short", "training", "steps", "eight gpus", "hour with gaps", "100,000 steps")
REPEATS = 15
PASSES = 100

TIMED = """
import time
_magics = type(get_ipython().magics_manager.registry["MemwatchMagics"])
_remember, _spent = _magics._remember, []
def _timed(*arguments):
    began = time.thread_time()
    _remember(*arguments)
    _spent.append(time.thread_time() - began)
_magics._remember = _timed
"""


def around_pass() -> list[float]:
    """Return the seconds of CPU time that the user's thread spends after each of many watched ``pass``."""
    with Kernel() as kernel:
        kernel.run("%load_ext hfmem_widget")
        kernel.run(TIMED)
        for _ in range(PASSES):
            kernel.run("%%memwatch\npass")
        return [float(one) for one in kernel.run("print(*_spent)").text().split()][5:]


def of_run(session: Session) -> tuple[list[float], list[float], float]:
    """Return the seconds on the user's thread, those of all that is done, and the bytes of a record."""
    on_thread, in_all = [], []
    history = History()
    for number in range(REPEATS):
        history.begins(session, "run")
        began = time.perf_counter()
        history.cell_ended(number)
        on_thread.append(time.perf_counter() - began)
        history.settle()
        in_all.append(time.perf_counter() - began)
    gc.collect()
    tracemalloc.start()
    history.begins(session, "run")
    history.cell_ended(REPEATS)
    history.settle()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return on_thread, in_all, float(size)


def main() -> None:
    """Measure and print."""
    arguments = measure.cli(__doc__).parse_args()
    passes = around_pass()
    raw = {"pass, in a kernel": passes}
    rows = [["`pass`, in a kernel", *[measure.estimate(passes).text(1e-3)] * 2, ""]]
    for name in RUNS:
        on_thread, in_all, size = of_run(scripted_run(name))
        raw |= {f"{name}, on the user's thread": on_thread, f"{name}, in all": in_all}
        figures = [measure.estimate(one).text(1e-3) for one in (on_thread, in_all)]
        rows.append([name, *figures, f"{size / 1024:.0f}"])
    measure.report(
        "Keeping a watched cell, in ms (median and 95 % interval)",
        measure.machine("ipykernel", "ipython", "numpy"),
        ["cell", "ms on the user's thread", "ms in all", "KiB kept"],
        rows,
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
