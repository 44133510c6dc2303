"""A run as a person has it in Python."""

import shutil
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.ranks.directory import make_or_join
from hfmem_widget.ranks.run import Run
from hfmem_widget.ranks.tail import AT_ONCE
from hfmem_widget.session.rank_records import SILENT_CELL
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.ranks.played import cells_of


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a finished run of eight ranks on two nodes, the fourth of which needs more."""
    run = SimulatedRun(Script(world=8, per_node=4, heavier={3: 1.2}, interval=0.5), run="ab" * 16)
    run.write(tmp_path / "run", 14.0)
    return tmp_path / "run"


@pytest.fixture
def run(directory: Path) -> Run:
    return hfmem_widget.open(directory)  # type: ignore[no-any-return]  # it may be a session


def test_a_directory_is_opened_as_a_run(run: Run) -> None:
    """Its world, nodes, worst rank and findings are there, and it has ended."""
    assert isinstance(run, Run)
    assert (run.world, run.nodes, run.worst) == (8, ("node0000", "node0001"), 3)
    assert [finding.evidence["rank"] for finding in run.findings] == [3]
    assert not run.running
    assert run.overview.run is not None
    assert "8 ranks" in repr(run)


def test_a_long_run_is_opened_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the run is there at once, and nothing is missing once the rest was read."""
    simulated = SimulatedRun(Script(world=3, interval=0.5, heavier={1: 1.1}))
    simulated.write(tmp_path / "run", 120.0)
    assert all(path.stat().st_size > AT_ONCE for path in (tmp_path / "run").glob("r0*"))
    monkeypatch.setattr("hfmem_widget.ranks.run.OPENING", 0.0)
    monkeypatch.setattr(Run, "start", lambda _self: None)

    run = hfmem_widget.open(tmp_path / "run")
    assert run.running
    assert run.overview.steps.count > 0
    assert run.findings == []
    run.look()

    assert not run.running
    assert list(run.overview.steps)[-1].last == simulated.ranks[0].step
    peaks = {rank: simulated_rank.peak for rank, simulated_rank in simulated.ranks.items()}
    assert {rank: row.peak for rank, row in run.ranks.items()} == peaks


def test_every_step_of_a_run_that_is_opened_later_has_its_peak(tmp_path: Path) -> None:
    """No rank that is read faster is ahead before all have made a step."""
    SimulatedRun(Script(world=2, interval=0.5)).write(tmp_path / "run", 150.0)
    run = hfmem_widget.open(tmp_path / "run")
    run.look()
    steps = list(run.overview.steps)

    assert len(steps) > 250
    assert [group.first for group in steps if not group.devices] == []


def test_every_rank_has_its_row_in_the_strip(tmp_path: Path) -> None:
    """Ranks that are heard of after the first has been judged have one, too."""
    SimulatedRun(Script(world=72, per_node=4, interval=1.0)).write(tmp_path / "run", 3.0)
    run = hfmem_widget.open(tmp_path / "run")
    run.look()
    strip = run.overview.ranks.strip

    assert strip.first == tuple(range(0, 72, 4))
    assert (cells_of(strip)[-1] != SILENT_CELL).all()


def test_a_rank_is_a_session(run: Run) -> None:
    """A rank's session has the rank's peak, and is read once."""
    session = run.session(3)

    assert session.peak("cuda:3/allocated") == run.ranks[3].peak
    assert run.session(3) is session
    with pytest.raises(OptionError, match="rank"):
        run.session(8)


def test_tables_have_a_row_for_each_rank_and_phase(run: Run) -> None:
    """A row of a phase names the rank that was highest."""
    ranks, skew = run.to_pandas(), run.skew()

    assert list(ranks.index) == list(range(8))
    assert ranks["peak"].idxmax() == 3
    assert list(skew.index) == ["forward", "backward", "optimizer"]
    assert set(skew["rank"]) == {3}
    assert (skew["low"] <= skew["median"]).all()


def test_it_shows_itself(run: Run, directory: Path) -> None:
    """A run is shown as text, as a page and as a figure."""
    assert "rank" in run._repr_mimebundle_()["text/plain"]
    assert run.figure().data
    assert "rank:3" in run.report(directory.parent / "run.html", static=True).read_text()


def test_a_copy_opens_again(run: Run, directory: Path) -> None:
    """Saving copies what the ranks wrote, and never overwrites."""
    place = run.save(directory.parent / "kept")

    copy = hfmem_widget.open(place)

    assert isinstance(copy, Run)
    assert copy.worst == run.worst
    with pytest.raises(OptionError, match="exists"):
        run.save(place)


def test_another_directory_is_no_run(tmp_path: Path) -> None:
    """Opening a directory without a run is an error."""
    with pytest.raises(OptionError):
        hfmem_widget.open(tmp_path)


def test_a_run_that_grows_is_followed(tmp_path: Path) -> None:
    """A run whose ranks still write is running, and its thread ends with it."""
    simulated = SimulatedRun(Script(world=2, interval=0.5), run="ab" * 16, began=4e9)
    simulated.write(tmp_path / "run", 3.0, finish=False)
    run = hfmem_widget.open(tmp_path / "run")
    assert isinstance(run, Run)
    assert run.running

    simulated.write(tmp_path / "run", 2.0)
    run.finish()

    assert not run.running
    assert run.worst is not None


def test_a_run_without_a_name_is_called_as_its_directory(tmp_path: Path) -> None:
    """The label is not that of the rank that is read first."""
    SimulatedRun(Script(label="rank 0", world=2)).write(tmp_path / "mine", 3.0)
    about = tmp_path / "mine" / "run.json"
    about.write_text(about.read_text().replace('"rank 0"', '""'))

    assert hfmem_widget.open(tmp_path / "mine").overview.label == "mine"


def test_files_of_nodes_without_a_common_disk_are_copied_together(tmp_path: Path) -> None:
    """Nodes that have copies of one `run.json` are one run."""
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    about = make_or_join(nodes[0])
    nodes[1].mkdir(mode=0o700)
    shutil.copy2(nodes[0] / "run.json", nodes[1])
    script = Script(world=4, per_node=2)
    for at, node in enumerate(nodes):
        assert make_or_join(node).run == about.run
        SimulatedRun(script, run=about.run, ranks=range(2 * at, 2 * at + 2)).write(node, 10.0)
    for path in nodes[1].glob("r*.jsonl"):
        shutil.copy2(path, nodes[0])

    run = hfmem_widget.open(nodes[0])
    assert list(run.ranks) == [0, 1, 2, 3]
    assert not list(run.collector.notes_on_left_out())
    assert not run.running
