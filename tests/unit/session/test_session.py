"""A session has the data of one watch."""

import math
import pickle
import platform
import sys
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.monitor.ticker import done_within
from hfmem_widget.session import Device, Recorder, Sample, Series, Session, StepGroup, Steps
from hfmem_widget.session.session import loaded_software
from hfmem_widget.session.stacks import StackRecording, Stacks
from hfmem_widget.session.steps import DeviceSteps
from hfmem_widget.session.timeline import BLOCK, Timeline
from tests.data.recorders import KEY, read, recorder_of
from tests.scenes.groups import add_group


@pytest.fixture
def recorder() -> Recorder:
    return recorder_of(metrics=("allocated", "reserved"))


@pytest.fixture
def session(recorder: Recorder) -> Session:
    return recorder.session


@pytest.mark.parametrize(
    "key",
    [
        *(f"cuda:0/{metric}" for metric in ("allocated", "device_used", "weights")),
        *("cuda:1/device_used", "cpu/allocated"),
    ],
)
def test_while_it_runs_a_series_without_data_is_not_available(session: Session, key: str) -> None:
    """Before CUDA is up, or a slow driver has named its device, a series is NaN and no error."""
    for one in (session, Recorder().session):
        assert math.isnan(one.latest(key))
        assert math.isnan(one.peak(key))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("cuda:7/allocated", "no device 'cuda:7'; it has cuda:0; did you mean 'cuda:0/allocated'?"),
        (
            "cuda:0/alocated",
            "no 'alocated' of cuda:0; it has allocated, reserved; did you mean 'cuda:0/allocated'?",
        ),
        ("allocated", "no device 'allocated'; it has cuda:0; did you mean 'cuda:0/allocated'?"),
        ("nonsense", "no device 'nonsense'; it has cuda:0"),
        (
            "cuda:0",
            "'cuda:0' is a device; name one of its series: cuda:0/allocated, cuda:0/reserved",
        ),
    ],
)
def test_an_impossible_series_lists_the_present_ones(session: Session, key: str, text: str) -> None:
    """A typo, or a device instead of a series, is an error that lists what there is."""
    session.stopped_at = 1.0
    for ask in (session.latest, session.peak):
        with pytest.raises(OptionError) as raised:
            ask(key)
        assert str(raised.value).removeprefix("this session has ") == text


@pytest.mark.parametrize("key", ["cuda:1/alocated", "cuda/allocated", "gpu:0/allocated"])
def test_a_typo_is_an_error_while_the_session_runs(session: Session, key: str) -> None:
    """A name that no device or series can have is an error."""
    with pytest.raises(OptionError):
        session.latest(key)


def test_a_session_that_has_read_nothing_says_so() -> None:
    """If nothing was read by the end of the session, the error for a series says so."""
    with pytest.raises(OptionError, match="it has read nothing yet"):
        Session(stopped_at=1.0).latest("cpu/allocated")


def test_time_never_runs_backwards(recorder: Recorder) -> None:
    """A sample that arrives late gets the time of the one before it."""
    recorder.append(Sample(1.0, (1.0, 1.0)))
    assert recorder.append(Sample(0.5, (2.0, 2.0))).time == 1.0


def test_a_series_added_later_pads_older_samples(recorder: Recorder, session: Session) -> None:
    """A row read before a series existed gets NaN for it."""
    recorder.adopt(session.devices, [*session.series, Series("cpu", "allocated")])
    sample = recorder.append(Sample(0.0, (1.0, 2.0)))

    assert sample.values[:2] == (1.0, 2.0)
    assert math.isnan(sample.values[2])


def test_a_steps_peak_wins_over_the_samples() -> None:
    """A step's exact peak counts, also in the recording of a killed run, which has no spans."""
    devices = {"cuda:0": DeviceSteps(9.0, "exact", 9.0, 1, math.nan, 1.0, {})}
    steps = Steps()
    add_group(steps, StepGroup(1, 1, 1, 0.0, 1.0, 8.0, 1.0, 8.0, 8.0, devices))
    session = Session("x", devices=[Device("cuda:0", "x")], steps=steps)

    assert session.peak("cuda:0/allocated") == 9.0
    assert math.isnan(session.peak("cuda:0/reserved"))


def test_closing_a_span_twice_is_an_error(recorder: Recorder) -> None:
    """A closed span cannot be closed again."""
    sample = recorder.append(Sample(0.0, (0.0, 0.0)))
    span = recorder.open_span("cell", "a", sample)
    recorder.close_span(span.id, sample, {})

    with pytest.raises(WatchStateError, match="not open"):
        recorder.close_span(span.id, sample, {})


def test_labels_become_plain_text(recorder: Recorder) -> None:
    """Control and bidi characters are removed from a span's label."""
    span = recorder.open_span("cell", "a\u202eb\x00c\n d", recorder.append(Sample(0.0, (0.0, 0.0))))

    assert span.label == "abc d"


def test_to_pandas_has_a_column_for_each_series(recorder: Recorder, session: Session) -> None:
    """The data frame is indexed by seconds and named by series key."""
    recorder.append(Sample(0.0, (1.0, 2.0)))
    recorder.append(Sample(0.5, (3.0, 4.0)))
    frame = session.to_pandas()

    assert list(frame.columns) == ["cuda:0/allocated", "cuda:0/reserved"]
    assert list(frame.index) == [0.0, 0.5]
    assert frame["cuda:0/allocated"].max() == 3.0


def test_to_pandas_refuses_an_unknown_fold(session: Session) -> None:
    """Only the highest and the lowest reading of a row can be requested."""
    with pytest.raises(ValueError, match="'high' or 'low'"):
        session.to_pandas(fold="mean")


def test_an_unknown_span_is_an_error_that_names_it() -> None:
    """A span that never existed, or was dropped, is an error."""
    with pytest.raises(WatchStateError, match="no span 7"):
        recorder_of(1.0).session.span(7)


@pytest.mark.parametrize("of", [recorder_of(1.0).session, Stacks((), StackRecording("allocator"))])
def test_a_frame_needs_pandas(of: Session | Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas, the error says how to install it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        of.to_pandas()


def test_a_frame_has_the_requested_extreme() -> None:
    """Where rows stand for several samples, a frame has the highest, or on request the lowest."""
    readings = [float(at % 5) for at in range(2 * BLOCK)]
    session = recorder_of(*readings, timeline=Timeline(0, 2)).session
    assert session.to_pandas()[KEY].max() == 4.0
    assert session.to_pandas(fold="high")[KEY].min() > 0.0
    assert session.to_pandas(fold="low")[KEY].max() == 0.0


def test_a_session_has_its_chart_as_a_figure() -> None:
    """The figure of a session is the chart on its card."""
    assert isinstance(recorder_of(1.0, 2.0, 3.0).session.figure(), go.Figure)


PATIENCE = 5.0


@pytest.mark.parametrize("is_timelines", [True, False])
def test_a_forked_child_reads_a_session_whose_lock_was_held(*, is_timelines: bool) -> None:
    """A forked child reads a session whose lock another thread of the parent held."""
    recorder = recorder_of(1.0, 2.0)
    session = recorder.session
    lock: Any = session.timeline._lock if is_timelines else recorder.lock
    assert done_within(PATIENCE, lock.acquire)
    recorder.replace_lock()

    assert done_within(PATIENCE, lambda: recorder.append(Sample(5.0, (7.0,))))
    assert done_within(PATIENCE, lambda: session.peak("cuda:0/allocated"))
    assert session.peak("cuda:0/allocated") == 7.0


def test_a_live_session_names_imported_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has the versions of Python, of the package, and of imported libraries."""
    monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(__version__="0.0.99\x1b[31m"))
    monkeypatch.setitem(sys.modules, "trl", None)  # as an import that failed
    session = Session()

    assert session.software["python"] == platform.python_version()
    assert session.software["hfmem_widget"] == hfmem_widget.__version__
    assert session.software["peft"] == "0.0.99[31m"
    assert "trl" not in session.software


def test_a_copy_keeps_the_versions_and_equality_leaves_them_out() -> None:
    """A copy keeps the versions of libraries, and equality leaves them out."""
    session = Session("run", software={"torch": "0.0.99"})

    assert pickle.loads(pickle.dumps(session)).software == {"torch": "0.0.99"}
    assert session == Session("run", software=loaded_software())


def test_the_peak_without_a_key_is_the_gpus() -> None:
    """The peak is a GPU's, or the host's where no GPU was used, and displays itself in GiB or MiB."""
    recorder = recorder_of((9e9, 0.0), keys=("cpu", "cuda:0"))
    assert recorder.session.peak() == 9e9
    read(recorder, 1.0, (9e9, 1342177280.0))
    assert recorder.session.peak() == 1342177280.0
    assert repr(recorder.session.peak()) == "1.25 GiB (1,342,177,280 bytes)"
    assert repr(Session().peak()) == "n/a"
