"""`hfmem skill`: what a coding agent is told."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE, WRONG
from hfmem_widget.options import WatchOptions, options_of

TEXT = files(hfmem_widget).joinpath("skill", "SKILL.md").read_text("utf-8")


def test_it_has_the_head_that_agents_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A name, and when to use it, in at most 1,024 characters."""
    assert main(["skill"]) == FINE
    said = capsys.readouterr().out
    assert said == TEXT
    head = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", said)
    assert head is not None
    assert head[1] == "hfmem"
    assert len(head[2]) <= 1024


def test_every_command_in_it_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """Each subcommand of `hfmem` is one, and each of their options."""
    named = re.findall(r"`hfmem ([^`]+)`", TEXT)
    assert named
    for words in named:
        command, *rest = words.split(" -- ")[0].split()
        with pytest.raises(SystemExit) as ended:
            main([command, "-h"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(word in said for word in rest if word.startswith("--"))


def test_every_option_of_a_watch_in_it_exists() -> None:
    """And is one that `%%memwatch` takes."""
    named = set(re.findall(r"%%memwatch --([a-z-]+)", TEXT)) | {"stacks"}
    assert named <= set(options_of(WatchOptions))


def test_it_is_written_where_agents_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once: what is there already is not overwritten."""
    folder = tmp_path / "skills"
    place = folder / "hfmem" / "SKILL.md"
    assert main(["skill", "--install", str(folder)]) == FINE
    assert place.read_text("utf-8") == TEXT
    place.write_text("mine", "utf-8")
    assert main(["skill", "--install", str(folder)]) == WRONG
    assert place.read_text("utf-8") == "mine"
    assert "already exists" in capsys.readouterr().err
