"""Recordings that were cut, changed or made by a stranger are read as far as they can be."""

import gzip
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.recording import reader as reader_module
from hfmem_widget.recording.check import Head, parse
from hfmem_widget.recording.limits import MOST_FIGURES
from hfmem_widget.recording.lines import Lines
from hfmem_widget.recording.reader import StreamReader
from hfmem_widget.session import Rank, Series, Session
from tests.data import ROOT
from tests.scenes import scripted_run
from tests.scenes.stage import Stage
from tests.unit.recording.written import recorded, saved

HEAD = b'{"k":"head","format":"hfmem","version":1,"started":5.0,"label":"x","interval":0.1}\n'
COLUMNS = (
    b'{"k":"series","first":0,"devices":[{"key":"cpu","name":"c","total":9}],'
    b'"series":["cpu/allocated"],"labels":["heap in use"]}\n'
)


def read(data: bytes) -> Session:
    reader = StreamReader()
    reader.feed(data)
    return reader.session()


def test_a_recording_that_was_cut_has_all_lines_before_the_cut() -> None:
    """Wherever it is cut, what stands before the cut is read, and nothing counts as damaged."""
    lines = saved(scripted_run("short"))
    before = [read(b"".join(lines[:count])) for count in range(1, len(lines) + 1)]
    cut = StreamReader()
    cut.feed(lines[0])

    for count, line in enumerate(lines[1:]):
        for at in range(len(line)):
            session = cut.session()
            assert cut.dropped == 0
            # Comparing takes longer than all else; between these nothing is there that counts.
            assert at not in {0, len(line) // 2, len(line) - 1} or session == before[count]
            cut.feed(line[at : at + 1])
    assert cut.session() == before[-1]


@pytest.mark.parametrize(("detail", "cuts"), [(reader_module.DETAIL, 60), (4.0, 20)])
def test_a_recording_may_be_cut(detail: float, cuts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random places: every block whose line ends before the cut is read, also after the last fold."""
    monkeypatch.setattr(reader_module, "DETAIL", detail)
    lines = recorded(scripted_run("training"))
    ends = np.cumsum([len(line) for line in lines])
    blocks = [json.loads(line) if b'"rows"' in line[:20] else {} for line in lines]
    samples = np.cumsum([len(block.get("t", ())) for block in blocks])
    data, rng, cut, start = b"".join(lines), random.Random(3), StreamReader(), 0

    places = sorted(rng.sample(range(len(lines[0]), len(data)), cuts))
    samples_read = []
    for at in places:
        cut.feed(data[start:at])
        start = at
        samples_read.append(cut.session().timeline.samples)

    assert samples_read == [samples[np.searchsorted(ends, at, "right") - 1] for at in places]
    assert cut.dropped == 0


def test_reading_may_begin_at_every_key_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what stands between the columns and a block of all columns, the rest is what it was."""
    monkeypatch.setattr("hfmem_widget.recording.lines.KEY_EVERY", 2)
    lines = recorded(scripted_run("training"))
    whole = read(b"".join(lines))
    keys = [at for at, line in enumerate(lines) if b'"key":true' in line]

    for at in keys:
        part = read(b"".join([*lines[:2], *lines[at:]]))
        first = len(whole.timeline) - len(part.timeline)
        np.testing.assert_array_equal(part.timeline.high, whole.timeline.high[first:])
        assert [span.label for span in part.spans] == [span.label for span in whole.spans]
    assert len(keys) > 4


@pytest.mark.parametrize("detail", [reader_module.DETAIL, 4.0], ids=["short", "long"])
def test_reading_often_makes_no_difference(detail: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read after every line or at once, the session is the same, although a reader puts off what it can."""
    monkeypatch.setattr(reader_module, "DETAIL", detail)
    session = scripted_run("training")
    lines = recorded(session)
    more = json.loads(COLUMNS) | {"first": len(session.series), "labels": ["x"]}
    more["series"] = ["cuda:0/stranger"]
    lines.insert(4, json.dumps(more, separators=(",", ":")).encode() + b"\n")
    often, once = StreamReader(), StreamReader()

    for line in lines:
        often.feed(line)
        often.session()
    once.feed(b"".join(lines))

    assert once.session() == often.session()
    assert once.dropped == often.dropped == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"k":[]}',
        b'{"k":"rows"}',
        b'{"k":"rows","n":0,"w":1,"t":[NaN],"s":[],"v":[]}',
        b'{"k":"rows","n":0,"w":1,"t":[1e999],"s":[0],"v":[[1]]}',
        b'{"k":"rows","n":0,"w":1,"t":[2,1],"s":[0],"v":[[1]]}',
        b'{"k":"rows","n":0,"w":1,"t":[1,2],"s":[0],"v":[[1,2,3]]}',
        b'{"k":"rows","n":-1,"w":1,"t":[1],"s":[0],"v":[[1]]}',
        b'{"k":"rows","n":0,"w":1,"t":[1],"s":[9999],"v":[[1]]}',
        b'{"k":"rows","n":0,"w":1,"t":[1],"s":[0],"v":[[true]]}',
        b'{"k":"rows","n":0,"w":1,"t":[1],"s":[0],"v":[["1"]]}',
        b'{"k":"fold","t":[2,1],"samples":1,"low":[1],"high":[1],"last":[1]}',
        b'{"k":"fold","t":[1,2],"samples":1,"low":[2],"high":[1],"last":[1]}',
        b'{"k":"series","first":0,"devices":[],"series":["../x"],"labels":["x"]}',
        b'{"k":"series","first":4096,"devices":[],"series":["cpu/x"],"labels":["x"]}',
        (
            b'{"k":"span","id":1,"parent":1,"kind":"cell","label":"","start":0,"stop":null,"outcome":"",'
            b'"s":[],"before":[],"after":[],"peak":[],"certainty":[],"counts":{}}'
        ),
        (
            b'{"k":"span","id":1,"parent":null,"kind":"sofa","label":"","start":0,"stop":null,"outcome":"",'
            b'"s":[],"before":[],"after":[],"peak":[],"certainty":[],"counts":{}}'
        ),
        b'{"k":"note","i":1000000,"text":"x"}',
        b'{"k":"finding","i":0,"kind":"x","severity":"fatal","title":"x","evidence":{},"advice":[],"span":1}',
        (
            b'{"k":"guide","i":0,"device":"x","kind":"oom","label":"","start":0,"stop":0,"first":0,"last":0,'
            b'"band":[0,0]}'
        ),
        b'{"k":"steps","devices":["cpu"],"count":1,"rows":[[1,2,3]]}',
        b'{"k":"phases","root":1,"phases":[[]],"spans":[]}',
        (
            b'{"k":"live","i":0,"device":"cpu","bytes":1,"highest":1,"sites":[{"line":"x"}],"time":0,'
            b'"entries":0,"wrapped":false,"since":0,"allocated":null,"requested":null,"span":1}'
        ),
        b'{"k":"end","time":null}',
        b'{"k":' + b"[" * 5000,
        b'{"k":"note","i":0,"text":' + b"[" * 70_000 + b"]" * 70_000 + b"}",
        b'{"k":"note","i":0,"text":"' + b"x" * (1 << 20) + b'"}',
        b"\xff\xfe\x00",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_impossible_lines_are_dropped_and_counted(line: bytes) -> None:
    """The lines around them are read."""
    rows = b'{"k":"rows","n":0,"w":6,"t":[1],"s":[0],"v":[[7]]}\n'

    session = read(HEAD + COLUMNS + line + b"\n" + rows)

    assert session.latest("cpu/allocated") == 7
    assert [note for note in session.notes if "could not be read" in note] or not line


def test_kinds_and_fields_of_later_versions_are_ignored() -> None:
    """A line of another kind, and a field more, are no damage."""
    head = HEAD.replace(b'"label"', b'"new":{"a":[1]},"label"')

    session = read(head + b'{"k":"weather","sun":1}\n' + COLUMNS)

    assert session.notes == []
    assert session.series[0].key == "cpu/allocated"


def test_texts_are_made_plain() -> None:
    """Control characters and endless names from outside do not reach a page."""
    head = json.loads(HEAD)
    head["label"] = "a\u202eb\x00" + "x" * 9000

    label = read(json.dumps(head).encode() + b"\n").label

    assert label.startswith("abx")
    assert len(label) < 300


def test_a_newer_version_is_refused_with_the_remedy() -> None:
    """The error says what to install."""
    with pytest.raises(OptionError, match="pip install -U hfmem-widget"):
        read(HEAD.replace(b'"version":1', b'"version":2'))


def test_a_second_head_is_damage() -> None:
    """A damaged line that looks like a head of a later version does not cost what was read before it."""
    session = read(HEAD + COLUMNS + HEAD.replace(b'"version":1', b'"version":2'))

    assert session.series[0].key == "cpu/allocated"
    assert [note for note in session.notes if "could not be read" in note]


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"a":1}\n', b"\x1f\x8b\x08nonsense", None])
def test_another_file_is_no_recording(content: bytes | None, tmp_path: Path) -> None:
    """An empty file, a text, a damaged archive and a pipe, which might never end, are refused by name."""
    path = tmp_path / "other.jsonl"
    os.mkfifo(path) if content is None else path.write_bytes(content)

    with pytest.raises(OptionError, match=r"other\.jsonl.*(not a recording|not a regular file)"):
        hfmem_widget.open(path)


def test_a_block_larger_than_any_that_is_written_is_dropped() -> None:
    """A short line cannot ask for the memory of a long block: many times, and very many series."""
    keys = [f"cpu/s{number}" for number in range(1000)]
    columns = json.loads(COLUMNS) | {"series": keys, "labels": keys}
    times = list(range(MOST_FIGURES // len(keys) + 1))
    rows = {"k": "rows", "n": 0, "w": 6, "t": times, "s": [], "v": []}
    reader = StreamReader()

    reader.feed(HEAD + b"".join(json.dumps(line).encode() + b"\n" for line in (columns, rows)))

    assert reader.dropped == 1


def test_a_series_added_meanwhile_waits_for_the_next_block() -> None:
    """A block has the columns that were described before it, whatever another thread adds in between."""
    session = Stage("run", gpus=1)
    session.sample()
    lines = Lines(session.session)
    blocks = lines.samples([session.session.last_sample], 1.0)
    described = [next(blocks)]
    more = Series("cuda:0", "stranger")
    session.recorder.adopt(session.session.devices, (*session.session.series, more))

    read(lines.head() + b"".join([*described, *blocks]))

    assert b"cuda:0/stranger" in b"".join(lines.samples([session.session.last_sample], 2.0))


def test_a_damaged_member_costs_itself_alone(tmp_path: Path) -> None:
    """The members of a compressed recording before and after a flipped byte are read."""
    lines = saved(scripted_run("steps"))
    third = len(lines) // 3
    parts = [gzip.compress(b"".join(lines[at : at + third])) for at in range(0, len(lines), third)]
    parts[1] = parts[1][:40] + bytes([parts[1][40] ^ 255]) + parts[1][41:]
    path = tmp_path / "run.hfmem.jsonl.gz"
    path.write_bytes(b"".join(parts))

    session = hfmem_widget.open(path)

    assert session.series == scripted_run("steps").series
    assert session.stopped_at is not None
    assert any("could not be read" in note for note in session.notes)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A member that grows two hundredfold is left out."""
    path = tmp_path / "run.hfmem.jsonl.gz"
    path.write_bytes(gzip.compress(HEAD) + gzip.compress(b"0" * (8 << 20)))

    assert any("could not be read" in note for note in hfmem_widget.open(path).notes)


def test_empty_folds_of_very_many_series_take_little() -> None:
    """An empty fold has no places for all series, which would take 64 kB for a line of 80 bytes."""
    series = [f"cuda:{index}/allocated" for index in range(4096)]
    columns = {"k": "series", "first": 0, "devices": [], "series": series, "labels": [""] * 4096}
    fold = '{"k":"fold","t":[%d,%d],"samples":1,"low":[%d],"high":[%d],"last":[0]}\n'
    lines = [fold % (5000 + at, 5001 + at, at, at) for at in range(1000)]
    data = HEAD + json.dumps(columns, separators=(",", ":")).encode() + b"\n"
    tracemalloc.start()
    session = read(data + "".join(lines).encode())
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert session.peak("cuda:0/allocated") == 999
    assert highest < 64 << 20


def test_a_recording_without_some_series_can_be_saved_again(tmp_path: Path) -> None:
    """Spans keep the readings whose series are known."""
    lines = b"".join(saved(scripted_run("cpu"))).splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if line.startswith(b'{"k":"series"'))
    path = tmp_path / "run.hfmem.jsonl"
    path.write_bytes(b"".join([*lines[:at], COLUMNS, *lines[at + 1 :]]))

    again = hfmem_widget.open(hfmem_widget.open(path).save(tmp_path / "again.hfmem.jsonl"))
    assert [one.key for one in again.series] == ["cpu/allocated"]
    assert again.spans


def test_mutated_lines_raise_nothing_and_take_little() -> None:
    """Thousands of lines with flipped, nasty and missing bytes raise no error, and take little memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.recording.mutate", "7", "4000"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    dropped, kilobytes = map(int, done.stdout.split())
    assert dropped > 2_000
    assert kilobytes < 512 << 10


RANK = Rank(417, 1, 1024, 2, "node0052", 4711, "Slurm")
RUN = "0123456789abcdef" * 2


def parsed(**changes: Any) -> Head:
    fields = json.loads(Lines(scripted_run("short"), RANK).head(RUN)) | changes
    head = parse(json.dumps(fields).encode())
    assert isinstance(head, Head)
    return head


def test_a_recording_by_itself_has_no_rank() -> None:
    """A recording by itself has an id of its own and no number of a rank."""
    line = Lines(scripted_run("short")).head()

    fields = ("k", "format", "version", "run", "part", "started", "label", "interval", "software")
    assert list(json.loads(line)) == [*fields]
    head = parse(line)
    assert isinstance(head, Head)
    assert head.rank is None
    assert len(head.run) == 32


def test_a_head_of_a_rank_comes_back() -> None:
    """The head says which rank of which run it is, in the order of the format's description."""
    assert list(json.loads(Lines(scripted_run("short"), RANK).head(RUN))) == [
        *("k", "format", "version", "run", "part", "started", "rank", "local", "world"),
        *("attempt", "host", "pid", "label", "interval", "engine", "software"),
    ]
    assert parsed().rank == RANK
    assert parsed().run == RUN


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": -1}, {"rank": 1024}, {"rank": "7"}, {"rank": 1.5}, {"rank": True},
        {"world": 0}, {"world": 1 << 21}, {"rank": 1 << 20, "world": 1 << 21}, {"local": -1},
        {"attempt": 1 << 20}, {"attempt": None}, {"pid": -4}, {"pid": 1 << 60}, {"host": 5},
        {"engine": ["x"]}, {"run": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_rank_that_cannot_be_is_none(changes: dict[str, Any]) -> None:
    """The line is refused, and with it the stream."""
    with pytest.raises(ValueError, match=r"."):
        parsed(**changes)


def test_texts_of_a_rank_are_made_plain() -> None:
    """The name of a host is shown to people, so it is plain and short."""
    head = parsed(host="a\u202e\x00" + "b" * 500, engine="x" * 500)

    assert head.rank is not None
    assert len(head.rank.host) == 64
    assert head.rank.host.startswith("ab")
    assert len(head.rank.engine) == 40
