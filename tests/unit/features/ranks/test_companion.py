"""How the ranks of a watched cell are followed: its child processes, and the engines of ipyparallel."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.analysis.facts import findings_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.ranks import companion as engines
from hfmem_widget.features.ranks.companion import FollowedRanks, unused
from hfmem_widget.magics.open import take_engines
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.run import Run
from hfmem_widget.session import Recorder, Sample, Session, Span
from tests.fakes.ranks import Script, SimulatedRun
from tests.scenes import FakeClock


class Cell:
    """A watched cell with its companion, without a poller."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder("cell", started_at=1.7e9)
        self.session: Session = self.recorder.session
        self.span: Span = self.recorder.open_span("cell", "cell", Sample(0.0, ()))
        self.companion = FollowedRanks(WatchOptions(**options), clock=self.clock)
        self.companion.begin(None, self.recorder, self.span)  # type: ignore[arg-type]  # it is not used

    @property
    def directory(self) -> Path:
        """The directory that the environment gives to its children."""
        return Path(os.environ["HFMEM_RUN"])

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass and publish to the subscribers."""
        self.clock.advance(seconds)
        self.recorder.publish()

    def end(self) -> str:
        self.companion.end(self.recorder, self.span, None)
        shown = self.companion.report(self.session, self.span)
        return "" if shown is None else str(shown["text/plain"])


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the variables of an outer run from the environment."""
    for name in ("HFMEM_RUN", "HFMEM_CLAIMED", "HFMEM_SOLO"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert "HFMEM_RUN" not in os.environ


pytestmark = pytest.mark.usefixtures("bare")


def ranks(directory: Path, world: int = 2) -> None:
    SimulatedRun(Script(world=world)).write(directory, 20.0)


def test_a_cell_without_ranks_leaves_nothing() -> None:
    """No directory is made, no text is shown, and the environment is as it was."""
    before = dict(os.environ)
    cell = Cell()
    directory = cell.directory
    cell.tick()

    assert cell.end() == ""
    assert not directory.exists()
    assert dict(os.environ) == before
    assert cell.session.run is None


def test_ranks_are_collected_while_the_cell_runs() -> None:
    """The session has the run as soon as a rank has made the directory."""
    cell = Cell()
    ranks(cell.directory)
    cell.tick()

    assert cell.session.run is not None
    assert "2 ranks" in cell.end()
    assert cell.session.run.world == 2
    assert not cell.session.run.running


def test_the_files_of_the_ranks_go_with_the_run() -> None:
    """They are in a temporary directory, which is deleted with the last reference to the run."""
    cell = Cell()
    directory = cell.directory
    ranks(directory)
    cell.end()
    was_there = directory.is_dir()
    del cell
    gc.collect()

    assert was_there
    assert not directory.exists()


def test_a_directory_that_is_named_stays(tmp_path: Path) -> None:
    """A second run of the cell has a directory beside it, and a note of each has its path."""
    for name in ("run", "run-2"):
        cell = Cell(ranks=tmp_path / "run")
        ranks(cell.directory)
        cell.end()

        assert cell.session.run.directory == tmp_path / name
        assert any(str(tmp_path / name) in note for note in cell.session.notes)


def test_the_session_has_what_was_found_over_ranks() -> None:
    """The session has it once, and the card of the ranks shows it; a quiet cell has no card."""
    for quiet in (False, True):
        cell = Cell(quiet=quiet)
        SimulatedRun(Script(world=2, out_of_memory={1: 12})).write(cell.directory, 60.0)
        assert (cell.end() == "") is quiet

        (finding,) = [one for one in cell.session.findings if one.kind == "rank-oom"]
        assert finding.title == cell.session.run.findings[0].title
        assert finding not in findings_of(cell.session, cell.span)


def test_ranks_of_a_quick_cell_are_found_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found before a tick; their card draws no chart, as it replaces the cell's own."""
    monkeypatch.setattr("hfmem_widget.view.card.chart_bundle", lambda *_: pytest.fail("drawn"))
    cell = Cell()
    ranks(cell.directory)

    assert "2 ranks" in cell.end()


def test_a_watch_within_another_starts_no_run_of_its_own() -> None:
    """What its children write belongs to the outer one."""
    outer = Cell()
    directory = outer.directory
    inner = Cell()
    ranks(directory)
    inner.tick()

    assert inner.end() == ""
    assert inner.session.run is None
    assert "2 ranks" in outer.end()


def test_the_last_look_waits_for_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the cell ends while the poller finds the ranks, there is one run, and its directory stays."""
    cell = Cell()
    directory = cell.directory
    ranks(directory)
    others: list[threading.Thread] = []

    def opened(*args: Any, **options: Any) -> Run:
        if not others:
            others.append(threading.Thread(target=cell.end))
            others[0].start()
            others[0].join(0.05)  # it looks now or never
        runs.append(weakref.ref(run := Run(*args, **options)))
        return run

    runs: list[weakref.ref[Run]] = []
    monkeypatch.setattr("hfmem_widget.ranks.run.Run", opened)
    cell.tick()
    others[0].join()

    assert len(runs) == 1
    assert directory.exists()


def test_a_directory_in_which_no_rank_will_write_is_named(tmp_path: Path) -> None:
    """The cell has a note at once, since the ranks themselves say nothing."""
    tmp_path.chmod(0o777)
    cell = Cell(ranks=str(tmp_path))
    cell.end()

    (note,) = cell.session.notes
    assert "chmod" in note


def test_files_that_a_child_writes_after_its_cell_go_with_the_process(tmp_path: Path) -> None:
    """A background process may begin to train after the last look."""
    code = (
        "from hfmem_widget.features.ranks.companion import unused\n"
        "from tests.fakes.ranks import *\n"
        "directory = unused()\n"
        "SimulatedRun(Script(world=2)).write(directory, 5.0)\n"
        "print(directory, directory.exists())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.endswith("True\n")
    assert list(tmp_path.iterdir()) == []
    assert not unused().exists()


Call = tuple[int, str, tuple[Any, ...]]


class Answer:
    """The result of a call of an engine, or its error."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def get(self, timeout: float) -> None:
        assert timeout > 0
        if self._error is not None:
            raise self._error


class Client:
    """A client of ipyparallel that notes the calls of each engine."""

    def __init__(self, *ids: int, error: Exception | None = None) -> None:
        self.ids = list(ids)
        self.calls: list[Call] = []
        self._error = error

    def direct_view(self) -> None:
        """Only clients have it."""

    def __getitem__(self, engine: int) -> Client:
        self._engine = engine
        return self

    def apply_async(self, function: Callable[..., None], *arguments: object) -> Answer:
        self.calls.append((self._engine, function.__name__, arguments))
        return Answer(self._error)


@pytest.fixture(autouse=True)
def no_engines() -> Iterator[None]:
    """Leave no engines to the next test."""
    yield
    engines.take(None)


def test_each_engine_is_a_rank_for_as_long_as_asked() -> None:
    """Its rank is its place among the engines, whatever its number."""
    client = Client(0, 3)

    assert engines.ask_engines(client, Path("/runs/a")) == ""
    assert engines.ask_engines(client, None) == ""
    assert client.calls == [
        (0, "join", ("/runs/a", 0, 2)),
        (3, "join", ("/runs/a", 1, 2)),
        (0, "leave", ()),
        (3, "leave", ()),
    ]


def test_engines_that_do_not_answer_are_a_sentence() -> None:
    """They may be busy, or gone; the cell goes on."""
    client = Client(0, error=TimeoutError("busy"))

    assert engines.ask_engines(client, Path("/runs/a")) == "TimeoutError: busy"


@pytest.mark.parametrize(
    ("client", "message"), [(5, "not int"), (Client(), "no engines yet")], ids=["number", "empty"]
)
def test_an_object_that_is_not_a_cluster_is_refused(client: object, message: str) -> None:
    """The error says what to pass."""
    with pytest.raises(OptionError, match=message):
        engines.take(client)
    assert engines.client_in_use() is None


def test_the_magic_takes_a_variable_and_lets_it_go() -> None:
    """`%memwatch ranks rc` takes the client `rc`, and `off` lets it go."""
    assert "2 engines" in take_engines(["rc"], {"rc": Client(0, 1)})
    assert engines.client_in_use() is not None
    assert "no longer shown" in take_engines(["off"], {})
    assert engines.client_in_use() is None


def test_an_engine_joins_by_what_drivers_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins as that rank of ipyparallel, and ends when it has to leave."""
    calls: list[Any] = []
    monkeypatch.setattr(
        "hfmem_widget.drivers.follow.begin", lambda run, rank: calls.append((run, rank))
    )
    monkeypatch.setattr("hfmem_widget.drivers.follow.end", lambda: calls.append("end"))
    engines.join("/runs/a", 1, 2)
    engines.leave()

    (run, rank), end = calls
    assert (run, rank.rank, rank.world, rank.engine, end) == ("/runs/a", 1, 2, "ipyparallel", "end")
