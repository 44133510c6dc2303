"""What it costs to load the extension and to watch a cell that does nothing, in a real ipykernel.

Time is from sending the cell until it is idle again, as a front end sees it. Loading and the first
watched cell happen once in the life of a kernel, so that each round has a kernel of its own; the
later cells are interleaved within it. As after an installation, bytecode is there: it is written before
the first round, even where the environment says not to write any.
"""

import os
import time
from functools import partial

from common import measure

from tests.kernel.drive import Kernel

LOAD = "%load_ext hfmem_widget"
PASS = "pass"
TIMED = "%%time\npass"
WATCHED = "%%memwatch\npass"
QUIET = "%%memwatch --quiet\npass"
EVERY_CELL = "pass, with %memwatch on"
FIRST = f"first {WATCHED!r}"
FIRST_AFTER_TORCH = f"{FIRST}, torch imported"
CPU_AFTER_TORCH = f"{FIRST_AFTER_TORCH}: CPU time of the kernel"
CPU_NOW = "import time; print(time.process_time())"
REPEATS = 12


def seconds(kernel: Kernel, cell: str) -> float:
    """Run a cell and return how long it took."""
    started = time.perf_counter()
    result = kernel.run(cell)
    spent = time.perf_counter() - started
    if result.status != "ok":
        message = f"{cell!r} failed: {result.reply.get('evalue')}"
        raise RuntimeError(message)
    return spent


def once(kernel: Kernel, cell: str) -> float:
    """Run a cell that is only what it is the first time, and return its seconds above ``pass``."""
    bare = sorted(seconds(kernel, PASS) for _ in range(5))[2]
    return seconds(kernel, cell) - bare


def kernel_with_torch() -> tuple[float, float]:
    """Return what the first watched cell takes where numpy and torch are there already, and its CPU time."""
    with Kernel() as kernel:
        kernel.run(f"import torch\n{LOAD}")
        above = once(kernel, WATCHED)
    with Kernel() as kernel:
        kernel.run(f"import torch\n{LOAD}")
        before, nothing = (float(kernel.run(CPU_NOW).text()) for _ in range(2))
        kernel.run(WATCHED)
        return above, float(kernel.run(CPU_NOW).text()) - nothing - (nothing - before)


def bare_kernel() -> measure.Rounds:
    """Return what cells take above ``pass``: those that come once, then the others by turns."""
    with Kernel() as kernel:
        above = {LOAD: [once(kernel, LOAD)], FIRST: [once(kernel, WATCHED)]}
        cells = {repr(cell): cell for cell in (PASS, TIMED, WATCHED, QUIET)}
        ways = {name: partial(seconds, kernel, cell) for name, cell in cells.items()}
        spent = measure.interleave(ways, REPEATS)
        kernel.run("%memwatch on")
        spent[EVERY_CELL] = [seconds(kernel, PASS) for _ in range(REPEATS)]
    above |= {
        name: [one - bare for one, bare in zip(values, spent[repr(PASS)], strict=True)]
        for name, values in spent.items()
    }
    return {f"(alone) {PASS!r}": spent[repr(PASS)], **above}


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--kernels", type=int, default=8)
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    bare_kernel()
    after_torch: list[tuple[float, float]] = []
    kernels = []
    for _ in range(arguments.kernels):
        kernels.append(bare_kernel())
        after_torch.append(kernel_with_torch())
    above = {name: [one for kernel in kernels for one in kernel[name]] for name in kernels[0]}
    above[FIRST_AFTER_TORCH] = [wall for wall, _ in after_torch]
    above[CPU_AFTER_TORCH] = [cpu for _, cpu in after_torch]
    del above[repr(PASS)]
    rows = [
        [name, str(len(values)), measure.estimate(values).text(1e-3)]
        for name, values in above.items()
    ]
    measure.report(
        "Cells in a kernel, in ms (median and 95 % interval)",
        measure.machine("ipykernel", "ipython", "anywidget"),
        ["cell", "times", "ms until idle, or of CPU time, above 'pass'"],
        rows,
        raw=above,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
