"""A recording in a real kernel: it outlives it, and any way in which it may end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.recording.file import read
from hfmem_widget.recording.reader import NO_END
from hfmem_widget.view.chart.figure import PLOTLY_MIME
from tests.data import ROOT
from tests.kernel.drive import Kernel

LOAD = "%load_ext hfmem_widget\nimport time"


def test_a_cell_is_shown_again_in_another_kernel(bare_command: list[str], tmp_path: Path) -> None:
    """What one kernel recorded, the next one shows: the same card, its chart, and the session.

    Only what to type next is left out: what it would ask is gone.
    """
    path = tmp_path / "run.hfmem.jsonl"
    with Kernel(command=bare_command) as kernel:
        kernel.run(LOAD)
        code = "block = bytearray(64 << 20); time.sleep(0.6)"
        shown = kernel.run(f"%%memwatch --record {path} --label mine\n{code}")
    with Kernel(command=bare_command) as other:
        other.run(LOAD)
        opened = other.run(f"%memwatch open {path} -o back")
        back = other.run("print(back.label, back.running, round(back.spans[0].duration, 1) > 0)")

    outputs = [one.content for one in shown.outputs if one.kind != "stream"]
    cards = [content["data"].get("text/plain", "") for content in outputs]
    card, chart = (each.content["data"] for each in opened.displays)
    before = next(each for each in cards if " peak " in each)
    assert before.partition("\n  next: ")[0] == card["text/plain"]
    assert PLOTLY_MIME in chart
    assert "<svg" in chart["text/html"]
    assert back.text().strip() == "mine False True"


WATCHED = """
import sys, time
import hfmem_widget
with hfmem_widget.watch("killed", quiet=True, record=sys.argv[1]):
    kept = []
    for step in range(10_000):
        with hfmem_widget.span("step"):
            kept.append(bytearray(1 << 16))
            time.sleep(0.02)
        print(step, flush=True)
"""


@pytest.mark.parametrize("steps", [70, 90, 111])
def test_a_process_that_is_killed_leaves_what_it_wrote(steps: int, tmp_path: Path) -> None:
    """Whole lines, readable at once: nothing is torn, and the recording says that it has no end."""
    path = tmp_path / "run.hfmem.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == steps:
                os.kill(process.pid, signal.SIGKILL)
                break
    data = path.read_bytes()

    session = read(path, now=1e12)

    assert data.endswith(b"\n")
    assert 0 < session.steps.count <= steps + 1
    assert session.notes[-1] == NO_END
    assert not any("could not be read" in note for note in session.notes)
    assert hfmem_widget.open(path).running
