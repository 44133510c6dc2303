"""``hfmem fit``: a forecast in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertConfig

from hfmem_widget.cli.main import main
from hfmem_widget.features.fit import api
from hfmem_widget.features.fit.model import Room
from hfmem_widget.text import GIB, MIB


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a folder with a small configuration; this machine has 64 GiB free."""
    free = Room("cpu", "CPU", 64.0 * GIB, 64.0 * GIB)
    monkeypatch.setattr(api, "rooms", lambda: ([free], ""))
    config = BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
    )
    config.save_pretrained(tmp_path)
    return str(tmp_path)


def test_it_says_what_a_model_needs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As `%memfit` does."""
    assert main(["fit", model, "--batch", "2", "--length", "16"]) == 0
    said = capsys.readouterr().out

    assert "Fits on cpu CPU: needs " in said
    assert "batch 2 \u00d7 16" in said
    assert "optimizer states" in said


def test_its_figures_are_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The parts add up, and each device has its answer."""
    assert main(["fit", model, "--inference", "--length", "16", "--json"]) == 0
    forecast = json.loads(capsys.readouterr().out)

    assert sum(forecast["parts"].values()) == forecast["bytes"] > MIB
    assert [(each["device"], each["fits"]) for each in forecast["devices"]] == [("cpu", True)]
    assert forecast["devices"][0]["available"] == 64 * GIB


def test_what_does_not_fit_is_an_exit_code(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For scripts."""
    monkeypatch.setattr(api, "rooms", lambda: ([Room("cpu", "CPU", 64.0 * GIB, 1.0 * MIB)], ""))
    assert main(["fit", model, "--length", "16"]) == 1
    assert "Does not fit" in capsys.readouterr().out


def test_what_is_no_model_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr."""
    assert main(["fit", str(tmp_path / "none.json")]) == 2
    said = capsys.readouterr()

    assert said.out == ""
    assert said.err.count("\n") == 1
