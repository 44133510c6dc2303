"""``hfmem fit``: a forecast in a terminal."""

import json
from pathlib import Path

import pytest

from hfmem_widget.features.fit import api
from hfmem_widget.features.fit.model import Room
from hfmem_widget.text import GIB, MIB
from tests.unit.cli.conftest import Hfmem


@pytest.fixture
def model(bert: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a folder with a small configuration; this machine has 64 GiB free."""
    monkeypatch.setattr(api, "rooms", lambda: ([Room("cpu", "CPU", 64.0 * GIB, 64.0 * GIB)], ""))
    return bert


def test_it_forecasts_a_model(model: str, hfmem: Hfmem) -> None:
    """The forecast is that of `%memfit`."""
    code, out, _ = hfmem("fit", model, "--batch", 2, "--length", 16)

    assert code == 0
    assert "Fits on cpu CPU: needs " in out
    assert "batch 2 \u00d7 16" in out
    assert "optimizer states" in out


def test_its_figures_are_bytes(model: str, hfmem: Hfmem) -> None:
    """The parts add up, and each device has a verdict."""
    code, out, _ = hfmem("fit", model, "--inference", "--length", 16, "--json")
    forecast = json.loads(out)

    assert code == 0
    assert sum(forecast["parts"].values()) == forecast["bytes"] > MIB
    assert [(each["device"], each["fits"]) for each in forecast["devices"]] == [("cpu", True)]
    assert forecast["devices"][0]["available"] == 64 * GIB


def test_a_model_is_too_large(model: str, monkeypatch: pytest.MonkeyPatch, hfmem: Hfmem) -> None:
    """Scripts see an exit code."""
    monkeypatch.setattr(api, "rooms", lambda: ([Room("cpu", "CPU", 64.0 * GIB, 1.0 * MIB)], ""))
    code, out, _ = hfmem("fit", model, "--length", 16)
    assert code == 1
    assert "Does not fit" in out


def test_an_unknown_model_is_one_line(tmp_path: Path, hfmem: Hfmem) -> None:
    """The line is on stderr."""
    code, out, err = hfmem("fit", tmp_path / "none.json")

    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("content", [b"\x80\x04K\x01.", b"", b"PK\x03\x04", b"import torch"])
def test_a_file_of_another_kind_is_called_so(content: bytes, tmp_path: Path, hfmem: Hfmem) -> None:
    """A pickle, an empty file, torch weights and a script are not passed to transformers."""
    path = tmp_path / "it.bin"
    path.write_bytes(content)
    code, _, err = hfmem("fit", path)

    assert code == 2
    assert err.endswith("it.bin' is neither a configuration (JSON) nor a recording\n")
