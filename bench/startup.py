"""What it costs to load the extension and to watch a cell that does nothing, in a real ipykernel.

Time is from sending the cell until it is idle again, as a front end sees it. Loading and the first watched cell
happen once in the life of a kernel, so that each round has a kernel of its own; the later cells are
interleaved within it.
"""

from __future__ import annotations

import time

import measure

from tests.kernel.drive import Kernel

LOAD = "%load_ext hfmem_widget"
PASS = "pass"
TIMED = "%%time\npass"
WATCHED = "%%memwatch\npass"
QUIET = "%%memwatch --quiet\npass"
EVERY_CELL = "pass, with %memwatch on"
FIRST = f"first {WATCHED!r}"
FIRST_PASS = "first 'pass'"
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


def one_kernel() -> measure.Rounds:
    """Return what the cells took in one kernel: those that come once, then the others by turns."""
    with Kernel() as kernel:
        for _ in range(3):
            seconds(kernel, PASS)
        spent = {
            FIRST_PASS: [seconds(kernel, PASS)],
            LOAD: [seconds(kernel, LOAD)],
            FIRST: [seconds(kernel, WATCHED)],
        }
        cells = {repr(cell): cell for cell in (PASS, TIMED, WATCHED, QUIET)}
        ways = {name: lambda cell=cell: seconds(kernel, cell) for name, cell in cells.items()}
        spent |= measure.interleave(ways, REPEATS)
        kernel.run("%memwatch on")
        spent[EVERY_CELL] = [seconds(kernel, PASS) for _ in range(REPEATS)]
    return spent


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--kernels", type=int, default=8)
    arguments = parser.parse_args()
    kernels = [one_kernel() for _ in range(arguments.kernels)]
    spent = {name: [one for kernel in kernels for one in kernel[name]] for name in kernels[0]}
    base = {
        name: spent[FIRST_PASS] if len(values) == len(kernels) else spent[repr(PASS)]
        for name, values in spent.items()
    }
    rows = [
        [
            name,
            str(len(values)),
            measure.estimate(values).text(1e-3),
            measure.estimate([a - b for a, b in zip(values, base[name], strict=True)]).text(1e-3),
        ]
        for name, values in spent.items()
    ]
    measure.report(
        "Cells in a kernel, in ms (median and 95 % interval)",
        measure.machine("ipykernel", "ipython", "anywidget"),
        ["cell", "times", "ms until idle", "ms above 'pass'"],
        rows,
        raw=spent,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
