"""The commands as processes: what only a real interpreter, pipe and terminal show."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hfmem_widget.cli.output import FINE
from hfmem_widget.recording.file import GrowingFile
from hfmem_widget.recording.lines import Lines
from tests.scenes import scripted_run

Make = Callable[..., Path]

HFMEM = f"{sys.executable} -m hfmem_widget"
USUAL = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "LC_ALL"}}


def test_commands_in_a_shell(recorded: Make, tmp_path: Path) -> None:
    """Exit codes, files, one line of error, and silence where the reader of a pipe goes away."""
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
    assert run.stderr.splitlines() == [
        "hfmem: b.hfmem.jsonl cannot be read: No such file or directory"
    ]
    assert run.stdout.isascii()
    assert run.stdout.splitlines()[-1].startswith("usage: hfmem")
    assert "base" in (tmp_path / "a.html").read_text("utf-8")
    assert json.loads((tmp_path / "a.perfetto.json").read_text("utf-8"))["traceEvents"]


def test_a_run_is_watched_in_a_terminal(tmp_path: Path) -> None:
    """It is drawn while it grows, and the command ends with it."""
    session = scripted_run("training")
    session.started_at = time.time()
    session.stopped_at = session.started_at + 11.6
    lines = Lines(session)
    file = GrowingFile(tmp_path / "run.hfmem.jsonl")
    file.write(lines.head() + b"".join(lines.timeline()))
    command = [sys.executable, "-m", "hfmem_widget", "watch", str(file.path)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs,
        env=USUAL | {"TERM": "xterm", "LANG": "C.UTF-8", "COLUMNS": "80", "LINES": "24"},
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"free" not in seen:
            seen += os.read(ours, 1 << 16)
        file.write(b"".join(lines.changed(everything=True)) + lines.end(session.stopped_at))
        try:
            while data := os.read(ours, 1 << 16):
                seen += data
        except OSError:
            pass  # how a terminal says that it has been closed
    os.close(ours)

    assert process.returncode == FINE
    assert "\u2588".encode() in seen
    assert b"Traceback" not in seen
