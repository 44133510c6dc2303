"""Colab's own switch for third-party widgets, played by a stand-in with ipykernel's own hooks.

Colab shows a widget of a third party by a script whose address a hook adds to the output's metadata.
ipykernel keeps hooks for each thread, and Colab registers its own once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kernel.drive import KERNEL_PYTHON, Kernel, Result, ipykernel_of
from tests.kernel.pinned import python_of

WIDGET = "application/vnd.jupyter.widget-view+json"
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
WATCHED = "%%memwatch\nkept = bytearray(20_000_000)\ntime.sleep(1.2)"
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

    return [
        script(one.content["metadata"]) for one in result.displays if WIDGET in one.content["data"]
    ]


def test_the_live_chart_of_every_cell_is_shown(colab: Kernel) -> None:
    """Also that of the second cell, which another thread shows."""
    assert scripts(colab.run(WATCHED)) == [SCRIPT]
    assert scripts(colab.run(WATCHED)) == [SCRIPT]


def test_the_users_own_widgets_are_shown_after_a_watched_cell(colab: Kernel) -> None:
    """Other people's widgets, and those of ipywidgets itself, as they were without a watch."""
    colab.run(WATCHED)

    assert scripts(colab.run(OWN_WIDGETS)) == [SCRIPT, SCRIPT]


def test_widgets_that_the_user_enabled_stay_enabled(python: str) -> None:
    """The chart is shown by the same script, though the hook is of another thread."""
    with in_colab(python) as kernel:
        kernel.run("output.enable_custom_widget_manager()")

        assert scripts(kernel.run(WATCHED)) == [SCRIPT]
        assert scripts(kernel.run(OWN_WIDGETS)) == [SCRIPT, SCRIPT]


def test_widgets_that_the_user_disabled_stay_disabled(colab: Kernel) -> None:
    """A watch enables them once, like anywidget."""
    colab.run(WATCHED)
    colab.run("output.disable_custom_widget_manager()")
    colab.run(WATCHED)
    installed = colab.run("print(inner._installed_url)").text().strip()
    colab.run("output.enable_custom_widget_manager()")

    assert installed == "None"
