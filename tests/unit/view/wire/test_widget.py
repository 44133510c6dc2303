"""Where the chart's code comes from."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.view.wire import widget
from tests.scenes import scripted_run


def a_widget(**more: Any) -> widget.MemoryWidget:
    return widget.MemoryWidget(
        scripted_run("training"), "run", on_seen=lambda: None, on_resync=lambda: None, **more
    )


@pytest.mark.parametrize(("served", "name"), [(True, "widget.js"), (False, "chart.js")])
def test_a_widget_carries_the_loader_or_all(
    monkeypatch: pytest.MonkeyPatch, served: bool, name: str
) -> None:
    """A kilobyte where the page can fetch the rest, everything where it cannot."""
    monkeypatch.setattr(widget, "serves_labextensions", lambda: served)
    monkeypatch.setattr(widget, "_asset", lambda asked: f"// {asked}")
    made = a_widget()

    assert made._esm == f"// {name}"
    made.close()


def test_the_code_is_sent_when_a_page_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be fetched comes over the comm, whole."""
    sent: list[tuple[object, list[bytes]]] = []
    made = a_widget()
    monkeypatch.setattr(widget, "_asset", lambda asked: f"// {asked}")
    monkeypatch.setattr(made, "publish", lambda message, buffers: sent.append((message, buffers)))
    made._receive(made, {"kind": "bundle"}, [])

    assert sent == [({"kind": "bundle"}, [b"// chart.js"])]
    made.close()


@pytest.mark.parametrize("said", [0.5, 0, 5000, "1", None, True, float("nan"), [1], {"seconds": 1}])
def test_an_interval_that_a_person_has_set_is_passed_on(said: object) -> None:
    """A number of seconds that a watch may have; nothing else, whoever sent it."""
    heard: list[float] = []
    made = a_widget(on_interval=heard.append)
    for message in ({"kind": "interval", "seconds": said}, {"kind": "interval"}, [said], said):
        made._receive(made, message, [])

    assert heard == ([0.5] if said == 0.5 else [])
    made.close()
