"""`%memcompare` in a real kernel: watched cells side by side, and nothing of it in the cells' way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.kernel.drive import Kernel, Result

WITH_TORCH = True
PLOTLY = "application/vnd.plotly.v1+json"
WORK = """%%memwatch --label {label} --interval 0.01
import time, torch
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


def lines_of(figure: Mapping[str, Any]) -> list[str]:
    """Return the names of a figure's lines; a band has none."""
    return [one["name"] for one in figure["data"] if one["type"] == "scatter" and "name" in one]


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
    table, chart = (one.content["data"] for one in result.displays)

    assert "small (baseline · 3 runs)" in table["text/plain"]
    assert table["text/plain"].splitlines()[0].endswith("compared with small")
    assert {"text/html", "text/plain"} == set(table)
    assert {PLOTLY, "text/html", "text/plain"} == set(chart)
    assert lines_of(chart[PLOTLY]) == ["small", "twice as large", "large"]
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


def test_cells_without_a_label_are_compared_by_their_numbers(watched: Kernel) -> None:
    """Two runs of one line stand side by side."""
    first = watched.run("1").reply["execution_count"]
    for _ in range(2):
        watched.run("%%memwatch -q\nx = 1")
    text = told(watched.run(f"%memcompare {first + 1} {first + 2}"))

    assert f"x = 1 [{first + 1}]" in text
    assert f"x = 1 [{first + 2}]" in text


def test_a_failed_and_a_quick_cell_are_kept_too(watched: Kernel) -> None:
    """Whatever becomes of a cell, it can be compared."""
    watched.run("%%memwatch -l fails -q\n1 / 0")
    watched.run("%%memwatch -l passes -q\npass")
    text = told(watched.run("%memcompare fails passes"))

    assert "fails: raised ZeroDivisionError." in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nothing", "No watched cell 'nothing'. Available: 'base'."),
        ("base --device cuda:9", "did not use 'cuda:9'; they used cpu"),
        ("base --by step", "none of these cells has steps"),
        ("base --by epoch", "not by 'epoch'"),
        ("base --output 1x", "the name of a variable, not '1x'"),
        ("'base", "No closing quotation"),
        ("--nonsense", "no option --nonsense"),
    ],
)
def test_bad_input_says_what_is_allowed(watched: Kernel, line: str, said: str) -> None:
    """A UsageError, and nothing is shown."""
    watched.run("%%memwatch -l base -q\npass")
    result = watched.run(f"%memcompare {line}")

    assert result.displays == ()
    assert said in result.text("stderr")
    assert "Traceback" not in result.text("stderr")


def test_sessions_and_names_are_compared_from_code(watched: Kernel) -> None:
    """`hfmem_widget.compare` takes both, and shows itself as a cell's value."""
    watched.run("%%memwatch -l base -q -o base\npass")
    watched.run("%%memwatch -l other -q -o other\npass")
    result = watched.run("import hfmem_widget\nhfmem_widget.compare('base', other)")

    assert result.value is not None
    assert "compared with base" in result.value["text/plain"]
    assert "<table" in result.value["text/html"]


def test_the_outputs_survive_without_a_kernel(watched: Kernel) -> None:
    """A page made of the saved notebook has the table and the picture."""
    work(watched, "a", 20)
    work(watched, "b", 40)
    outputs = [
        nbformat.v4.new_output("display_data", data=one.content["data"])
        for one in watched.run("%memcompare a b").displays
    ]
    for one in outputs:
        one["data"].pop(PLOTLY, None)
    cell = nbformat.v4.new_code_cell("%memcompare a b", outputs=outputs)
    exporter: Any = HTMLExporter()  # type: ignore[no-untyped-call]
    page, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))

    assert "memcompare" in page
    assert "private memory since the start of the cell" in page
    assert page.count('role="img"') == 1


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
