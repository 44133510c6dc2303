"""`--json`: the data of each command, and their schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenes import SCRIPTED_RUNS
from tests.unit.cli.conftest import Checked, Make
from tests.unit.cli.test_directories import made
from tests.unit.features.compare.test_by_line import TRAINER, site, with_stacks


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_every_recording_is_explained_in_the_documented_form(
    name: str, recorded: Make, checked: Checked
) -> None:
    """Also by `check` and `watch`, whatever was watched."""
    run = recorded(name)
    found = checked("explanation", "explain", run, "--json")
    assert found["devices"][0]["peak"] > 0
    assert checked("check", "check", run, "--json")["damage"] == []
    checked("now", "watch", run, "--once", "--json")


def test_a_distributed_run_is_explained_in_the_documented_form(
    tmp_path: Path, checked: Checked
) -> None:
    """With its ranks, the worst of which is in the sentence."""
    made(tmp_path / "run")
    words = tmp_path / "run", "--json"
    found = checked("explanation", "explain", *words)
    assert "on rank 3" in found["sentence"]
    assert len(found["ranks"]["table"]) == 4
    checked("check", "check", *words)
    checked("now", "watch", "--once", *words)


def test_two_runs_are_compared_in_the_documented_form(recorded: Make, checked: Checked) -> None:
    """With the verdict on the limit, if there is one."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("leak", "b.hfmem.jsonl")
    words = "compare", a, b, "--json"
    assert checked("comparison", *words)["judged"] == []
    (judged,) = checked("comparison", *words, "--fail-over", "2%")["judged"]
    assert not judged["is_over"]


def test_a_comparison_by_line_has_the_documented_form(tmp_path: Path, checked: Checked) -> None:
    """The lines of the second run, largest first; without stacks there are none."""
    sizes = {"base": (TRAINER(3), site("a/b.py:4", 1)), "head": (TRAINER(9),)}
    a, b = (with_stacks(name, *of).save(tmp_path / f"{name}.jsonl") for name, of in sizes.items())

    found = checked("comparison", "compare", a, b, "--by", "line", "--json")
    assert [each["changes"] and len(each["changes"]) for each in found["cells"]] == [None, 2]
    assert found["cells"][1]["changes"][0]["name"] == "transformers/trainer.py:2001"
    assert found["sentences"][0].startswith(
        "head: 6.00 MiB more, allocated in Trainer._prepare_inputs() of trainer.py"
    )
    found = checked("comparison", "compare", a, b, "--by", "time", "--json")
    assert [each["changes"] for each in found["cells"]] == [None, None]


def test_doctor_has_the_documented_form(checked: Checked) -> None:
    """A sentence for each subject."""
    assert "hfmem_widget" in checked("doctor", "doctor", "--json")["versions"]


def test_a_forecast_has_the_documented_form(bert: str, checked: Checked) -> None:
    """The data are bytes, by part and by device."""
    found = checked("fit", "fit", bert, "--batch", 2, "--length", 16, "--json")
    assert found["bytes"] == sum(found["parts"].values())
