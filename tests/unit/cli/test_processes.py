"""The commands as processes: what only a real interpreter, pipe and terminal show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.cli.conftest import Make

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
