"""The common parts of all commands: help, errors in one line, exit codes, character sets, closed pipes."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

import hfmem_widget
from hfmem_widget.cli import main as command
from hfmem_widget.cli.main import INTERRUPTED, main
from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.display import resolve
from tests.data import ROOT
from tests.unit.cli.conftest import Hfmem, Make

COMMANDS = ("report", "run", "compare", "export", "check", "watch", "fit", "doctor")


def test_the_installed_script_is_this_one() -> None:
    """`hfmem` runs `main`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]

    assert list(scripts) == ["hfmem"]
    assert resolve(scripts["hfmem"]) is main


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help is ASCII and at most 80 columns wide; `hfmem` alone shows its own."""
    with pytest.raises(SystemExit, match="0"):
        main([*words, "-h"] if words else [])
    printed = capsys.readouterr().out

    assert re.search(rf"^example: hfmem {words[0] if words else ''}", printed, re.MULTILINE)
    assert printed.isascii()
    assert max(map(len, printed.splitlines())) <= 80


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the package's version."""
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert capsys.readouterr().out == f"hfmem_widget {hfmem_widget.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of the command line names each command, and each of its options."""
    with pytest.raises(SystemExit):
        main([name, "-h"])
    options = re.findall(r"--[a-z-]+", capsys.readouterr().out)
    page = (ROOT / "docs/command-line.md").read_text("utf-8")

    assert f"| `hfmem {name} " in page
    assert [one for one in {*options} - {"--help", "--output"} if one not in page] == []


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["shout"], "shout"),
        (["check"], "RUN"),
        (["check", "a", "b\x1b[31m"], "unrecognized"),
        (["export", "a", "--to", "xls"], "parquet"),
        (["compare", "a", "b", "--metric", "speed"], "reserved"),
        (["export", "a", "--to", "perfetto", "--resolution", "fast"], "resolution"),
    ],
)
def test_wrong_words_exit(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr names the mistake, and the exit code is 2."""
    with pytest.raises(SystemExit, match=str(WRONG)):
        main(words)
    printed = capsys.readouterr()

    assert part in printed.err
    assert printed.err.count("\n") == 1
    assert "\x1b" not in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("name", ["missing", ".", "text", "newer", "pipe"])
@pytest.mark.parametrize("words", [["check"], ["watch", "--once"], ["export", "--to", "csv"]])
def test_unreadable_files_exit(words: list[str], name: str, tmp_path: Path, hfmem: Hfmem) -> None:
    """A missing file, a folder, another format, a newer version and a pipe are one line, with exit code 2."""
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "newer").write_text('{"k":"head","format":"hfmem","version":9,"started":5.0}\n')
    os.mkfifo(tmp_path / "pipe")

    code, out, err = hfmem(words[0], tmp_path / name, *words[1:])

    assert (code, out, err.count("\n")) == (WRONG, "", 1)
    assert err.startswith("hfmem: ")


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stdout", [Closed(), None], ids=["a closed pipe", "none at all"])
def test_a_closed_output_is_not_an_error(
    stdout: Closed | None, recorded: Make, monkeypatch: pytest.MonkeyPatch, hfmem: Hfmem
) -> None:
    """`| head` ends a command without a message, and a comparison keeps its exit code."""
    a, b = recorded("training", "a.hfmem.jsonl"), recorded("failed", "b.hfmem.jsonl")
    monkeypatch.setattr(sys, "stdout", stdout)

    assert hfmem("check", a) == (FINE, "", "")
    assert hfmem("compare", a, b, "--fail-over", "2%") == (NO, "", "")


def test_ctrl_c_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with the exit code that shells expect."""
    monkeypatch.setattr(command, "resolve", Mock(side_effect=KeyboardInterrupt))

    assert main(["check", "x"]) == INTERRUPTED


@pytest.mark.parametrize(
    ("locale", "encoding", "is_ascii"),
    [
        ({"LANG": "de_DE.UTF-8"}, "utf-8", False),
        ({"LANG": "C"}, "utf-8", True),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "utf-8", True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "utf-8", False),
        ({}, "utf-8", False),
        ({"LANG": "de_DE"}, "latin-1", True),
    ],
)
def test_a_terminal_gets_characters_that_it_has(
    locale: dict[str, str],
    encoding: str,
    is_ascii: bool,
    recorded: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an ASCII locale, bars and signs are replaced, and never become question marks."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    for name, value in locale.items():
        monkeypatch.setenv(name, value)

    assert main(["watch", str(recorded("training")), "--once"]) == FINE
    text = raw.getvalue().decode(encoding)

    assert ("\u2588" in text) != is_ascii
    assert ("# allocated" in text) == is_ascii
    assert "?" not in text


HFMEM = f"{sys.executable} -m hfmem_widget"
USUAL = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "LC_ALL"}}


def test_commands_in_a_shell(recorded: Make, tmp_path: Path) -> None:
    """A shell gets exit codes, files, one line of error, and no message when a pipe's reader goes away."""
    recorded("training", "a.hfmem.jsonl", "base")
    recorded("steps", "b.hfmem.jsonl.gz", "head")
    script = f"""
        {HFMEM} check a.hfmem.jsonl; echo "code $?"
        {HFMEM} compare a.hfmem.jsonl b.hfmem.jsonl.gz --fail-over 0.1% | true; echo "code ${{PIPESTATUS[0]}}"
        {HFMEM} export a.hfmem.jsonl --to perfetto; echo "code $?"
        {HFMEM} check b.hfmem.jsonl; echo "code $?"
        {HFMEM} report a.hfmem.jsonl --static; echo "code $?"
        {HFMEM} --help | head -1
    """
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path, env=USUAL | {"LANG": "C"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert [line for line in run.stdout.splitlines() if line.startswith("code")] == [
        "code 0", "code 1", "code 0", "code 2", "code 0",
    ]  # fmt: skip
    reason = "cannot be read: No such file or directory"
    assert run.stderr.splitlines() == [f"hfmem: b.hfmem.jsonl {reason}"]
    assert run.stdout.isascii()
    assert run.stdout.splitlines()[-1].startswith("usage: hfmem")
    assert "base" in (tmp_path / "a.html").read_text("utf-8")
    assert json.loads((tmp_path / "a.perfetto.json").read_text("utf-8"))["traceEvents"]
