"""A record has what a span came to, and no more than its bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hfmem_widget.analysis.record import MOST_POINTS, MOST_STEP_ROWS, DeviceRecord, record_of, whole
from hfmem_widget.errors import OptionError
from hfmem_widget.session import Peak, Sample, Session, Span
from hfmem_widget.session.steps import StepGroup
from hfmem_widget.text import GIB
from tests.scenes import SCRIPTED_RUNS, scripted_run, shared_run
from tests.scenes.groups import add_group
from tests.scenes.stage import Stage


def device_of(session: Session) -> DeviceRecord:
    return record_of(session, whole(session)).devices[0]


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_a_record_stays_within_its_bounds(name: str) -> None:
    """However long the run, curve and steps are short, and nothing of the peak is lost in them."""
    session = shared_run(name)
    devices = record_of(session, whole(session)).devices
    assert devices
    for device in devices:
        assert device.curve.shape[1] <= MOST_POINTS
        assert len(device.steps) <= MOST_STEP_ROWS
        if len(device.steps):
            highest = max(group.devices[device.key].peak for group in session.steps)
            assert device.steps[:, 3].max() == highest


def test_the_figures_are_those_of_the_card() -> None:
    """Peak, what is left, reserved and headroom are what the card says of the same cell."""
    device = device_of(shared_run("training"))

    assert (device.peak.certainty, round(device.peak.value / GIB, 2)) == ("exact", 6.99)
    assert round(device.left_behind / GIB, 2) == 3.75
    assert round(device.reserved_peak / GIB, 2) == 7.41
    assert round(device.headroom / GIB, 1) == 131.8


def test_the_parts_at_the_peak_add_up_to_it() -> None:
    """What is kept of the parts is the whole peak, where any were found."""
    device = device_of(shared_run("steps"))
    names = ("weights", "buffers", "optimizer", "gradients", "unattributed", "activations")

    assert device.at_peak["weights"] > GIB
    parts = [device.at_peak.get(name, 0.0) for name in names]
    assert sum(parts) == pytest.approx(device.peak.value)
    assert device.at_end["optimizer"] == pytest.approx(device.at_peak["optimizer"])


def test_where_nothing_was_found_there_are_no_parts() -> None:
    """Memory of unknown owners is in no part."""
    device = device_of(shared_run("two gpus"))
    assert (device.at_peak, device.at_end) == ({}, {})


def test_a_fault_costs_the_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record is there without them, and a line says why."""
    monkeypatch.setattr("hfmem_widget.analysis.anatomy.peak_of", lambda *_: 1 / 0)
    device = device_of(shared_run("steps"))

    assert device.at_peak == {}
    assert device.at_end
    assert device.peak.value > 0
    assert "the breakdown was lost (ZeroDivisionError" in capsys.readouterr().err


def test_a_cell_among_others_has_its_own_parts() -> None:
    """In a session of many cells the parts are those of the highest sample of this one."""
    session = scripted_run("steps")
    session.stopped_at = None
    first = session.spans[0]
    (alone,) = record_of(session, first).devices[:1]
    session._spans.add(Span(9999, "cell", "later", 100.0, session.last_sample))

    record = record_of(session, first).devices[0]
    assert record.at_peak["weights"] == alone.at_peak["weights"]
    assert record.peak == alone.peak


def test_the_pace_leaves_the_first_step_out() -> None:
    """Samples and tokens a second are those of all steps but the first, within steps."""
    session = scripted_run("steps")
    groups = list(session.steps)[1:]
    seconds = sum(one.stop - one.start for one in groups)
    pace = record_of(session, whole(session)).pace

    assert pace.steps == 60
    assert pace.steps_per_second == pytest.approx(59 / seconds)
    assert pace.samples_per_second == pytest.approx(8 * 59 / seconds)
    assert pace.tokens_per_second == pytest.approx(sum(one.tokens for one in groups) / seconds)


def test_the_steps_of_a_later_cell_are_not_this_ones() -> None:
    """In a session of many cells a record has the steps of its own span, and their pace."""
    session = scripted_run("steps")
    evaluation = next(span for span in session.spans if span.kind == "evaluate")
    record = record_of(session, replace(session.spans[0], stop=evaluation.start))

    assert record.devices[0].steps[:, 1].max() == 20
    assert record.devices[0].curve[0].max() <= np.float32(evaluation.start)


def test_the_pace_of_several_cells_is_that_of_all() -> None:
    """Samples and seconds are both those of all of them."""
    stage = Stage("every cell", gpus=1)
    for cell in range(3):
        with stage.span("cell", "cell"), stage.span("train", "train"):
            for step in range(10):
                with stage.span("step", "step") as span:
                    stage.recorder.count(span.id, {"step": 10 * cell + step + 1, "samples": 8})
                    stage.hold({"cuda:0": GIB}, 1.0)
    session = stage.finish()
    pace = record_of(session, whole(session)).pace

    assert pace.steps == 30
    assert pace.samples_per_second == pytest.approx(8.0)


def test_without_steps_there_is_no_pace() -> None:
    """A cell that trained nothing has no samples a second, not zero of them."""
    session = scripted_run("short")
    pace = record_of(session, whole(session)).pace
    assert pace.steps == 0
    assert math.isnan(pace.samples_per_second)


def test_the_worst_step_is_named() -> None:
    """The worst step is the one with the highest peak, in the row that has it."""
    steps = device_of(shared_run("steps")).steps
    assert steps[steps[:, 3].argmax(), 4] == 37


def test_a_second_training_counts_on() -> None:
    """Step numbers that begin anew in one cell do not fold back onto the first ones."""
    session = scripted_run("steps")
    for group in list(session.steps)[:20]:
        fields = {name: getattr(group, name) for name in StepGroup.__slots__}
        add_group(session.steps, StepGroup(**fields))

    assert device_of(session).steps[:, 0].tolist() == list(range(1, 81))


def test_a_running_session_is_not_compared() -> None:
    """A running session has no final figures."""
    with pytest.raises(OptionError, match="still running"):
        whole(Session("now"))


def test_a_session_of_several_spans_is_taken_together() -> None:
    """The whole is from the first outermost span to the last, with the highest of their peaks."""
    session = scripted_run("short")
    key = "cuda:0/allocated"
    values = tuple(3 * value for value in session.last_sample.values)
    first, last = Sample(5.0, values), Sample(6.0, values)
    peaks = {key: Peak(session.value(last, key), "sampled")}
    session._spans.add(Span(9999, "cell", "later", 5.0, first, 6.0, last, peaks))
    span = whole(session)

    assert (span.start, span.stop) == (0.0, 6.0)
    assert span.peaks[key].value == max(one.peaks[key].value for one in session.spans)


def test_a_hostile_label_is_plain_and_short() -> None:
    """Whatever a label is, a record's is one line of at most 120 characters."""
    session = scripted_run("short")
    record = record_of(session, whole(session), label="\u202e<b>\n" + 10_000 * "x")

    assert len(record.label) == 120
    assert record.label.startswith("<b> xxx")


def test_a_curve_keeps_the_highest_sample() -> None:
    """A coarse curve still reaches as high as the finest."""
    session = scripted_run("hour with gaps")
    device = device_of(session)
    column = session.index("cuda:0/allocated")

    assert np.nanmax(device.curve[1]) == np.float32(session.timeline.high[:, column].max())
    assert np.isnan(device.curve[1]).any()


def test_a_cell_that_was_too_short_has_no_curve() -> None:
    """A cell without samples has a curve of no points."""
    assert device_of(shared_run("short")).curve.shape == (2, 0)
