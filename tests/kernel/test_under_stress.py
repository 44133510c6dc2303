"""A starved poller, a widget taken away, a copied object, a spawned child."""

from __future__ import annotations

from tests.kernel.drive import Kernel

STARVED = """%%memwatch --label starved --output session
import time
time.sleep(0.5)
kept = bytearray(64_000_000)
power = 7 ** 1_500_000  # one operation: nobody else has the interpreter's lock meanwhile
time.sleep(0.5)
"""
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


def test_a_starved_poller_leaves_a_gap_and_right_figures(reloaded: Kernel) -> None:
    """What holds the interpreter's lock delays samples: a gap is kept and counted; the cell's Δ is right."""
    reloaded.run(STARVED)
    told = reloaded.run(
        "gaps = session.timeline.gaps\n"
        "cell = session.spans[0]\n"
        "delta = session.value(cell.after, 'cpu/allocated') - session.value(cell.before, 'cpu/allocated')\n"
        "print(len(gaps), max(stop - start for start, stop in gaps) > 0.3, session.polling.missed > 0,"
        " delta >= 64_000_000)"
    ).text()

    count, *facts = told.split()
    assert int(count) >= 1
    assert facts == ["True", "True", "True"]


def test_a_widget_closed_while_it_is_fed_harms_nothing(reloaded: Kernel) -> None:
    """The poller finds no comm and goes on without; the card comes, and nothing is printed."""
    result = reloaded.run(CLOSED)

    assert result.status == "ok"
    assert result.text("stderr") == ""
    texts = [one.content["data"].get("text/plain", "") for one in result.displays]
    assert any(text.startswith('memwatch "closed" · ') for text in texts)
    assert reloaded.run("print(len(ours), [widget.comm for widget in ours])").text() == "1 [None]\n"
