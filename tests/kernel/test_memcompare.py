"""`%memcompare` in a real kernel: watched cells side by side, without effect on the cells."""

import re

import pytest

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Kernel, Result

WITH_TORCH = True
WORK = """%%memwatch --label {label} --interval 0.01
import time, torch
kept = torch.ones({mebibytes}, 1024, 256)
time.sleep(0.1)
"""


def work(kernel: Kernel, label: str, mebibytes: int) -> None:
    """Watch a cell that leaves some MiB behind."""
    kernel.run("kept = None")
    assert kernel.run(WORK.format(label=label, mebibytes=mebibytes)).status == "ok"


def text_of(result: Result) -> str:
    return str(result.shown["text/plain"])


def test_three_cells_with_repeats_are_shown_side_by_side(with_torch: Kernel) -> None:
    """Figures of each, the runs of a label together, differences to the first."""
    for mebibytes in (50, 52, 54):
        work(with_torch, "small", mebibytes)
    work(with_torch, "'twice as large'", 100)
    work(with_torch, "large", 200)
    result = with_torch.run("%memcompare small 'twice as large' la -o seen")
    table = result.shown

    assert "small (baseline · 3 runs)" in table["text/plain"]
    assert table["text/plain"].splitlines()[0].endswith("compared with small")
    assert {"text/html", "text/plain"} == set(table)
    assert ": small, twice as large, large" in table["text/html"]  # the names of the chart's lines
    frame = with_torch.run("print(*(seen.to_pandas()['left_behind'] / 2**20).round())")
    assert [float(one) for one in frame.text().split()] == pytest.approx([52, 100, 200], abs=3)
    assert result.value is None


def test_cells_are_compared_by_line(with_torch: Kernel) -> None:
    """Cells with stacks are compared by what each line allocated; a cell without stacks is named."""
    for label, size in (("base", 300), ("head", 900)):
        code = f"import torch\nkept = None\nkept = torch.ones({size}, 1024)"
        with_torch.run(f"%%memwatch --stacks --label {label}\n{code}")
    work(with_torch, "bare", 10)

    lines = text_of(with_torch.run("%memcompare base head --by line -o seen"))
    assert "head: 2.34 MiB more, allocated in cell [" in lines
    (text,) = re.findall(r"\n  (kept = .*)\n  was (kept = .*)\n", lines)
    assert text == ("kept = torch.ones(900, 1024)", "kept = torch.ones(300, 1024)")
    bytes_ = with_torch.run("print([change.bytes for change in seen.cells[1].changes])").text()
    assert bytes_.strip() == f"[{600 * 4096}]"
    bare = text_of(with_torch.run("%memcompare base bare --by line"))
    assert "by line with bare: no stacks of cpu were recorded." in bare


def test_the_history_of_a_notebook(start_kernel: StartKernel, torch_command: list[str]) -> None:
    """Every watched cell once, re-runs with their drift."""
    kernel = start_kernel(command=torch_command)
    kernel.run("%load_ext hfmem_widget\nimport torch, hfmem_widget\nkept = []")
    for _ in range(3):
        kernel.run("%%memwatch --label leaky\nkept.append(torch.ones(8, 1024, 1024))")
    kernel.run("# a comment\nprint('not watched')")
    kernel.run("%memwatch on --min 0")
    kernel.run("more = torch.ones(8, 1024, 1024)\n2 + 2")
    kernel.run("%%memwatch\n# a comment\nraise ValueError('mine')")
    kernel.run("%memwatch off")
    kernel.run("with hfmem_widget.watch('a block', quiet=True): pass")

    lines = text_of(kernel.run("%memcompare")).splitlines()

    assert lines[0] == "memcompare: 4 cells, 6 runs \u00b7 cpu"
    assert lines[2].startswith("leaky ")
    # On the heap the kernel's own odd tens of kilobytes count, too.
    assert re.match(r"\s*\+3(1\.[6-9]|2\.[0-4]) MiB ", lines[3])
    assert lines[4].startswith("  cell [4] \u00b7 3 runs \u00b7 ")
    assert lines[5].startswith("more = torch.ones(8, 1024, 1024) ")
    assert lines[6].startswith("  cell [7] \u00b7 ")
    assert lines[7].startswith("raise ValueError('mine') ")
    assert lines[8].startswith("  cell [8] \u00b7 ")
    assert lines[8].endswith(" \u00b7 raised ValueError")
    assert lines[9].startswith("a block ")

    listed = text_of(kernel.run("%memcompare --sort left --last 2"))
    assert listed.startswith("memcompare: 2 cells, 2 runs")


def test_a_reloaded_extension_has_no_history(with_torch: Kernel) -> None:
    """The cells of before are forgotten."""
    work(with_torch, "base", 8)
    with_torch.run("%reload_ext hfmem_widget")
    assert "No watched cell has ended yet" in with_torch.run("%memcompare").text("stderr")


def test_a_fault_in_keeping_never_changes_the_cell(kernel: Kernel) -> None:
    """The cell has its value and its card; a line on stderr says what is missing."""
    kernel.run("%load_ext hfmem_widget")
    kernel.run("import hfmem_widget.analysis.history as h\nh.History.add = lambda *_: 1 / 0")
    result = kernel.run("%%memwatch -l base\n41 + 1")

    assert result.status == "ok"
    assert result.value_text == "42"
    assert kernel.run("%memcompare base").displays == ()
