"""`%%memwatch --stacks` in a real kernel: its output, and that nothing of it is left."""

import pickle
import random
from collections.abc import Iterator

import pytest

from tests.kernel.drive import Kernel, Result

pytest.importorskip("torch")

LEFT = "len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())"


@pytest.fixture(scope="module")
def notebook(torch_command: list[str]) -> Iterator[Kernel]:
    """Start a kernel with torch imported, and let it have a first watch."""
    with Kernel(command=torch_command) as kernel:
        kernel.run("%load_ext hfmem_widget\nimport sys, torch")
        kernel.run("%%memwatch --stacks --no-chart\nx = torch.ones(1)")
        yield kernel


def shown(result: Result) -> str:
    """Return the plain text of the output below the card; empty without one."""
    texts = [str(one.content["data"].get("text/plain", "")) for one in result.displays]
    return next((one for one in texts if one.startswith("live at the peak")), "")


def value(kernel: Kernel, expression: str) -> str:
    streams = kernel.run(f"print({expression})").of("stream")
    return "".join(str(one.content["text"]) for one in streams).strip()


def test_the_cells_own_lines_are_named(notebook: Kernel) -> None:
    """Lines are named by their numbers in the cell, with the magic as line 1, and with their text."""
    cell = "small = torch.ones(1000)\nbig = torch.ones(1024, 1024)"
    result = notebook.run(f"%%memwatch --stacks --no-chart -o session\n{cell}")
    number = result.reply["execution_count"]
    text = shown(result)
    assert f"cell [{number}] line 3  big = torch.ones(1024, 1024)" in text
    assert f"cell [{number}] line 2  small = torch.ones(1000)" in text
    assert "aten::ones" in text
    sizes = value(notebook, "[row.bytes for row in session.stacks.rows()]")
    assert sizes == f"[{4 * 1024**2}, 4000]"
    assert value(notebook, LEFT) == "0"


def test_an_error_stays_the_cells_own(notebook: Kernel) -> None:
    """The traceback has no line of ours, the stacks are shown, and no mode stays active."""
    cell = "kept = torch.ones(5000)\ntorch.ones(3) + torch.ones(4)"
    result = notebook.run(f"%%memwatch --stacks --no-chart\n{cell}")
    assert result.reply["ename"] == "RuntimeError"
    assert "hfmem_widget" not in "".join(result.reply["traceback"])
    kept = "[e.filename for e in traceback.extract_tb(sys.last_value.__traceback__)]"
    notebook.run("import traceback")
    assert "hfmem_widget" not in value(notebook, kept)
    assert "kept = torch.ones(5000)" in shown(result)
    assert value(notebook, LEFT) == "0"


@pytest.mark.parametrize("times", [6, pytest.param(30, marks=pytest.mark.full)])
def test_an_interrupt_stays_the_cells_own(notebook: Kernel, times: int) -> None:
    """Amid followed operators, and as storages are freed."""
    if notebook.run("import IPython; assert IPython.version_info >= (8,)").status == "error":
        pytest.skip("IPython 7 cannot format some tracebacks, and then the kernel does not reply")
    instants = random.Random(7)
    notebook.run("import signal\nraise_again = lambda *_: signal.raise_signal(signal.SIGINT)")
    notebook.run("_ = signal.signal(signal.SIGALRM, raise_again)")
    for _ in range(times):
        result = notebook.run(
            "%%memwatch --stacks --no-chart\nx = torch.ones(8)\n"
            f"signal.setitimer(signal.ITIMER_REAL, {instants.uniform(0.0005, 0.3)})\n"
            "while True: x = x + 1"
        )
        assert result.reply["ename"] == "KeyboardInterrupt"
        assert value(notebook, LEFT) == "0"


def test_a_cell_that_awaits_is_followed(notebook: Kernel) -> None:
    """Top-level await runs on the same thread."""
    result = notebook.run(
        "%%memwatch --stacks --no-chart\n"
        "import asyncio\n"
        "before = torch.ones(1000)\n"
        "await asyncio.sleep(0.01)\n"
        "after = torch.ones(2000)"
    )
    assert result.status == "ok"
    assert "after = torch.ones(2000)" in shown(result)
    assert value(notebook, LEFT) == "0"


def test_the_snapshot_is_saved_where_the_user_says(notebook: Kernel) -> None:
    """No file is written unasked."""
    notebook.run("%%memwatch --stacks --no-chart -o session\nx = torch.ones(1000)")
    assert list(notebook.folder.glob("*.pickle")) == []
    notebook.run("session.stacks.save('peak.pickle')")
    snapshot = pickle.loads((notebook.folder / "peak.pickle").read_bytes())
    assert {"segments", "device_traces"} <= set(snapshot)
