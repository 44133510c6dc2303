"""Recordings for the commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from transformers import BertConfig

from hfmem_widget.cli.main import main
from tests.data import ROOT
from tests.scenes import scripted_run


class Result(NamedTuple):
    code: int
    out: str
    err: str


Make = Callable[..., Path]
Hfmem = Callable[..., Result]
Checked = Callable[..., dict[str, Any]]


@pytest.fixture
def hfmem(capsys: pytest.CaptureFixture[str]) -> Hfmem:
    def run(*words: object) -> Result:
        code = main(list(map(str, words)))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def checked(hfmem: Hfmem) -> Checked:
    """Return a function that returns a command's data, after a check against the documented schema."""

    def run(schema: str, *words: object) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(hfmem(*words).out)
        form = json.loads((ROOT / "docs" / "schemas" / f"{schema}.json").read_text("utf-8"))
        jsonschema.Draft202012Validator(form).validate(data)
        return data

    return run


@pytest.fixture
def bert(tmp_path: Path) -> str:
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture
def recorded(tmp_path: Path) -> Make:
    """Return a function that saves a scripted run as a recording in the test's folder."""

    def save(name: str = "short", file: str = "run.hfmem.jsonl", label: str = "") -> Path:
        session = scripted_run(name)
        session.label = label or session.label
        return session.save(tmp_path / file)

    return save


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the terminal in which the tests run."""
    for name in ("LC_ALL", "LANG", "NO_COLOR", "TERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
