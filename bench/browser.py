"""How long the browser's main thread is busy for each update of the chart, as a run gets long.

In headless Chromium. Ours is the built `chart.js` behind an anywidget model that is not there: it
holds so many points of each series of two devices, gets one more message as Python sends it, and
draws; it shows one device at a time, so three lines and the parts that allocated memory consists of.
Against it stands what a FigureWidget's page does at an update that gives every one of as many traces
as the two devices have lines its x and y anew: `Plotly.react` with the arrays, of
the plotly.min.js in the plotly package. Fetching and unpacking the message is left out there, so
that it is a lower bound.

Busy is Chromium's own `TaskDuration`, painting included, up to the second frame after the drawing;
the row "nothing" is the same with no update.
"""

import base64
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly
from common import measure
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from hfmem_widget.session import Device, Recorder, Sample, Series
from hfmem_widget.text import GIB
from hfmem_widget.view.wire import protocol

POINTS = (1_000, 10_000, 100_000, 1_000_000)
INTERVAL = 0.1
DEVICES = ("cuda:0", "cuda:1")
SERIES = len(DEVICES) * len(protocol.METRICS)
TRACES = len(DEVICES) * len(protocol.LINES)
SHARES = {"weights": 0.25, "buffers": 0.01, "optimizer": 0.3, "unattributed": 0.02, "context": 0.1}
"""Of the lowest allocated: parts that hold still; gradients follow what is allocated."""
ROWS_A_MESSAGE = 20_000
MOST_READINGS = 12_000_000
"""What the page holds of all series together; then it folds, to half as many rows."""

UNFOLDED = replace(protocol.NEWS, row_bytes=math.inf)
PAUSE = 500
"""Milliseconds between updates; the chart draws at most every 400."""

CHART = measure.ROOT / "hfmem_widget" / "static" / "chart.js"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
# Root cannot use Chromium's sandbox; the rest keeps it from talking to anyone else.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

PAGE = """
const frame = () => new Promise((done) => requestAnimationFrame(done));
const settled = async () => { await frame(); await frame(); await new Promise((done) => setTimeout(done)); };
const bytes = (text) => new DataView(Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer);
"""

OURS = """
async (source) => {
  const module = new Blob([source], { type: "text/javascript" });
  const { default: createWidget } = await import(URL.createObjectURL(module));
  const handlers = {};
  const on = (event, handler) => { handlers[event] = handler; };
  const model = { get: () => ({}), send() {}, off() {}, on };
  const widget = createWidget();
  widget.initialize({ model });
  await widget.render({ model, el: document.getElementById("chart") });
  const root = () => document.querySelector("[data-hfmem-draws]");
  const draws = () => Number(root()?.dataset.hfmemDraws ?? 0);
  window.held = () => Number(root().dataset.hfmemRows);
  window.deliver = (content, buffers) => handlers["msg:custom"](content, buffers.map(bytes));
  window.update = async (content, buffers) => {
    const before = draws();
    window.deliver(content, buffers);
    while (draws() === before) await frame();
    await settled();
  };
}
"""

THEIRS = """
async ({ points, traces }) => {
  const x = Float64Array.from({ length: points + 100 }, (_, i) => i * 0.1);
  const y = Float64Array.from(x, (time) => 4 + Math.sin(time / 10) + 0.1 * Math.random());
  const node = document.getElementById("chart");
  let shown = points;
  const draw = () => {
    const data = Array.from({ length: traces }, (_, i) => ({
      type: "scatter", mode: "lines", x: x.slice(0, shown), y: y.slice(0, shown).map((value) => value + i),
    }));
    return Plotly.react(node, data, { height: 320 });
  };
  await draw();
  window.update = async () => { shown++; await draw(); await settled(); };
}
"""

NOTHING = "window.update = settled;"


def find_chromium() -> str | None:
    """Return a Chromium to use; None for Playwright's own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("HFMEM_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


class Messages:
    """What Python sends to the chart, with buffers as text for the way into the page."""

    def __init__(self) -> None:
        recorder = Recorder("bench")
        self.session = recorder.session
        recorder.adopt(
            [Device(key, "NVIDIA H200", f"GPU-{key}", 141 * GIB) for key in DEVICES],
            [Series(key, metric, metric) for key in DEVICES for metric in protocol.METRICS],
        )
        recorder.append(Sample(0.0, _reading(4 * GIB)))
        self._chance = np.random.default_rng(0)
        self._rows = 1
        self._seq = 0

    def snapshot(self) -> list[Any]:
        """Return the first message of a run."""
        return self._packed(*protocol.snapshot(self.session, "bench", self._seq))

    def rows(self, count: int) -> list[Any]:
        """Return the next message, with so many rows."""
        time = (self._rows + np.arange(count)) * INTERVAL
        values = (4 + np.sin(time / 10) + 0.1 * self._chance.random(count)) * GIB
        samples = [
            (at, _reading(value)) for at, value in zip(time.tolist(), values.tolist(), strict=True)
        ]
        self._rows += count
        self._seq += 1
        return self._packed(
            *protocol.rows(self.session, "bench", self._seq, samples, [], detail=UNFOLDED)
        )

    @staticmethod
    def _packed(message: protocol.Message, buffers: protocol.Buffers) -> list[Any]:
        return [message, [base64.b64encode(one).decode() for one in buffers]]


def _reading(allocated: float) -> tuple[float, ...]:
    values = dict.fromkeys(protocol.LINES, allocated)
    values |= {part: share * 3 * GIB for part, share in SHARES.items()}
    values["gradients"] = 0.2 * (allocated - 3 * GIB)
    return tuple(values[metric] for metric in protocol.METRICS) * len(DEVICES)


class Scene:
    """A page that can be updated."""

    def __init__(self, browser: Browser) -> None:
        # A context of its own has a process of its own, so that no other page's work is counted.
        self._context = browser.new_context(viewport={"width": 1000, "height": 700})
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(300_000)
        self.page.set_content('<body><div id="chart" style="width:860px"></div></body>')
        self.page.add_script_tag(content=PAGE)
        self._devtools: CDPSession = self._context.new_cdp_session(self.page)
        self._devtools.send("Performance.enable")

    def busy(self, *message: Any) -> float:
        """Update the page once and return the seconds its main thread was busy."""
        self.page.bring_to_front()
        self.page.wait_for_timeout(PAUSE)
        before = self._task_duration()
        self.page.evaluate("(message) => window.update(...message)", list(message))
        return self._task_duration() - before

    def close(self) -> None:
        """Close the page."""
        self._context.close()

    def _task_duration(self) -> float:
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def open_ours(browser: Browser, points: int, messages: Messages) -> Scene:
    """Return a page in which our chart holds so many rows."""
    scene = Scene(browser)
    scene.page.evaluate(OURS, CHART.read_text(encoding="utf-8"))
    deliver = "(message) => window.deliver(...message)"
    scene.page.evaluate(deliver, messages.snapshot())
    for start in range(1, points, ROWS_A_MESSAGE):
        scene.page.evaluate(deliver, messages.rows(min(ROWS_A_MESSAGE, points - start)))
    scene.busy(*messages.rows(3))
    held = scene.page.evaluate("window.held()")
    if held < min(points, MOST_READINGS // SERIES // 2):
        message = f"the chart holds {held} rows, not {points}"
        raise RuntimeError(message)
    return scene


def open_theirs(browser: Browser, points: int, traces: int) -> Scene:
    """Return a page in which Plotly has drawn so many points of each trace."""
    scene = Scene(browser)
    scene.page.add_script_tag(path=PLOTLY)
    scene.page.evaluate(THEIRS, {"points": points, "traces": traces})
    return scene


def measure_at(browser: Browser, points: int, rounds: int) -> measure.Rounds:
    """Return the seconds of each update, for each way."""
    messages = Messages()
    nothing, ours = Scene(browser), open_ours(browser, points, messages)
    nothing.page.add_script_tag(content=NOTHING)
    six, three = (open_theirs(browser, points, traces) for traces in (TRACES, TRACES // 2))
    ways = {
        "nothing": nothing.busy,
        "hfmem_widget: 3 rows more": lambda: ours.busy(*messages.rows(3)),
        "Plotly.react, all 6 traces anew": six.busy,
        "Plotly.react, 3 traces anew": three.busy,
    }
    spent = measure.interleave(ways, rounds)
    for scene in (nothing, ours, six, three):
        scene.close()
    return spent


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    rows, raw = [], {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        version = browser.version
        for points in POINTS:
            # Plotly takes ten seconds for a million points six times over.
            rounds = arguments.rounds if points < 10**6 else max(4, arguments.rounds // 3)
            spent = measure_at(browser, points, rounds)
            raw[f"{points}"] = spent
            ours = spent["hfmem_widget: 3 rows more"]
            rows += [
                [
                    name,
                    f"{points:,}",
                    measure.estimate(values).text(1e-3),
                    measure.ratio(values, ours).text(),
                ]
                for name, values in spent.items()
            ]
        browser.close()
    measure.report(
        f"Main-thread time of an update, {SERIES} series (median and 95 % interval)",
        f"{measure.machine('plotly')}, Chromium {version}, no GPU",
        ["way", "points a series", "ms", "x hfmem_widget"],
        rows,
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
