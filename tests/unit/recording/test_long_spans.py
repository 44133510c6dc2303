"""Spans of a step are in its table, and written by themselves only where one is open for long."""

from __future__ import annotations

from hfmem_widget.recording.lines import LONG, Lines
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Recorder, Sample, Span


def test_a_step_that_is_open_for_long_is_written_and_so_is_its_end() -> None:
    """A reader sees in which step a process hangs, and no longer once it has gone on."""
    recorder = Recorder("run", started_at=0.0)
    lines, reader = Lines(recorder.session), StreamReader()
    reader.feed(lines.head())

    def spans() -> tuple[Span, ...]:
        reader.feed(b"".join([*lines.samples([], 0.0), *lines.changed()]))
        return reader.session().spans

    step = recorder.open_span("step", "step 1", recorder.append(Sample(1.0, ())))
    recorder.append(Sample(0.9 + LONG, ()))
    assert spans() == ()

    recorder.append(Sample(1.0 + LONG, ()))
    assert [(span.kind, span.stop) for span in spans()] == [("step", None)]

    recorder.close_span(step.id, recorder.append(Sample(9.0, ())), {})
    assert [(span.kind, span.stop) for span in spans()] == [("step", 9.0)]

    quick = recorder.open_span("step", "step 2", recorder.append(Sample(9.1, ())))
    recorder.close_span(quick.id, recorder.append(Sample(9.2, ())), {})
    assert len(spans()) == 1
