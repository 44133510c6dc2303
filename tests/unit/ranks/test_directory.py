"""The directory of a run: made once, joined by all, and read with suspicion."""

import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.ranks import directory as directories
from hfmem_widget.ranks.directory import (
    Member,
    Streams,
    is_run,
    make_or_join,
    open_own,
    read_run,
    streams,
)
from hfmem_widget.session.rank_records import Rank
from tests.data.threads import on_threads

RANK = Rank(7, 3, 8, 0, "node0001", 4711, "torchrun")
NAME = "r00007-a0-node0001-4711.jsonl"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_or_join(tmp_path / "run")
    return tmp_path / "run"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_made_for_the_user_alone(tmp_path: Path) -> None:
    """The directory and the folders above it are made, and nobody else may look into it."""
    run = make_or_join(tmp_path / "a" / "run", "fine\ttune", now=5.0)

    assert mode(tmp_path / "a" / "run") == 0o700
    assert mode(tmp_path / "a" / "run" / "run.json") == 0o600
    assert json.loads((tmp_path / "a" / "run" / "run.json").read_text()) == {
        "format": "hfmem-run", "version": 1, "run": run.run, "label": "fine tune", "created": 5.0,
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "a" / "run").iterdir()] == ["run.json"]
    assert is_run(tmp_path / "a" / "run")
    assert not is_run(tmp_path)


def test_all_join_the_run_that_one_has_made(tmp_path: Path) -> None:
    """There is one run, however many make it at once."""
    runs: list[str] = []
    begin = threading.Barrier(8)

    def join() -> None:
        begin.wait()
        runs.append(make_or_join(tmp_path / "run").run)

    on_threads(*[join] * 8)
    assert len(runs) == 8
    assert set(runs) == {read_run(tmp_path / "run").run}


def test_a_run_is_made_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many network drives have no links."""
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "no links here")))

    assert make_or_join(tmp_path / "run") == make_or_join(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_rank_joins_under_its_own_name(run: Path) -> None:
    """The name has rank, attempt, host and process; a second file of a process has another part."""
    path, run_id = Member(run, RANK).join()
    path.touch()
    again, _ = Member(run, RANK).join()

    assert path == run / NAME
    assert run_id == read_run(run).run
    assert again.name == "r00007-a0-node0001-4711-p0001.jsonl"
    again.touch()
    assert streams(run).paths == (path, again)


def test_a_link_in_the_place_of_a_stream_is_not_followed(run: Path, tmp_path: Path) -> None:
    """A name that is taken, even by a link to nowhere, is not written to."""
    (run / NAME).symlink_to(tmp_path / "elsewhere")

    assert Member(run, RANK).join()[0].name == "r00007-a0-node0001-4711-p0001.jsonl"


def test_a_launcher_is_no_rank(run: Path) -> None:
    """The file of a launcher that was taken for the only process is no longer one of a rank."""
    (run / "r00000-a0-node0001-4000.jsonl").touch()
    Member(run, RANK, launcher=4000).join()
    Member(run, RANK, launcher=4000).join()

    assert streams(run) == Streams()


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", "[" * 5000, '{"format":"hfmem-run","version":1,"run":"../x"}',
        '{"format":"other","version":1,"run":"' + "0" * 32 + '"}',
        '{"format":"hfmem-run","version":2,"run":"' + "0" * 32 + '"}',
        '{"format":"hfmem-run","version":1,"run":["' + "0" * 32 + '"]}',
    ],
)  # fmt: skip
def test_bad_runs_are_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence, whatever the file says."""
    monkeypatch.setattr(directories, "PATIENCE", 0)
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(OptionError, match=r"run\.json"):
        make_or_join(tmp_path)


def test_an_invalid_label_or_time_is_passed_over(tmp_path: Path) -> None:
    """The run is read without them."""
    content = {"format": "hfmem-run", "version": 1, "run": "0" * 32, "label": 5, "created": "now"}
    (tmp_path / "run.json").write_text(json.dumps(content))

    assert read_run(tmp_path) == directories.RunFile("0" * 32)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file in its place, or a folder that is not writable, is named."""
    (tmp_path / "file").touch()

    with pytest.raises(OptionError, match="is not a directory"):
        make_or_join(tmp_path / "file")
    with pytest.raises(OptionError, match="cannot be written"):
        make_or_join(tmp_path / "file" / "run")


def test_only_streams_of_ones_own_are_read(run: Path, tmp_path: Path) -> None:
    """A link, a pipe and a folder with the name of a stream are counted; other files are passed over."""
    (run / NAME).touch()
    (run / "r00008-a0-node0001-1.jsonl").symlink_to(run / NAME)
    os.mkfifo(run / "r00009-a0-node0001-1.jsonl")
    (run / "r00010-a0-node0001-1.jsonl").mkdir()
    for other in ("overview-vm-1.jsonl", "notes.txt", "r1-a0-h-1.jsonl", "r00001-a0-H-1.jsonl"):
        (run / other).touch()

    listed = streams(run)

    assert listed.paths == (run / NAME,)
    assert listed.why.startswith("3 files not read")


def test_a_stream_of_another_user_is_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a file may differ from the owner of its directory."""
    (run / NAME).touch()
    monkeypatch.setattr(directories, "refusal", lambda _directory: "")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert streams(run).paths == ()
    assert streams(run).why.startswith("1 file not read")
    with pytest.raises(PermissionError):
        open_own(run / NAME)


@pytest.mark.parametrize(
    ("user", "rights", "reason"),
    [
        (12345, 0o700, "belongs to another user"),
        *((os.geteuid(), rights, "everybody may write") for rights in (0o777, 0o1777, 0o702)),
    ],
)
def test_a_directory_of_others_is_refused(
    run: Path, user: int, rights: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others could put files or links into it, despite a sticky bit: it is neither read nor written."""
    (run / NAME).touch()
    run.chmod(rights)
    monkeypatch.setattr(os, "geteuid", lambda: user)

    assert streams(run).paths == ()
    assert reason in streams(run).why
    with pytest.raises(OptionError, match=reason):
        Member(run, RANK).join()


def test_a_missing_directory_is_a_reason(tmp_path: Path) -> None:
    """Reading it raises nothing."""
    assert streams(tmp_path / "gone").paths == ()
    assert "No such file" in streams(tmp_path / "gone").why


def test_the_number_of_files_is_limited(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files beyond the limit are counted."""
    monkeypatch.setattr(directories, "MOST_STREAMS", 20)
    for rank in range(28):
        (run / f"r{rank:05}-a0-h-1.jsonl").touch()

    listed = streams(run)

    assert len(listed.paths) == 20
    assert listed.why.startswith("8 files not read: more than 20")


def test_a_stream_is_opened_without_following_or_waiting(run: Path) -> None:
    """A link and a pipe are also refused when they are opened, since they may have come meanwhile."""
    (run / NAME).write_bytes(b"{}\n")
    (run / "link").symlink_to(run / NAME)
    os.mkfifo(run / "pipe")

    descriptor, _ = open_own(run / NAME)
    assert os.read(descriptor, 9) == b"{}\n"
    os.close(descriptor)
    for other in ("link", "pipe", "."):
        with pytest.raises(OSError, match=r"."):
            open_own(run / other)
