"""A leak in a real kernel: on the card with who holds it, between two searches, and over many runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.kernel.drive import Kernel, Running
from tests.kernel.messages import Result

WITH_TORCH = True
LOOP = """
import torch
from hfmem_widget import span

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps, keep):
    kept = []
    for _ in range(steps):
        with span("step"):
            loss = model(torch.randn(256, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(keep(model(torch.randn(256, 256)).mean()))
    return kept
"""


@pytest.fixture
def ready(reloaded: Kernel) -> Kernel:
    """Return the file's kernel with a loop to run."""
    assert reloaded.run(LOOP).status == "ok"
    return reloaded


def card(result: Result) -> str:
    """Return all plain text that a cell shows."""
    return "\n".join(
        message.content.get("data", {}).get("text/plain", "") for message in result.displays
    )


def run_as(kernel: Kernel, cell_id: str, code: str) -> Result:
    """Run a cell as a front end does that tells the kernel which one it is."""
    client, first = kernel._client, len(kernel.published)
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = client.session.msg("execute_request", content, metadata={"cellId": cell_id})
    client.shell_channel.send(message)
    return kernel.collect(Running(message["header"]["msg_id"], first))


def test_the_card_of_a_loop_that_leaks_names_who_holds_it(ready: Kernel) -> None:
    """One sentence has the slope and the name; the same loop without the mistake has none."""
    leaking = card(ready.run("%%memwatch --no-chart --no-panel\nlosses = train(50, lambda x: x)"))
    ready.run("del losses")
    fixed = card(
        ready.run("%%memwatch --no-chart --no-panel\nnumbers = train(50, torch.Tensor.item)")
    )

    assert "Private memory grows by" in leaking
    assert "losses[0..49] and the autograd graphs behind it hold" in leaking
    assert "grows" not in fixed


def test_since_says_what_came_to_whom(ready: Kernel) -> None:
    """The second search is compared with the first; without a first it says so."""
    first = ready.run("%memholders --since")
    ready.run("kept = [torch.zeros(2**20) for _ in range(4)]")
    ready.run("%memholders")
    ready.run("kept += [torch.zeros(2**20) for _ in range(6)]")
    since: dict[str, Any] = ready.run("%memholders --since").displays[0].content["data"]

    assert first.status == "error"
    assert "an earlier %memholders" in first.reply["evalue"]
    assert since["text/plain"].splitlines()[1] == (
        "+24.0 MiB  kept[0..9]  (6 more tensors · 40.0 MiB in total)"
    )


def test_a_cell_that_leaves_more_with_each_run_is_called_out(ready: Kernel) -> None:
    """From the fourth run on, and not where what it made took the old one's place."""
    ready.run("grows = []")
    cell = "%%memwatch --no-chart --no-panel --label {}\n{}"
    runs = [
        card(ready.run(cell.format("more", "grows.append(torch.ones(2**23))"))) for _ in range(4)
    ]
    same = [card(ready.run(cell.format("same", "kept = torch.ones(2**23)"))) for _ in range(5)]

    assert ["has run" in one for one in runs] == [False, False, False, True]
    # On the heap the kernel's own odd tens of kilobytes count, too.
    assert re.search(r"each of the last 3 runs left 3(1\.[6-9]|2\.[0-4]) MiB more on cpu", runs[-1])
    assert not any("has run" in one for one in same)


def test_every_cell_of_a_notebook_is_compared_with_its_own_runs(ready: Kernel) -> None:
    """A front end that tells cells apart by an id need not label them."""
    ready.run("%memwatch on --min 0 --no-chart --no-panel\ngrows = []")
    text = ""
    for _ in range(5):
        text = card(run_as(ready, "one", "grows.append(torch.ones(2**23))"))

    assert "has run 5 times" in text
