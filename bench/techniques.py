"""The peaks that notebooks/03-anatomy.ipynb tells of each technique, against the same trainings without us.

The notebook runs twice, each time in a kernel of its own: as it is, and with everything of ours taken out
of it and the allocator's own peak read around each training. Only where there is a GPU: without one there
is no counter to compare with.
"""

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import torch
from common import measure

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "03-anatomy.ipynb"
WITH = """
import json
print("@@" + json.dumps({one.label: one.peak("cuda:0/allocated") for one in runs if len(one.steps)}))
"""
WITHOUT = 'import json\nprint("@@" + json.dumps(peaks))'


def code_of(notebook: Any) -> list[str]:
    """Return what is in the notebook's cells of code."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def without_us(cells: list[str]) -> list[str]:
    """Return its trainings, each between the allocator's own functions."""
    kept = ["peaks = {}"]
    for cell in cells:
        first, _, rest = cell.partition("\n")
        label = first.partition('"')[2].partition('"')[0]
        if first.startswith("%%memwatch") and "train(" in rest:
            kept.append(
                f"torch.cuda.reset_peak_memory_stats()\n{rest}\n"
                f"peaks[{label!r}] = torch.cuda.max_memory_allocated()"
            )
        elif first.startswith("%%memwatch"):
            kept.append(rest)
        elif "import hfmem_widget" in cell:
            kept.append(cell.replace("import hfmem_widget\n", ""))
        elif not any(mark in cell for mark in ("%mem", "%load_ext", "hfmem_widget", ".anatomy(")):
            kept.append(cell)
    return kept


def run(cells: list[str]) -> tuple[dict[str, float], Any]:
    """Run cells in a new kernel and return the peak of each training in bytes, and the notebook."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    output = "".join(one.get("text", "") for one in notebook.cells[-1].outputs)
    peaks: dict[str, float] = json.loads(output.partition("@@")[2])
    return peaks, notebook


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the notebook as it ran there"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        measure.not_here("this compares with the allocator's counter, which only a GPU has.")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = code_of(notebook)
    ours, ran = run([*code, WITH])
    if arguments.keep:
        executed = iter(ran.cells)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                done = next(executed)
                cell.outputs, cell.execution_count = done.outputs, done.execution_count
        nbformat.write(notebook, arguments.keep)
    bare, _ = run([*without_us(code), WITHOUT])
    measure.report(
        "Peak allocated of each technique, without us and as we say",
        f"{measure.machine('torch', 'transformers', 'bitsandbytes')}; {torch.cuda.get_device_name(0)}",
        ["technique", "bytes without us", "bytes as we say", "bytes off", "% off"],
        [
            [
                name,
                f"{bare[name]:,.0f}",
                f"{peak:,.0f}",
                f"{peak - bare[name]:+,.0f}",
                f"{100 * (peak / bare[name] - 1):+.3f}",
            ]
            for name, peak in ours.items()
        ],
        raw={"with": ours, "without": bare},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
