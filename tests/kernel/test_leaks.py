"""A leak in a real kernel: between two searches, and over many runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.drive import Kernel, Running
from tests.kernel.messages import Result

WITH_TORCH = True


@pytest.fixture
def ready(reloaded: Kernel) -> Kernel:
    assert reloaded.run("import torch").status == "ok"
    return reloaded


def card(result: Result) -> str:
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


def test_every_cell_of_a_notebook_is_compared_with_its_own_runs(ready: Kernel) -> None:
    """A front end that tells cells apart by an id need not label them."""
    ready.run("%memwatch on --min 0 --no-chart --no-panel\ngrows = []")
    text = ""
    for _ in range(5):
        text = card(run_as(ready, "one", "grows.append(torch.ones(2**23))"))

    assert "has run 5 times" in text
