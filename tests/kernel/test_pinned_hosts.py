"""Kernels with the packages that Colab, Kaggle and Databricks pin, of which none is changed.

There need be no torch: here a cell holds plain bytes. `make test-hosts` runs all kernel tests there.

Colab shows a widget of a third party by a script whose address a hook adds to the output's metadata, which a
stand-in plays here. ipykernel keeps hooks for each thread, and Colab registers its own once.
"""

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kernel.drive import KERNEL_PYTHON, ROOT, Kernel, Result, ipykernel_of

HOSTS = ("colab", "kaggle", "databricks")


def python_of(host: str) -> str:
    """Return the Python with a host's packages; skip the test if it was not made."""
    python = ROOT / ".venv-pins" / host / "bin" / "python"
    if not python.exists():
        pytest.skip(f"its environment is not there: make .venv-pins/{host}/.made")
    return str(python)


PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
OURS = """
import importlib.metadata as metadata, json
names = ["hfmem-widget", "anywidget", "psygnal", "nvidia-ml-py"]
found = {each.metadata["Name"]: each for each in metadata.distributions()}
needs = [need for name in names if name in found for need in found[name].requires or ()]
print(json.dumps([{name: each.version for name, each in found.items()}, needs]))
"""
WATCHED = """%%memwatch --label fit --output session
import time
kept = bytearray(50_000_000)
for _ in range(8):
    print('step')
    time.sleep(0.25)
"""


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(host: str) -> Iterator[Kernel]:
    with Kernel(command=ipykernel_of(python_of(host))) as kernel:
        assert kernel.run("%load_ext hfmem_widget").status == "ok"
        yield kernel


@pytest.fixture(scope="module")
def watched(loaded: Kernel) -> Result:
    """Return a cell of two seconds that was watched."""
    return loaded.run(WATCHED)


def test_pip_changes_no_package_of_the_host(host: str) -> None:
    """Its releases are within the bounds of ours, and of what ours bring."""
    done = subprocess.run([python_of(host), "-c", OURS], capture_output=True, text=True, check=True)
    found, needs = json.loads(done.stdout)
    needs += tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = {canonicalize_name(name): version for name, version in found.items()}
    wanted = [need for need in map(Requirement, needs) if "extra" not in str(need.marker or "")]
    names = [(need, versions[canonicalize_name(need.name)]) for need in wanted]
    refused = [str(need) for need, version in names if version not in need.specifier]

    assert wanted
    assert refused == []


def test_a_watched_cell_leaves_card_and_chart(watched: Result) -> None:
    """In the places of the line and of the live chart."""
    shown: dict[str, Any] = {}
    for one in watched.displays:
        shown[one.content["transient"]["display_id"]] = one.content["data"]
    card, chart = shown.values()

    assert watched.status == "ok"
    assert card["text/plain"].startswith('memwatch "fit" · ')
    assert "left behind" in card["text/html"]
    assert {PLOTLY, "text/html", "text/plain"} <= chart.keys()


def test_the_chart_is_live_while_the_cell_runs(watched: Result) -> None:
    """Its widget is shown, and gets messages from the poller's thread between the cell's own prints."""
    kinds = [one.kind for one in watched.messages]
    last_print = len(kinds) - 1 - kinds[::-1].index("stream")
    meanwhile = watched.messages[:last_print]

    assert any(WIDGET in one.content["data"] for one in watched.displays)
    assert sum(one.kind == "comm_msg" and bool(one.buffers) for one in meanwhile) >= 2


def test_a_figure_can_be_made(loaded: Kernel, watched: Result) -> None:
    """Plotly 5 reads no base64, so the figure has arrays."""
    result = loaded.run("figure = session.figure()\nprint(len(figure.data), len(figure.data[0].x))")

    assert watched.status == result.status == "ok"
    assert all(int(count) > 1 for count in result.text().split())


SCRIPT = "https://colab.example/manager.js"
COLAB = f"""
import sys, time, types
package, colab, output, inner = (
    types.ModuleType(name)
    for name in ('google', 'google.colab', 'google.colab.output', 'google.colab.output._widgets')
)
inner._installed_url = None
def _hook(msg):
    content = msg.get('content', {{}})
    if {WIDGET!r} in content.get('data', {{}}):
        manager = {{'colab': {{'custom_widget_manager': {{'url': inner._installed_url}}}}}}
        content['metadata'] = {{**content.get('metadata', {{}}), {WIDGET!r}: manager}}
    return msg
def enable_custom_widget_manager():
    if not inner._installed_url:
        get_ipython().display_pub.register_hook(_hook)
    inner._installed_url = {SCRIPT!r}
def disable_custom_widget_manager():
    if inner._installed_url:
        get_ipython().display_pub.unregister_hook(_hook)
    inner._installed_url = None
output.enable_custom_widget_manager = enable_custom_widget_manager
output.disable_custom_widget_manager = disable_custom_widget_manager
output._widgets, colab.output, package.colab = inner, output, colab
sys.modules |= {{each.__name__: each for each in (package, colab, output, inner)}}
"""
SHORT = "%%memwatch\nkept = bytearray(20_000_000)\ntime.sleep(1.2)"
OWN_WIDGETS = """
import anywidget, ipywidgets
class Own(anywidget.AnyWidget):
    _esm = 'export default { render() {} }'
display(Own())
display(ipywidgets.IntSlider())
"""


@pytest.fixture(scope="module", params=["here", "colab"])
def python(request: pytest.FixtureRequest) -> str:
    """Return the Python of these tests, or one with Colab's packages."""
    return KERNEL_PYTHON if request.param == "here" else python_of(request.param)


@contextmanager
def in_colab(python: str) -> Iterator[Kernel]:
    with Kernel(command=ipykernel_of(python)) as kernel:
        assert kernel.run(COLAB).status == "ok"
        assert kernel.run("%load_ext hfmem_widget").status == "ok"
        yield kernel


@pytest.fixture(scope="module")
def colab(python: str) -> Iterator[Kernel]:
    with in_colab(python) as kernel:
        yield kernel


def scripts(result: Result) -> list[str | None]:
    def script(metadata: Mapping[str, Any]) -> str | None:
        manager: Mapping[str, Any] = metadata.get(WIDGET, {}).get("colab", {})
        url: str | None = manager.get("custom_widget_manager", {}).get("url")
        return url

    shown = [one.content for one in result.displays if WIDGET in one.content["data"]]
    return [script(content["metadata"]) for content in shown]


def test_charts_and_the_users_own_widgets_are_shown(colab: Kernel) -> None:
    """The chart of the second cell, which another thread shows, and widgets of others and of ipywidgets."""
    assert [scripts(colab.run(SHORT)) for _ in range(2)] == [[SCRIPT]] * 2
    assert scripts(colab.run(OWN_WIDGETS)) == [SCRIPT, SCRIPT]


def test_widgets_that_the_user_enabled_stay_enabled(python: str) -> None:
    """The chart is shown by the same script, though the hook is of another thread."""
    with in_colab(python) as kernel:
        kernel.run("output.enable_custom_widget_manager()")

        assert scripts(kernel.run(SHORT)) == [SCRIPT]
        assert scripts(kernel.run(OWN_WIDGETS)) == [SCRIPT, SCRIPT]


def test_widgets_that_the_user_disabled_stay_disabled(colab: Kernel) -> None:
    """A watch enables them once, like anywidget."""
    colab.run(SHORT)
    colab.run("output.disable_custom_widget_manager()")
    colab.run(SHORT)
    installed = colab.run("print(inner._installed_url)").text().strip()
    colab.run("output.enable_custom_widget_manager()")

    assert installed == "None"
