"""`%memcompare` in a real kernel: watched cells side by side, and nothing of it in the cells' way."""

from __future__ import annotations

import pytest

from tests.kernel.drive import Kernel, Result

WORK = """%%memwatch --label {label} --interval 0.01
import time, torch

WITH_TORCH = True
kept = torch.ones({mebibytes}, 1024, 256)
time.sleep(0.1)
"""


@pytest.fixture
def watched(reloaded: Kernel) -> Kernel:
    """Return the file's kernel with torch."""
    assert reloaded.run("import torch").status == "ok"
    return reloaded


def work(kernel: Kernel, label: str, mebibytes: int) -> None:
    """Watch a cell that allocates so much beyond what it frees."""
    kernel.run("kept = None")
    assert kernel.run(WORK.format(label=label, mebibytes=mebibytes)).status == "ok"


def told(result: Result) -> str:
    """Return the first output's plain text."""
    assert result.status == "ok", result.reply
    return str(result.displays[0].content["data"]["text/plain"])


def test_three_cells_with_repeats_stand_side_by_side(watched: Kernel) -> None:
    """Figures of each, the runs of a label together, differences to the first."""
    for mebibytes in (50, 52, 54):
        work(watched, "small", mebibytes)
    work(watched, "'twice as large'", 100)
    work(watched, "large", 200)
    result = watched.run("%memcompare small 'twice as large' la -o seen")
    (table,) = (one.content["data"] for one in result.displays)

    assert "small (baseline · 3 runs)" in table["text/plain"]
    assert table["text/plain"].splitlines()[0].endswith("compared with small")
    assert {"text/html", "text/plain"} == set(table)
    assert ": small, twice as large, large" in table["text/html"]  # the names of the chart's lines
    frame = watched.run("print(*(seen.to_pandas()['left_behind'] / 2**20).round())")
    assert [float(one) for one in frame.text().split()] == pytest.approx([52, 100, 200], abs=3)
    assert result.value is None


def test_what_there_is_is_listed(watched: Kernel) -> None:
    """Without a name, the table of `%memcompare`, and how to compare."""
    first = watched.run("1").reply["execution_count"]
    work(watched, "base", 8)
    work(watched, "base", 8)
    watched.run("%memwatch on --min 0 --no-chart")
    watched.run("x = 1")
    watched.run("%memwatch off")
    result = watched.run("%memcompare")
    listed = told(result).splitlines()

    assert listed[0] == "memcompare: 2 cells, 3 runs \u00b7 cpu"
    assert listed[2].startswith("base ")
    assert f"cell [{first + 4}] \u00b7 2 runs" in told(result)
    assert any(line.startswith("x = 1 ") for line in listed)
    assert f"cell [{first + 6}]" in told(result)
    assert "%memcompare LABEL LABEL" in result.text()


def test_reloading_forgets_and_unloading_leaves_nothing(watched: Kernel) -> None:
    """A reloaded extension begins anew; an unloaded one has no magic and no thread."""
    work(watched, "base", 8)
    watched.run("%reload_ext hfmem_widget")
    assert "No watched cell has ended yet" in watched.run("%memcompare").text("stderr")
    watched.run("%unload_ext hfmem_widget")
    left = watched.run(
        "import threading\n"
        "manager = get_ipython().magics_manager\n"
        "print('memcompare' in manager.magics['line'], 'ReportMagics' in manager.registry,"
        " [one.name for one in threading.enumerate() if 'hfmem' in one.name])"
    )
    assert left.text() == "False False []\n"


def test_a_fault_in_keeping_never_changes_the_cell(kernel: Kernel) -> None:
    """The cell has its value and its card; a line on stderr says what is missing."""
    kernel.run("%load_ext hfmem_widget")
    kernel.run("import hfmem_widget.analysis.history as h\nh.History.add = lambda *_: 1 / 0")
    result = kernel.run("%%memwatch -l base\n41 + 1")

    assert result.status == "ok"
    assert result.value is not None
    assert result.value["text/plain"] == "42"
    assert kernel.run("%memcompare base").displays == ()
