"""The card of a cell that left much behind names the holders; new holders are found between two searches."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kernel.culprits import printed
from tests.kernel.drive import Kernel, Running
from tests.kernel.messages import Result

WITH_TORCH = True

ONE_PERCENT = """
import hfmem_widget.analysis.left_behind as _l
_l.LEAST_SHARE = 0.0
"""
"""A hundredth of this machine's memory would be much to allocate in a test."""


@pytest.fixture
def fresh(fresh: Kernel) -> Kernel:
    """Return the file's kernel, in which 64 MiB are much."""
    fresh.run(ONE_PERCENT)
    return fresh


def card(kernel: Kernel, cell: str, options: str = "", *, status: str = "ok") -> dict[str, Any]:
    """Run a watched cell and return its card."""
    result = kernel.run(f"%%memwatch --no-chart --no-panel {options}\n{cell}")
    assert result.status == status, printed(result)
    shown = [one.content["data"] for one in result.of("update_display_data")]
    (bundle,) = [data for data in shown if "memwatch" in data.get("text/plain", "")]
    return dict(bundle)


def test_the_card_names_who_holds_what_was_left(fresh: Kernel) -> None:
    """Losses kept with their graphs are named on the card, with what to keep instead."""
    losses = "losses = [weight.exp().sum() for _ in range(30)]"
    bundle = card(fresh, f"weight = torch.nn.Parameter(torch.ones(2**20))\n{losses}")
    told = re.search(r"([\d.]+) MiB left behind(.*)", bundle["text/plain"])
    assert told is not None, bundle["text/plain"]
    assert "is held by losses[0..29] (the graphs of 30 tensors)" in told[2]
    assert 120 < float(told[1]) < 135
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
    """With the frame, and the way to free it."""
    cell = "def train():\n    activations = block(25)\n    raise ValueError('no')\ntrain()"
    bundle = card(fresh, cell, status="error")
    path = r"the error of cell \[\d+\] . train\(\) . activations"
    assert re.search(rf"is held by {path}", bundle["text/plain"])
    words = re.sub(r"<[^>]*>", "", bundle["text/html"])
    assert "%memholders --free errors frees" in words


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
    assert since["text/plain"].splitlines()[1] == (
        "+24.0 MiB  kept[0..9]  (6 more tensors · 40.0 MiB in total)"
    )


def test_every_cell_of_a_notebook_is_compared_with_its_own_runs(with_torch: Kernel) -> None:
    """If the front end sends cell ids, no labels are needed."""
    with_torch.run("%memwatch on --min 0 --no-chart --no-panel\ngrows = []")
    text = ""
    for _ in range(5):
        text = shown(run_as(with_torch, "one", "grows.append(torch.ones(2**23))"))

    assert "has run 5 times" in text
