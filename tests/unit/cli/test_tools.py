"""`--json` and its schemas, the tools for agents that call it, and the text of `hfmem skill`."""

import json
import re
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import get_type_hints

import pytest

import hfmem_widget
from hfmem_widget.cli import tools
from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE, WRONG
from hfmem_widget.display import resolve
from hfmem_widget.options import WatchOptions, options_of
from tests.scenes import SCRIPTED_RUNS
from tests.unit.cli.conftest import Checked, Make
from tests.unit.cli.test_directories import made
from tests.unit.features.compare.test_by_line import TRAINER, site, with_stacks


def test_they_are_found_by_the_servers_entry_point() -> None:
    """The entry point lists documented functions that take text and numbers, and return text."""
    (entry_point,) = entry_points(group="jupyter_server_mcp.tools", name="hfmem")
    assert len(entry_point.load()) == 4
    for name in entry_point.load():
        tool = resolve(name)
        assert tool.__doc__
        assert set(get_type_hints(tool).values()) <= {str, int}


def test_a_recording_is_explained_to_an_agent(recorded: Make) -> None:
    """The tools return data, also of a comparison."""
    run = str(recorded("leak"))
    explained = json.loads(tools.hfmem_explain(run))
    assert "grows by 48.3 MiB a step" in explained["findings"][1]["title"]
    assert json.loads(tools.hfmem_check(run))["damage"] == []
    compared = json.loads(tools.hfmem_compare(run, run))
    assert [each["is_over"] for each in compared["judged"]] == [False]


@pytest.mark.parametrize("run", ["no such file", "--json", ""])
def test_a_missing_file_is_one_sentence(run: str) -> None:
    """A path that looks like an option is a path."""
    assert tools.hfmem_explain(run).startswith("hfmem: ")


def test_an_agent_may_request_a_forecast() -> None:
    """An impossible forecast is a sentence."""
    assert "hfmem: " in tools.hfmem_fit("no such model", batch=2, length=16)


def test_a_slow_command_is_ended(recorded: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a command that took too long says so."""
    monkeypatch.setattr(tools, "PATIENCE", 0.001)
    assert "took more than 0 s" in tools.hfmem_check(str(recorded()))


TEXT = files(hfmem_widget).joinpath("skill", "SKILL.md").read_text("utf-8")


def test_it_has_the_head_that_agents_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The head has a name, and in at most 1,024 characters when to use it."""
    assert main(["skill"]) == FINE
    printed = capsys.readouterr().out
    assert printed == TEXT
    head = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", printed)
    assert head is not None
    assert head[1] == "hfmem"
    assert len(head[2]) <= 1024


def test_every_command_in_it_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """The skill names only subcommands of `hfmem` and options that exist."""
    commands = re.findall(r"`hfmem ([^`]+)`", TEXT)
    assert commands
    for words in commands:
        command, *rest = words.split(" -- ")[0].split()
        with pytest.raises(SystemExit) as ended:
            main([command, "-h"])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert all(word in printed for word in rest if word.startswith("--"))


def test_every_option_of_a_watch_in_it_exists() -> None:
    """`%%memwatch` takes each option that the skill names."""
    named = set(re.findall(r"%%memwatch --([a-z-]+)", TEXT)) | {"stacks"}
    assert named <= set(options_of(WatchOptions))


def test_it_is_installed_for_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The skill is installed once: an existing file is not overwritten."""
    folder = tmp_path / "skills"
    place = folder / "hfmem" / "SKILL.md"
    assert main(["skill", "--install", str(folder)]) == FINE
    assert place.read_text("utf-8") == TEXT
    place.write_text("mine", "utf-8")
    assert main(["skill", "--install", str(folder)]) == WRONG
    assert place.read_text("utf-8") == "mine"
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_every_recording_has_documented_data(name: str, recorded: Make, checked: Checked) -> None:
    """`explain`, `check` and `watch` have the documented form, whatever was watched."""
    run = recorded(name)
    assert checked("explanation", "explain", run, "--json")["devices"][0]["peak"] > 0
    assert checked("check", "check", run, "--json")["damage"] == []
    checked("now", "watch", run, "--once", "--json")


def test_a_distributed_run_has_the_documented_form(tmp_path: Path, checked: Checked) -> None:
    """The sentence names the worst rank; what memory is for is known of each rank alone."""
    made(tmp_path / "run")
    words = tmp_path / "run", "--json"
    data = checked("explanation", "explain", *words)
    assert "on rank 3" in data["sentence"]
    assert len(data["ranks"]["table"]) == 4
    assert data["devices"][0]["parts"] == []
    checked("check", "check", *words)
    checked("now", "watch", "--once", *words)


def test_two_runs_are_compared_in_the_documented_form(recorded: Make, checked: Checked) -> None:
    """The verdict on the limit is in the data if there is a limit."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("leak", "b.hfmem.jsonl")
    words = "compare", a, b, "--json"
    assert checked("comparison", *words)["judged"] == []
    (judged,) = checked("comparison", *words, "--fail-over", "2%")["judged"]
    assert not judged["is_over"]


def test_a_comparison_by_line_has_the_documented_form(tmp_path: Path, checked: Checked) -> None:
    """The data have the lines of the second run, largest first; without stacks there are none."""
    sizes = {"base": (TRAINER(3), site("a/b.py:4", 1)), "head": (TRAINER(9),)}
    a, b = (with_stacks(name, *of).save(tmp_path / f"{name}.jsonl") for name, of in sizes.items())

    data = checked("comparison", "compare", a, b, "--by", "line", "--json")
    assert [each["changes"] and len(each["changes"]) for each in data["cells"]] == [None, 2]
    assert data["cells"][1]["changes"][0]["name"] == "transformers/trainer.py:2001"
    sentence = "head: 6.00 MiB more, allocated in Trainer._prepare_inputs() of trainer.py"
    assert data["sentences"][0].startswith(sentence)
    data = checked("comparison", "compare", a, b, "--by", "time", "--json")
    assert [each["changes"] for each in data["cells"]] == [None, None]


def test_doctor_has_the_documented_form(checked: Checked) -> None:
    """The data of `hfmem doctor` have the documented form, with the version of the package."""
    assert "hfmem_widget" in checked("doctor", "doctor", "--json")["versions"]


def test_a_forecast_has_the_documented_form(bert: str, checked: Checked) -> None:
    """The data are bytes, by part and by device."""
    data = checked("fit", "fit", bert, "--batch", 2, "--length", 16, "--json")
    assert data["bytes"] == sum(data["parts"].values())
