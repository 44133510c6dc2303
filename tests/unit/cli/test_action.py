"""`action.yml`: its report on a pull request, played as GitHub would run it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # transformers brings it

from hfmem_widget.session import HELD
from hfmem_widget.text import GIB
from tests.scenes.stage import Stage
from tests.unit.features.compare.test_by_line import site, with_stacks

ACTION = Path(__file__).parents[3] / "action.yml"

GH = """#!/bin/sh
case "$*" in *--paginate*) cat "$COMMENT_ID" 2> /dev/null; exit 0;; esac
echo "$*" >> "$CALLS"
"""
"""Stands in for GitHub's command: lists the comment that there is, and notes what else is asked."""


@dataclass
class Pull:
    """A pull request in a repository of its own, with runs and their baselines."""

    folder: Path
    inputs: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, peak: float, *, folder: str = "runs") -> None:
        stage = Stage(name, gpus=1)
        stage.find(["cuda:0"], dict.fromkeys(HELD, 0.0))
        with stage.span("cell", name):
            stage.hold({"cuda:0": peak}, 1.0)
            stage.hold({"cuda:0": GIB}, 1.0)
        path = self.folder / folder / f"{name}.hfmem.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        stage.finish().save(path)

    def commit(self, message: str) -> None:
        git = "git", "-c", "user.name=me", "-c", "user.email=me@example.org"
        for words in (["init", "-q"], ["add", "baseline"], ["commit", "-q", "-m", message]):
            subprocess.run([*git, *words], cwd=self.folder, check=True)

    def play(self) -> int:
        action = yaml.safe_load(ACTION.read_text())
        inputs = {name: each.get("default", "") for name, each in action["inputs"].items()}
        inputs |= {"baseline": "baseline", "runs": "runs"} | self.inputs
        event = json.loads((self.folder / "event.json").read_text())
        context = {f"inputs.{name}": value for name, value in inputs.items()}
        context["github.token"] = "secret"
        context["github.event.pull_request.number"] = str(event["pull_request"]["number"])
        codes = []
        for step in action["runs"]["steps"]:
            step_env = {name: self._value(text, context) for name, text in step["env"].items()}
            env = os.environ | self._github() | step_env
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                command, cwd=self.folder, env=env, check=False, capture_output=True
            )
            codes.append(done.returncode)
        assert codes[1:] == [0]
        return codes[0]

    @property
    def report(self) -> str:
        return (self.folder / "summary.md").read_text()

    @property
    def calls(self) -> list[str]:
        """The calls of GitHub's command, without that for the list of comments."""
        return (self.folder / "calls").read_text().splitlines()

    def _value(self, text: Any, context: dict[str, str]) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda match: context[match[1]], str(text))

    def _github(self) -> dict[str, str]:
        files = {"GITHUB_STEP_SUMMARY": "summary.md", "CALLS": "calls", "COMMENT_ID": "comment"}
        paths = {name: str(self.folder / file) for name, file in files.items()}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        settings = {"PATH": path, "RUNNER_TEMP": str(self.folder), "GITHUB_REPOSITORY": "me/mine"}
        return paths | settings


@pytest.fixture
def pull(tmp_path: Path) -> Pull:
    """Return a pull request with one run that takes 8 GiB, and a baseline of as much."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    hfmem = f'#!/bin/sh\nexec "{sys.executable}" -m hfmem_widget "$@"\n'
    for name, text in (("gh", GH), ("hfmem", hfmem)):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
    pull = Pull(tmp_path)
    pull.run("tuned", 8 * GIB)
    pull.run("tuned", 8 * GIB, folder="baseline")
    return pull


def test_as_much_as_before_is_green(pull: Pull) -> None:
    """The report has the table, and the pull request gets it as a comment."""
    assert pull.play() == 0
    assert "within the limit of 2 %" in pull.report
    assert "mermaid" not in pull.report
    assert pull.calls == [
        f"api repos/me/mine/issues/7/comments --field body=@{pull.folder}/hfmem.md"
    ]


def test_the_trend_of_a_committed_baseline_is_drawn(pull: Pull) -> None:
    """A point for each commit of the baseline, and one for this run; without commits no chart is drawn."""
    for size in (6, 7):
        pull.run("tuned", size * GIB, folder="baseline")
        pull.commit(f"{size} GiB")
    pull.play()

    (chart,) = re.findall(r"```mermaid\n(.*?)```", pull.report, re.DOTALL)
    assert re.search(r'x-axis \["(\w+)","(\w+)","this"\]', chart) is not None
    assert "line [6.0,7.0,8.0]" in chart


def test_a_rise_of_3_percent_is_red(pull: Pull) -> None:
    """The job fails for the run that takes more, whatever the other run takes."""
    pull.run("a", GIB)
    pull.run("a", GIB, folder="baseline")
    pull.run("tuned", 1.03 * 8 * GIB)

    assert pull.play() == 1
    assert "8.00 GiB in baseline, 8.24 GiB in runs (+245.8 MiB, +3.0 %), more than" in pull.report
    assert pull.report.count("within the limit") == 1
    assert pull.report.index("#### `a`\n") < pull.report.index("#### `tuned`\n")


def test_the_line_that_takes_more_is_named(pull: Pull) -> None:
    """A line is named if the run and its baseline have stacks."""
    for folder, size in (("baseline", 1), ("runs", 2000)):
        session = with_stacks("tuned", site("train.py:7", 8, "step"), site("train.py:9", size))
        path = pull.folder / folder / "tuned.hfmem.jsonl"
        path.unlink()
        session.save(path)
    pull.play()

    assert "1.95 GiB more, allocated in f() of train.py" in pull.report
    assert "| train.py:9<br>f<br>y = g() | +1.95 GiB |" in pull.report


def allow_more(pull: Pull) -> None:
    pull.inputs["fail-over"] = "300MiB"
    pull.run("tuned", 1.03 * 8 * GIB)


def damage(pull: Pull) -> None:
    (pull.folder / "runs" / "tuned.hfmem.jsonl").write_text("no recording")


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (allow_more, 0, "within the limit of 300.0 MiB"),
        (lambda pull: pull.run("new", 9 * GIB), 0, "`new`\n\nThere is no baseline for this run."),
        (damage, 1, "It could not be compared"),
    ],
    ids=["a higher limit", "a new run", "an unreadable recording"],
)
def test_reports_say_why(pull: Pull, change: Callable[[Pull], None], code: int, text: str) -> None:
    """A new run fails nothing; a recording that was not compared fails the job."""
    change(pull)
    assert pull.play() == code
    assert text in pull.report


def test_a_second_push_edits_the_comment(pull: Pull) -> None:
    """The action finds its own comment by the first line, and writes no second one."""
    (pull.folder / "comment").write_text("41\n")
    pull.play()
    [call] = pull.calls
    assert call.startswith("api --method PATCH repos/me/mine/issues/comments/41 ")
    assert pull.report.startswith("<!-- hfmem -->")


@pytest.mark.parametrize("runs", ["none", "empty $(touch hacked)"])
def test_without_recordings_it_is_red(pull: Pull, runs: str) -> None:
    """A job that lost its recordings must not look like a comparison; file names are not run as commands."""
    pull.inputs["runs"] = runs
    assert pull.play() == 1
    assert "There are no recordings" in pull.report
    assert not (pull.folder / "hacked").exists()
