"""`hfmem watch`: it follows a recording until it ends."""

import io
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from hfmem_widget.cli.output import FINE, NO, WRONG
from hfmem_widget.cli.watch import PACE, watch
from tests.unit.cli.conftest import Hfmem, Make, Result

Pause = Callable[[float], None]


class Growing:
    """A recording that gets more lines whenever its watcher pauses."""

    def __init__(self, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        lines = recording.read_bytes().splitlines(keepends=True)
        size = -(-len(lines) // 3)
        self.path = recording.with_name("growing.hfmem.jsonl")
        self.pauses: list[float] = []
        self._parts = [b"".join(lines[at : at + size]) for at in range(0, len(lines), size)]
        self.path.write_bytes(b"")

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        with self.path.open("ab") as file:
            file.write(self._parts.pop(0))

    def watch(self, pause: Pause | None = None, path: Path | None = None, **flags: bool) -> Result:
        args = Namespace(**{"RUN": str(path or self.path), "once": False, "json": False, **flags})
        return Result(watch(args, pause or self.pause), *self._capsys.readouterr())


@pytest.fixture
def growing(
    recorded: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Growing:
    path = recorded("training")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    return Growing(path, capsys)


def test_a_run_is_followed_until_it_ends(growing: Growing) -> None:
    """New data are read once a second, with a line for each; the last one has the outcome."""
    code, out, _ = growing.watch()
    lines = out.splitlines()

    assert (code, len(lines)) == (FINE, 3)
    assert ["done" in line for line in lines] == [False, False, True]
    assert lines[-1] == "11.6 s · done · step 31 · cuda:0 3.75 GiB (peak 6.99 GiB) of 140.4 GiB"
    assert growing.pauses == [PACE] * 3


def test_json_has_a_line_for_each_second(growing: Growing) -> None:
    """Each is an object with figures in bytes."""
    lines = [json.loads(line) for line in growing.watch(json=True).out.splitlines()]

    assert [line["state"] for line in lines] == ["running", "running", "done"]
    assert lines[-1]["devices"][0]["total"] == 150754820096
    assert lines[-1]["step"] == 31


def test_a_peak_of_earlier_steps_stays(growing: Growing) -> None:
    """The peak never falls."""
    lines = [json.loads(line) for line in growing.watch(json=True).out.splitlines()]
    peaks = [line["devices"][0]["peak"] for line in lines]

    assert peaks == sorted(peaks)


@pytest.mark.parametrize(("seconds", "is_shown"), [(3.0, False), (8.0, True)])
def test_silence_is_shown(
    seconds: float, is_shown: bool, growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording has a sign of life each second; if several are missing, the screen says so."""
    growing.pause(0)
    lines = [json.loads(line) for line in growing.path.read_bytes().splitlines()]
    newest = max(line["w"] for line in lines if line["k"] == "rows")
    monkeypatch.setattr(time, "time", lambda: newest + seconds)

    assert ("running, silent for 8 s" in growing.watch(once=True).out) == is_shown


def test_once_shows_the_present_state(growing: Growing) -> None:
    """`--once` does not wait, even if nothing was written yet."""
    empty = growing.watch(once=True)
    growing.pause(0)
    partial = growing.watch(once=True)

    assert (empty.code, partial.code) == (FINE, FINE)
    assert "is empty so far" in empty.out
    assert "running" in partial.out.splitlines()[0]
    assert growing.pauses == [0]


def test_a_broken_off_run_exits_with_1(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a sign of life for long is over, and the exit code is 1."""
    growing.pause(0)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    code, out, _ = growing.watch()

    assert code == NO
    assert "broken off" in out


def test_ctrl_c_ends_it(growing: Growing) -> None:
    """There is no traceback, and the exit code is 0, since this is the way to leave."""
    growing.pause(0)
    code, _, err = growing.watch(Mock(side_effect=KeyboardInterrupt))
    assert (code, err) == (FINE, "")


@pytest.mark.parametrize("event", ["removed", "replaced", "cut"])
def test_a_replaced_file_ends_the_watch(event: str, growing: Growing) -> None:
    """A recording that is removed, replaced or cut meanwhile ends it with a sentence."""
    growing.pause(0)

    def change(_seconds: float) -> None:
        if event != "cut":
            growing.path.rename(growing.path.with_name("moved"))
        if event != "removed":
            growing.path.write_bytes(b"")

    with pytest.raises(Exception, match="was removed, replaced or cut"):
        growing.watch(change)


def test_a_recording_may_be_compressed_at_its_end(growing: Growing) -> None:
    """Until then its lines are beside it; the last one is read though that file is gone."""
    compressed = growing.path.with_name("growing.hfmem.jsonl.gz")

    def pause(seconds: float) -> None:
        while growing._parts:
            growing.pause(seconds)
        growing.path.unlink()
        compressed.write_bytes(b"")

    assert growing.watch(pause, compressed).code == FINE


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_screen_redraws(no_color: str, growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen is redrawn each second from the top left, and NO_COLOR is obeyed."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")

    assert growing.watch().code == FINE
    text = terminal.getvalue()

    assert text.count("\x1b[H") == 3
    assert ("\x1b[1m" in text) == (not no_color)
    assert {code.lstrip("0123456789")[0] for code in text.split("\x1b[")[1:]} <= set("HKJm")


def test_a_recording_that_has_ended_is_shown_once(recorded: Make, hfmem: Hfmem) -> None:
    """A compressed recording that has ended is one line."""
    code, out, _ = hfmem("watch", recorded("short", "run.hfmem.jsonl.gz"))
    assert (code, out.count("\n")) == (FINE, 1)


def test_another_file_is_refused_at_once(tmp_path: Path, hfmem: Hfmem) -> None:
    """A file with other lines is not a recording."""
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")

    code, _, err = hfmem("watch", path)
    assert code == WRONG
    assert "not a recording" in err
