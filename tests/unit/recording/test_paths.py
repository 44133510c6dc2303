"""What a person gives as a path, at every door: where nothing can be, one sentence says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.errors import HFMemError
from tests.scenes import scripted_run
from tests.unit.session.test_stacks import stacks

NAMES = ("run.hfmem.jsonl", "samples.csv", "page.html", "peak.pickle")


class IsBytes(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"page.html"


BAD: tuple[Any, ...] = (
    7, True, None, [], b"page.html", IsBytes(), "a\0b",
    *(start + name for name in NAMES for start in ("~nobody-of-this-name/", "none/", "x" * 5000, "a\0b")),
)  # fmt: skip


def watched(path: Any) -> None:
    with hfmem_widget.watch("x", quiet=True, record=path):
        pass


DOORS: dict[str, Callable[[Any], object]] = {
    "session.save": lambda path: scripted_run().save(path),
    "session.report": lambda path: scripted_run().report(path),
    "history.save": lambda path: hfmem_widget.history().save(path),
    "stacks.save": lambda path: stacks().save(path),
    "open": hfmem_widget.open,
    "record": watched,
    "fit": hfmem_widget.fit,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_bad_path_is_a_short_sentence(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that the system refuses, nobody's home, no path at all, no such folder."""
    monkeypatch.chdir(tmp_path)
    for path in BAD:
        with pytest.raises(HFMemError) as refused:
            DOORS[door](path)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400

    assert [*tmp_path.iterdir()] == []
