"""A recording is written beside the watch; what the disk does costs the recording alone."""

import errno
import json
import re
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.record import companion
from hfmem_widget.features.record.companion import FileRecording
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.directory import Member, read_run, streams
from hfmem_widget.recording.check import Head, parse
from hfmem_widget.recording.file import GrowingFile, read
from hfmem_widget.recording.reader import GROWS
from hfmem_widget.session import Finding, Guide, Rank, Session
from tests.scenes import FakeClock
from tests.scenes.stage import NO_MONITOR, Stage


class Disk(GrowingFile):
    """A file that fails or hangs on request."""

    def __init__(self) -> None:
        self.data = b""
        self.error: OSError | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        self.data += data

    def close(self) -> None:
        self.is_closed = True


class Watched:
    """A stage that is recorded; ticks of poller and disk are made by hand."""

    def __init__(
        self, path: Path, disk: Disk | None = None, label: str = "", rank: Rank | None = None
    ) -> None:
        self.stage, self.clock = Stage("run", gpus=1), FakeClock()
        self.session = self.stage.session
        more: dict[str, Any] = {} if disk is None else {"opened": lambda _path: disk}
        options = WatchOptions(record=str(path) if rank is None else "", label=label)
        more |= {} if rank is None else {"member": Member(path, rank)}
        self.recording = FileRecording(options, clock=self.clock, **more)
        self._cell = self.stage.span("cell", "run")
        self.recording._ticker.start = lambda: None  # type: ignore[method-assign]  # ticks come by hand
        self.recording.begin(NO_MONITOR, self.stage.recorder, self._cell.__enter__())

    def hold(self, gibibytes: float) -> None:
        """Move the GPU to so much, sample it, and have it written."""
        self.stage.hold({"cuda:0": gibibytes * 2**30}, 1.0)
        self.stage.sample()
        self.stage.recorder.publish()
        self.clock.advance(1.0)
        self.recording.tick()

    def end(self) -> Session:
        self.recording.end(self.stage.recorder, self.session.spans[0], None)
        self._cell.__exit__(None, None, None)
        self.stage.recorder.stop(9.0)
        self.recording.conclude(self.session, self.session.spans[0])
        return self.session


@pytest.mark.parametrize("is_reported", [True, False])
def test_what_is_found_after_the_run_is_in_the_file(tmp_path: Path, *, is_reported: bool) -> None:
    """Findings may take a while; if none ever come, the file is complete without."""
    watched = Watched(tmp_path / "run.hfmem.jsonl")
    watched.hold(1)
    watched.recording.end(watched.stage.recorder, watched.session.spans[0], None)
    watched._cell.__exit__(None, None, None)
    watched.stage.recorder.stop(watched.clock())
    watched.recording.tick()
    watched.session.findings.append(Finding("leak", "warn", "Found late.", {}, (), 1))
    if is_reported:
        watched.recording.conclude(watched.session, watched.session.spans[0])
    else:
        watched.clock.advance(60.0)
        watched.recording.tick()

    opened = hfmem_widget.open(tmp_path / "run.hfmem.jsonl")
    assert opened.findings == watched.session.findings
    assert not opened.broken_off


@pytest.mark.parametrize("name", ["run.hfmem.jsonl", "run.hfmem.jsonl.gz"])
def test_the_file_has_the_session(name: str, tmp_path: Path) -> None:
    """The opened session has the peak, the span's end and every sample; a file is compressed at the end."""
    watched = Watched(tmp_path / name)
    for size in (1, 9, 2):
        watched.hold(size)
    meanwhile = [path.name for path in tmp_path.iterdir()]
    session = watched.end()
    opened = hfmem_widget.open(tmp_path / name)

    assert opened.peak("cuda:0/allocated") == session.peak("cuda:0/allocated") == 9 * 2**30
    assert opened.spans[0].outcome == session.spans[0].outcome
    assert opened.timeline.samples == session.timeline.samples
    assert session.notes[-1].endswith(f"{name}.")
    assert meanwhile == ["run.hfmem.jsonl"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_recording_is_readable_while_it_grows(tmp_path: Path) -> None:
    """After each block, whoever opens it sees a running session up to there."""
    watched = Watched(tmp_path / "run.hfmem.jsonl")
    watched.hold(3)

    opened = read(tmp_path / "run.hfmem.jsonl", now=0.0)

    assert opened.running
    assert opened.notes == [GROWS]
    assert opened.latest("cuda:0/allocated") == 3 * 2**30


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.txt", "record must be"),
        ("run", "record must be"),
        ("missing/run.hfmem.jsonl", "no such folder"),
        ("taken.hfmem.jsonl", "already exists"),
        ("locked/run.hfmem.jsonl", "you may not write there"),
    ],
)
def test_a_path_that_cannot_be_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is refused before anything begins, and existing files stay."""
    existing = tmp_path / "taken.hfmem.jsonl"
    existing.write_text("mine")
    (tmp_path / "locked").mkdir()
    if "locked" in name:  # root may write anywhere, so the system's answer is played
        monkeypatch.setattr("os.access", lambda *_: False)

    with pytest.raises(OptionError, match=message):
        FileRecording(WatchOptions(record=str(tmp_path / name)))
    assert existing.read_text() == "mine"


def test_a_write_that_ends_half_way_leaves_whole_lines(tmp_path: Path) -> None:
    """A part that was written is removed, and the next try writes all of it."""
    file = GrowingFile(tmp_path / "run.hfmem.jsonl")
    file.write(b"first\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            file.write(b"second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    halfway = file.path.read_bytes()
    file.write(b"second\n")

    assert halfway == b"first\n"
    assert file.path.read_bytes() == b"first\nsecond\n"


def place_of(session: Session) -> Path:
    return Path(str(session.notes[-1]).removeprefix("The recording is in ").removesuffix("."))


def test_in_a_folder_each_run_has_a_name(tmp_path: Path) -> None:
    """The name is made of the label and the time, and has no character that a file system minds."""
    place = place_of(Watched(tmp_path, label="a/b: c").end())

    assert place.parent == tmp_path
    assert re.fullmatch(r"a-b-c-.*\.hfmem\.jsonl", place.name)


@pytest.mark.parametrize("ending", [".hfmem.jsonl", ".hfmem.jsonl.gz", ".jsonl"])
def test_a_name_that_is_used_again_gets_a_number(ending: str, tmp_path: Path) -> None:
    """It is the next free number, for a second run as well as for nested watches."""
    (tmp_path / f"run-3{ending}").write_text("mine")
    names = [place_of(Watched(tmp_path / f"run{ending}").end()).name for _ in range(2)]
    outer, inner = (Watched(tmp_path / f"run{ending}") for _ in range(2))
    names += [place_of(watched.end()).name for watched in (inner, outer)]
    (tmp_path / f"run{ending}").unlink()
    names.append(place_of(Watched(tmp_path / f"run{ending}").end()).name)

    assert names == [f"run{number}{ending}" for number in ("", "-2", "-5", "-4", "")]
    assert (tmp_path / f"run-3{ending}").read_text() == "mine"


def test_a_full_disk_ends_the_recording_after_some_tries(tmp_path: Path) -> None:
    """There are three tries ten seconds apart, then one note; the session keeps all it had."""
    disk = Disk()
    watched = Watched(tmp_path / "run.hfmem.jsonl", disk)
    watched.hold(1)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    for size in range(2, 40):
        watched.hold(size)

    session = watched.end()

    reasons = [note for note in session.notes if "No space left on device" in note]
    assert reasons == [session.notes[-1]]
    assert session.peak("cuda:0/allocated") == 39 * 2**30


def test_a_disk_that_fails_now_and_then_has_it_all(tmp_path: Path) -> None:
    """Only errors in a row count, and what could not be written is written by the next try."""
    disk = Disk()
    watched = Watched(tmp_path / "run.hfmem.jsonl", disk)
    for _ in range(5):
        disk.error = OSError(errno.EIO, "Input/output error")
        watched.hold(5)
        disk.error = None
        for _ in range(12):
            watched.hold(1)

    assert disk.data.count(b"5368709120") >= 5
    assert not any("Input/output error" in note for note in watched.end().notes)
    assert disk.is_closed


def test_a_hanging_disk_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not opened on the user's thread, and a note says that the recording is not complete."""
    monkeypatch.setattr(companion, "PATIENCE", 0.05)
    disk, opened_by = Disk(), list[int]()
    disk.may_go_on.clear()

    def opened(_path: Path) -> Disk:
        opened_by.append(threading.get_ident())
        return disk

    stage = Stage("run", gpus=1)
    recording = FileRecording(WatchOptions(record=str(tmp_path / "run.hfmem.jsonl")), opened=opened)
    with stage.span("cell", "run") as cell:
        recording.begin(NO_MONITOR, stage.recorder, cell)
        recording.end(stage.recorder, cell, None)
    recording.conclude(stage.session, cell)
    disk.may_go_on.set()

    assert "not complete" in stage.session.notes[-1]
    assert len(opened_by) == 1
    assert opened_by[0] != threading.get_ident()


def test_samples_wait_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest samples are left out and counted where the disk does not keep up."""
    monkeypatch.setattr(companion, "MOST_WAITING", 6)
    watched = Watched(tmp_path / "run.hfmem.jsonl")
    for size in range(10):
        watched.stage.hold({"cuda:0": size * 2**30}, 1.0)
        watched.stage.recorder.publish()

    assert any("recorded: more than 6 waited to be written" in note for note in watched.end().notes)


@pytest.mark.parametrize("name", ["run.hfmem.jsonl", "run.hfmem.jsonl.gz"])
def test_a_users_code_may_move(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is that of the folder in which the watch began."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    watched = Watched(Path(name))
    monkeypatch.chdir(tmp_path / "other")
    watched.hold(3)

    watched.end()

    assert hfmem_widget.open(tmp_path / name).peak("cuda:0/allocated") == 3 * 2**30
    assert list((tmp_path / "other").iterdir()) == []


def test_a_missing_working_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before the user's code runs; an absolute path still works."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OptionError, match="the working folder is gone; give an absolute path"):
        hfmem_widget.watch(record="x.hfmem.jsonl").__enter__()
    with hfmem_widget.watch(record=str(tmp_path / "x.hfmem.jsonl"), quiet=True):
        pass


def deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def replaced(path: Path) -> None:
    path.unlink()
    path.write_text("mine")


def no_folder(path: Path) -> None:
    deleted(path)
    path.parent.write_text("mine")


@pytest.mark.parametrize(
    ("spoil", "words", "is_begun"),
    [(deleted, "No such file", True), (replaced, "another file", True), (no_folder, "", False)],
)
def test_a_file_that_the_code_has_changed_ends_the_recording(
    spoil: Callable[[Path], None], words: str, is_begun: bool, tmp_path: Path
) -> None:
    """One sentence says so; nothing is added to what is not ours, and the session has all it had."""
    folder = tmp_path / "runs"
    folder.mkdir()
    watched = Watched(folder / "run.hfmem.jsonl")
    if is_begun:
        watched.hold(3)
    spoil(folder / "run.hfmem.jsonl")
    watched.hold(5)
    session = watched.end()

    assert [note for note in session.notes if "recording" in note] == [session.notes[-1]]
    assert session.notes[-1].startswith("The recording ended early: ")
    assert words in session.notes[-1]
    assert session.peak("cuda:0/allocated") == 5 * 2**30
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} <= {"mine"}


def test_closing_every_descriptor_costs_no_line(tmp_path: Path) -> None:
    """No descriptor is kept, so that none can be closed by the user's code, as a daemon does."""
    path = tmp_path / "run.hfmem.jsonl"
    watched = Watched(path)
    watched.hold(3)

    links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert path not in [entry.readlink() for entry in links]


def test_no_place_leaves_the_machine(tmp_path: Path) -> None:
    """The card says where the recording is; what is saved and sent does not."""
    place = tmp_path / "secret"
    place.mkdir()
    run, page, copy = place / "run.hfmem.jsonl", tmp_path / "run.html", tmp_path / "b.hfmem.jsonl"
    with pytest.raises(MemoryError), hfmem_widget.watch(quiet=True, record=run) as session:
        raise MemoryError

    session.save(copy)
    session.report(page)
    assert sum("secret" in note for note in session.notes) == 1
    assert not any("secret" in path.read_text("utf-8") for path in (run, copy, page))


def test_a_run_that_ran_out_is_whole(tmp_path: Path) -> None:
    """Its recording has the finding with its reason and figures, the spans, and every sample."""
    path = tmp_path / "run.hfmem.jsonl"
    with (
        pytest.raises(MemoryError),
        hfmem_widget.watch(quiet=True, record=path) as session,
        hfmem_widget.span("deep"),
    ):
        raise MemoryError

    opened = hfmem_widget.open(path)
    (finding,) = opened.findings
    assert (finding.kind, finding.severity) == ("oom", "critical")
    assert opened.findings == session.findings
    assert [span.outcome for span in opened.spans] == ["raised MemoryError"] * 2
    assert [span.peaks for span in opened.spans] == [span.peaks for span in session.spans]
    assert opened.timeline.samples == session.timeline.samples
    assert not opened.running


RANK = Rank(7, 3, 8, 1, "node0001", 4711, "torchrun")


def member(tmp_path: Path, rank: Rank = RANK, disk: Disk | None = None) -> Watched:
    """Return a rank that is recorded into the directory of its run."""
    return Watched(tmp_path / "run", disk, rank=rank)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_rank_is_recorded_into_the_directory_of_its_run(tmp_path: Path) -> None:
    """Its head has rank and run; the user's thread does not touch the directory."""
    watched = member(tmp_path)
    assert not (tmp_path / "run").exists()
    watched.hold(3)
    assert (tmp_path / "run" / "run.json").exists()
    session = watched.end()

    (path,) = streams(tmp_path / "run").paths
    head = parse(path.read_bytes().splitlines()[0])
    assert isinstance(head, Head)
    assert head.rank == RANK
    assert head.run == read_run(tmp_path / "run").run
    assert hfmem_widget.open(path).peak("cuda:0/allocated") == 3 * 2**30
    assert [span.outcome for span in hfmem_widget.open(path).spans] == [session.spans[0].outcome]


@pytest.mark.parametrize("world", [64, 65, 1024])
def test_in_a_large_world_only_folds_are_written(tmp_path: Path, world: int) -> None:
    """Up to 64 ranks write every sample; in a larger world a line has extremes and a sign of life."""
    watched = member(tmp_path, Rank(7, 3, world, 0, "node0001", 4711))
    for size in (1, 9, 2):
        watched.hold(size)
    watched.end()

    (path,) = streams(tmp_path / "run").paths
    kinds = [line["k"] for line in lines_of(path) if line.get("t")]
    opened = hfmem_widget.open(path)
    assert ("rows" in kinds) is (world == 64)
    assert kinds.count("fold") >= 3 or world == 64
    assert opened.peak("cuda:0/allocated") == 9 * 2**30
    assert opened.latest("cuda:0/allocated") == watched.session.latest("cuda:0/allocated")
    assert not any("lacks" in note for note in opened.notes)


def test_important_news_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding, a mark that memory ran out, and the end of a training wake the disk."""
    watched = member(tmp_path)
    woken: list[float] = []
    monkeypatch.setattr(watched.recording._ticker, "tick_now", woken.append)
    stage, session = watched.stage, watched.session
    for _ in range(3):
        stage.recorder.publish()
    assert woken == []

    session.guides.append(Guide("cuda:0", "oom", "out of memory", 1.0, 1.0, 5.0, 5.0))
    stage.recorder.publish()
    assert woken == [0.0]
    with stage.span("train", "train"):
        stage.recorder.publish()
    stage.recorder.publish()
    stage.recorder.publish()
    assert len(woken) == 2
    session.findings.append(Finding("oom", "critical", "Out of memory."))
    stage.recorder.publish()
    assert len(woken) == 3


def test_one_rank_of_a_host_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the first process of the host, on stderr; its training goes on."""
    for local in (0, 1, 2):
        disk = Disk()
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        watched = member(tmp_path, Rank(local, local, 8), disk)
        watched.hold(1)
        watched.end()

    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "No space left on device" in printed


def test_a_directory_that_is_gone_costs_the_recording_alone(tmp_path: Path) -> None:
    """The directory is not made anew: half a recording would be without its head."""
    watched = member(tmp_path)
    watched.hold(1)
    shutil.rmtree(tmp_path / "run")
    for _ in range(40):
        watched.hold(2)
    watched.end()

    assert not (tmp_path / "run").exists()
    assert any("ended early" in note for note in watched.session.notes)


def test_a_recording_that_could_not_begin_does_not_blame_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of ours is a line on stderr, and the disk was not used."""
    monkeypatch.setattr(companion, "Lines", {}.__getitem__)
    with hfmem_widget.watch(record=str(tmp_path / "run.hfmem.jsonl"), quiet=True) as session:
        pass

    assert "memwatch: " in capsys.readouterr().err
    assert not [note for note in session.notes if "disk" in note]
