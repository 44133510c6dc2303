"""Which host's page shows the outputs, what it can do, and where the chart's code comes from."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.view import front_end
from hfmem_widget.view.front_end import (
    draws_widgets,
    finds_anywidget,
    host_name,
    replaces_outputs,
    serves_labextensions,
)
from hfmem_widget.view.wire import widget
from tests.scenes import scripted_run

VARIABLES = {
    "VSCODE_PID": "VS Code",
    "VSCODE_CWD": "VS Code",
    "DATABRICKS_RUNTIME_VERSION": "Databricks",
    "KAGGLE_KERNEL_RUN_TYPE": "Kaggle",
}
MODULES = {"google.colab": "Colab", "marimo": "marimo"}


@pytest.fixture(autouse=True)
def _in_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


CONSOLE: dict[str, Any] = {
    "header": {"username": "ada"},
    "metadata": {},
    "content": {"allow_stdin": True},
}


UNATTENDED = CONSOLE | {"content": {"allow_stdin": False}}
OF_A_CELL, OF_A_PAGE = {"metadata": {"cellId": "x"}}, {"header": {"username": ""}}


@pytest.mark.parametrize(
    ("request_", "environ", "replaces", "draws"),
    [
        pytest.param(CONSOLE, {}, False, False, id="jupyter console"),
        pytest.param(CONSOLE, {"JPY_SESSION_NAME": "a.ipynb"}, True, True, id="nbclassic"),
        pytest.param(CONSOLE | OF_A_CELL, {}, True, True, id="VS Code"),
        pytest.param(CONSOLE | OF_A_PAGE, {}, True, True, id="a page"),
        pytest.param(CONSOLE, {"KAGGLE_KERNEL_RUN_TYPE": "x"}, True, True, id="Kaggle"),
        pytest.param(UNATTENDED, {}, True, False, id="nbclient"),
        pytest.param(UNATTENDED, {"SERVER_SOFTWARE": "voila/0.5.8"}, True, True, id="Voila"),
        pytest.param(UNATTENDED, {"JPY_SESSION_NAME": "a"}, True, True, id="run on a server"),
        pytest.param(UNATTENDED, {"KAGGLE_KERNEL_RUN_TYPE": "x"}, True, True, id="Kaggle's batch"),
        pytest.param(UNATTENDED | OF_A_CELL, {}, True, True, id="VS Code, unattended"),
        pytest.param(UNATTENDED | OF_A_PAGE, {}, True, True, id="a page, unattended"),
        pytest.param({}, {}, True, True, id="no request"),
    ],
)
def test_a_request_shows_what_its_front_end_can_do(
    request_: dict[str, Any], environ: dict[str, str], replaces: bool, draws: bool
) -> None:
    """A terminal replaces no outputs, and a program that runs notebooks draws no widget, which Voila does."""
    assert replaces_outputs(request_, environ) is replaces
    assert draws_widgets(request_, environ) is draws


@pytest.mark.parametrize(("place", "host"), (VARIABLES | MODULES).items())
def test_a_host_is_recognised(monkeypatch: pytest.MonkeyPatch, place: str, host: str) -> None:
    """Its page is its own: no server brings it the wheel's files, and its request is none of a terminal."""
    if place in MODULES:
        monkeypatch.setitem(sys.modules, place, ModuleType(place))
        assert replaces_outputs(CONSOLE, {})
    else:
        monkeypatch.setenv(place, "1")

    assert host_name() == host
    assert not serves_labextensions()


def test_vs_code_is_known_on_a_remote_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """VS Code is known by what it tells every kernel: where the notebook is."""
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/notebook.ipynb"})
    monkeypatch.setattr(front_end, "running_shell", lambda: shell)

    assert host_name() == "VS Code"
    assert not serves_labextensions()


def test_anything_else_is_taken_for_jupyter() -> None:
    """The loader asks for the chart over the comm if the folder is not there after all."""
    assert host_name() == ""
    assert serves_labextensions()


@pytest.mark.parametrize("is_there", [True, False])
def test_whether_a_page_finds_anywidget_is_seen_in_jupyters_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_there: bool
) -> None:
    """VS Code takes its script from the kernel's `share/jupyter/nbextensions`, as the classic notebook."""
    script = tmp_path / "anywidget" / "index.js"
    if is_there:
        script.parent.mkdir()
        script.touch()
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [str(tmp_path)])

    assert finds_anywidget() is is_there


def make_widget(**more: Any) -> widget.MemoryWidget:
    return widget.MemoryWidget(
        scripted_run("training"), "run", on_seen=lambda: None, on_resync=lambda: None, **more
    )


@pytest.mark.parametrize(("served", "name"), [(True, "widget.js"), (False, "chart.js")])
def test_a_widget_carries_the_loader_or_all(
    monkeypatch: pytest.MonkeyPatch, served: bool, name: str
) -> None:
    """A widget has a kilobyte where the page can fetch the rest, and everything where it cannot."""
    monkeypatch.setattr(widget, "serves_labextensions", lambda: served)
    monkeypatch.setattr(widget, "built", lambda file: f"// {file}")
    view = make_widget()

    assert view._esm == f"// {name}"
    view.close()


def test_the_code_is_sent_when_a_page_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be fetched comes over the comm, whole."""
    sent: list[tuple[object, list[bytes]]] = []
    view = make_widget()
    monkeypatch.setattr(widget, "built", lambda file: f"// {file}")
    monkeypatch.setattr(view, "publish", lambda message, buffers: sent.append((message, buffers)))
    view._receive(view, {"kind": "bundle"}, [])

    assert sent == [({"kind": "bundle"}, [b"// chart.js"])]
    view.close()


@pytest.mark.parametrize("data", [0.5, 0, 5000, "1", None, True, float("nan"), [1], {"seconds": 1}])
def test_an_interval_that_a_person_has_set_is_passed_on(data: object) -> None:
    """A number of seconds that a watch may have is passed on, and nothing else, whoever sent it."""
    intervals: list[float] = []
    view = make_widget(on_interval=intervals.append)
    for message in ({"kind": "interval", "seconds": data}, {"kind": "interval"}, [data], data):
        view._receive(view, message, [])

    assert intervals == ([0.5] if data == 0.5 else [])
    view.close()
