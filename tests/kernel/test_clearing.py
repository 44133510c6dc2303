"""Outputs that the user's code clears: a card always appears exactly once."""

import pytest

from tests.kernel.drive import Kernel, Result

SETUP = """
%load_ext hfmem_widget
import threading, time
import ipywidgets as w
from IPython.display import clear_output, display
out = w.Output()
def in_thread(work):
    thread = threading.Thread(target=work); thread.start(); thread.join()
"""

NOT_THE_CELL = {
    "with": "display(out)\nwith out:\n    clear_output()\n    print('ho')",
    "waiting": "display(out)\nwith out:\n    clear_output(wait=True)\n    print('ho')",
    "method": "display(out)\nout.clear_output()",
    "nested": "other = w.Output()\nwith out:\n    with other:\n        clear_output()",
    "decorated": "@out.capture(clear_output=True, wait=True)\ndef show(): print('ho')\nshow()",
    "interact": "w.interact(lambda x: print(x), x=3)",
    "thread": "def work():\n    with out:\n        clear_output(wait=True)\nin_thread(work)",
    "rich": "from rich.progress import track\nfor _ in track(range(3)): time.sleep(0.2)",
    "tqdm": "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): time.sleep(0.01)",
}

THE_CELL = {
    "plainly": "clear_output()",
    "waiting": "clear_output(wait=True)\nprint('ho')",
    "beside an output": "display(out)\nwith out: print('hi')\nclear_output()",
    "thread": "in_thread(clear_output)",
}


@pytest.fixture(scope="module")
def loaded(shared_kernel: Kernel) -> Kernel:
    assert shared_kernel.run(SETUP).status == "ok"
    return shared_kernel


def places(result: Result) -> int:
    """Return the number of our outputs in a cell, shown or empty."""
    shown = [one.content["transient"] for one in result.displays if one.kind == "display_data"]
    return sum(str(kept.get("display_id", "")).startswith("hfmem-") for kept in shown)


@pytest.mark.parametrize("code", NOT_THE_CELL.values(), ids=NOT_THE_CELL.keys())
def test_a_clear_of_something_else_brings_no_second_card(loaded: Kernel, code: str) -> None:
    """Outputs captured by an Output widget are cleared there, and card and chart stay."""
    for module in ("rich", "tqdm"):
        if module in code:
            pytest.importorskip(module)
    result = loaded.run(f"%%memwatch\n{code}\ntime.sleep(0.5)")

    assert result.status == "ok"
    assert places(result) == 2


@pytest.mark.parametrize("code", THE_CELL.values(), ids=THE_CELL.keys())
def test_a_clear_of_the_cell_brings_card_and_chart_back(loaded: Kernel, code: str) -> None:
    """Whichever thread clears, and whatever other outputs there are."""
    # Of a cell that did nothing there is one line, and no chart.
    loaded.run("kept = None")
    result = loaded.run(f"%%memwatch\n{code}\nkept = bytearray(8_000_000)\ntime.sleep(0.5)")
    kinds = [one.kind for one in result.outputs]
    after = result.outputs[kinds.index("clear_output") :]
    shown = [one.content["data"] for one in after if one.kind == "display_data"]

    assert result.status == "ok"
    assert any("text/html" in data for data in shown)
    assert any("application/vnd.plotly.v1+json" in data for data in shown)


def test_a_clear_in_a_callback_is_not_the_cells(loaded: Kernel) -> None:
    """A subshell's cell clears its own output, though it runs meanwhile."""
    subshell = loaded.open_subshell()
    loaded.run("go = threading.Event()")
    watched = loaded.send("%%memwatch\ngo.wait(20)\ntime.sleep(0.5)")
    loaded.wait_for(lambda one: one.kind == "display_data" and one.parent == watched.request)

    assert loaded.collect(loaded.send("clear_output()\ngo.set()", subshell=subshell)).status == "ok"
    assert places(loaded.collect(watched)) == 2


def test_a_block_within_an_output_widget_shows_itself_once(loaded: Kernel) -> None:
    """Nothing can be replaced there later, so the card is shown at the end, and nothing before."""
    block = "with out:\n    with hfmem_widget.watch('blk'): time.sleep(0.5)"
    result = loaded.run(f"import hfmem_widget\n{block}")

    assert [one.kind for one in result.displays] == ["display_data"]
    assert "running" not in result.displays[0].content["data"]["text/plain"]
