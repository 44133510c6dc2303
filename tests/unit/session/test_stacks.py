"""The public form of stacks: rows, a data frame, a file."""

import pickle
import resource
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.session.stacks import LivePeak, Site, StackRecording, Stacks

SITES = (
    Site("cell [1] line 2", "Net \u00b7 a.py", "aten::mm", "forward", 600, 2, "y = x @ w"),
    Site("cell [1] line 2", "Net \u00b7 a.py", "aten::add", "forward", 100, 1, "y = x @ w"),
    Site("cell [1] line 3", "autograd (backward)", "aten::mm", "backward", 300, 3, "y.backward()"),
)
SNAPSHOT: dict[str, list[object]] = {"segments": [], "device_traces": [[]]}


def stacks(pickled: bytes = zlib.compress(pickle.dumps(SNAPSHOT))) -> Stacks:
    peak = LivePeak("cuda:0", 1000, 1000, SITES, allocated=1024.0, requested=1000.0)
    other = LivePeak("cuda:1", 600, 600, (SITES[0],))
    return Stacks((peak, other), StackRecording("allocator"), pickled)


@pytest.mark.parametrize("by", ["line", "module", "operator"])
def test_the_rows_of_every_grouping_add_up(by: Any) -> None:
    """Nothing is lost in any grouping, and the largest row is first; by default of the fullest device."""
    rows = stacks().rows(by)
    assert sum(row.bytes for row in rows) == 1000
    assert sum(row.blocks for row in rows) == 6
    assert [row.bytes for row in rows] == sorted((row.bytes for row in rows), reverse=True)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.bytes for row in stacks().rows(by, device="cuda:1")] == [600]


def test_a_line_has_its_text_and_a_module_has_none() -> None:
    """A line has its text; a module, which has many lines, has none."""
    assert [stacks().rows(by)[0].source for by in ("line", "module")] == ["y = x @ w", ""]


NOTHING = Stacks((), StackRecording("allocator"))


@pytest.mark.parametrize(
    ("of", "options", "message"),
    [
        (stacks(), {"device": "cuda:7"}, "cuda:0, cuda:1"),
        (NOTHING, {"device": "cuda:0"}, "recorded: none"),
        (stacks(), {"by": "colour"}, "'line', 'module' or 'operator'"),
    ],
)
def test_an_unknown_name_lists_the_known(of: Stacks, options: dict[str, Any], message: str) -> None:
    """An unknown device or grouping is an error with the known ones; without devices there are no rows."""
    with pytest.raises(OptionError, match=message):
        of.rows(**options)
    assert NOTHING.rows() == ()


def test_the_allocators_peak_is_the_sum_and_the_rounding() -> None:
    """The allocator's peak is the sum of all rows and of its rounding, to the byte."""
    peak = stacks().peaks[0]
    assert peak.exact
    assert peak.bytes + peak.rounding == peak.allocated


def test_a_data_frame_has_every_place() -> None:
    """`to_pandas` has all places of all devices, and their bytes add up to the peak."""
    frame = stacks().to_pandas()
    assert frame[frame.device == "cuda:0"].bytes.sum() == 1000
    assert list(frame.columns)[:4] == ["device", "line", "module", "operator"]


def test_a_saved_snapshot_is_the_recorded_one(tmp_path: Path) -> None:
    """A saved snapshot is a pickle of the recorded one that only its owner can read."""
    path = stacks().save(tmp_path / "peak.pickle")
    assert pickle.loads(path.read_bytes()) == SNAPSHOT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    """A file or a broken link that exists is not written over."""
    existing, link = tmp_path / "peak.pickle", tmp_path / "link.pickle"
    existing.write_text("mine", encoding="utf-8")
    link.symlink_to(tmp_path / "elsewhere")
    for path in (existing, link):
        with pytest.raises(OptionError, match="already exists"):
            stacks().save(path)
    assert existing.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may begin with `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stacks().save("~/peak.pickle") == tmp_path / "peak.pickle"


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """A partial file would block the next try."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OptionError, match="File too large"):
            stacks().save(tmp_path / "peak.pickle")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_without_a_snapshot_nothing_is_written(tmp_path: Path) -> None:
    """Where no snapshot was recorded, saving is an error and leaves no file."""
    with pytest.raises(WatchStateError, match="no snapshot"):
        stacks(b"").save(tmp_path / "peak.pickle")
    assert list(tmp_path.iterdir()) == []


def live(size: int, device: str = "cuda:0") -> LivePeak:
    site = Site("cell [1] line 1", "Net", "aten::op", "forward", size, 1, "y")
    return LivePeak(device, size, size, (site,), time=1.0, entries=1)


@pytest.mark.parametrize(
    ("peaks", "text"),
    [((), "nothing"), ((live(2048), live(5, "cuda:1")), "cuda:0 2,048 bytes, cuda:1 5 bytes")],
)
def test_stacks_say_how_much_was_live(peaks: tuple[LivePeak, ...], text: str) -> None:
    """The repr has the live bytes at the peak; displayed, stacks look as below the card."""
    stacks = Stacks(peaks, StackRecording("allocator"))

    assert repr(stacks) == f"<Stacks: live at the peak: {text}>"
    assert set(stacks._repr_mimebundle_()) == {"text/html", "text/plain"}
