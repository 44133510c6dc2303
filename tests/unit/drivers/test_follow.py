"""A process becomes a rank once, follows itself until it ends, and lets none of its children be one."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.drivers import follow as follows
from hfmem_widget.drivers import install
from hfmem_widget.drivers.follow import OwnRank, directory_here
from hfmem_widget.drivers.trainer import figures_of
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor import process
from hfmem_widget.monitor.patch import restore_all
from hfmem_widget.monitor.process import process_state
from hfmem_widget.ranks.directory import streams
from hfmem_widget.ranks.environment import CLAIMED, OPTIONS, RUN, SOLO, Lent
from hfmem_widget.ranks.identity import PLACES
from hfmem_widget.ranks.run import Run
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.monitor.conftest import Bench

follow = hfmem_widget.follow


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no hardware, no launcher, no group and nothing to do at the end of this process."""
    process.this.monitor = Bench().monitor
    process_state(OwnRank).has_exit_hooks = True
    monkeypatch.setattr(follows, "rank_in_group", lambda: None)
    for name in [*os.environ]:
        if name.startswith(("HFMEM_", "SLURM_", "RANK", "WORLD_SIZE", "OMPI_", "PMI")):
            monkeypatch.delenv(name)
    yield
    follows.end()
    install.detach()
    for name in (CLAIMED, SOLO):
        os.environ.pop(name, None)


def recorded(run: Path) -> list[Any]:
    return [hfmem_widget.open(path) for path in streams(run).paths]


def in_group(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr(follows, "rank_in_group", lambda: (rank, world))


def test_a_script_follows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is followed from the call to the end of its process, with its launcher's numbers."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert follow(tmp_path / "run") is None
    assert os.environ[CLAIMED] == str(os.getpid())
    with hfmem_widget.span("step"):
        pass
    follows.end()

    (rank,) = recorded(tmp_path / "run")
    assert rank.label == "rank 3"
    assert [span.label for span in rank.spans] == ["rank 3", "step"]
    assert not rank.running
    assert CLAIMED not in os.environ


def test_a_process_is_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second group, or a second call, begins nothing; after the end it may begin again."""
    monkeypatch.setenv(RUN, str(tmp_path / "run"))
    in_group(monkeypatch, 1, 2)
    for _ in range(2):
        follows.joined()
        follow(tmp_path / "other")
    follows.end()
    assert [path.name[:9] for path in streams(tmp_path / "run").paths] == ["r00001-a0"]
    follows.joined()
    follows.end()
    assert len(streams(tmp_path / "run").paths) == 2
    assert not (tmp_path / "other").exists()


def test_a_child_of_a_rank_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that runs the script's first line again, such as a DataLoader's worker, is no rank."""
    monkeypatch.setenv(CLAIMED, "1")
    follow(tmp_path / "run")
    in_group(monkeypatch, 1, 2)
    monkeypatch.setenv(RUN, str(tmp_path / "run"))
    follows.joined()

    assert not (tmp_path / "run").exists()


def test_a_fork_leaves_the_rank_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child does not end its parent's rank."""
    follow(tmp_path / "run")
    pid = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: pid + 1)
        follows.end()

    assert directory_here() == tmp_path / "run"


def test_a_notebook_that_lends_is_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one in the kernel itself is no rank of the run."""
    in_group(monkeypatch, 0, 1)
    lent = Lent(tmp_path / "run")
    lent.begin()
    follows.joined()
    lent.end()
    restore_all(PLACES)

    assert not (tmp_path / "run").exists()


def test_without_a_run_a_line_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`follow()` does nothing in a script that is started by hand."""
    monkeypatch.chdir(tmp_path)
    follow()
    assert directory_here() is None
    monkeypatch.setenv(RUN, str(tmp_path / "run"))
    follow()

    assert directory_here() is not None


def test_a_function_is_followed_while_it_runs(tmp_path: Path) -> None:
    """Each call is one stream, and its result and its error are its own."""

    def loop(steps: int) -> str:
        for _ in range(steps):
            with hfmem_widget.span("step"):
                if steps == 3:
                    raise ValueError(steps)
        return "trained"

    followed = follow(loop, run=tmp_path / "run")

    assert followed(2) == "trained"
    with pytest.raises(ValueError, match="3"):
        followed(3)
    first, second = recorded(tmp_path / "run")
    assert (len(first.steps), first.spans[0].outcome) == (2, "done")
    assert second.spans[0].outcome == "raised ValueError"
    assert followed.__name__ == "loop"
    assert followed.__wrapped__ is loop


def of_a_module(value: int) -> int:
    return value + 1


decorated = follow(of_a_module)


@follow
def as_decorated(value: int) -> int:
    return value + 2


@pytest.mark.parametrize("function", [decorated, as_decorated])
def test_a_followed_function_travels_as_the_function_does(function: Any) -> None:
    """A followed function is pickled by reference, and without a run it is just called."""
    assert pickle.loads(pickle.dumps(function))(1) == function(1)
    assert directory_here() is None


def test_a_wrapped_function_knows_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapped function has the run with it, for workers on other machines."""
    monkeypatch.setenv(RUN, str(tmp_path / "run"))
    followed = follow(of_a_module)
    monkeypatch.delenv(RUN)

    assert pickle.loads(pickle.dumps(followed))(1) == 2
    assert len(recorded(tmp_path / "run")) == 1


@pytest.mark.parametrize(("subject", "run"), [(5, ""), ("/a", "/b"), (None, 5), ("a\0b", "")])
def test_an_invalid_argument_is_an_error(subject: Any, run: Any) -> None:
    """Anything but a path or a function, and one directory, is an error."""
    with pytest.raises(OptionError):
        follow(subject, run=run)


def test_the_cells_options_are_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has the options of the cell, such as `ledger=False`."""
    monkeypatch.setenv(OPTIONS, '{"interval":0.5,"ledger":false}')
    follow(tmp_path / "run")

    watch = process_state(OwnRank).watch
    assert watch is not None
    options = watch._options
    assert (options.ledger, options.interval, options.quiet) == (False, 0.5, True)


def test_a_watch_of_the_user_gets_its_own_spans(tmp_path: Path) -> None:
    """The user's watches and the rank have the user's spans, whichever began first."""
    with hfmem_widget.watch("before", quiet=True) as before:
        follow(tmp_path / "run")
        with hfmem_widget.span("step"):
            pass
    with (
        hfmem_widget.watch("after", quiet=True) as after,
        hfmem_widget.span("step", tokens=7),
        hfmem_widget.span("forward"),
    ):
        pass
    follows.end()

    assert [span.label for span in before.spans] == ["before", "step"]
    assert [span.label for span in after.spans] == ["after", "step", "forward"]
    (rank,) = recorded(tmp_path / "run")
    assert [span.label for span in rank.spans] == ["rank 0", "step", "step", "forward"]
    assert [span.counts for span in rank.spans[1:3]] == [{"step": 1}, {"step": 2, "tokens": 7}]


def test_a_rank_that_ends_within_a_watch_of_the_user_ends_what_it_has_of_it(tmp_path: Path) -> None:
    """A rank that ends within the user's watch ends its own copies of open spans alone."""
    with hfmem_widget.watch("mine", quiet=True) as mine:
        follow(tmp_path / "run")
        with hfmem_widget.span("step"), hfmem_widget.span("block"):
            follows.end()
            with hfmem_widget.span("later"):
                pass

    (rank,) = recorded(tmp_path / "run")
    assert [(span.label, span.outcome) for span in rank.spans[1:]] == [
        ("step", "done"),
        ("block", "done"),
    ]
    assert [span.outcome for span in mine.spans] == ["done"] * 4


def test_a_rank_has_a_watch_within_a_watch_as_a_block(tmp_path: Path) -> None:
    """A rank has an inner watch as a block, as the outer watch has it."""
    follow(tmp_path / "run")
    with (
        hfmem_widget.watch("outer", quiet=True),
        hfmem_widget.watch("inner", quiet=True),
        hfmem_widget.span("step"),
    ):
        pass
    follows.end()

    (rank,) = recorded(tmp_path / "run")
    assert [span.label for span in rank.spans] == ["rank 0", "inner", "step"]


def test_a_script_alone_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process with torch is followed alone, until it joins a group; its children are not."""
    monkeypatch.setenv(RUN, str(tmp_path / "run"))
    monkeypatch.setenv(SOLO, "1")
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    follows.begin_alone()
    assert os.environ[SOLO] == f"pid-{os.getpid()}"
    parent = process.replace(process.this.child())
    with monkeypatch.context() as child:
        follows.begin_alone()
        in_group(child, 0, 1)
        follows.joined()
        assert directory_here() is None
    process.replace(parent)
    in_group(monkeypatch, 1, 2)
    follows.joined()
    follows.end()

    assert [path.name[:9] for path in streams(tmp_path / "run").paths] == ["r00001-a0"]
    assert len(list((tmp_path / "run").glob("launcher-*"))) == 1


def test_a_script_may_join_a_group_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that joins a group is no longer the only rank."""
    follow(tmp_path / "run")
    in_group(monkeypatch, 3, 4)
    follows.joined()
    assert os.environ[CLAIMED] == str(os.getpid())
    assert SOLO not in os.environ
    follows.end()

    assert [rank.label for rank in recorded(tmp_path / "run")] == ["rank 3"]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("/venv/bin/torchrun train.py", {}),
        ("-m torch.distributed.run train.py", {}),
        ("/venv/bin/accelerate launch train.py", {}),
        ("-u -m accelerate.commands.launch", {}),
        ("train.py", {"RANK": "1", "WORLD_SIZE": "2"}),
    ],
)
def test_neither_a_launcher_nor_one_of_several_is_alone(
    command: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher, which imports torch first of all, and a rank of Slurm are not followed alone."""
    for name, value in {RUN: str(tmp_path / "run"), SOLO: "1", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["python", *command.split()])
    follows.begin_alone()

    assert directory_here() is None


class Caught(Exception):
    """What was raised in a rank."""


def fails() -> None:
    raise Caught


def leaves() -> None:
    try:
        fails()
    except Caught:
        sys.exit(1)


endings: dict[str, Callable[[], object]] = {
    "last": lambda: None,
    "raised": fails,
    "left": leaves,
    "ended": sys.exit,
}


@pytest.mark.parametrize("how", endings)
def test_how_a_process_ends_is_how_its_rank_ends(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is the process' error, also one that became an exit code, or "done"."""
    follow(tmp_path / "run")
    if how == "last":
        monkeypatch.setattr(sys, "last_value", Caught(), raising=False)
    try:
        endings[how]()
    except BaseException:  # noqa: BLE001  (the end of a process is played)
        follows._at_exit()
    follows._at_exit()

    outcome = recorded(tmp_path / "run")[0].spans[0].outcome
    assert outcome == ("done" if how == "ended" else "raised Caught")


def test_a_bad_directory_costs_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that cannot be followed goes on, and prints one line."""
    (tmp_path / "file").touch()
    follow(tmp_path / "file")
    follows.end()

    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "file").read_bytes() == b""


def test_a_callback_with_options_of_its_own_keeps_them(tmp_path: Path) -> None:
    """`MemoryCallback` does in a rank what it was asked for."""
    trainer = pytest.importorskip("hfmem_widget.drivers.trainer")
    arguments = SimpleNamespace(gradient_accumulation_steps=1)
    path = tmp_path / "mine.hfmem.jsonl"
    plain, own = trainer.MemoryCallback(), trainer.MemoryCallback(record=path, quiet=True)
    follow(tmp_path / "run")
    for callback in (plain, own):
        callback.begins(None, arguments, may_watch=True)
        callback.ends(None)

    assert hfmem_widget.open(path).label == "training"
    assert plain._watch is None


def test_the_users_exit_is_left_as_it_is(tmp_path: Path) -> None:
    """A `SystemExit` of the user's has no attribute of ours."""
    follow(tmp_path / "run")
    with pytest.raises(SystemExit) as exit_:
        sys.exit(3)

    assert vars(exit_.value) == {}


def followed(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.look()
    return run


def test_the_highest_the_median_and_the_lowest_peak_are_logged(tmp_path: Path) -> None:
    """Exact peaks in GiB are logged, with the worst rank and the number of ranks that report."""
    run = SimulatedRun(Script(world=4, heavier={3: 1.1}))
    run.write(tmp_path / "run", 10.0, finish=False)
    entries = figures_of(followed(tmp_path))

    assert entries["hfmem/ranks/worst_rank"] == 3
    assert entries["hfmem/ranks/reporting"] == 4
    assert entries["hfmem/ranks/peak_allocated_gib_max"] * GIB == pytest.approx(run.ranks[3].peak)
    others = [run.ranks[rank].peak / GIB for rank in range(3)]
    assert entries["hfmem/ranks/peak_allocated_gib_min"] == pytest.approx(min(others))
    assert min(others) <= entries["hfmem/ranks/peak_allocated_gib_median"] <= max(others)


def test_before_a_rank_has_a_peak_nothing_is_logged(tmp_path: Path) -> None:
    """A directory without a recording gives no entry for the log."""
    SimulatedRun(Script(world=4), ranks=()).write(tmp_path / "run", 0.0)

    assert figures_of(followed(tmp_path)) == {}
