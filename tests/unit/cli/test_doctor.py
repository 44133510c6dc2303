"""``hfmem doctor`` in a terminal."""

from __future__ import annotations

import json

import pytest

import hfmem_widget
from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE


def test_it_prints_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each subject, or one object of JSON."""
    assert main(["doctor"]) == FINE
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == FINE
    found = json.loads(capsys.readouterr().out)

    assert text == f"{hfmem_widget.doctor()!r}\n"
    assert found == hfmem_widget.doctor()
