"""`%memcompare` in a real kernel: cells by their numbers and first lines."""

from __future__ import annotations

import re

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Result

WATCHED = "%%memwatch --label leaky\nkept.append(torch.ones(8, 1024, 1024))"


def told(result: Result) -> str:
    """Return the plain text of the last output."""
    assert result.status == "ok", result.reply
    return str(result.displays[-1].content["data"]["text/plain"])


def test_the_history_of_a_notebook(start_kernel: StartKernel, torch_command: list[str]) -> None:
    """Every watched cell once, re-runs with their drift."""
    kernel = start_kernel(command=torch_command)
    kernel.run("%load_ext hfmem_widget\nimport torch, hfmem_widget\nkept = []")
    for _ in range(3):
        kernel.run(WATCHED)
    kernel.run("# a comment\nprint('not watched')")
    kernel.run("%memwatch on --min 0")
    kernel.run("more = torch.ones(8, 1024, 1024)\n2 + 2")
    kernel.run("%%memwatch\n# a comment\nraise ValueError('mine')")
    kernel.run("%memwatch off")
    kernel.run("with hfmem_widget.watch('a block', quiet=True): pass")

    lines = told(kernel.run("%memcompare")).splitlines()

    assert lines[0] == "memcompare: 4 cells, 6 runs \u00b7 cpu"
    assert lines[2].startswith("leaky ")
    # On the heap the kernel's own odd tens of kilobytes count, too.
    assert re.match(r"\s*\+3(1\.[6-9]|2\.[0-4]) MiB ", lines[3])
    assert lines[4].startswith("  cell [4] \u00b7 3 runs \u00b7 ")
    assert lines[5].startswith("more = torch.ones(8, 1024, 1024) ")
    assert lines[6].startswith("  cell [7] \u00b7 ")
    assert lines[7].startswith("raise ValueError('mine') ")
    assert lines[8].startswith("  cell [8] \u00b7 ")
    assert lines[8].endswith(" \u00b7 raised ValueError")
    assert lines[9].startswith("a block ")

    listed = told(kernel.run("%memcompare --sort left --last 2"))
    assert listed.startswith("memcompare: 2 cells, 2 runs")
