"""What 1,024 ranks cost a page: what a drawing keeps it busy for, whether its heap grows, how long to reload.

As `bench/ranks_kernel.py`, with a page that draws: a real JupyterLab in headless Chromium, in which
`%memwatch open` follows a run that goes on, in the cell and in the panel. A drawing is of either chart. It
takes the time in scripts of ours, as Chromium's profiler samples it; the page is busy (`TaskDuration`) with
painting and with what JupyterLab does, too. The heap is what is left after garbage was collected. In the
middle the page is reloaded.

    python bench/ranks_page.py [--seconds 660]
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ranks
from common import measure
from playwright.sync_api import CDPSession, sync_playwright

from hfmem_widget.ranks.directory import make_or_join
from tests.browser.conftest import FLAGS, WINDOW
from tests.browser.jupyter import JupyterLab, find_chromium
from tests.browser.lab import Lab
from tests.browser.panel import Panel

NAME = "1,024 ranks, at their own pace"
EVERY = 60.0
OURS = re.compile(r"^blob:|hfmem")
"""Where scripts of ours come from; anywidget has its own as a blob."""

LONG_TASKS = """() => {
    window.longTasks = [];
    new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(one => one.duration)))
        .observe({ type: 'longtask' });
}"""
DRAWS = """() => [...document.querySelectorAll('[data-hfmem-draws]')]
    .reduce((sum, { dataset }) => sum + Number(dataset.hfmemDraws), 0)"""


@dataclass(frozen=True, slots=True)
class Minute:
    """What was seen of a page in a minute: the milliseconds of its tasks that took 50 or more, too."""

    heap: float
    draws: int
    busy: float
    ours: float
    long_tasks: list[float]
    rows: int


class Watched:
    """A page and what Chromium tells of it."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._panel = lab, Panel(lab)
        self._devtools: CDPSession = lab.page.context.new_cdp_session(lab.page)
        for domain in ("Performance", "Profiler"):
            self._devtools.send(f"{domain}.enable")
        self._devtools.send("Profiler.setSamplingInterval", {"interval": 1000})
        self.begin()

    def begin(self) -> None:
        """Begin to count, after the page was loaded."""
        self._lab.page.evaluate(LONG_TASKS)

    def minute(self, seconds: float) -> Minute:
        """Watch for some time."""
        page = self._lab.page
        busy, draws = self._told("TaskDuration"), page.evaluate(DRAWS)
        page.evaluate("() => { window.longTasks.length = 0 }")
        self._devtools.send("Profiler.start")
        page.wait_for_timeout(1e3 * seconds)
        profile = self._devtools.send("Profiler.stop")["profile"]
        found: list[float] = page.evaluate("() => window.longTasks")
        drawn = page.evaluate(DRAWS) - draws
        busy = self._told("TaskDuration") - busy
        self._devtools.send("HeapProfiler.collectGarbage")
        heap, ours = self._told("JSHeapUsedSize"), in_ours(profile)
        return Minute(heap, drawn, busy, ours, found, self._panel.rows)

    def _told(self, name: str) -> float:
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == name)


def in_ours(profile: Any) -> float:
    """Return the seconds of a profile in scripts of ours, and in what they have called."""
    nodes = {node["id"]: node for node in profile["nodes"]}
    ours: set[int] = set()
    for node in profile["nodes"]:  # those above come first
        if node["id"] in ours or OURS.search(node["callFrame"]["url"]):
            ours.update([node["id"], *nodes[node["id"]].get("children", ())])
    times = zip(profile["samples"], profile["timeDeltas"], strict=True)
    return sum(delta for node, delta in times if node in ours) / 1e6


def reloaded(lab: Lab) -> tuple[float, float]:
    """Reload the page; return the seconds until JupyterLab is there, and until all ranks are drawn again."""
    panel = Panel(lab)
    rows, began = panel.rows, time.monotonic()
    lab.page.reload()
    lab.page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)")
    restored = time.monotonic() - began
    panel.element.get_by_role("tab", name="ranks").wait_for()
    while panel.rows < rows:
        lab.page.wait_for_timeout(50)
    return restored, time.monotonic() - began


def watch(lab: Lab, seconds: float, began: float) -> tuple[list[list[str]], str]:
    """Return a row for each minute of a run, and what a reload in the middle took."""
    page = Watched(lab)
    rows, note = [], ""
    while (now := time.time()) < began + seconds - EVERY:
        if not note and now > began + seconds / 2:
            restored, drawn = reloaded(lab)
            note = f"Reloaded: JupyterLab was there after {restored:.1f} s, all ranks after {drawn:.1f} s."
            page.begin()
        seen = page.minute(EVERY)
        rows.append(
            [
                f"{time.time() - began:.0f}",
                f"{seen.heap / 1e6:.1f}",
                f"{seen.rows:,}",
                f"{seen.draws}",
                f"{1e3 * seen.ours / max(1, seen.draws):.1f}",
                f"{1e3 * seen.busy / max(1, seen.draws):.0f}",
                f"{len(seen.long_tasks)}, {max(seen.long_tasks, default=0):.0f}",
            ]
        )
        print(*rows[-1], sep=" | ", flush=True)
    return rows, note


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=660.0)
    arguments = parser.parse_args()
    shots = Path(os.environ.get("HFMEM_SHOTS") or tempfile.mkdtemp())
    with (
        tempfile.TemporaryDirectory() as home,
        JupyterLab(Path(home)) as server,
        sync_playwright() as playwright,
    ):
        directory = Path(home) / "run"
        make_or_join(directory, "bench")
        began = time.time() + 6.0
        command = [sys.executable, ranks.__file__, "--send", NAME, str(directory)]
        command += [str(began), str(arguments.seconds)]
        senders = [subprocess.Popen([*command, str(at)]) for at in range(ranks.SENDERS)]
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        lab = Lab(chromium.new_context(viewport=WINDOW).new_page(), server, shots)
        lab.open("%load_ext hfmem_widget", f"%memwatch open {directory}")
        lab.run_all()
        Panel(lab).element.get_by_role("tab", name="ranks").wait_for()
        rows, note = watch(lab, arguments.seconds, began)
        lab.screenshot("ranks-page")
        version = chromium.version
        chromium.close()
        for sender in senders:
            sender.terminate()
            sender.wait()
    measure.report(
        f"A page that draws 1,024 ranks for {arguments.seconds:.0f} s",
        f"{measure.machine('jupyterlab', 'ipykernel')}, Chromium {version}, no GPU",
        [
            "s",
            "MB of heap",
            "rows of the chart",
            "drawings",
            "ms of ours a drawing",
            "ms busy a drawing",
            "tasks of 50 ms and more, longest in ms",
        ],
        rows,
        notes=[note, *lab.errors],
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
