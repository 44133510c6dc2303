"""The parts of one reading, and of memory that is not attributed what names keep."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.anatomy import anatomy
from hfmem_widget.analysis.kept import kept_at, kept_since
from hfmem_widget.analysis.parts import LABELS, allocated_parts, parts_of
from hfmem_widget.session import Finding, Session
from hfmem_widget.session.series import COUNTED
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage

NAN = math.nan
BYTES = st.integers(0, 2**40).map(float) | st.just(NAN)
METRICS = (
    *("allocated", "reserved", "requested", "active", "device_used", "driver_reserved"),
    *("context", "others", "before", "unattributed", *COUNTED),
    *("children", "children_shared", "shared_memory"),
)
READINGS = st.fixed_dictionaries(dict.fromkeys(METRICS, BYTES))


def parts(
    values: dict[str, float], total: float = 80 * GIB, *, is_host: bool = False
) -> dict[str, float]:
    listed = parts_of(lambda metric: values.get(metric, NAN), total, is_host=is_host)
    return {part.name: part.bytes for part in listed}


def counted_bytes(values: dict[str, float]) -> float:
    return sum(values[metric] for metric in COUNTED if values[metric] > 0)


def beside_gradients(values: dict[str, float]) -> float:
    return sum(values[one] for one in COUNTED if one != "gradients" and values[one] > 0)


@given(READINGS)
def test_the_parts_of_allocated_add_up_to_it_to_the_byte(values: dict[str, float]) -> None:
    """The parts add up unless more than was allocated is found, gradients aside; then only that is shown."""
    allocated = allocated_parts(values.__getitem__)
    if not values["allocated"] > 0:
        assert allocated == {}
    else:
        fits = beside_gradients(values) <= values["allocated"]
        assert sum(allocated.values()) == (values["allocated"] if fits else counted_bytes(values))


@given(READINGS, BYTES, st.booleans())
def test_each_part_has_some_bytes(values: dict[str, float], total: float, is_host: bool) -> None:
    """Whatever was read, each part has some bytes."""
    assert all(value > 0 for value in parts(values, total, is_host=is_host).values())


@given(READINGS, st.booleans())
def test_parts_stand_in_the_order_of_the_stack(values: dict[str, float], is_host: bool) -> None:
    """Whatever was read, the parts come from the bottom of the stack to its top."""
    names = list(parts(values, is_host=is_host))
    assert names == sorted(names, key=list(LABELS).index)


@given(READINGS, st.booleans())
def test_what_is_found_is_told_as_it_was_found(values: dict[str, float], is_host: bool) -> None:
    """No remainder, and no rounding, ever takes from it; of gradients some may have been freed since."""
    found = parts(values, is_host=is_host)
    if values["allocated"] > 0:
        lasting = [name for name in COUNTED if name != "gradients"]
        assert {name: found[name] for name in lasting if name in found} == {
            name: values[name] for name in lasting if values[name] > 0
        }
        assert not found.get("gradients", 0.0) > values["gradients"]


@given(READINGS)
def test_parts_of_consistent_readings_add_up_to_the_device(values: dict[str, float]) -> None:
    """Readings of one instant are consistent: found ≤ allocated ≤ active ≤ reserved ≤ the driver's figure."""
    for metric, value in values.items():
        values[metric] = 0.0 if math.isnan(value) else value
    values["allocated"] += 1 + counted_bytes(values)
    values["active"] += values["allocated"]
    values["reserved"] += values["active"]
    values["device_used"] = values["reserved"] + values["context"] + values["others"]
    total = values["device_used"] + values["driver_reserved"] + GIB
    assert sum(parts(values, total).values()) == total


def test_the_host_has_private_memory_mapped_files_and_a_machine_around_it() -> None:
    """On the host the parts have the names of its own kinds of memory."""
    values = {"allocated": 3.0, "reserved": 5.0, "device_used": 9.0, "weights": 2.0}
    host_parts = parts_of(lambda metric: values.get(metric, NAN), 12.0, is_host=True)
    labels = {"weights": 2.0, "not attributed": 1.0, "mapped files and libraries": 2.0}
    labels |= {"rest of the machine": 4.0, "free": 3.0}
    assert {part.label: part.bytes for part in host_parts} == labels


BEFORE = {"allocated": 10.0, "weights": 4.0, "before": 3.0}
DRIVER = {"device_used": 2.0, "driver_reserved": 1.0, "context": 0.0, "others": 2.0}
CHILDREN = {"allocated": 0.0, "reserved": 5.0, "device_used": 20.0, "children": 4.0}
CHILDREN |= {"children_shared": 1.0, "shared_memory": 3.0}

READ: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "nothing": ({}, {}),
    "unexplained when the step began, activations since": (
        {"allocated": 10.0, "weights": 4.0, "unattributed": 1.0},
        {"weights": 4.0, "unattributed": 1.0, "activations": 5.0},
    ),
    "no activations outside of steps": (
        {"allocated": 10.0, "weights": 4.0},
        {"weights": 4.0, "unattributed": 6.0},
    ),
    "there before the watch": (BEFORE, {"weights": 4.0, "before": 3.0, "unattributed": 3.0}),
    "there before the watch, within a step": (
        BEFORE | {"unattributed": 1.0},
        {"weights": 4.0, "before": 3.0, "unattributed": 1.0, "activations": 2.0},
    ),
    "partly freed since": (BEFORE | {"weights": 8.0}, {"weights": 8.0, "before": 2.0}),
    "blocks larger than the requests": (
        {"allocated": 10.0, "requested": 9.0, "weights": 4.0, "unattributed": 0.0},
        {"weights": 4.0, "activations": 5.0, "rounding": 1.0},
    ),
    "gradients freed since": (
        {"allocated": 100.0, "weights": 60.0, "optimizer": 30.0, "gradients": 60.0},
        {"weights": 60.0, "optimizer": 30.0, "gradients": 10.0},
    ),
    "no NVML": ({"allocated": 3.0, "reserved": 4.0}, {"unattributed": 3.0, "cache": 1.0}),
    "a driver that does not name us": (
        {"allocated": 3.0, "reserved": 4.0, "device_used": 10.0},
        {"unattributed": 3.0, "cache": 1.0, "unexplained": 6.0, "free": 2.0},
    ),
    "no allocator yet": (DRIVER, {"driver": 1.0, "others": 2.0, "free": 9.0}),
    "blocks that wait for a stream": (
        {"allocated": 3.0, "active": 5.0, "reserved": 9.0},
        {"unattributed": 3.0, "pending": 2.0, "cache": 4.0},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_reading_has_these_parts(name: str) -> None:
    """An unknown amount is a part of its own, or is left out; nothing is guessed."""
    values, expected = READ[name]

    assert parts(values, total=12.0) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        # Shared memory that the children have mapped is theirs.
        (CHILDREN, {"files": 5.0, "children": 4.0, "shared_memory": 2.0, "others": 9.0, "free": 4.0}),
        (CHILDREN | {"shared_memory": NAN, "children": NAN}, {"files": 5.0, "others": 15.0, "free": 4.0}),
        # Weights that are mapped from a file are more than private memory, and gradients stand as counted.
        (
            {"allocated": 100.0, "weights": 600.0, "gradients": 60.0},
            {"weights": 600.0, "gradients": 60.0},
        ),
    ],
    ids=["nothing", "children", "no children known", "mapped weights"],
)  # fmt: skip
def test_a_host_reading_has_parts(values: dict[str, float], expected: dict[str, float]) -> None:
    """Children and shared memory are separate from the rest of the machine."""
    assert parts(values, 24.0, is_host=True) == expected


KEY = "cuda:0"


def cell_of(*unattributed: float) -> Session:
    """Return a cell with 1 MiB of weights, and so many MiB that are not attributed, a second each."""
    stage = Stage("kept", gpus=1, interval=1.0)
    with stage.span("cell", "cell"):
        for size in unattributed:
            parts = {"weights": MIB, "unattributed": size * MIB}
            stage.hold({KEY: (size + 1) * MIB}, 1.0, parts)
    return stage.finish()


def with_holder(session: Session, grown: float) -> Session:
    """Return the session with what a search at its end found."""
    kept = kept_since(session, session.spans[0], KEY, grown * MIB)
    evidence = {"device": KEY, "holder": "losses", "kept": kept}
    session.findings.append(Finding("leak", "warn", "Held", evidence, span_id=session.spans[0].id))
    return session


def kept_mib(session: Session, times: Sequence[float]) -> list[float]:
    return [size / MIB for size in kept_at(session, KEY, times)[0].tolist()]


def test_it_counts_from_when_it_stayed() -> None:
    """Memory that was freed before the search does not count."""
    session = with_holder(cell_of(0, 10, 21, 20, 31, 30), 30)
    kept = kept_mib(session, session.timeline.time.tolist())

    assert kept == sorted(kept)
    assert {0.0, 10.0, 20.0, 30.0} <= set(kept)


def test_before_much_was_freed_nobody_knows_whose_it_was() -> None:
    """As much memory as the name holds existed then, and may have been another's."""
    session = with_holder(cell_of(0, 90, 90, 5, 20, 30), 30)
    allocated = session.timeline.low[:, session.index(f"{KEY}/allocated")]
    times = session.timeline.time[allocated > 60 * MIB]

    assert kept_mib(session, times.tolist()) == [0.0] * len(times)
    assert anatomy(session).bytes("kept") == 30 * MIB


def test_it_is_named_and_taken_from_what_is_not_attributed() -> None:
    """The parts still add up."""
    now = anatomy(with_holder(cell_of(0, 10, 40), 25))
    (part,) = (part for part in now.parts if part.name == "kept")

    assert (part.label, part.bytes) == ("kept by losses", 25 * MIB)
    assert now.bytes("unattributed") == 15 * MIB


def test_a_name_that_has_more_than_is_there_says_nothing() -> None:
    """A name that has more than is there has a part that is counted elsewhere, and nothing is said of it."""
    session = cell_of(0, 10, 20)
    assert kept_since(session, session.spans[0], KEY, 25 * MIB) == []


@pytest.mark.parametrize(
    "kept", [None, 3, "text", [1, 2], [[1]], [[1, "a"]], {"a": 1}, [[1, 2, 3]]]
)
def test_what_a_file_has_instead_is_nothing(kept: Any) -> None:
    """A recording may come from anybody."""
    session = cell_of(0, 10)
    session.findings.append(Finding("leak", "warn", "Held", {"device": KEY, "kept": kept}))

    assert math.isnan(anatomy(session).bytes("kept"))
