"""The bundle of an out-of-memory error: what it has, what it has not, and how many are kept."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError, SourceUnavailable
from hfmem_widget.features.oom import dump as dump_module
from hfmem_widget.features.oom.dump import KEPT, dump, folder_of, snapshot_of
from hfmem_widget.session import Session
from tests.scenes import FakeClock, scripted_run

CARD = {"text/html": "<div>Out of memory</div>", "text/plain": "out of memory"}
FRAME = {"filename": "/home/me/secret-project/train.py", "line": 7, "name": "forward"}
SEGMENT: dict[str, Any] = {
    "device": 0, "address": 4096, "total_size": 2 << 20, "allocated_size": 1 << 20, "active_size": 1 << 20,
    "requested_size": 1 << 20, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
    "is_expandable": False, "frames": [FRAME],
    "blocks": [
        {
            "address": 4096, "size": 1 << 20, "requested_size": 1 << 20, "state": "active_allocated",
            "frames": [FRAME, {**FRAME, "filename": "C:\\Users\\me\\model.py"}],
            "user_metadata": object(),
        },
        {"address": 4096 + (1 << 20), "size": 1 << 20, "requested_size": 0, "state": "inactive"},
    ],
}  # fmt: skip


def no_segments() -> Sequence[Any]:
    raise SourceUnavailable


class Folder:
    """A folder to which bundles are written, a second apart."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, FakeClock()

    def dump(
        self,
        segments: Callable[[], Any] = lambda: [SEGMENT],
        session: Session | None = None,
        name: str = "dumps",
    ) -> str:
        self.clock.advance(1.0)
        session = session or scripted_run("failed")
        return dump(self.path, name, session, lambda: CARD, segments, clock=self.clock)

    @property
    def bundles(self) -> list[Path]:
        return sorted(one for one in self.path.iterdir() if one.name.startswith("hfmem-oom-"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "dumps")


def test_a_bundle_has_card_session_and_blocks(folder: Folder) -> None:
    """The session opens as any recording; only its owner can read it."""
    sentence = folder.dump()
    (bundle,) = folder.bundles

    assert sentence == f"The out-of-memory bundle is in dumps/{bundle.name}."
    assert sorted(one.name for one in bundle.iterdir()) == sorted(dump_module.FILES)
    assert "Out of memory" in (bundle / "card.html").read_text()
    assert (bundle / "card.txt").read_text() == "out of memory\n"
    opened = hfmem_widget.open(bundle / "session.hfmem.jsonl.gz")
    assert opened.spans[0].outcome == "raised OutOfMemoryError"
    assert bundle.stat().st_mode & 0o077 == 0
    assert [one.name for one in folder.path.iterdir()] == [bundle.name]


def test_no_path_leaves_the_machine(folder: Folder) -> None:
    """Of a source file there is the name, and of the folder nothing; neither of the process."""
    folder.dump()
    (bundle,) = folder.bundles
    written = b"".join(one.read_bytes() for one in bundle.iterdir() if one.suffix != ".gz")

    assert b"train.py" in written
    assert b"model.py" in written
    for private in ("/home", "secret-project", "Users", str(folder.path), sys.argv[0]):
        assert private.encode() not in written


def test_torchs_own_tool_reads_the_blocks(folder: Folder) -> None:
    """What memory_viz's script sums up is what was there."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    folder.dump()
    (bundle,) = folder.bundles
    snapshot = pickle.loads((bundle / "snapshot.pickle").read_bytes())

    assert snapshot == snapshot_of([SEGMENT])
    assert "1.0MiB" in viz.segsum(snapshot)


@pytest.mark.parametrize("segments", [no_segments, list])
def test_without_blocks_there_is_the_rest(folder: Folder, segments: Callable[[], Any]) -> None:
    """As on a machine without a GPU, where nothing is said of it."""
    assert "missing" not in folder.dump(segments)
    assert "snapshot.pickle" not in [one.name for one in folder.bundles[0].iterdir()]


def too_many() -> Sequence[Any]:
    return [{**SEGMENT, "blocks": [{}] * 100_001}]


def no_memory() -> Sequence[Any]:
    raise MemoryError


@pytest.mark.parametrize(
    ("segments", "why"), [(too_many, "100,001 blocks are too many"), (no_memory, "MemoryError")]
)
def test_a_piece_that_cannot_be_written_costs_itself(
    folder: Folder, segments: Callable[[], Any], why: str
) -> None:
    """Where memory is short, the card is there first."""
    assert folder.dump(segments).endswith(f" snapshot.pickle is missing: {why}.")
    assert (folder.bundles[0] / "card.html").exists()
    assert (folder.bundles[0] / "session.hfmem.jsonl.gz").exists()


def test_a_full_disk_is_one_sentence(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing half behind."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dump_module, "write_private", full)

    assert (
        folder.dump() == "The out-of-memory bundle could not be written: No space left on device."
    )
    assert not any(folder.path.iterdir())


def test_a_folder_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    """The user's code may have deleted all of it meanwhile."""
    sentence = Folder(tmp_path / "gone" / "dumps").dump()

    assert sentence == "The out-of-memory bundle could not be written: No such file or directory."


def test_a_slow_disk_is_waited_for_only_so_long(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes through all the same."""
    monkeypatch.setattr(dump_module, "done_within", lambda _seconds, _action: False)

    assert folder.dump() == "The out-of-memory bundle was not complete after 10 s."


def test_two_processes_may_run_out_at_once(folder: Folder) -> None:
    """As ranks of one training do: each has its own bundle."""
    for _ in range(3):
        folder.clock.advance(-1.0)
        assert "bundle is in" in folder.dump()

    assert len(folder.bundles) == 3


def test_the_newest_are_kept(folder: Folder) -> None:
    """Older bundles of ours go, whatever their labels."""
    for _ in range(KEPT + 3):
        folder.dump()

    written = [json.loads((one / "about.json").read_bytes())["written"] for one in folder.bundles]
    assert len(written) == KEPT
    assert max(written) == folder.clock()


def test_large_bundles_go_earlier(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """All together stay below a bound; the newest stays whatever its size."""
    monkeypatch.setattr(dump_module, "MOST_BYTES", 1)
    folder.dump()
    folder.dump()

    assert len(folder.bundles) == 1


def test_what_is_not_ours_stays(folder: Folder, tmp_path: Path) -> None:
    """Folders of such a name without our mark, links, and what the user put into a bundle."""
    for _ in range(2):
        folder.dump()
    (folder.bundles[0] / "notes.txt").write_text("mine")
    own, elsewhere = folder.path / "hfmem-oom-of-mine", tmp_path / "elsewhere"
    for place in (own, elsewhere):
        place.mkdir()
        (place / "card.html").write_text("mine")
    (elsewhere / "about.json").write_text('{"format":"hfmem-oom","written":0}')
    (folder.path / "hfmem-oom-link").symlink_to(elsewhere)
    (folder.path / "hfmem-oom-file").write_text("mine")
    for _ in range(KEPT):
        folder.dump()

    assert (own / "card.html").exists()
    assert (elsewhere / "card.html").exists()
    assert (folder.path / "hfmem-oom-link").is_symlink()
    assert (folder.path / "hfmem-oom-file").exists()
    assert [one.read_text() for one in folder.path.glob("*/notes.txt")] == ["mine"]


def test_what_a_crash_left_half_goes_later(folder: Folder) -> None:
    """After an hour; before that another process may be at it."""
    folder.path.mkdir()
    for name, age in (("old", 4000), ("new", 10)):
        half = folder.path / f".hfmem-oom-{name}.part"
        half.mkdir()
        (half / "card.html").write_text("half")
        os.utime(half, (folder.clock() - age,) * 2)
    folder.dump()

    assert [one.name for one in folder.path.glob(".*")] == [".hfmem-oom-new.part"]


@pytest.mark.parametrize(
    ("name", "says"), [("missing/dumps", "there is no folder"), ("file", "it is no folder")]
)
def test_a_folder_that_cannot_be_is_refused_at_once(tmp_path: Path, name: str, says: str) -> None:
    """Before the user's code runs; one that can be made later is none of those."""
    (tmp_path / "file").write_text("mine")

    assert folder_of(str(tmp_path / "dumps")) == tmp_path / "dumps"
    with pytest.raises(OptionError, match=says):
        folder_of(str(tmp_path / name))
    with (
        pytest.raises(OptionError, match=says),
        hfmem_widget.watch(oom_dump=tmp_path / name),
    ):
        pytest.fail("it ran")


def run_out(*folders: str) -> None:
    """Run out of memory within nested watches, the outermost first."""
    if not folders:
        raise MemoryError
    with hfmem_widget.watch(
        "deep", chart=False, quiet=folders[0] == "quiet", oom_dump=folders[0].replace("quiet", "")
    ):
        run_out(*folders[1:])


def test_a_watch_that_runs_out_says_where_its_bundle_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its card, in the words of the user; the error is the user's own."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MemoryError):
        run_out("dumps")
    (bundle,) = Folder(tmp_path / "dumps").bundles
    said = capsys.readouterr().out

    assert f"is in dumps/{bundle.name}." in said
    card = (bundle / "card.txt").read_text()
    assert card.startswith("out of memory")
    assert 'memwatch "deep"' in card
    assert "bundle" not in card
    assert hfmem_widget.open(bundle / "session.hfmem.jsonl.gz").findings[0].kind == "oom"


@pytest.mark.parametrize(
    ("outer", "inner"), [("dumps", "dumps"), ("dumps", ""), ("", "dumps"), ("dumps", "quiet")]
)
def test_an_error_has_one_bundle(
    tmp_path: Path, outer: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of nested watches asks for it, and whichever shows the card."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MemoryError):
        run_out(outer, inner)

    assert len(Folder(tmp_path / "dumps").bundles) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_quiet_watch_notes_where_its_bundle_is(tmp_path: Path, *, fails: bool) -> None:
    """It has no card to say it on. Where all goes well nothing is left, not even the folder."""
    with (
        suppress(MemoryError),
        hfmem_widget.watch("x", quiet=True, oom_dump=tmp_path / "dumps") as session,
    ):
        if fails:
            raise MemoryError

    assert any("hfmem-oom-x-" in note for note in session.notes) is fails
    assert any(tmp_path.iterdir()) is fails
