"""`%memholders --free` in a real kernel: it lists what can be freed, frees only that, and measures it."""

import re
from typing import Any

import pytest

from tests.kernel.culprits import printed
from tests.kernel.drive import Kernel, Result, Running

WITH_TORCH = True
FAIL = """
def train():
    activations = block(8)
    alive.append(weakref.ref(activations))
    raise ValueError("no")
train()
"""
NEAR = 3
"""MiB that Python's own objects may add: those of a first search among them."""

ALIVE = "print([one() is not None for one in alive])"


@pytest.fixture
def fresh(fresh: Kernel) -> Kernel:
    """Return the file's kernel, with a record of what should be freed, in which 64 MiB are much."""
    fresh.run(f"alive = []{ONE_PERCENT}")
    return fresh


def run_line(kernel: Kernel, line: str) -> str:
    return str(kernel.run(line).shown["text/plain"])


def figures(text: str) -> dict[str, str]:
    """Return the first figure of each row by its name."""
    return dict(re.findall(r"^(\S[^\n]*?) {2,}<?([\d.]+ [MG]iB)", text, re.MULTILINE))


def change(text: str) -> float:
    """Return the change of the heap in MiB."""
    found = re.search(r"cpu (?!resident).* (±0|\S+(?= MiB))( MiB)?$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1].replace("\u2212", "-").replace("±", ""))


def test_an_errors_variables_are_freed_and_the_heap_falls(fresh: Kernel) -> None:
    """The heap falls by the predicted bytes, and the first line agrees with the table."""
    fresh.run(FAIL)
    assert printed(fresh.run(ALIVE)) == "[True]\n"
    before = run_line(fresh, "%memholders --free")
    assert figures(before)["errors"] == "32.0 MiB"
    assert "the error of cell [" in before
    assert printed(fresh.run(ALIVE)) == "[True]\n"
    after = run_line(fresh, "%memholders --free errors")
    assert printed(fresh.run(ALIVE)) == "[False]\n"
    assert change(after) == pytest.approx(-32, abs=NEAR)
    freed = re.search(r"^cpu: freed ([\d.]+) of", after)
    assert freed is not None, after
    assert float(freed[1]) == -change(after)


def test_outputs_are_freed_in_every_copy_of_ipythons(fresh: Kernel) -> None:
    """``Out``, ``_``, ``__``, ``___``, ``_12``; memory that a variable also has stays."""
    for cell in (
        "made = block(); alive.append(weakref.ref(made)); made",
        "del made",
        "_",
        "1",
        "2",
    ):
        fresh.run(cell)
    fresh.run("kept = block(); alive.append(weakref.ref(kept)); kept")
    assert figures(run_line(fresh, "%memholders --free"))["outputs"] == "4.00 MiB"
    run_line(fresh, "%memholders --free outputs")
    assert printed(fresh.run(ALIVE)) == "[False, True]\n"
    assert printed(fresh.run("print(list(Out), repr(_), repr(__))")) == "[] '' ''\n"


def test_later_outputs_are_kept_as_usual(fresh: Kernel) -> None:
    """IPython keeps outputs and errors again after all of them were freed."""
    fresh.run("block()")
    run_line(fresh, "%memholders --free all")
    number = fresh.run("17").reply["execution_count"]
    assert printed(fresh.run(f"print(_, Out[{number}], _{number})")) == "17 17 17\n"
    assert fresh.run("1 / 0").status == "error"
    assert printed(fresh.run("import sys; print(sys.last_type.__name__)")) == "ZeroDivisionError\n"


def test_remaining_memory_is_shown_with_its_holders(fresh: Kernel) -> None:
    """The text after a release has the bytes and the names of what stays."""
    fresh.run("losses = [block() for _ in range(3)]; cache = {'a': block(2)}; spare = block()")
    text = run_line(fresh, "%memholders --free spare")
    assert "still held: 12.0 MiB by losses[0..2], 8.00 MiB by cache['a']." in text


INTERRUPTED_AS_IT_GOES = """
import _thread, operator, time
class Stop(weakref.ref):
    interrupt = staticmethod(_thread.interrupt_main)
class Plain: pass
first = Plain(); second = block()
# All of it in C, so that the interrupt comes where the name is let go.
stop = Stop(first, operator.methodcaller("interrupt"))
"""


def test_an_interrupt_leaves_a_clear_state(fresh: Kernel) -> None:
    """The figures of what was freed and what stays are shown; then the interrupt is raised."""
    fresh.run(INTERRUPTED_AS_IT_GOES)
    result = fresh.run("%memholders --free first second\ntime.sleep(30)")
    (error,) = result.errors
    assert error.content["ename"] == "KeyboardInterrupt"
    (display,) = result.displays
    text = display.content["data"]["text/plain"]
    assert "Interrupted: second" in text
    assert "cpu private memory" in text
    assert printed(fresh.run("print('first' in dir(), 'second' in dir())")) == "False True\n"


def test_it_has_a_manual_and_completion(fresh: Kernel) -> None:
    """`%memholders?` shows the manual, and the Tab key completes words."""
    manual = fresh.run("%memholders?").reply["payload"][0]["data"]["text/plain"]
    assert "before and after" in manual
    assert "--no-cache" in manual
    assert "outputs" in fresh.complete("%memholders --free ")


def test_old_names_work_and_print_the_new_one(fresh: Kernel) -> None:
    """Once; also those of the history and of the layout."""
    fresh.run("losses = [block() for _ in range(5)]")
    first, second = (fresh.run("%memfree -n losses") for _ in range(2))

    advice = "%memfree is now %memholders --free; the next version removes the old name."
    assert printed(first) == f"{advice}\n"
    assert printed(second) == ""
    assert len(first.displays) == len(second.displays) == 1
    assert "is now %memanatomy --layout" in printed(fresh.run("%memmap -d cpu"))
    assert "is now %memcompare" in printed(fresh.run("%memhistory"))


ONE_PERCENT = """
import hfmem_widget.analysis.left_behind as _l
_l.LEAST_SHARE = 0.0
"""
"""A hundredth of this machine's memory would be much to allocate in a test."""


def card(kernel: Kernel, cell: str, *, status: str = "ok") -> dict[str, Any]:
    result = kernel.run(f"%%memwatch --no-chart --no-panel\n{cell}")
    assert result.status == status, printed(result)
    shown = [one.content["data"] for one in result.of("update_display_data")]
    (bundle,) = [data for data in shown if "memwatch" in data.get("text/plain", "")]
    return dict(bundle)


def test_the_card_names_who_holds_what_was_left(fresh: Kernel) -> None:
    """Losses kept with their graphs are named on the card, with what to keep instead."""
    losses = "losses = [weight.exp().sum() for _ in range(30)]"
    bundle = card(fresh, f"weight = torch.nn.Parameter(torch.ones(2**20))\n{losses}")
    found = re.search(r"([\d.]+) MiB left behind(.*)", bundle["text/plain"])
    assert found is not None, bundle["text/plain"]
    assert "is held by losses[0..29] (the graphs of 30 tensors)" in found[2]
    assert 120 < float(found[1]) < 135
    assert "detached tensors in losses" in bundle["text/html"]


@pytest.mark.parametrize(
    ("before", "cell", "holder"),
    [
        ((), "later = [block(30)]", "later[0]"),
        (("between = {'x': block(40)}",), "later = [block(20)]", "later[0]"),
        ((), "model = torch.nn.Linear(2**12, 2**13)", ""),
        ((), "block(40); 1", ""),
    ],
    ids=["a watched cell before", "an unwatched cell between", "a new model", "freed memory"],
)
def test_a_card_names_only_what_its_own_cell_left(
    fresh: Kernel, before: tuple[str, ...], cell: str, holder: str
) -> None:
    """Neither variables of earlier cells nor the weights of a model, which are a part of memory already."""
    card(fresh, "first = [block(30)]")
    for unwatched in before:
        fresh.run(unwatched)
    text = card(fresh, cell)["text/plain"]

    assert re.findall(r"left behind.* is held by (\S+)\.", text) == [holder] * bool(holder)
    assert ("left behind" in text) == bool(holder)
    assert not [name for name in ("first", "between") if name in text]


def test_the_card_of_a_failed_cell_names_what_its_error_holds(fresh: Kernel) -> None:
    """The card names the frame, and the way to free it."""
    cell = "def train():\n    activations = block(25)\n    raise ValueError('no')\ntrain()"
    bundle = card(fresh, cell, status="error")
    path = r"the error of cell \[\d+\] . train\(\) . activations"
    assert re.search(rf"is held by {path}", bundle["text/plain"])
    assert "%memholders --free errors frees" in re.sub(r"<[^>]*>", "", bundle["text/html"])


def shown(result: Result) -> str:
    shown = (message.content.get("data", {}) for message in result.displays)
    return "\n".join(data.get("text/plain", "") for data in shown)


def run_as(kernel: Kernel, cell_id: str, code: str) -> Result:
    """Run a cell like a front end that tells the kernel the cell's id."""
    client, first = kernel._client, len(kernel.published)
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = client.session.msg("execute_request", content, metadata={"cellId": cell_id})
    client.shell_channel.send(message)
    return kernel.collect(Running(message["header"]["msg_id"], first))


def test_since_shows_what_grew(with_torch: Kernel) -> None:
    """The second search is compared with the first; without a first it is an error."""
    first = with_torch.run("%memholders --since")
    with_torch.run("kept = [torch.zeros(2**20) for _ in range(4)]")
    with_torch.run("%memholders")
    with_torch.run("kept += [torch.zeros(2**20) for _ in range(6)]")
    since: dict[str, Any] = with_torch.run("%memholders --since").displays[0].content["data"]

    assert first.status == "error"
    assert "an earlier %memholders" in first.reply["evalue"]
    grown = "+24.0 MiB  kept[0..9]  (6 more tensors · 40.0 MiB in total)"
    assert since["text/plain"].splitlines()[1] == grown


def test_every_cell_of_a_notebook_is_compared_with_its_own_runs(with_torch: Kernel) -> None:
    """No labels are needed if the front end sends cell ids."""
    with_torch.run("%memwatch on --min 0 --no-chart --no-panel\ngrows = []")
    text = ""
    for _ in range(5):
        text = shown(run_as(with_torch, "one", "grows.append(torch.ones(2**23))"))
    with_torch.run("%memwatch off")

    assert "has run 5 times" in text
