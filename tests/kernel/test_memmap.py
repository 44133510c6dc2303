"""`%memanatomy --layout` and `%%memwatch --map` in a real kernel without a GPU: maps of the C heap."""

from __future__ import annotations

import pytest

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Kernel
from tests.kernel.messages import Message, Result

LOAD = "%load_ext hfmem_widget"
HEAP = "kept = [bytearray(40_000) for _ in range(2000)]\nkept = kept[::2]"
"""40 MB free in holes of 40 kB between as many in use."""

GROWS = """
%%memwatch --map --label heap --output grown
import os, time
kept = []
while not os.path.exists("seen"):
    kept += [bytearray(40_000) for _ in range(100)]
    time.sleep(0.1)
del kept
"""


@pytest.fixture(scope="module")
def grown(shared_kernel: Kernel) -> tuple[Result, float]:
    """Return the outputs of a watched cell whose heap grew until two maps were shown, and its seconds."""
    shared_kernel.run("%reload_ext hfmem_widget")
    (shared_kernel.folder / "seen").unlink(missing_ok=True)
    running = shared_kernel.send(GROWS.strip())
    for _ in range(2):
        shared_kernel.wait_for(is_map)
    (shared_kernel.folder / "seen").touch()
    result = shared_kernel.collect(running)
    return result, float(shared_kernel.run("print(grown.spans[0].duration)").text())


def is_map(message: Message) -> bool:
    return str(message.content.get("data", {}).get("text/plain", "")).startswith("cpu")


def maps(result: Result) -> list[str]:
    """Return the plain text of the maps that a cell showed, in order."""
    return [one.content["data"]["text/plain"] for one in filter(is_map, result.displays)]


def test_the_map_of_the_heap_has_its_parts(kernel: Kernel) -> None:
    """Free memory between used blocks is shown, in text and in a picture."""
    kernel.run(LOAD)
    kernel.run(HEAP)
    result = kernel.run("%memanatomy --layout")
    assert result.status == "ok"
    (bundle,) = [one.content["data"] for one in result.displays]
    assert set(bundle) == {"text/html", "text/plain"}
    free = next(line for line in bundle["text/plain"].splitlines() if "within the heap" in line)
    assert float(free.split()[1]) > 35
    assert "<svg" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]


def test_it_loads_nothing_heavy(start_kernel: StartKernel) -> None:
    """Neither torch nor plotly is imported for it."""
    kernel = start_kernel()
    kernel.run(LOAD)
    kernel.run("%memanatomy --layout")
    result = kernel.run("import sys; print({'torch', 'plotly'} & set(sys.modules))")
    assert result.text() == "set()\n"


def test_a_watched_cell_shows_a_live_map(grown: tuple[Result, float]) -> None:
    """It is refreshed in its own place while the cell runs, at most once a second, and names that cell."""
    result, seconds = grown
    assert result.status == "ok"
    shown = list(filter(is_map, result.displays))
    assert {one.kind for one in shown} == {"update_display_data"}
    assert len({one.content["transient"]["display_id"] for one in shown}) == 1
    # Those of the running cell, and the one at its end.
    assert 3 <= len(shown) <= seconds + 2
    assert len(set(maps(result))) == len(shown)


def test_a_cell_that_clears_its_output_gets_the_map_at_the_end(reloaded: Kernel) -> None:
    """After `clear_output` there is no live map; the last one is a new output, the cell's last."""
    result = reloaded.run(
        "%%memwatch --map\nimport time\nfrom IPython.display import clear_output\n"
        "time.sleep(0.3); clear_output()\nfor _ in range(25): time.sleep(0.1); x = bytearray(10**6)"
    )
    cleared = next(at for at, one in enumerate(result.outputs) if one.kind == "clear_output")
    after = [
        one.kind
        for one in result.outputs[cleared:]
        if one.content.get("data", {}).get("text/plain", "").startswith("cpu")
    ]
    # A refresh of another thread may have been under way; front ends drop it.
    assert after in (["display_data"], ["update_display_data", "display_data"])


def test_a_failing_cell_fails_as_it_would(reloaded: Kernel) -> None:
    """The error is the cell's own, and the map is shown below it."""
    result = reloaded.run("%%memwatch --map\n1 / 0")
    assert result.status == "error"
    assert [one.content["ename"] for one in result.errors] == ["ZeroDivisionError"]
    assert maps(result)
