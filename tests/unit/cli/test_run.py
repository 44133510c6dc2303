"""`hfmem run`: its process becomes a command, whose ranks are recorded; of a notebook it checks the file."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import WRONG
from hfmem_widget.ranks.directory import read_run
from hfmem_widget.ranks.environment import CLAIMED, PATH, RUN, SITE, SOLO
from tests.unit.cli.conftest import Hfmem, Make

Command = tuple[str, list[str], dict[str, str]]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Return a list that gets the command that the process would have become."""
    calls: list[Command] = []
    monkeypatch.setattr(os, "execvpe", lambda *call: calls.append(call))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in (RUN, CLAIMED, SOLO, PATH):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_the_command_is_run_as_it_is(commands: list[Command], tmp_path: Path, hfmem: Hfmem) -> None:
    """The command gets its own options, in a directory that exists; stderr says how to watch it."""
    arguments = ("-l", "try", "--", "torchrun", "--dir", "-h", "x")
    done = hfmem("run", "--dir", tmp_path / "run", *arguments)
    ((command, words, environ),) = commands

    assert (command, words) == ("torchrun", ["torchrun", "--dir", "-h", "x"])
    assert environ[RUN] == str(tmp_path / "run")
    assert environ[PATH] == SITE
    assert environ[SOLO] == "1"
    assert read_run(tmp_path / "run").label == "try"
    assert done.out == ""
    assert f"hfmem watch {tmp_path}/run" in done.err
    assert f"%memwatch open {tmp_path}/run" in done.err


def test_without_a_directory_there_is_a_new_one(
    commands: list[Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run gets a new directory; within a watched cell it is the cell's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        main(["run", "--", "true"])
    monkeypatch.setenv(RUN, str(tmp_path / "cell"))
    main(["run", "--", "true"])
    runs = [environ[RUN] for _, _, environ in commands]

    assert len(set(runs)) == 3
    assert all(Path(run).parent == tmp_path for run in runs)
    assert runs[2] == str(tmp_path / "cell")


def test_the_users_own_path_stays(
    commands: list[Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's path comes after ours, which is there once; a rank with a run of its own starts it."""
    monkeypatch.setenv(PATH, "/mine")
    monkeypatch.setenv(CLAIMED, "4711")
    main(["run", "--dir", str(tmp_path / "run"), "true"])
    monkeypatch.setenv(PATH, commands[0][2][PATH])
    main(["run", "--dir", str(tmp_path / "run"), "true"])

    assert [environ[PATH] for *_, environ in commands] == [f"{SITE}{os.pathsep}/mine"] * 2
    assert all(CLAIMED not in environ for *_, environ in commands)


def test_an_unknown_command_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that cannot be made is one line, too."""
    (tmp_path / "file").touch()
    before = [signal.getsignal(one) for one in (signal.SIGPIPE, signal.SIGXFSZ)]
    run = ["run", "--dir", str(tmp_path / "run"), "--", "no-such-command-of-ours"]
    codes = [main(run), main(["run", "--dir", str(tmp_path / "file"), "--", "true"])]
    for one, handler in zip((signal.SIGPIPE, signal.SIGXFSZ), before, strict=True):
        signal.signal(one, handler)
    printed = capsys.readouterr().err

    assert codes == [WRONG, WRONG]
    assert "no-such-command-of-ours cannot be started: No such file" in printed
    assert "is not a directory" in printed


def test_its_exit_code_and_its_end_are_the_commands(tmp_path: Path) -> None:
    """The process is the command, so a shell sees no difference."""
    run = [sys.executable, "-m", "hfmem_widget", "run", "--dir", str(tmp_path / "run"), "--"]
    done = subprocess.run([*run, "sh", "-c", "echo out; exit 7"], capture_output=True, check=False)
    killed = subprocess.run([*run, "sh", "-c", "kill -INT $$"], capture_output=True, check=False)
    piped = subprocess.run(
        f"{' '.join(run)} yes 2> /dev/null | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (7, b"out\n")
    assert killed.returncode == -signal.SIGINT
    assert piped.stdout.split() == ["y", str(128 + signal.SIGPIPE)]


def test_a_missing_command_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory that was made for it is removed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv(RUN, raising=False)

    assert main(["run", "--", "no-such-command-anywhere"]) == WRONG
    assert list(tmp_path.iterdir()) == []


CODE = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": 1}
MARKDOWN = {"cell_type": "markdown", "source": "# 1", "metadata": {}}


def notebook(*cells: object, kernel: str = "python3") -> str:
    about = {"kernelspec": {"name": kernel, "display_name": kernel}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": about, "cells": [*cells]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "is not a notebook: Notebook does not appear to be JSON"),
        ("[]", "is not a notebook: "),
        ('{"nbformat": 9, "cells": []}', "is not a notebook: "),
        (notebook({**CODE, "source": "'\ud800'"}), "is not a notebook: "),
        (notebook(), "has no code to run"),
        (notebook(MARKDOWN, {**CODE, "source": " \n"}), "has no code to run"),
        (notebook(CODE, kernel="no-such"), "'no-such' is not installed; choose one with --kernel"),
        (notebook(CODE, kernel="of-r"), "a Python kernel is needed, but 'of-r' is R"),
    ],
)
def test_a_file_that_cannot_be_run_is_an_error(
    text: str, message: str, tmp_path: Path, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is no notebook, has no code, or is for a kernel that is not installed."""
    spec = tmp_path / "kernels" / "of-r" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["R"], "display_name": "R", "language": "R"}), "utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    path = tmp_path / "it.ipynb"
    path.write_text(text, "utf-8")
    done = hfmem("run", path)

    assert (done.code, done.out) == (WRONG, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["there-is-none.ipynb"], "cannot be read: No such file"),
        (["it.ipynb", "more"], "takes no arguments"),
        (["it.ipynb", "--label", "x"], "no --label"),
        (["it.ipynb", "--baseline", "nowhere"], "nowhere has no recordings of a notebook's cells"),
        (["it.ipynb", "--baseline", "."], "has no recordings of a notebook's cells"),
        (["it.ipynb", "--dir", "."], "has recordings already; choose another folder"),
        (["it.ipynb", "--fail-over", "much"], "--fail-over must be a percentage"),
        (
            ["--kernel", "python3", "--json", "--", "true"],
            "only a notebook (.ipynb) takes --kernel, --json",
        ),
    ],
)
def test_a_wrong_folder_is_an_error(
    words: list[str], message: str, recorded: Make, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with other recordings is no baseline, and is not written to."""
    monkeypatch.chdir(recorded().parent)
    done = hfmem("run", *words)

    assert (done.code, done.out) == (WRONG, "")
    assert message in done.err


def test_nbclient_is_named(tmp_path: Path, hfmem: Hfmem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `hfmem run NOTEBOOK` needs nbclient."""
    monkeypatch.setitem(sys.modules, "nbclient", None)
    path = tmp_path / "it.ipynb"
    path.write_text(notebook(CODE), "utf-8")

    assert hfmem("run", path).err.endswith("needs nbclient: pip install nbclient\n")
