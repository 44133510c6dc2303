"""A stand-in for VS Code and Colab: a page that has a widget's messages and nothing else.

What it plays, of VS Code's Jupyter extension and of Colab:

- outputs and their updates, and the comm messages of widgets, come while a cell is busy;
- what the page says waits on the main shell until the cell has ended: there is no subshell;
- no folder of a wheel is served, and nothing is seen of IOPub but what belongs to a widget;
- a widget's module is imported from a blob, under a policy that allows no `eval` and no connection.
"""

from __future__ import annotations

import base64
from typing import Any

from playwright.sync_api import Page

from tests.kernel.drive import Kernel
from tests.kernel.messages import Message

WIDGET = "application/vnd.jupyter.widget-view+json"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data:"
)
HOST = """
const models = new Map(), places = new Map(), said = [];
const bytes = text => new DataView(Uint8Array.from(atob(text), it => it.charCodeAt(0)).buffer);
const life = new AbortController();

function open(id, state, paths, buffers) {
    paths.forEach((path, at) => {
        const owner = path.slice(0, -1).reduce((node, key) => node[key], state);
        owner[path.at(-1)] = bytes(buffers[at]);
    });
    const handlers = {};
    const model = {
        get: name => state[name],
        on: (event, handler) => (handlers[event] ??= []).push(handler),
        off: (event, handler) => { handlers[event] = handlers[event]?.filter(it => it !== handler) },
        send: content => said.push([id, content]),
    };
    const load = async () => {
        const url = URL.createObjectURL(new Blob([state._esm], { type: 'text/javascript' }));
        const { default: made } = await import(url);
        const widget = typeof made === 'function' ? await made() : made;
        await widget.initialize?.({ model, signal: life.signal });
        return widget;
    };
    models.set(id, { model, handlers, widget: '_esm' in state ? load() : null });
}

function tell(id, content, buffers) {
    for (const handler of models.get(id)?.handlers['msg:custom'] ?? []) handler(content, buffers.map(bytes));
}

async function show(id, data) {
    const place = places.get(id) ?? document.body.appendChild(document.createElement('div'));
    places.set(id, place);
    const view = data['WIDGET'];
    if (!view) { place.innerHTML = data['text/html'] ?? data['text/plain'] ?? ''; return; }
    place.replaceChildren();
    const { model, widget } = models.get(view.model_id);
    await (await widget).render({ model, el: place, signal: life.signal });
}
""".replace("WIDGET", WIDGET)


class Webview:
    """Such a page, in front of a kernel.

    Parameters
    ----------
    page : Page
    kernel : Kernel
    dark : bool
        Whether its page is dark, as VS Code's own colours are; nothing else says so.
    """

    def __init__(self, page: Page, kernel: Kernel, *, dark: bool = False) -> None:
        self.page = page
        self._kernel = kernel
        self._seen = 0
        colours = "background:#1f1f1f;color:#ccc" if dark else "background:#fff;color:#333"
        page.set_content(
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f'<body style="{colours}"><script>{HOST}</script>'
        )

    def run(self, code: str) -> None:
        """Send a cell, and wait for nothing."""
        self._kernel.send(code)

    def read(self, seconds: float = 0.2) -> None:
        """Bring what the kernel has said to the page, and to the kernel what the page has."""
        self._kernel.read(seconds)
        new, self._seen = self._kernel.published[self._seen :], len(self._kernel.published)
        for message in new:
            self._pass_on(message)
        for comm, content in self.page.evaluate("said.splice(0)"):
            self._kernel.send_comm(comm, {"method": "custom", "content": content})

    def _pass_on(self, message: Message) -> None:
        content, buffers = (
            message.content,
            [base64.b64encode(one).decode() for one in message.buffers],
        )
        call: tuple[str, list[Any]] | None = None
        if message.kind == "comm_open":
            data = content["data"]
            call = (
                "open",
                [content["comm_id"], data["state"], data.get("buffer_paths", []), buffers],
            )
        elif message.kind == "comm_msg" and content["data"].get("method") == "custom":
            call = "tell", [content["comm_id"], content["data"]["content"], buffers]
        elif message.kind in {"display_data", "update_display_data"}:
            call = "show", [content["transient"]["display_id"], content["data"]]
        if call is not None:
            name, arguments = call
            self.page.evaluate(f"them => {{ void {name}(...them) }}", arguments)
