"""`%memanatomy` in a real kernel: what it shows, of which cell, and what it refuses."""

from __future__ import annotations

import re

from tests.kernel.drive import Kernel, Result

WITH_TORCH = True
WATCH = """%%memwatch --label blocks --no-chart --interval 0.02 --output session
import time
def be_seen():
    enough = session.polling.ticks + 2
    while session.polling.ticks < enough: time.sleep(0.01)
blocks = [bytearray(1_000_000) for _ in range(60)]
be_seen()
del blocks[20:]
be_seen()
"""
# A session with steps and parts, in the place of a watched one.
SCRIPTED = """
from tests.scenes import scripted_run
from hfmem_widget.analysis.history import HISTORY
HISTORY.latest = scripted_run({name!r})
"""


def columns(result: Result) -> list[str]:
    head = result.shown["text/plain"].splitlines()[2]
    return re.split(r"  +", head)


def test_it_shows_the_watched_cell_at_its_end_and_at_its_peak(reloaded: Kernel) -> None:
    """On the CPU: private memory, the resident set, and the unexplained part."""
    reloaded.run(WATCH)
    bundle = reloaded.run("%memanatomy").shown
    assert set(bundle) == {"text/html", "text/plain"}
    title, device, head, *rows = bundle["text/plain"].splitlines()
    assert title == "blocks"
    assert device.startswith("cpu ")
    *names, share = re.split(r"  +", head)
    assert names == ["part", "at the end", "at the peak (sampled)"]
    assert re.fullmatch(r"of [\d.]+ GiB", share)
    heap = next(row for row in rows if row.startswith("private memory"))
    end, peak = (float(one) for one in re.findall(r"([\d.]+) MiB", heap))
    assert 25 < peak - end < 50
    assert bundle["text/html"].count('<svg role="img"') == 2


def test_it_shows_a_cell_that_is_still_running(reloaded: Kernel) -> None:
    """Within a watched cell, it shows the cell at that moment."""
    code = "import time; time.sleep(0.2); get_ipython().run_line_magic('memanatomy', 'now')"
    result = reloaded.run(f"%%memwatch --no-chart --label live\n{code}")
    told = [one.content["data"]["text/plain"] for one in result.displays]
    (anatomy,) = [one for one in told if one.startswith("live\ncpu ")]
    assert re.split(r"  +", anatomy.splitlines()[2])[:2] == ["part", "now"]


def test_a_moment_is_the_peak_or_a_step(reloaded: Kernel) -> None:
    """`peak` and a step's number choose the moment whose parts are shown."""
    reloaded.run(SCRIPTED.format(name="steps"))
    assert columns(reloaded.run("%memanatomy peak"))[:2] == ["part", "at the peak (exact)"]
    assert columns(reloaded.run("%memanatomy 37"))[1] == "at step 37 (exact)"
    assert "\noptimizer states " in reloaded.run("%memanatomy").shown["text/plain"]


def test_a_device_is_chosen_by_its_name(reloaded: Kernel) -> None:
    """`--device cpu` shows the host where a GPU would be shown otherwise."""
    reloaded.run(SCRIPTED.format(name="steps"))
    of_host = reloaded.run("%memanatomy --device cpu").shown["text/plain"]
    assert of_host.splitlines()[1].startswith("cpu ")


def test_all_shows_every_device_that_was_used(reloaded: Kernel) -> None:
    """`--all` has a table for each of eight GPUs, in their order."""
    reloaded.run(SCRIPTED.format(name="eight gpus"))
    told = reloaded.run("%memanatomy --all peak").shown["text/plain"]
    assert re.findall(r"^cuda:\d", told, re.MULTILINE) == [f"cuda:{index}" for index in range(8)]


def test_now_needs_no_watch(reloaded: Kernel) -> None:
    """A reading shows a model that is in a variable."""
    reloaded.run("import torch; model = torch.nn.Linear(2048, 2048)")

    for line in ("%memanatomy", "%memanatomy now"):
        assert "weights" in reloaded.run(line).shown["text/plain"]
