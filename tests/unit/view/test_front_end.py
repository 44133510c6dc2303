"""Which front ends show what is sent to replace an output."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.view.front_end import replaces_outputs

CONSOLE: dict[str, Any] = {
    "header": {"username": "ada"},
    "metadata": {},
    "content": {"allow_stdin": True},
}


@pytest.mark.parametrize(
    ("request_", "environ", "replaces"),
    [
        pytest.param(CONSOLE, {}, False, id="jupyter console"),
        pytest.param(CONSOLE, {"JPY_SESSION_NAME": "a.ipynb"}, True, id="nbclassic"),
        pytest.param(CONSOLE | {"metadata": {"cellId": "x"}}, {}, True, id="VS Code"),
        pytest.param(CONSOLE | {"header": {"username": ""}}, {}, True, id="a page"),
        pytest.param(CONSOLE | {"content": {"allow_stdin": False}}, {}, True, id="nbclient"),
        pytest.param({}, {}, True, id="no request"),
    ],
)
def test_a_terminal_is_known_by_what_its_request_does_not_say(
    request_: dict[str, Any], environ: dict[str, str], replaces: bool
) -> None:
    """It has no cells, and can be asked for input."""
    assert replaces_outputs(request_, environ) is replaces
