"""Which addresses lie in mapped files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfmem_widget.sources.procfs import MappedFiles
from tests.scenes import FakeClock

MAPS = """\
00001000-00002000 r-xp 00000000 fe:00 12                                 /usr/bin/python3
00002000-00003000 rw-p 00000000 00:00 0                                  [heap]
00003000-00004000 rw-p 00000000 00:00 0
00005000-00006000 rw-p 00000000 fe:00 13                                 /tmp/a name with blanks
"""


@pytest.mark.parametrize(
    ("address", "found"),
    [
        *((0xFFF, False), (0x1000, True), (0x1FFF, True), (0x2000, False)),
        *((0x3800, False), (0x4800, False), (0x5FFF, True), (0x6000, False)),
    ],
)
def test_what_has_a_path_is_a_file(tmp_path: Path, address: int, *, found: bool) -> None:
    """An address lies in a file if its mapping names one: the heap and what has no name are none."""
    maps = tmp_path / "maps"
    maps.write_text(MAPS)

    assert MappedFiles(maps).hold(address, 1) is found


def test_an_answer_is_remembered_for_its_owner(tmp_path: Path) -> None:
    """A known owner's address is not looked up again, as a new one's is."""
    maps, clock = tmp_path / "maps", FakeClock()
    maps.write_text(MAPS)
    files = MappedFiles(maps, clock=clock)
    before = files.hold(0x1000, 1)
    maps.write_text("")
    clock.advance(1)

    assert (before, files.hold(0x1000, 1), files.hold(0x1000, 2)) == (True, True, False)


def test_where_there_is_no_list_nothing_is_mapped(tmp_path: Path) -> None:
    """On a system without it, memory counts as it always did."""
    assert not MappedFiles(tmp_path / "none").hold(0x1000, 1)
