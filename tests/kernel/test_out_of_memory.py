"""A watched cell that runs out of memory in a real kernel: its own error once, with the card above."""

import re
from typing import Any

import nbformat
import pytest

from tests.data.modules import run_alone
from tests.kernel.drive import Kernel, Result, points_at
from tests.kernel.over_ipc import run_notebook

WITH_TORCH = True
PREPARE = "%load_ext hfmem_widget\nimport torch"
TOO_BIG = "def train():\n    return torch.empty(1 << 50, dtype=torch.uint8)\ntrain()"
HEAD = "out of memory"


def cards(result: Result) -> list[dict[str, Any]]:
    shown = [dict(one.content["data"]) for one in result.displays]
    return [one for one in shown if one.get("text/plain", "").startswith(HEAD)]


def traceback_of(result: Result) -> str:
    """Return the traceback without the number and the file of its cell, and without the cell's first line."""
    (error,) = result.errors
    colourless = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.content["traceback"]))
    colourless = re.sub(r"\d+/\d+\.py", "cell.py", colourless)
    return re.sub(r"In\[\d+\]", "In[n]", re.sub(r"(?m)^ +1 .*\n", "", colourless))


def test_the_error_stays_and_the_cause_is_given_once(with_torch: Kernel) -> None:
    """The reply is an error, shown once, and the cause is on its own card only."""
    result = with_torch.run(f"%%memwatch\n{TOO_BIG}")
    assert result.status == "error"
    assert result.reply["ename"] == "RuntimeError"
    (card,) = cards(result)
    assert "oversized request" in card["text/plain"]
    assert "requested 1.00 PiB" in card["text/plain"]
    assert "Check the shape" in card["text/html"]
    assert card["text/html"].count("Out of memory") == 1
    assert "private memory, start" in card["text/html"]


def test_the_traceback_is_that_of_an_unwatched_cell(with_torch: Kernel) -> None:
    """Watched or not, its text is identical."""
    bare = with_torch.run(f"# not watched\n{TOO_BIG}")
    assert traceback_of(with_torch.run(f"%%memwatch\n{TOO_BIG}")) == traceback_of(bare)
    assert points_at(traceback_of(bare), 3)


def test_nothing_is_kept_alive(with_torch: Kernel) -> None:
    """After the next error, a collection frees what the function held, as without a watch."""
    with_torch.run(
        "%%memwatch\nimport gc, weakref\n"
        "def train():\n"
        "    global gone\n"
        "    activations = torch.zeros(2**20)\n"
        "    gone = weakref.ref(activations)\n"
        "    return torch.empty(1 << 50, dtype=torch.uint8)\n"
        "train()"
    )
    assert with_torch.run("print(gone() is None)").text().strip() == "False"
    with_torch.run("1 / 0")
    # IPython's own report of an error is a ring, without us as well.
    assert with_torch.run("gc.collect(); print(gone() is None)").text().strip() == "True"


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        ("bytearray(1 << 60)", "MemoryError", "does not report"),
        ("import numpy; numpy.zeros((1 << 20, 1 << 30))", "MemoryError", "8.00 PiB in one piece"),
        ("raise ValueError('no') from MemoryError()", "ValueError", "does not report"),
    ],
)  # fmt: skip
def test_other_errors_of_memory(with_torch: Kernel, code: str, name: str, text: str) -> None:
    """Python's and NumPy's are recognised, also as the cause of another error."""
    result = with_torch.run(f"%%memwatch\n{code}")
    assert result.reply["ename"] == name
    (card,) = cards(result)
    assert text in card["text/plain"]


def test_quiet_keeps_the_finding(with_torch: Kernel) -> None:
    """Nothing is shown; the session has the finding."""
    assert not with_torch.run(f"%%memwatch --quiet --output session\n{TOO_BIG}").displays
    figures = "[(one.kind, one.severity, one.evidence['cause']) for one in session.findings]"
    assert with_torch.run(f"print({figures})").text().strip() == "[('oom', 'critical', 'huge')]"


WITHIN = """
import hfmem_widget
with hfmem_widget.watch("x"):
    print("in it")
    torch.empty(1 << 50, dtype=torch.uint8)
"""


FAILING = {
    "a cell": f"%%memwatch\nprint('x')\n{TOO_BIG}",
    "without a chart": f"%%memwatch --no-chart\n{TOO_BIG}",
    "a block": WITHIN,
    "from now on": "%memwatch on --no-chart",
    "every cell": TOO_BIG,
}
"""Cells of one notebook, in their order."""


@pytest.fixture(scope="module")
def saved(torch_command: list[str]) -> dict[str, list[Any]]:
    sources = [PREPARE, *FAILING.values()]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    run_notebook(notebook, torch_command, allow_errors=True)
    return dict(zip(FAILING, (cell.outputs for cell in notebook.cells[1:]), strict=True))


@pytest.mark.parametrize(
    ("cell", "above"),
    [
        ("a cell", True),
        ("without a chart", True),
        ("a block", True),
        # Nothing stands in an unwatched cell before it ends: its one line and the reason come last.
        ("every cell", False),
    ],
)
def test_the_place_of_the_card(saved: dict[str, list[Any]], cell: str, above: bool) -> None:
    """In the saved notebook it is above the traceback, whatever its length, and appears once."""
    outputs = saved[cell]
    shown = [one.get("data", {}).get("text/html", "") for one in outputs]
    (at,) = (at for at, html in enumerate(shown) if "Out of memory</strong>" in html)
    (error,) = (at for at, one in enumerate(outputs) if one.output_type == "error")
    assert (at < error) == above
    if above:
        assert shown[at].index("Out of memory") < shown[at].index("private memory, start")


def test_a_script_prints_the_card_as_plain_text() -> None:
    """The cause and the line are printed before the traceback."""
    code = "import hfmem_widget\nwith hfmem_widget.watch('s'): bytearray(1 << 60)"
    text = run_alone(code, check=False).stdout
    assert text.startswith(HEAD)
    assert text.count("out of memory \u00b7") == 1
    assert 'memwatch "s"' in text
