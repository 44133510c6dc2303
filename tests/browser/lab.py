"""What a person does in JupyterLab: open, run, look, reload, restart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from playwright.sync_api import ConsoleMessage, Error, Locator, Page, ViewportSize
from playwright.sync_api import TimeoutError as TookTooLong

from tests.browser.jupyter import ENOUGH, PYTHON, JupyterLab

WINDOW: ViewportSize = {"width": 1400, "height": 900}
TIMEOUT = 240.0
"""Seconds until what should come counts as missing, however busy the machine; pytest ends a test later."""
BUSY = """%%memwatch {options}
import os, time
blocks = []
while not os.path.exists({enough!r}):
    if len(blocks) < 600:
        blocks.append(bytearray(2_000_000))
    time.sleep(0.05)
os.remove({enough!r})
"""
UNTIL_SEEN = """
import os, time
from transformers import TrainerCallback

class UntilSeen(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **_):
        while state.global_step == {step} and not os.path.exists({enough!r}):
            time.sleep(0.05)

trainer.add_callback(UntilSeen())
"""

# The one notebook of the page, wherever the focus is; and whether that of the page's address was opened: the
# layout of before has opened it already, so that may come after all else.
SCRIPT = """
Object.defineProperty(window, 'jupyterapp', { configurable: true, set(app) {
    Object.defineProperty(window, 'jupyterapp', { value: app });
    app.commands.commandExecuted.connect((_, { id, result }) => {
        if (id !== 'filebrowser:open-path') return;
        result.finally(() => { window.opened = true });
    });
} });
window.notebook = () => [...(window.jupyterapp?.shell.widgets('main') ?? [])]
    .find(widget => widget.content?.widgets && widget.sessionContext);
window.kernel = () => window.notebook()?.sessionContext.session?.kernel;
"""

# The page's address is that of the notebook it was loaded with; it shall reload the one that it shows.
ADDRESS = """path => {
    notebook()?.dispose();
    history.replaceState(null, '', location.href.replace(/\\/tree\\/.*/, `/tree/${path}`));
}"""

# One notebook alone may be there.
LEAVE = """async () => {
    window.running = false;
    const { commands, shell } = window.jupyterapp;
    shell.expandLeft();
    shell.collapseRight();
    for (const widget of [...shell.widgets('main')]) widget.dispose();
    const light = 'JupyterLab Light';
    if (document.body.dataset.jpThemeName !== light)
        await commands.execute('apputils:change-theme', { theme: light });
    localStorage.clear();
    sessionStorage.clear();
}"""

# Side bars keep their pixels when the window changes; these are JupyterLab's own shares, once it has changed.
SIDE_BARS = """async () => {
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
    window.jupyterapp?.shell._hsplitPanel.setRelativeSizes([1, 2.5, 1]);
}"""

# Where some elements are with all that is in them, and whether that is what it was at the looks before.
STILL = """([selector, looks, inner]) => {
    if (performance.now() < window.nextLook) return false;
    window.nextLook = performance.now() + 80;
    const box = it => ['x', 'y', 'width', 'height'].map(name => it.getBoundingClientRect()[name]);
    const all = [...document.querySelectorAll(selector)].flatMap(it => [it, ...it.querySelectorAll(inner)]);
    const now = [innerWidth, innerHeight, ...all.map(it => box(it).join(' '))];
    const charts = all.filter(it => it.matches('.hfmem-plot') && it.offsetWidth > 0);
    const late = charts.flatMap(it => [...it.querySelectorAll('.main-svg')]
        .map(drawn => [drawn.getBoundingClientRect().width, it.clientWidth])
        .filter(([drawn, place]) => Math.abs(drawn - place) > 1)
        .map(([drawn, place]) => `a chart of ${drawn} px in ${place} px`));
    const moved = now.flatMap((place, i) => place === window.places?.[i] ? [] : [
        `${all[i - 2]?.outerHTML.slice(0, 80) ?? 'the window'}: ${window.places?.[i]} to ${place}`]);
    const changed = now.length !== window.places?.length ? [`${now.length} elements`] : [];
    window.notStill = [...changed, ...late, ...moved].slice(0, 5).join('\\n');
    window.looks = window.notStill ? 0 : window.looks + 1;
    window.places = now;
    return window.looks >= looks;
}"""

# What JupyterLab logs by itself, with nothing of ours on the page.
IGNORED = (
    # ipywidgets' manager says so of an output that is replaced while it is drawn, as a cell ends on a busy
    # machine; what is shown then is what has replaced it.
    r"^Error: widget model not found",
    # A notebook that is closed while ipywidgets still looks for the widgets of its kernel (after a reload).
    r"^TypeError: Cannot read properties of null \(reading 'kernel'\)\s+at \S+ \(\S+/jupyterlab-manager/",
)


Theme = Literal["light", "dark"]
THEMES: tuple[Theme, Theme] = ("light", "dark")


def until_seen(step: int) -> str:
    """Return code that has `trainer` wait until `Lab.let_end`, within the step after so many."""
    return UNTIL_SEEN.format(step=step, enough=ENOUGH)


def busy(options: str = "--label busy") -> str:
    """Return a watched cell that works until `Lab.let_end`, or until it is interrupted."""
    return BUSY.format(options=options, enough=ENOUGH)


def take(part: Page | Locator, path: Path, **options: Any) -> None:
    """Take a picture of a page or an element, where somebody wants one: a folder for it is there."""
    if path.parent.is_dir():
        part.screenshot(path=path, **options)


class Lab:
    """A browser page with JupyterLab and one notebook in it; pictures are taken where `shots` is a folder."""

    def __init__(self, page: Page, server: JupyterLab, shots: Path) -> None:
        self.page = page
        self.server = server
        self.path = ""
        self.errors: list[str] = []  # that the page logged or threw, and bare JupyterLab does not
        self._shots = shots
        # After a restart or a reload messages to the widget that was there before are still on their way.
        self._is_new = True
        self._workspace = uuid4().hex[:8]
        page.set_default_timeout(TIMEOUT * 1000)
        page.add_init_script(SCRIPT)
        page.on("console", self._on_console)
        page.on("pageerror", self._on_page_error)

    def open(self, *cells: str, kernel: str = PYTHON) -> None:
        name = f"notebook-{uuid4().hex[:8]}"
        self.open_path(self.server.write_notebook(name, *cells, kernel=kernel))

    def begin(self, *cells: str, load: str = "%load_ext hfmem_widget", saved: bool = False) -> None:
        """Open a notebook of a line that loads us and these cells, and leave the first of them running."""
        self.open(load, *cells)
        self.run_cell(0)
        if saved:
            self.save()
        self.run_cell(1, wait=False)

    def open_path(self, path: str, *, kernel: bool = True) -> None:
        """Open a notebook of the server's folder; without waiting for a kernel where it gets none."""
        self.path = path
        if self.page.evaluate("() => Boolean(window.jupyterapp)"):
            self.page.evaluate(ADDRESS, path)
            self.command("docmanager:open", {"path": path})
        else:
            self.page.goto(f"{self.server.url}lab/workspaces/{self._workspace}/tree/{path}")
        self._wait_until_ready(kernel=kernel)

    def leave(self) -> None:
        """Leave page and browser as they were: without notebook, panel and memory of either."""
        self.page.remove_listener("console", self._on_console)
        self.page.remove_listener("pageerror", self._on_page_error)
        self.page.emulate_media(reduced_motion="null")
        try:
            self.page.evaluate(LEAVE)
            self.resize(**WINDOW)
        except Error:
            self.page.goto("about:blank")

    def resize(self, width: int, height: int) -> None:
        """Have the window as large as that, and side bars as they are in one that is opened so."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.evaluate(SIDE_BARS)

    def another_page(self) -> Lab:
        """Open the notebook in a second page, as another tab of the same browser."""
        other = Lab(self.page.context.new_page(), self.server, self._shots)
        self._is_new = other._is_new = False
        other.open_path(self.path, kernel=False)
        return other

    def reload(self, *, wait: bool = True, forget: bool = False) -> None:
        """Reload the page; without waiting for the kernel where it is busy.

        With `forget` the page knows as little as one in a new tab, which has not what this one remembers.
        """
        self._is_new = False
        if forget:
            self.page.evaluate("() => addEventListener('pagehide', () => sessionStorage.clear())")
        self.page.reload()
        self._wait_until_ready(kernel=wait)

    def run_all(self, *, wait: bool = True) -> None:
        """Run all cells, and wait until the kernel is idle."""
        self._run("notebook:run-all-cells", wait=wait, timeout=TIMEOUT)

    def run_cell(self, index: int, *, wait: bool = True, timeout: float = TIMEOUT) -> None:
        """Run one cell, and wait until the kernel is idle."""
        self.page.evaluate("index => { notebook().content.activeCellIndex = index }", index)
        self._run("notebook:run-cell", wait=wait, timeout=timeout)

    def wait_for(self, script: str, arg: Any = None, timeout: float = TIMEOUT) -> None:
        """Wait until a function of the page returns something true; to ask it in every frame costs more."""
        self.page.wait_for_function(script, arg=arg, timeout=timeout * 1000, polling=50)

    def wait_until_still(self, selector: str, inner: str = "*") -> None:
        """Wait until some elements have not moved for five looks, of which no two are in one frame.

        Nor have those that `inner` selects in them: all, which would never end where a cell is busy. What
        JupyterLab and Plotly make of a new size comes in several frames, and nothing tells the last. A live
        chart in them is drawn by then as wide as its place is.
        """
        self.page.evaluate("() => { window.places = null; window.nextLook = 0 }")
        try:
            self.page.wait_for_function(STILL, arg=[selector, 5, inner], polling="raf")
        except TookTooLong:
            raise AssertionError(
                "not still, at the last look: " + self.page.evaluate("() => window.notStill")
            ) from None

    def wait_until_idle(self, timeout: float = TIMEOUT) -> None:
        """Wait until everything that was run has ended."""
        self.wait_for(
            "() => window.running !== true && kernel()?.status === 'idle'", timeout=timeout
        )

    def wait_for_text(self, index: int, text: str) -> None:
        shown = self.cell(index).locator(".jp-Cell-outputArea").filter(has_text=text)
        shown.wait_for(timeout=TIMEOUT * 1000)

    def unfold(self, index: int) -> None:
        """Open what is folded in a cell's outputs."""
        script = "outputs => outputs.querySelectorAll('details').forEach(each => each.open = true)"
        self.cell(index).locator(".jp-Cell-outputArea").evaluate(script)

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """Return a cell's outputs as a notebook file would hold them."""
        script = "index => notebook().content.widgets[index].model.outputs.toJSON()"
        found: list[dict[str, Any]] = self.page.evaluate(script, index)
        return found

    def source(self, index: int) -> str:
        script = "index => notebook().content.widgets[index].model.sharedModel.getSource()"
        found: str = self.page.evaluate(script, index)
        return found

    def cell(self, index: int) -> Locator:
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def theme(self, name: Theme) -> None:
        """Switch JupyterLab's theme, where it is another."""
        theme = f"JupyterLab {name.title()}"
        is_there = "theme => document.body.dataset.jpThemeName === theme"
        if not self.page.evaluate(is_there, theme):
            self.command("apputils:change-theme", {"theme": theme})
            self.wait_for(is_there, arg=theme)
            self._wait_for_splash()

    def let_end(self) -> None:
        """Have the busy cell end that runs, and wait until the kernel is idle."""
        self.server.let_end(wait=False)
        self.wait_until_idle()

    def interrupt(self) -> None:
        self.page.evaluate("() => kernel().interrupt()")

    def restart_kernel(self) -> None:
        """Restart the kernel, and wait until it is idle again."""
        self._is_new = False
        # A page that has not yet heard from the kernel may never hear from the one that follows.
        self.page.evaluate("() => notebook().sessionContext.ready")
        self.wait_for("() => kernel()?.status === 'idle' || kernel()?.status === 'busy'")
        self.page.evaluate("() => notebook().sessionContext.restartKernel()")
        self.page.evaluate("() => { window.running = false }")
        self.wait_until_idle()

    def shutdown_kernel(self) -> None:
        self.page.evaluate("() => notebook().sessionContext.shutdown()")
        self.wait_for("() => !kernel()")

    def save(self) -> Any:
        """Save the notebook and return it as it is on disk."""
        self.page.evaluate("() => notebook().context.save()")
        return self.server.read_notebook(self.path)

    def close(self) -> None:
        """Close the notebook's tab; its kernel lives on."""
        self.page.evaluate("() => notebook().dispose()")

    def command(self, name: str, args: dict[str, Any] | None = None) -> None:
        script = "([name, args]) => jupyterapp.commands.execute(name, args).then(() => null)"
        self.page.evaluate(script, [name, args or {}])

    def screenshot(self, name: str, part: Locator | None = None) -> Path:
        """Take a picture of the page, or of one element, and return where it is."""
        path = self._shots / f"{name}.png"
        take(part or self.page, path)
        return path

    def _run(self, command: str, *, wait: bool, timeout: float) -> None:
        self.page.evaluate(
            """name => {
                window.running = true;
                const done = () => { window.running = false };
                jupyterapp.commands.execute(name).then(done, done);
            }""",
            command,
        )
        if wait:
            self.wait_until_idle(timeout)

    def _wait_until_ready(self, *, kernel: bool) -> None:
        self.wait_for(
            "() => window.opened"
            " && jupyterapp.restored.then(() => window.notebook?.()?.context.isReady ?? false)"
        )
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        self._wait_for_splash()
        if kernel:
            self.wait_until_idle()

    def _wait_for_splash(self) -> None:
        # It covers the page, and a second one while the first fades makes JupyterLab throw.
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._add_error(f"{message.text} ({message.location.get('url', '')})")

    def _on_page_error(self, error: Error) -> None:
        self._add_error(error.stack or error.message)

    def _add_error(self, text: str) -> None:
        ignored = IGNORED if self._is_new else (*IGNORED, "^Comm not found")
        if not any(re.search(pattern, text) for pattern in ignored):
            self.errors.append(text)
