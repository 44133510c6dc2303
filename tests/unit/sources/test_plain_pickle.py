"""Pickles read as data: what Python's own unpickler makes of plain ones, and nothing of all others."""

import os
import pickle
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hfmem_widget.session.segments import events_of
from hfmem_widget.sources.plain_pickle import NotPlainError, load
from tests.data.torch_snapshots import Allocations, training

HEAD = b"\x80\x04"

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
)
PLAIN = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.tuples(inside, inside)
        | st.lists(inside, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-99, 2**40), inside, max_size=4)
    ),
    max_leaves=30,
)


EMPTY: dict[str, int] = {}


@example([EMPTY, (EMPTY, EMPTY, 1, 2)], 4)
@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_containers_are_what_python_makes_of_them(value: Any, protocol: int) -> None:
    """Plain pickles of every protocol of torch's snapshots read as by Python, with shared objects once."""
    twice = [value, [value], (value, "x" * 300)]

    loaded = load(pickle.dumps(twice, protocol=protocol))

    assert loaded == twice
    assert not isinstance(value, list) or loaded[0] is loaded[1][0]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_snapshot_is_what_python_makes_of_it(protocol: int, steps: int) -> None:
    """A snapshot reads as by Python, with its events as `Event`, in several frames and batches too."""
    allocations = training(steps, layers=40)
    expected = pickle.loads(allocations.dump(protocol))
    loaded = load(allocations.dump(protocol))
    traces = loaded.pop("device_traces"), expected.pop("device_traces")

    assert [events_of(trace) for trace in traces[0]] == [events_of(trace) for trace in traces[1]]
    assert loaded == expected


def test_stacks_that_are_alike_are_one_list() -> None:
    """A block's frames are listed anew for each: a file of 1 GB would take several."""
    allocations = Allocations()
    for _ in range(3):
        allocations.alloc(512, ("a.py", 1, "f"), ("b.py", 2, "g"))
        allocations._stacks.clear()

    (trace,) = load(allocations.dump())["device_traces"]

    assert trace[1].frames is trace[2].frames


class Runs:
    """What a hostile pickle does."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("hostile",)


HOSTILE = {
    "calls": pickle.dumps({"segments": [Runs()]}),
    "calls in protocol 0": pickle.dumps(Runs(), protocol=0),
    "class": pickle.dumps(os.path.join),
    "object": pickle.dumps(ValueError("x")),
    "persistent": HEAD + b"\x8c\x01xQ.",
    "extension": HEAD + b"\x82\x01.",
    "place far off in the memo": HEAD + b"]r" + struct.pack("<I", 2**31) + b".",
    "long number": HEAD + b"\x8b" + struct.pack("<i", 2**30) + b"\0" * 64 + b".",
    "text that ends behind the file": HEAD + b"\x8d" + struct.pack("<Q", 2**60) + b"x.",
    "deep": HEAD + b"](" * 100_000 + b"e" * 100_000 + b".",
    "itself": HEAD + b"}\x94(\x8c\x01ah\x00uh\x00h\x00.",
    "of nothing": b"",
    "without an end": HEAD,
    "of nothing left": HEAD + b".",
    "set": pickle.dumps({1, 2}),
    "marks alone": HEAD + b"u.",
    "tuple of nothing": HEAD + b"\x87.",
    "keys that are lists": HEAD + b"}]]s.",
    "a key that is deep": HEAD + b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "keys that are deep": HEAD + b"}()" + b"\x85" * 1_000_000 + b"Nu.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_plain_is_refused(
    data: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is called, and nothing takes more memory than the file says."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotPlainError):
        load(data)

    assert not list(tmp_path.iterdir())


WHOLE = training(1, layers=2).dump()


@given(st.data())
def test_a_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    """A file that is cut off or has other bytes is read or refused with one error."""
    changed = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for _ in range(data.draw(st.integers(0, 4)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(NotPlainError):
        load(bytes(changed))


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    """Any bytes as instructions are read or refused with one error."""
    with suppress(NotPlainError):
        load(HEAD + data)
