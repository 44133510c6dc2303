"""A file outlives the kernel: it is only added to, and a damaged line costs itself."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.features.history import file as file_module
from hfmem_widget.features.history.file import append, read_records
from hfmem_widget.features.history.html import history_bundle
from hfmem_widget.features.history.keep import KeptHistory
from tests.unit.features.history.test_history import kept_history, names, run


def add(kept: KeptHistory, *labels: str) -> KeptHistory:
    """Run some cells in the kernel of a kept."""
    for label in labels:
        kept.add(replace(run(label), kernel=kept.history.kernel))
    kept.flush()
    return kept


def test_the_next_kernel_has_the_runs_of_this_one(tmp_path: Path) -> None:
    """Those before the file was named, too; and each of them once."""
    path = tmp_path / "h.jsonl"
    first = add(kept_history(), "a")
    first.keep(path)
    add(first, "b")
    first.keep(path)

    second = add(kept_history(), "c")
    second.keep(path)
    add(second, "a")

    assert names(second.table()) == ["b", "c", "a"]
    assert [one.kernel == second.history.kernel for one in second.table().runs] == [
        False,
        False,
        True,
        True,
    ]
    assert len(path.read_text().splitlines()) == 4
    text = history_bundle(second.table())["text/plain"]
    assert "cell [1] \u00b7 earlier kernel" in text
    assert str(path) in text


def test_a_line_comes_back_as_it_was(tmp_path: Path) -> None:
    """With names in any script, quotation marks, and figures that are not known."""
    runs = [
        run("é \U0001f600 \"quoted\" \\ 'b'", findings=(("leak", "It grows."),), number=None),
        run("unknown", peak=float("nan")),
    ]
    append(tmp_path / "h.jsonl", runs)
    back = read_records(tmp_path / "h.jsonl")

    append(tmp_path / "again.jsonl", back)

    assert [one.name for one in back] == [one.name for one in runs]
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "h.jsonl").read_bytes()


DAMAGED = [
    b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"k":"cell"}', b'{"k":"head"}',
    b"[" * 50_000, b'{"k":' + b"1" * 5000 + b"}", b'"' + b"x" * 100_000 + b'"',
]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"number": "7"}, {"number": True}, {"name": 5}, {"kind": None}, {"started": "now"},
        {"started": 1e300}, {"seconds": [1]}, {"findings": [1]}, {"findings": {"a": "b"}},
        {"devices": 5}, {"devices": [["cuda:0", 1, 2, 3]]},
        {"devices": [["/etc/passwd", 1, 2, 3, "exact"]]},
        {"devices": [["cpu", 1, 2, 3, "guessed"]]}, {"devices": [["cpu", "1", 2, 3, "exact"]]},
    ],
)  # fmt: skip
def test_a_line_that_says_what_none_may_is_left_out(tmp_path: Path, change: object) -> None:
    """Whoever has written it."""
    path = tmp_path / "h.jsonl"
    append(path, [run("good")])
    fields = json.loads(path.read_bytes())
    with path.open("ab") as file:
        file.write(json.dumps(fields | change).encode() + b"\n")

    assert [one.name for one in read_records(path)] == ["good"]


def test_damaged_lines_cost_themselves(tmp_path: Path) -> None:
    """Those before and after them are there; one that was torn is ended, so that the next is whole."""
    path = tmp_path / "h.jsonl"
    append(path, [run("before")])
    with path.open("ab") as file:
        file.write(b"\n".join(DAMAGED) + b'\n{"k":"cell","na')
    append(path, [run("after")])

    assert [one.name for one in read_records(path)] == ["before", "after"]


def test_words_of_a_strange_file_are_plain(tmp_path: Path) -> None:
    """No control characters, and no more than fits."""
    path = tmp_path / "h.jsonl"
    append(path, [run("good")])
    fields = json.loads(path.read_bytes()) | {"name": "\x1b[31m" + "x" * 5000}
    path.write_text(json.dumps(fields) + "\n")
    (back,) = read_records(path)

    assert back.name.startswith("[31mx")
    assert len(back.name) == 120


@pytest.mark.parametrize(
    "content", [b"mine", b'{"k":"head","format":"hfmem"}\n', b"\x1f\x8b\x08", b"a,b\n1,2\n"]
)
def test_a_file_with_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    """It is refused, and the history goes on without it."""
    path = tmp_path / "h.jsonl"
    path.write_bytes(content)
    kept = add(kept_history(), "a")

    with pytest.raises(OptionError, match="is no history"):
        kept.keep(path)
    add(kept, "b")

    assert path.read_bytes() == content
    assert names(kept.table()) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing/h.jsonl", "there is no such folder"),
        (".", "is no regular file"),
        ("pipe", "is no regular file"),
        ("nul\0", "keep must be the path of a file"),
        ("~nobody-here/h.jsonl", "there is no such folder"),
    ],
)
def test_a_path_that_cannot_be_is_refused(tmp_path: Path, name: str, says: str) -> None:
    """In one sentence; a pipe would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match=says):
        kept_history().keep(name if name.startswith("~") else tmp_path / name)


def test_a_disk_that_refuses_ends_the_file_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, once; the history in memory goes on."""
    kept = kept_history()
    kept.keep(tmp_path / "h.jsonl")
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object) -> None:
        raise full

    monkeypatch.setattr(file_module, "append", refuse)
    add(kept, "a", "b")
    add(kept, "c")

    assert capsys.readouterr().err.count("No space left on device") == 1
    assert names(kept.table()) == ["a", "b", "c"]
    assert not kept.keeps


def test_a_forked_child_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watches are its own."""
    kept = kept_history()
    kept.keep(tmp_path / "h.jsonl")
    monkeypatch.setattr("os.getpid", lambda: 1)
    add(kept, "the child's")

    assert (tmp_path / "h.jsonl").read_bytes() == b""


def test_clearing_leaves_the_file_alone(tmp_path: Path) -> None:
    """And later runs are still added to it."""
    kept = kept_history()
    kept.keep(tmp_path / "h.jsonl")
    add(kept, "a")
    kept.history.clear()
    add(kept, "b")

    assert names(kept.table()) == ["b"]
    assert [one.name for one in read_records(tmp_path / "h.jsonl")] == ["a", "b"]


def test_only_the_newest_of_a_large_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more runs are kept than fit."""
    path = tmp_path / "h.jsonl"
    append(path, [run(str(number)) for number in range(100)])
    monkeypatch.setattr("hfmem_widget.features.history.file.MOST_READ", 2_000)
    kept = kept_history(most=3)
    kept.keep(path)

    assert 3 < len(read_records(path)) < 20
    assert names(kept.table()) == ["97", "98", "99"]


def test_a_full_disk_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that nothing could be written to goes again; one that had something stays as it was."""
    kept = kept_history()
    add(kept, "a")
    path = tmp_path / "kept.jsonl"
    kept.keep(path)
    before = path.read_bytes()

    def refuse(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_module, "write_all", refuse)
    with pytest.raises(OptionError, match="No space left on device"):
        kept.keep(tmp_path / "h.jsonl")
    add(kept, "b")

    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
