"""`--json`: the data of each command, and their schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from transformers import BertConfig

from hfmem_widget.cli.main import main
from tests.scenes import SCRIPTED_RUNS
from tests.unit.cli.test_directories import made
from tests.unit.features.compare.test_by_line import TRAINER, site, with_stacks

Make = Callable[..., Path]

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def checked(capsys: pytest.CaptureFixture[str], schema: str, *words: object) -> dict[str, Any]:
    """Return a command's output, after a check against the documented schema."""
    main(list(map(str, words)))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    form = json.loads((SCHEMAS / f"{schema}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(form).validate(found)
    return found


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_every_recording_is_explained_in_the_documented_form(
    name: str, recorded: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by `check` and `watch`, whatever was watched."""
    run = recorded(name)
    found = checked(capsys, "explanation", "explain", run, "--json")
    assert found["devices"][0]["peak"] > 0
    assert checked(capsys, "check", "check", run, "--json")["damage"] == []
    checked(capsys, "now", "watch", run, "--once", "--json")


def test_a_distributed_run_is_explained_in_the_documented_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its ranks, the worst of which is in the sentence; what memory is for is known of each alone."""
    made(tmp_path / "run")
    words = tmp_path / "run", "--json"
    found = checked(capsys, "explanation", "explain", *words)
    assert "on rank 3" in found["sentence"]
    assert len(found["ranks"]["table"]) == 4
    assert found["devices"][0]["parts"] == []
    checked(capsys, "check", "check", *words)
    checked(capsys, "now", "watch", "--once", *words)


def test_two_runs_are_compared_in_the_documented_form(
    recorded: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the verdict on the limit, if there is one."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("leak", "b.hfmem.jsonl")
    words = "compare", a, b, "--json"
    assert checked(capsys, "comparison", *words)["judged"] == []
    (judged,) = checked(capsys, "comparison", *words, "--fail-over", "2%")["judged"]
    assert not judged["is_over"]


def test_a_comparison_by_line_has_the_documented_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of the second run, largest first; without stacks there are none."""
    sizes = {"base": (TRAINER(3), site("a/b.py:4", 1)), "head": (TRAINER(9),)}
    a, b = (with_stacks(name, *of).save(tmp_path / f"{name}.jsonl") for name, of in sizes.items())

    found = checked(capsys, "comparison", "compare", a, b, "--by", "line", "--json")
    assert [each["changes"] and len(each["changes"]) for each in found["cells"]] == [None, 2]
    assert found["cells"][1]["changes"][0]["name"] == "transformers/trainer.py:2001"
    assert found["sentences"][0].startswith(
        "head: 6.00 MiB more, allocated in Trainer._prepare_inputs() of trainer.py"
    )
    found = checked(capsys, "comparison", "compare", a, b, "--by", "time", "--json")
    assert [each["changes"] for each in found["cells"]] == [None, None]


def test_doctor_has_the_documented_form(capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence for each subject."""
    assert "hfmem_widget" in checked(capsys, "doctor", "doctor", "--json")["versions"]


def test_a_forecast_has_the_documented_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes, by part and by device."""
    BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
    ).save_pretrained(tmp_path)
    found = checked(capsys, "fit", "fit", tmp_path, "--batch", 2, "--length", 16, "--json")
    assert found["bytes"] == sum(found["parts"].values())
