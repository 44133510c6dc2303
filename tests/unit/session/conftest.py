from __future__ import annotations

from hfmem_widget.session import Device, Recorder, Sample, Series, Timeline

GPU = "cuda:0"
KEY = f"{GPU}/allocated"


def recorder_of(*values: float, timeline: Timeline | None = None) -> Recorder:
    """Return what writes a session of one GPU, of which so much was allocated in each second."""
    recorder = Recorder("run")
    if timeline is not None:
        recorder.session.timeline = timeline
    recorder.adopt([Device(GPU, "NVIDIA H200", total=100.0)], [Series(GPU, "allocated")])
    for at, value in enumerate(values):
        recorder.append(Sample(float(at), (value,)))
    return recorder
