"""VS Code's page around a notebook's outputs, on which VS Code's own widget manager runs.

Real are, from npm (`js/package.json`): the widget managers of Microsoft's Jupyter extension with their style
sheets, which bring JupyterLab's light ``--jp-*`` to every theme, and require.js; from the environment:
anywidget's front end, which the extension takes from the kernel's ``share/jupyter/nbextensions``. The themes'
variables (`tests/data/vscode_themes.json`), and the page's own styles, are those of VS Code's sources.

Played are the elements around an output, the editor's background behind the page, what chooses a renderer,
and what lies between manager and kernel (plotly.js is the Plotly package's, not the extension's):

- outputs and their updates, and the comm messages of widgets, come while a cell is busy;
- what the page says waits on the main shell until the cell has ended: there is no subshell;
- no folder of a wheel is served, and nothing is seen of IOPub but what belongs to a widget;
- a policy allows no `eval` and no connection. VS Code's default allows both.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final, Literal

import anywidget
from playwright.sync_api import Page

from tests.browser.jupyter import ROOT
from tests.data import DATA
from tests.kernel.drive import Kernel, Message

THEMES: Final[dict[str, Any]] = json.loads((DATA / "vscode_themes.json").read_text("utf-8"))
FROM_NPM = ROOT / "js" / "node_modules"
ANYWIDGET = Path(anywidget.__file__).parent / "nbextension" / "index.js"
PLAYED = Path(__file__).with_suffix(".js")
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)
# Of VS Code: pre/index.html of its webviews, backLayerWebView.ts of its notebooks, and renderer/styles.css of
# its Jupyter extension. A webview is transparent; the editor's background is behind it.
STYLES = """
html { background: var(--vscode-editor-background) }
@layer vscode-default {
    body { background: transparent; color: var(--vscode-editor-foreground); margin: 0;
        font-family: system-ui, sans-serif; font-size: 13px }
    a, a code { color: var(--vscode-textLink-foreground) }
    code { font-family: monospace; color: var(--vscode-textPreformat-foreground);
        background-color: var(--vscode-textPreformat-background); padding: 1px 3px; border-radius: 4px }
}
.output { padding: 8px; margin: 0 16px 0 44px; box-sizing: border-box;
    background-color: var(--vscode-notebook-outputContainerBackgroundColor) }
.output > div { overflow-x: auto }
table, thead, tr, th, td, tbody { border: none; border-color: transparent; border-spacing: 0;
    border-collapse: collapse }
table, th, tr { vertical-align: middle; text-align: right }
thead { font-weight: bold; background-color: rgba(130, 130, 130, 0.16) }
th, td { padding: 4px 8px }
tr:nth-child(even) { background-color: rgba(130, 130, 130, 0.08) }
tbody th { font-weight: normal }
.cell-output-ipywidget-background { background: white !important }
"""


class Webview:
    """Such a page in one of `THEMES`, in front of a kernel.

    `manager` is the major version of ipywidgets whose manager runs: VS Code takes 7 for kernels with that.
    """

    def __init__(
        self,
        page: Page,
        kernel: Kernel | None = None,
        *,
        theme: str = "Light Modern",
        manager: Literal[7, 8] = 8,
    ) -> None:
        self.page = page
        self._kernel = kernel
        self._seen = 0
        require = (FROM_NPM / "requirejs" / "require.js").read_text("utf-8")
        page.set_content(
            '<!doctype html><base href="vscode-webview://notebook/">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><style>{STYLES}</style>'
            f"<body><div id=container></div><script>{require}</script>"
            f"<script>{PLAYED.read_text('utf-8')}</script>"
        )
        self.dress(theme)
        package = FROM_NPM / "@vscode" / f"jupyter-ipywidgets{manager}"
        source = (package / "dist" / "ipywidgets.js").read_text("utf-8")
        page.evaluate(
            "them => preload(...them)", [manager, source, ANYWIDGET.read_text(encoding="utf-8")]
        )

    def dress(self, theme: str) -> None:
        """Change to one of `THEMES`, as VS Code does under a notebook that is open."""
        self.page.evaluate("it => dress(it)", THEMES[theme])

    def show(self, name: str, bundle: Any) -> None:
        """Show an output that needs no kernel."""
        self.page.evaluate("them => show(...them)", [name, bundle])

    def run(self, code: str) -> None:
        """Send a cell, and wait for nothing."""
        assert self._kernel is not None
        self._kernel.send(code)

    def read(self, seconds: float = 0.2) -> None:
        """Bring what the kernel has sent to the page, and to the kernel what the page has."""
        assert self._kernel is not None
        self._kernel.read(seconds)
        new, self._seen = self._kernel.published[self._seen :], len(self._kernel.published)
        for message in new:
            self._pass_on(message)
        for comm, data in self.page.evaluate("sent.splice(0)"):
            self._kernel.send_comm(comm, data)

    def _pass_on(self, message: Message) -> None:
        content = message.content
        if message.kind in {"comm_open", "comm_msg", "comm_close"}:
            whole = {"content": content, "metadata": message.metadata}
            buffers = [base64.b64encode(one).decode() for one in message.buffers]
            self.page.evaluate("them => pass(...them)", [message.kind, whole, buffers])
        elif message.kind in {"display_data", "update_display_data"}:
            shown = [content["transient"]["display_id"], content["data"]]
            self.page.evaluate("them => { void show(...them) }", shown)
