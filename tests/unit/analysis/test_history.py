"""What was watched is kept, within bounds, and found again."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest

from hfmem_widget.analysis import history as module
from hfmem_widget.analysis.history import MOST_BYTES, MOST_RECORDS, History
from hfmem_widget.errors import OptionError
from hfmem_widget.session import Device, Recorder, Sample, Series, Session, Span
from hfmem_widget.testing import scripted_run
from hfmem_widget.text import MIB


def remember(history: History, label: str = "", number: int = 1, cell_id: str = "") -> Session:
    """Let a watched cell end."""
    session = scripted_run("short")
    history.begins(session, label)
    history.cell_ended(number, cell_id)
    return session


class Notebook:
    """A session of which every cell is a span, as ``%memwatch on`` has one."""

    def __init__(self) -> None:
        self.recorder = Recorder("every cell")
        self.session = self.recorder.session
        self.recorder.adopt([Device("cpu", "a CPU")], [Series("cpu", "allocated", "heap in use")])
        self._now = 0.0

    def begin(self, title: str) -> Span:
        return self.recorder.open_span("cell", title, self._sample(1 * MIB))

    def end(self, span: Span) -> None:
        for _ in range(3):
            self._sample(5 * MIB)
        self.recorder.close_span(span.id, self._sample(2 * MIB), {})

    def _sample(self, value: float) -> Sample:
        self._now += 1.0
        return self.recorder.append(Sample(self._now, (value,)))


@pytest.fixture
def history() -> History:
    return History()


def test_the_latest_session_is_the_one_begun_last(history: History) -> None:
    """Running or finished, what was begun last is the latest."""
    assert history.latest is None
    remember(history)
    session = remember(history)

    assert history.latest is session


def test_a_watched_cell_is_kept_when_it_has_ended(history: History) -> None:
    """Its label, number, figures and outcome are in a record."""
    remember(history, "base", number=7)

    (record,) = history.records
    assert (record.name, record.number, record.run, record.outcome) == ("base", 7, 1, "done")
    assert record.devices[0].key == "cuda:0"
    assert record.devices[0].peak.value == 212 * MIB


def test_a_cell_that_was_not_watched_leaves_nothing(history: History) -> None:
    """No session, no record, and nothing to do."""
    assert not history.cell_ended(3)
    assert history.records == ()


def test_a_record_in_the_making_holds_nobody_up(history: History) -> None:
    """While a thread makes a long one, a quick cell's is left too, instead of waiting."""
    history.begins(scripted_run("short"))
    with history._lock:
        assert history.cell_ended(1)
    assert len(history.records) == 1


@pytest.mark.parametrize(("run", "is_left"), [("short", False), ("training", True)])
def test_the_record_of_a_long_cell_is_left_for_later(
    history: History, run: str, is_left: bool
) -> None:
    """A quick cell's is made at once; a long one's would take milliseconds of the user's time."""
    history.begins(scripted_run(run))
    assert history.cell_ended(1) is is_left
    assert len(history.records) == 1


def test_every_cell_of_a_notebook_is_kept_once_and_by_itself(history: History) -> None:
    """The session goes on; a cell's record is of its own span."""
    notebook = Notebook()
    history.begins(notebook.session)
    for number in (1, 2):
        span = notebook.begin(f"[{number}] x = {number}")
        history.cell_ended(number)
        notebook.end(span)
        history.cell_ended(number)
    history.cell_ended(3)

    assert [(one.name, one.number) for one in history.records] == [
        ("[1] x = 1", 1),
        ("[2] x = 2", 2),
    ]
    (device,) = history.records[1].devices
    assert (device.peak.value, device.left_behind) == (5 * MIB, 1 * MIB)
    assert device.curve[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_cell_with_a_watch_of_its_own_is_kept_as_that(history: History) -> None:
    """Where every cell is watched and one has %%memwatch too, there is one record of it."""
    notebook = Notebook()
    history.begins(notebook.session)
    span = notebook.begin("[4] %%memwatch")
    history.begins(scripted_run("short"), "own")
    notebook.end(span)
    history.cell_ended(4)

    assert [one.name for one in history.records] == ["own"]


def test_runs_of_a_label_are_counted(history: History) -> None:
    """A label counts its runs, whatever the cell; a cell without one counts by its id."""
    for number, label, cell_id in (
        (1, "base", "a"), (2, "base", "b"), (3, "", "c"), (4, "", "c"), (5, "", ""), (6, "", ""),
    ):  # fmt: skip
        remember(history, label, number, cell_id)

    assert [one.run for one in history.records] == [1, 2, 1, 2, 1, 1]


def test_a_record_does_not_keep_its_session_alive(history: History) -> None:
    """Sessions are large; records stand for themselves."""
    session = weakref.ref(remember(history, "base"))
    assert len(history.records) == 1
    history.begins(scripted_run("short"))
    gc.collect()

    assert session() is None
    assert len(history.records) == 1


def test_the_oldest_go_where_there_are_too_many(history: History) -> None:
    """No more records than the limit, the newest of them."""
    session = scripted_run("short")
    for number in range(MOST_RECORDS + 20):
        history.begins(session)
        history.cell_ended(number)

    numbers = [one.number for one in history.records]
    assert numbers == list(range(20, MOST_RECORDS + 20))


def test_the_oldest_go_where_they_take_too_much(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on bytes holds by what Python itself takes for records."""
    monkeypatch.setattr(module, "MOST_BYTES", MOST_BYTES // 16)
    session = scripted_run("hour with gaps")
    history.begins(session, "long")
    history.cell_ended(0)
    assert len(history.records) == 1
    gc.collect()
    tracemalloc.start()
    for number in range(1, 150):
        history.begins(session, "long")
        history.cell_ended(number)
        history.settle()
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 20 < len(history.records) < 150
    assert history.records[-1].number == 149
    assert taken < MOST_BYTES // 16


def test_a_fault_costs_a_line_and_one_record(
    history: History, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be kept is told on stderr; the others are kept."""
    remember(history, "first")
    assert len(history.records) == 1
    with monkeypatch.context() as broken:
        broken.setattr("hfmem_widget.analysis.record_of.record_of", None)
        remember(history, "second")
        history.settle()
    remember(history, "third")

    assert [one.name for one in history.records] == ["first", "third"]
    assert capsys.readouterr().err.startswith("memwatch: TypeError")


def test_a_label_finds_all_of_its_runs(history: History) -> None:
    """Oldest first, also by its beginning where no other begins so."""
    for number, label in enumerate(["base", "lora", "base"], 1):
        remember(history, label, number)

    assert [one.number for one in history.find("base")] == [1, 3]
    assert [one.number for one in history.find("ba")] == [1, 3]


def test_a_number_finds_one_run(history: History) -> None:
    """With or without brackets; a label that is a number goes before it."""
    remember(history, "base", 16)
    remember(history, "base", 17)
    assert [one.number for one in history.find("16")] == [16]
    assert [one.number for one in history.find("[16]")] == [16]

    remember(history, "16", 18)
    assert [one.number for one in history.find("16")] == [18]
    assert [one.number for one in history.find("[16]")] == [16]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qlora", "No watched cell 'qlora'. Available: 4, 'lora', 'load', 'base'."),
        ("lo", "'lo' may be 'load', 'lora'; write more of it"),
        ("9", "No watched cell '9'. Available: "),
        ("", "No watched cell ''. Available: "),
    ],
)
def test_an_unknown_name_says_what_there_is(history: History, name: str, said: str) -> None:
    """The message lists the labels, and the numbers of cells that have none."""
    for number, label in enumerate(["base", "load", "lora", ""], 1):
        remember(history, label, number)

    with pytest.raises(OptionError) as error:
        history.find(name)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("name", ["[7] train", "7", "[7]"])
def test_a_running_cell_is_called_that(history: History, name: str) -> None:
    """A cell that has not ended is known, and not there yet."""
    notebook = Notebook()
    history.begins(notebook.session)
    notebook.begin("[7] trainer.train()")

    with pytest.raises(OptionError, match="is still running"):
        history.find(name)


def test_without_any_watched_cell_it_says_how_to_watch(history: History) -> None:
    """The first thing to know is how to begin."""
    with pytest.raises(OptionError, match="%%memwatch --label"):
        history.find("base")


def test_a_list_of_many_names_is_cut(history: History) -> None:
    """A message stays readable however many cells there are."""
    session = scripted_run("short")
    for number in range(50):
        history.begins(session, f"{number} {'x' * 10_000}")
        history.cell_ended(number)

    with pytest.raises(OptionError, match="and 30 more") as error:
        history.find("nothing")
    assert len(str(error.value)) < 4_000
