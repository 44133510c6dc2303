"""What stands in a cell's outputs while it is watched, and what is left."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session
from hfmem_widget.text import GIB
from hfmem_widget.view import live
from hfmem_widget.view.chart.figure import chart_bundle
from hfmem_widget.view.live import CellView, NotebookView, RunView
from hfmem_widget.view.screen import MARK, Screen
from hfmem_widget.view.wire.protocol import Buffers, Message
from tests.data.recorders import cell_of
from tests.scenes import FakeClock, scripted_run

PLOTLY = "application/vnd.plotly.v1+json"


class Publisher:
    """A kernel's display publisher that keeps what was published, by display id."""

    pub_socket = object()

    def __init__(self) -> None:
        self.shown: dict[str, dict[str, Any]] = {}
        self.marks: dict[str, Any] = {}
        self.order: list[tuple[str, bool]] = []
        self.parent_header = {"msg_id": "this cell"}
        self.cleared = 0

    def publish(
        self,
        *,
        data: dict[str, Any],
        metadata: dict[str, Any],
        transient: dict[str, str],
        update: bool,
    ) -> None:
        self.marks[transient["display_id"]] = metadata.get(MARK)
        self.shown[transient["display_id"]] = data
        self.order.append((transient["display_id"], update))

    def clear_output(self, wait: bool = False) -> None:
        del wait
        self.cleared += 1


def screen_of(publisher: Publisher) -> Screen:
    return Screen(SimpleNamespace(display_pub=publisher))


def recorder_of(session: Session) -> Recorder:
    recorder = Recorder()
    recorder.session = session
    return recorder


class Stage:
    """A view of a scripted run, on a screen without a kernel."""

    def __init__(
        self, *, chart: bool = True, panel: bool = True, publisher: Publisher | None = None
    ) -> None:
        self.publisher = publisher or Publisher()
        self.clock = FakeClock()
        self.recorder = recorder_of(scripted_run("training"))
        self.session = self.recorder.session
        self.asides: list[Callable[[], None]] = []
        self.view = CellView(
            self.recorder,
            screen_of(self.publisher),
            WatchOptions(chart=chart, panel=panel),
            aside=self.asides.append,
            clock=self.clock,
        )

    def appear(self, label: str = "a") -> None:
        self.view.begin(label)
        self.tick(0.5)
        self.asides[0]()

    def finish(self) -> None:
        self.view.finish(self.session.spans[0])

    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for listener in self.recorder.subscribers:
            listener(self.session, (self.session.last_sample,))


class Layout:
    """A widget's size and place on the page, which is a widget itself."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Widget:
    """A widget that keeps what it was given to send."""

    made: list[Widget]

    def __init__(self, *_: object, **__: object) -> None:
        self.sent: list[Message] = []
        self.closed = False
        self.layout = Layout()
        Widget.made.append(self)

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"widget": "here"}, {}

    def publish(self, message: Message, _buffers: Buffers) -> None:
        assert not self.closed
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def widgets(monkeypatch: pytest.MonkeyPatch) -> list[Widget]:
    """Return the widgets that are made, none of which speaks to a page."""
    Widget.made = []
    monkeypatch.setattr("hfmem_widget.view.wire.widget.MemoryWidget", Widget)
    return Widget.made


@pytest.mark.parametrize(("options", "messages"), [({}, 1), ({"chart": False, "panel": False}, 0)])
def test_the_panel_gets_a_cell_too_short_for_a_chart_at_its_end(
    options: dict[str, bool], messages: int, widgets: list[Widget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panel gets it in one message, which no widget sends: a saved notebook has nothing of it."""
    sent: list[tuple[str, dict[str, Any]]] = []

    class Comm:
        def publish_msg(self, kind: str, *, data: dict[str, Any], buffers: Buffers) -> None:
            assert buffers
            sent.append((kind, data))

    monkeypatch.setattr("comm.create_comm", lambda **_: Comm())
    live._unopened_comm.cache_clear()
    stage = Stage(chart=options.get("chart", True), panel=options.get("panel", True))
    stage.view.begin("a")
    stage.finish()
    live._unopened_comm.cache_clear()

    assert widgets == []
    assert len(sent) == messages
    for kind, data in sent:
        assert (kind, data["method"]) == ("comm_msg", "custom")
        assert data["content"]["kind"] == "snapshot"
        assert data["content"]["status"]["state"] == "stopped"
        assert data["content"]["spans"] != []


def test_without_a_chart_the_panel_still_gets_the_cell(widgets: list[Widget]) -> None:
    """The cell shows its card and nothing else; the messages are those of any watch."""
    stage = Stage(chart=False)
    stage.appear()
    stage.tick(0.5)
    stage.finish()

    assert {message["kind"] for message in widgets[0].sent} == {"snapshot"}
    assert [update for _, update in stage.publisher.order] == [False, True]
    assert "left behind" in next(iter(stage.publisher.shown.values()))["text/html"]


@pytest.mark.parametrize(
    ("options", "host", "opens"),
    [
        ({"chart": False, "panel": False}, "", []),
        ({"chart": False}, "VSCODE_PID", []),
        ({"panel": False}, "", [False]),
        ({}, "", [True]),
    ],
)
def test_nothing_is_sent_without_a_chart_and_a_panel(
    options: dict[str, bool],
    host: str,
    opens: list[bool],
    widgets: list[Widget],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is asked for either; a host that serves no labextension has no panel to listen."""
    if host:
        monkeypatch.setenv(host, "1")
    stage = Stage(**options)  # type: ignore[arg-type]  # these are its switches
    stage.view.begin("a")
    stage.tick(5.0)
    for aside in stage.asides:
        aside()
    stage.tick(0.5)

    assert [widget.sent[0]["schema"]["panel"] for widget in widgets] == opens
    assert (stage.asides == []) is (len(options) == 2)


@pytest.mark.parametrize(("chart", "panel", "places"), [(True, False, 1), (False, True, 0)])
def test_a_whole_notebook_is_followed_by_either(
    widgets: list[Widget], chart: bool, panel: bool, places: int
) -> None:
    """`%memwatch on` shows a place for its chart where one is wanted, and is heard either way."""
    publisher = Publisher()
    recorder = recorder_of(scripted_run("training"))
    session = recorder.session
    screen = screen_of(publisher)
    view = NotebookView(recorder, screen, WatchOptions(chart=chart, panel=panel))
    view.begin()
    assert len(recorder.subscribers) == 1
    for listener in recorder.subscribers:
        listener(session, (session.last_sample,))
    view.finish()

    assert len(publisher.shown) == places
    assert widgets[0].sent[-1]["status"]["state"] == "stopped"
    assert widgets[0].closed


def with_ranks(stage: Stage) -> Session:
    """Have a watched cell start a distributed run, and return the overview of its ranks."""
    ranks = recorder_of(copy.copy(scripted_run("eight gpus")))
    stage.recorder.session = stage.session = copy.copy(stage.session)
    stage.view = CellView(
        stage.recorder, screen_of(stage.publisher), aside=stage.asides.append, clock=stage.clock
    )
    stage.session.run = SimpleNamespace(recorder=ranks, overview=ranks.session)
    return ranks.session


def test_the_ranks_that_a_cell_starts_are_drawn_in_its_charts_place(widgets: list[Widget]) -> None:
    """Their widget ends after the cell's: JupyterLab's panel shows the run that ended last."""
    stage = Stage()
    with_ranks(stage)
    stage.appear()
    _, chart = stage.publisher.shown
    stage.tick(0.5)
    before = len(stage.publisher.order)
    stage.asides[1]()
    stage.tick(0.5)
    closed: list[Widget] = []
    for widget in widgets:
        widget.close = partial(closed.append, widget)  # type: ignore[method-assign]
    shown = stage.publisher.order[before:]
    stage.finish()

    assert shown == [(chart, True)]
    assert len(widgets) == 2
    assert closed == widgets


def test_the_card_of_the_ranks_stands_above_one_line_of_their_cell() -> None:
    """The ranks' card comes first, then a line for the cell, and the still chart is the ranks'."""
    stage = Stage()
    overview = with_ranks(stage)
    stage.view.begin("a")
    stage.view.finish(stage.session.spans[0], {"text/html": "<b>ranks</b>", "text/plain": "ranks"})
    card, chart = stage.publisher.shown.values()

    assert card["text/html"].startswith("<b>ranks</b>")
    assert card["text/plain"].startswith("ranks\nmemwatch")
    assert chart == chart_bundle(overview)


@pytest.mark.parametrize(("ticks", "requests"), [(1, 0), (10, 1)])
def test_a_chart_is_asked_for_once_some_time_has_passed(ticks: int, requests: int) -> None:
    """Before, nothing is loaded and no place is filled; while it is loaded, it is not asked for again."""
    stage = Stage()
    stage.view.begin("a")
    for _ in range(ticks):
        stage.tick(0.1)

    assert len(stage.asides) == requests


def test_a_chart_that_comes_too_late_does_not_appear() -> None:
    """If the cell ends while the chart is loaded, its still form stays."""
    stage = Stage()
    stage.view.begin("a")
    stage.tick(0.5)
    stage.finish()
    before = len(stage.publisher.order)
    stage.asides[0]()

    assert len(stage.publisher.order) == before


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (FileNotFoundError("no bundle"), "no bundle"),
        # As of ipykernel 7.0, which knows on one thread alone to which message a comm belongs.
        (LookupError(ContextVar[str]("shell_parent")), "ipykernel 7.1"),
        # As where anywidget is not installed.
        (ModuleNotFoundError("anywidget"), "No live chart ("),
    ],
)
@pytest.mark.parametrize("kind", [CellView, NotebookView])
def test_a_live_chart_that_cannot_be_made_costs_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CellView | NotebookView],
    error: Exception,
    note: str,
) -> None:
    """The cell or the notebook goes on, and the still chart is there at the end."""
    monkeypatch.setattr(live, "Broadcast", Mock(side_effect=error))
    stage = Stage()
    if kind is CellView:
        stage.appear()
        stage.finish()
    else:
        view = NotebookView(stage.recorder, screen_of(stage.publisher))
        view.begin()
        view.annotate(stage.session.spans[0])
        view.finish()

    assert [one for one in stage.session.notes if note in one] != []
    assert any(PLOTLY in data for data in stage.publisher.shown.values())


def test_a_note_stands_on_one_card_of_a_notebook() -> None:
    """A note stands on the card of the first cell after it, however many cells the session has."""
    publisher, session = Publisher(), scripted_run("training")
    view = NotebookView(recorder_of(session), screen_of(publisher))
    session.notes = ["No driver was found.", "It is slow."]
    view.annotate(session.spans[0])
    view.annotate(session.spans[0])
    session.notes.append("It is fast now.")
    view.annotate(session.spans[0])
    first, second, third = (each["text/html"] for each in publisher.shown.values())

    assert "No driver was found." in first
    assert "It is slow." in first
    assert "No driver" not in second + third
    assert "It is fast now." in third


def test_outputs_to_be_replaced_carry_marks_for_a_reloaded_page(widgets: list[Widget]) -> None:
    """Card and chart carry their ids, and what stands there if nothing comes, until they are still."""
    stage = Stage()
    stage.appear("<b>a</b>")
    marks = dict(stage.publisher.marks)
    stage.finish()

    assert [mark["display_id"] for mark in marks.values()] == list(marks)
    card, chart = (mark["lost"] for mark in marks.values())
    assert "&lt;b&gt;a" in card["text/html"]
    assert chart == {}
    assert widgets[0].closed
    assert list(stage.publisher.marks.values()) == [None, None]


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_that_notice_a_clearing_either_may_end_first(first: int) -> None:
    """The other one goes on, and after both the publisher is as it was."""
    publisher = Publisher()
    stages = [Stage(publisher=publisher), Stage(publisher=publisher)]
    for stage in stages:
        stage.view.begin("a")
    ended, other = stages[first], stages[1 - first]
    ended.view.finish(ended.session.spans[0])
    publisher.clear_output()
    other.view.finish(other.session.spans[0])

    assert publisher.cleared == 1
    assert [update for _, update in publisher.order[-4:]] == [True, True, False, False]
    assert "clear_output" not in vars(publisher)


def test_captured_outputs_get_the_card_alone() -> None:
    """Where nothing can be replaced, only the end is shown."""
    stage = Stage()
    stage.publisher.pub_socket = None
    stage.view.begin("a")
    stage.finish()

    assert len(stage.publisher.order) == 1
    assert "left behind" in next(iter(stage.publisher.shown.values()))["text/html"]


@pytest.mark.parametrize(("note", "charts"), [("", 0), ("There is no NVIDIA driver.", 1)])
def test_a_cell_that_did_nothing_leaves_one_line(note: str, charts: int) -> None:
    """A short cell without a change has no chart, and no table of figures; with a note it has both."""
    stage = Stage()
    session, _ = cell_of(*[GIB] * 6, keys=["cpu"], every=0.1, total=8 * GIB)
    session.notes += [note] if note else []
    stage.view = CellView(
        recorder_of(session), screen_of(stage.publisher), aside=stage.asides.append
    )
    stage.view.begin("run")
    stage.view.finish(session.spans[0])

    outputs = list(stage.publisher.shown.values())
    assert sum(PLOTLY in one for one in outputs) == charts
    assert sum("left behind" in one.get("text/html", "") for one in outputs) == charts
    assert "(±0)" in outputs[0]["text/plain"]


def test_a_chart_stands_in_an_outputs_place_until_it_is_closed() -> None:
    """Once the chart is closed, its output is free for something else."""
    publisher = Publisher()
    screen = screen_of(publisher)
    broadcast = live.Broadcast(scripted_run("training"), panel=False)
    broadcast.show(screen, "here")
    outputs = dict(publisher.shown)
    broadcast.close()
    broadcast.show(screen, "there")

    assert set(outputs) == set(publisher.shown) == {"here"}
    assert "application/vnd.jupyter.widget-view+json" in outputs["here"]


def test_a_run_that_ends_while_its_chart_is_opened_has_its_card(widgets: list[Widget]) -> None:
    """Opening takes a while; whoever reads the run is kept until it has ended, and no longer."""
    publisher = Publisher()
    recorder = recorder_of(scripted_run("training"))
    assert not recorder.session.running
    layout = Layout()
    reference = weakref.ref(layout)
    view = RunView(recorder, screen_of(publisher), layout)
    del layout
    assert reference() is not None
    view.begin()

    card, chart = publisher.shown
    assert publisher.order[-2:] == [(card, True), (chart, True)]
    assert "running" not in publisher.shown[card]["text/plain"]
    assert recorder.subscribers == []
    assert reference() is None


def test_a_lost_card_of_an_opened_run_says_to_run_the_cell_again() -> None:
    """The card says to run the cell again, and names no option of a watched cell."""
    publisher = Publisher()
    recorder = recorder_of(copy.copy(scripted_run("training")))
    recorder.session.stopped_at = None
    RunView(recorder, screen_of(publisher), None).begin()

    lost = next(iter(publisher.marks.values()))["lost"]["text/plain"]
    assert "Run this cell again" in lost
    assert "--output" not in lost
