"""`%memholders --free` in a real kernel: it lists what can be freed, frees only that, and measures it."""

from __future__ import annotations

import re

import pytest

from tests.kernel.culprits import printed
from tests.kernel.drive import Kernel

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
    """Return the file's kernel, with a record of what should be freed."""
    fresh.run("alive = []")
    return fresh


def told(kernel: Kernel, line: str) -> str:
    return str(kernel.run(line).shown["text/plain"])


def figures(text: str) -> dict[str, str]:
    """Return the first figure of each row by its name."""
    rows = re.findall(r"^(\S[^\n]*?) {2,}<?([\d.]+ [MG]iB)", text, re.MULTILINE)
    return dict(rows)


def change(text: str) -> float:
    """Return the change of the heap in MiB."""
    found = re.search(r"cpu (?!resident).* (±0|\S+(?= MiB))( MiB)?$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1].replace("\u2212", "-").replace("±", ""))


def test_an_errors_variables_are_freed_and_the_heap_falls(fresh: Kernel) -> None:
    """By the predicted bytes; the first line agrees with the table."""
    fresh.run(FAIL)
    assert printed(fresh.run(ALIVE)) == "[True]\n"
    before = told(fresh, "%memholders --free")
    assert figures(before)["errors"] == "32.0 MiB"
    assert "the error of cell [" in before
    assert printed(fresh.run(ALIVE)) == "[True]\n"
    after = told(fresh, "%memholders --free errors")
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
    assert figures(told(fresh, "%memholders --free"))["outputs"] == "4.00 MiB"
    told(fresh, "%memholders --free outputs")
    assert printed(fresh.run(ALIVE)) == "[False, True]\n"
    assert printed(fresh.run("print(list(Out), repr(_), repr(__))")) == "[] '' ''\n"


def test_later_outputs_are_kept_as_usual(fresh: Kernel) -> None:
    """After all outputs and errors were freed."""
    fresh.run("block()")
    told(fresh, "%memholders --free all")
    number = fresh.run("17").reply["execution_count"]
    assert printed(fresh.run(f"print(_, Out[{number}], _{number})")) == "17 17 17\n"
    assert fresh.run("1 / 0").status == "error"
    assert printed(fresh.run("import sys; print(sys.last_type.__name__)")) == "ZeroDivisionError\n"


def test_remaining_memory_is_shown_with_its_holders(fresh: Kernel) -> None:
    """After a release, with the bytes and the names."""
    fresh.run("losses = [block() for _ in range(3)]; cache = {'a': block(2)}; spare = block()")
    text = told(fresh, "%memholders --free spare")
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
    """By `%memholders?` and the Tab key."""
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
