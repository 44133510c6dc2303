"""What Jupyter's agents may call."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import get_type_hints

import pytest

from hfmem_widget.cli import tools
from hfmem_widget.display import resolve

Make = Callable[..., Path]


def test_they_are_found_by_the_servers_entry_point() -> None:
    """A list of functions that take text and numbers, each described, and return text."""
    (found,) = entry_points(group="jupyter_server_mcp.tools", name="hfmem")
    assert len(found.load()) == 4
    for name in found.load():
        tool = resolve(name)
        assert tool.__doc__
        assert set(get_type_hints(tool).values()) <= {str, int}


def test_a_recording_is_explained_to_an_agent(recorded: Make) -> None:
    """As data; so it is compared with another."""
    run = str(recorded("leak"))
    explained = json.loads(tools.hfmem_explain(run))
    assert "grows by 48.3 MiB a step" in explained["findings"][1]["title"]
    assert json.loads(tools.hfmem_check(run))["damage"] == []
    compared = json.loads(tools.hfmem_compare(run, run))
    assert [each["is_over"] for each in compared["judged"]] == [False]


@pytest.mark.parametrize("run", ["no such file", "--json", ""])
def test_what_is_not_there_is_said(run: str) -> None:
    """In one sentence; what looks like an option is none."""
    assert tools.hfmem_explain(run).startswith("hfmem: ")


def test_an_agent_may_ask_what_fits() -> None:
    """What cannot be forecast is said as well."""
    assert "hfmem: " in tools.hfmem_fit("no such model", batch=2, length=16)


def test_a_command_that_takes_too_long_is_ended(
    recorded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is said."""
    monkeypatch.setattr(tools, "PATIENCE", 0.001)
    assert "took more than 0 s" in tools.hfmem_check(str(recorded()))
