"""A day of eight GPUs: how large its recording is, and what it costs to open it.

Ten samples a second, of which some figures change, and two steps a second, through the real recorder and
the real writer. It is opened in a process of its own, whose time and memory are its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import measure
from common.walks import A_SECOND, samples_of

from hfmem_widget.features.record.companion import FileRecording
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import DeviceSteps, Recorder, Sample, StepGroup
from hfmem_widget.text import GIB
from tests.scenes import FakeClock, scripted_run
from tests.scenes.groups import add_group

STEPS_A_SECOND = 2

OPEN = """
import json, re, sys, time
import hfmem_widget, numpy
began = time.process_time()
session = hfmem_widget.open(sys.argv[1])
len(session.timeline), session.steps.table
seconds = time.process_time() - began
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([seconds, peak, session.timeline.samples, session.steps.count]))
"""


def write_day(path: Path, hours: float) -> float:
    """Write a recording, and return the CPU time of the writer in seconds."""
    source = scripted_run("eight gpus")
    samples = [sample.values for sample in samples_of(source)]
    clock = FakeClock(source.started_at)
    recorder = Recorder("pretrain", started_at=source.started_at)
    session = recorder.session
    recorder.adopt(source.devices, source.series)
    first = recorder.append(Sample(0.0, samples[0]))
    cell = recorder.open_span("cell", "pretrain", first)
    train = recorder.open_span("train", "train", first)
    recording: Any = FileRecording(WatchOptions(record=str(path)), clock=clock)
    recording._ticker.start = lambda: None  # noqa: SLF001  (blocks are written by hand)
    recording.begin(None, recorder, cell)
    gpus = [device.key for device in source.devices if device.key.startswith("cuda")]
    spent = 0.0
    for second in range(int(hours * 3600)):
        for tick in range(second * A_SECOND + 1, (second + 1) * A_SECOND + 1):
            recorder.append(Sample(tick / A_SECOND, samples[tick % len(samples)]))
        for step in range(second * STEPS_A_SECOND, (second + 1) * STEPS_A_SECOND):
            add_group(session.steps, _step(train.id, step + 1, gpus))
        recorder.publish()
        clock.advance(1.0)
        began = time.thread_time()
        recording.tick()
        spent += time.thread_time() - began
    recording.end(recorder, cell, None)
    for span in (train, cell):
        recorder.close_span(span.id, session.last_sample, {})
    recorder.stop(clock.now)
    recording.report(session, cell)
    return spent


def _step(parent: int, number: int, gpus: list[str]) -> StepGroup:
    start, tokens = number / STEPS_A_SECOND, 1024.0 * (32 + number * 7919 % 97)
    devices = {}
    for place, gpu in enumerate(gpus):
        kept = 60 * GIB + place * 2**20
        peak = kept + tokens * 2**17
        phases = {"forward": 0.96 * peak // 1, "backward": peak, "optimizer": kept}
        devices[gpu] = DeviceSteps(peak, "exact", peak, number, tokens, kept, phases)
    return StepGroup(
        parent, number, number, start, start + 0.4, 8, tokens / 8, tokens, tokens, devices
    )


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--keep", type=Path, help="a folder in which the recording stays")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.keep or Path(folder)) / "day.hfmem.jsonl"
        written = 0.0
        if not path.exists():
            written = write_day(path, arguments.hours)
        size = path.stat().st_size
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True
        )
        seconds, peak, samples, steps = json.loads(done.stdout)
        rows.append(
            [
                f"{samples / A_SECOND / 3600:.1f}",
                f"{size / 1e6:.0f}",
                f"{size / 1e6 / (samples / A_SECOND / 3600):.1f}",
                f"{written / samples * 1e6:.1f}",
                f"{seconds:.2f}",
                f"{peak / 1e6:.0f}",
                f"{steps:,}",
            ]
        )
    measure.report(
        "A long recording of eight GPUs",
        measure.machine(),
        [
            "hours",
            "MB",
            "MB an hour",
            "CPU µs a sample",
            "CPU s to open",
            "MB of that process",
            "steps",
        ],
        rows,
        raw={},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
