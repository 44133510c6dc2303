"""A warning while a cell runs, where CPU and GPU share memory and tasks wait for it."""

import pytest

from hfmem_widget.features.shortage.companion import LITTLE, STALLED, Shortage
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Finding, Recorder, Sample, Series
from hfmem_widget.view.card import card_bundle
from tests.data.unified import GB10_FROZE_WITH, GB10_TOTAL, GIB
from tests.scenes.stage import NO_MONITOR


class Cell:
    """A cell on a machine of GB10's size; the poller's ticks are made by hand."""

    def __init__(self, *, shared: float = GB10_TOTAL) -> None:
        self.recorder = Recorder("cell")
        self.session = self.recorder.session
        gpu = Device("cuda:0", "NVIDIA GB10", "GPU-1", float(GB10_TOTAL), shared=shared)
        metrics = ("cuda:0/allocated", "cuda:0/reserved", "cuda:0/device_used", "cpu/stalled")
        series = (Series(*key.split("/")) for key in metrics)
        self.recorder.adopt((gpu, Device("cpu", "CPU")), (*series,))
        self.span = self.recorder.open_span("cell", "cell", self.sample(64 * GIB, 0.0))
        self.companion = Shortage(WatchOptions())
        self.companion.begin(NO_MONITOR, self.recorder, self.span)

    def sample(self, left: float, stalled: float) -> Sample:
        now = self.session.last_sample.time + 1.0
        values = (30.0 * GIB, 31.0 * GIB, GB10_TOTAL - left, stalled)
        return self.recorder.append(Sample(now, values))

    def tick(self, left: float, stalled: float) -> list[Finding]:
        self.sample(left, stalled)
        self.recorder.publish()
        return self.session.findings


@pytest.mark.parametrize("left", GB10_FROZE_WITH)
def test_it_warns_while_the_cell_runs(left: int) -> None:
    """It warns once, with as little left as GB10s had before they froze, and tasks that wait."""
    cell = Cell()
    cell.tick(left, 14.0)
    (finding,) = cell.tick(left / 2, 40.0)

    assert finding.title.startswith(
        "This machine ran short of memory: tasks waited for it 14 % of 10 s"
    )
    assert "of 121.6 GiB left" in finding.title
    assert finding.severity == "warn"


@pytest.mark.parametrize(
    ("stalled", "share", "warns"),
    [
        (STALLED, LITTLE - 0.001, True),
        (STALLED - 0.01, LITTLE - 0.001, False),
        (STALLED, LITTLE + 0.001, False),
        (float("nan"), 0.05, False),
    ],
)
def test_it_needs_waiting_tasks_and_little_left(stalled: float, share: float, warns: bool) -> None:
    """One of them alone has other causes; a GPU with memory of its own has no such finding."""
    assert bool(Cell().tick(share * GB10_TOTAL, stalled)) is warns
    assert not Cell(shared=0.0).tick(share * GB10_TOTAL, stalled)


def test_the_card_has_it() -> None:
    """The finding is on the card when the cell has ended."""
    cell = Cell()
    cell.tick(4 * GIB, 20.0)
    cell.companion.end(cell.recorder, cell.span, None)
    cell.recorder.close_span(cell.span.id, cell.sample(4 * GIB, 20.0), {}, "done")
    html = card_bundle(cell.session, cell.span, with_chart=True)["text/html"]

    assert "ran short of memory" in html
    assert not cell.recorder.subscribers
