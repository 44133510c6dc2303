"""A widget that is taken away."""

from __future__ import annotations

from tests.kernel.drive import Kernel

CLOSED = """%%memwatch --label closed --output session
import time
from ipywidgets.widgets import widget as module
widgets = module._instances if hasattr(module, "_instances") else module.Widget.widgets
ours = []
while not ours:
    time.sleep(0.05)
    ours = [widget for widget in list(widgets.values()) if type(widget).__name__ == "MemoryWidget"]
for widget in ours:
    widget.close()
enough = session.polling.ticks + 20
while session.polling.ticks < enough:
    time.sleep(0.05)
"""


def test_a_widget_closed_while_it_is_fed_harms_nothing(reloaded: Kernel) -> None:
    """The poller finds no comm and goes on without; the card comes, and nothing is printed."""
    result = reloaded.run(CLOSED)

    assert result.status == "ok"
    assert result.text("stderr") == ""
    texts = [one.content["data"].get("text/plain", "") for one in result.displays]
    assert any(text.startswith('memwatch "closed" · ') for text in texts)
    assert reloaded.run("print(len(ours), [widget.comm for widget in ours])").text() == "1 [None]\n"
