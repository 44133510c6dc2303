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
from hfmem_widget.features.history import log as log_module
from hfmem_widget.features.history.file import append, read_runs
from hfmem_widget.features.history.html import history_bundle
from hfmem_widget.features.history.log import Log
from tests.unit.features.history.test_history import names, run


def add(log: Log, *labels: str) -> Log:
    """Run some cells in the kernel of a log."""
    for label in labels:
        log.add(replace(run(label), kernel=log.kernel))
    log.flush()
    return log


def test_the_next_kernel_has_the_runs_of_this_one(tmp_path: Path) -> None:
    """Those before the file was named, too; and each of them once."""
    path = tmp_path / "h.jsonl"
    first = add(Log(), "a")
    first.keep(path)
    add(first, "b")
    first.keep(path)

    second = add(Log(), "c")
    second.keep(path)
    add(second, "a")

    assert names(second.history()) == ["b", "c", "a"]
    assert [one.kernel == second.kernel for one in second.history().runs] == [
        False,
        False,
        True,
        True,
    ]
    assert len(path.read_text().splitlines()) == 4
    text = history_bundle(second.history())["text/plain"]
    assert "cell [1] \u00b7 earlier kernel" in text
    assert str(path) in text


def test_a_line_comes_back_as_it_was(tmp_path: Path) -> None:
    """With names in any script, quotation marks, and figures that are not known."""
    runs = [
        run("é \U0001f600 \"quoted\" \\ 'b'", findings=(("leak", "It grows."),), number=None),
        run("unknown", peak=float("nan")),
    ]
    append(tmp_path / "h.jsonl", runs)
    back = read_runs(tmp_path / "h.jsonl")

    assert back[0] == runs[0]
    assert repr(back[1]) == repr(runs[1])


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

    assert [one.name for one in read_runs(path)] == ["good"]


def test_damaged_lines_cost_themselves(tmp_path: Path) -> None:
    """Those before and after them are there; one that was torn is ended, so that the next is whole."""
    path = tmp_path / "h.jsonl"
    append(path, [run("before")])
    with path.open("ab") as file:
        file.write(b"\n".join(DAMAGED) + b'\n{"k":"cell","na')
    append(path, [run("after")])

    assert [one.name for one in read_runs(path)] == ["before", "after"]


def test_words_of_a_strange_file_are_plain(tmp_path: Path) -> None:
    """No control characters, and no more than fits."""
    path = tmp_path / "h.jsonl"
    append(path, [run("good")])
    fields = json.loads(path.read_bytes()) | {"name": "\x1b[31m" + "x" * 5000}
    path.write_text(json.dumps(fields) + "\n")
    (back,) = read_runs(path)

    assert back.name.startswith("[31mx")
    assert len(back.name) == 120


@pytest.mark.parametrize(
    "content", [b"mine", b'{"k":"head","format":"hfmem"}\n', b"\x1f\x8b\x08", b"a,b\n1,2\n"]
)
def test_a_file_with_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    """It is refused, and the history goes on without it."""
    path = tmp_path / "h.jsonl"
    path.write_bytes(content)
    log = add(Log(), "a")

    with pytest.raises(OptionError, match="is no history"):
        log.keep(path)
    add(log, "b")

    assert path.read_bytes() == content
    assert names(log.history()) == ["a", "b"]


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
        Log().keep(name if name.startswith("~") else tmp_path / name)


def test_a_disk_that_refuses_ends_the_file_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, once; the history in memory goes on."""
    log = Log()
    log.keep(tmp_path / "h.jsonl")
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: object) -> None:
        raise full

    monkeypatch.setattr(log_module, "append", refuse)
    add(log, "a", "b")
    add(log, "c")

    assert capsys.readouterr().err.count("No space left on device") == 1
    assert names(log.history()) == ["a", "b", "c"]
    assert not log.keeps


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """Its watches are its own."""
    log = Log()
    log.keep(tmp_path / "h.jsonl")
    log._pid += 1
    add(log, "the child's")

    assert (tmp_path / "h.jsonl").read_bytes() == b""


def test_clearing_leaves_the_file_alone(tmp_path: Path) -> None:
    """And later runs are still added to it."""
    log = Log()
    log.keep(tmp_path / "h.jsonl")
    add(log, "a")
    log.clear()
    add(log, "b")

    assert names(log.history()) == ["b"]
    assert [one.name for one in read_runs(tmp_path / "h.jsonl")] == ["a", "b"]


def test_only_the_newest_of_a_large_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more runs are kept than fit."""
    path = tmp_path / "h.jsonl"
    append(path, [run(str(number)) for number in range(100)])
    monkeypatch.setattr("hfmem_widget.features.history.file.MOST_READ", 2_000)
    log = Log(most=3)
    log.keep(path)

    assert 3 < len(read_runs(path)) < 20
    assert names(log.history()) == ["97", "98", "99"]


def test_a_full_disk_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that nothing could be written to goes again; one that had something stays as it was."""
    log = Log()
    add(log, "a")
    kept = tmp_path / "kept.jsonl"
    log.keep(kept)
    before = kept.read_bytes()

    def refuse(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_module, "write_all", refuse)
    with pytest.raises(OptionError, match="No space left on device"):
        log.keep(tmp_path / "h.jsonl")
    add(log, "b")

    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_bytes() == before
