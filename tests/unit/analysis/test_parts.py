"""The parts of one reading: what adds up, and what is never told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED, allocated_parts, parts_of
from hfmem_widget.session.series import COUNTED
from hfmem_widget.text import GIB

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
    told = parts_of(lambda metric: values.get(metric, NAN), total, is_host=is_host)
    return {part.name: part.bytes for part in told}


def held(values: dict[str, float]) -> float:
    return sum(values[metric] for metric in COUNTED if values[metric] > 0)


def beside_gradients(values: dict[str, float]) -> float:
    return sum(values[one] for one in COUNTED if one != "gradients" and values[one] > 0)


@given(READINGS)
def test_the_parts_of_allocated_add_up_to_it_to_the_byte(values: dict[str, float]) -> None:
    """Wherever what was found, gradients aside, is no more than that; otherwise only that is told."""
    known = allocated_parts(values.__getitem__)
    if not values["allocated"] > 0:
        assert known == {}
    else:
        fits = beside_gradients(values) <= values["allocated"]
        assert sum(known.values()) == (values["allocated"] if fits else held(values))


@given(READINGS, BYTES, st.booleans())
def test_no_part_is_negative_nothing_or_not_a_number(
    values: dict[str, float], total: float, is_host: bool
) -> None:
    """Whatever was read, each part that is told has some bytes."""
    assert all(value > 0 for value in parts(values, total, is_host=is_host).values())


@given(READINGS, st.booleans())
def test_parts_stand_in_the_order_of_the_stack(values: dict[str, float], is_host: bool) -> None:
    """Whatever was read, the parts come from the bottom of the stack to its top."""
    told = list(parts(values, is_host=is_host))
    assert told == sorted(told, key=list(LABELS).index)


@given(READINGS, st.booleans())
def test_what_is_found_is_told_as_it_was_found(values: dict[str, float], is_host: bool) -> None:
    """No remainder, and no rounding, ever takes from it; of gradients some may have been freed since."""
    told = parts(values, is_host=is_host)
    if values["allocated"] > 0:
        lasting = [name for name in COUNTED if name != "gradients"]
        assert {name: told[name] for name in lasting if name in told} == {
            name: values[name] for name in lasting if values[name] > 0
        }
        assert not told.get("gradients", 0.0) > values["gradients"]


@given(READINGS)
def test_everything_adds_up_to_the_device_where_the_readings_fit_each_other(
    values: dict[str, float],
) -> None:
    """As they do at one instant: found ≤ allocated ≤ active ≤ reserved, and the driver knows all of it."""
    for metric, value in values.items():
        values[metric] = 0.0 if math.isnan(value) else value
    values["allocated"] += 1 + held(values)
    values["active"] += values["allocated"]
    values["reserved"] += values["active"]
    values["device_used"] = values["reserved"] + values["context"] + values["others"]
    total = values["device_used"] + values["driver_reserved"] + GIB
    assert sum(parts(values, total).values()) == total


def test_what_nobody_explained_before_the_step_is_not_called_an_activation() -> None:
    """What was unexplained as the step began stays so; what came since is activations."""
    told = parts({"allocated": 10.0, "weights": 4.0, "unattributed": 1.0})
    assert told == {"weights": 4.0, "unattributed": 1.0, "activations": 5.0}


def test_what_was_there_before_the_watch_is_a_part_of_its_own() -> None:
    """Neither unexplained since, nor an activation; within a step and outside of one."""
    read = {"allocated": 10.0, "weights": 4.0, "before": 3.0}

    assert parts(read) == {"weights": 4.0, "before": 3.0, "unattributed": 3.0}
    within = parts(read | {"unattributed": 1.0})
    assert within == {"weights": 4.0, "before": 3.0, "unattributed": 1.0, "activations": 2.0}


def test_of_what_was_there_before_no_more_is_told_than_is_left() -> None:
    """Some of it was freed, or turned out to be weights."""
    assert parts({"allocated": 10.0, "weights": 8.0, "before": 3.0}) == {
        "weights": 8.0,
        "before": 2.0,
    }


def test_outside_of_steps_nothing_is_called_an_activation() -> None:
    """Outside of a step, what is not held by a model is not attributed."""
    told = parts({"allocated": 10.0, "weights": 4.0})
    assert told == {"weights": 4.0, "unattributed": 6.0}


def test_blocks_are_larger_than_what_was_asked_for() -> None:
    """What the allocator adds to requests is a part of its own, not of the activations."""
    told = parts({"allocated": 10.0, "requested": 9.0, "weights": 4.0, "unattributed": 0.0})
    assert told == {"weights": 4.0, "activations": 5.0, "rounding": 1.0}


def test_without_nvml_the_context_and_the_others_are_not_guessed() -> None:
    """Without a reading of the device, only what torch counts is told."""
    told = parts({"allocated": 3.0, "reserved": 4.0})
    assert told == {"unattributed": 3.0, "cache": 1.0}


def test_where_the_driver_does_not_name_us_the_rest_is_one_part() -> None:
    """In a container, context and other processes are told together."""
    told = parts({"allocated": 3.0, "reserved": 4.0, "device_used": 10.0}, total=12.0)
    assert told == {"unattributed": 3.0, "cache": 1.0, "unexplained": 6.0, "free": 2.0}


def test_before_the_allocator_is_there_the_driver_alone_is_told() -> None:
    """Before CUDA is up, the device has the driver's own, others' memory and what is free."""
    told = parts(
        {"device_used": 2.0, "driver_reserved": 1.0, "context": 0.0, "others": 2.0}, total=12.0
    )
    assert told == {"driver": 1.0, "others": 2.0, "free": 9.0}


def test_what_a_stream_still_uses_is_neither_allocated_nor_cache() -> None:
    """Blocks that were freed and wait for a stream are told as pending."""
    told = parts({"allocated": 3.0, "active": 5.0, "reserved": 9.0})
    assert told == {"unattributed": 3.0, "pending": 2.0, "cache": 4.0}


def test_the_host_has_private_memory_mapped_files_and_a_machine_around_it() -> None:
    """On the host the parts have the names of its own kinds of memory."""
    values = {"allocated": 3.0, "reserved": 5.0, "device_used": 9.0, "weights": 2.0}
    told = parts_of(lambda metric: values.get(metric, NAN), 12.0, is_host=True)
    assert [(part.label, part.bytes) for part in told] == [
        ("weights", 2.0),
        ("not attributed", 1.0),
        ("mapped files and libraries", 2.0),
        ("rest of the machine", 4.0),
        ("free", 3.0),
    ]


def test_children_and_shared_memory_are_told_from_the_rest_of_the_machine() -> None:
    """Shared memory that the children have mapped is theirs."""
    values = {"allocated": 0.0, "reserved": 5.0, "device_used": 20.0, "children": 4.0}
    values |= {"children_shared": 1.0, "shared_memory": 3.0}

    assert parts(values, 24.0, is_host=True) == {
        "files": 5.0, "children": 4.0, "shared_memory": 2.0, "others": 9.0, "free": 4.0,
    }  # fmt: skip
    assert (
        parts(values | {"shared_memory": NAN, "children": NAN}, 24.0, is_host=True)["others"] == 15
    )


@pytest.mark.parametrize("is_host", [False, True])
def test_nothing_read_is_nothing_told(is_host: bool) -> None:
    """Not even that all of it is free."""
    assert parts({}, is_host=is_host) == {}


def test_allocated_stands_below_what_the_allocator_keeps() -> None:
    """What makes up the allocated bytes is the bottom of the stack, without a gap."""
    of_training = "weights buffers optimizer gradients"
    rest = "kv_cache libraries python arrow before unattributed activations rounding"
    assert " ".join(OF_ALLOCATED) == f"{of_training} {rest}"


def test_gradients_freed_since_they_were_counted_are_not_told() -> None:
    """Where less is allocated than was counted, it is gradients that are gone."""
    counted = {"allocated": 100.0, "weights": 60.0, "optimizer": 30.0, "gradients": 60.0}

    assert parts(counted) == {"weights": 60.0, "optimizer": 30.0, "gradients": 10.0}


def test_weights_outside_the_allocator_take_nothing_from_gradients() -> None:
    """Weights that are mapped from a file are more than private memory, and gradients stand as counted."""
    counted = {"allocated": 100.0, "weights": 600.0, "gradients": 60.0}

    assert parts(counted, is_host=True) == {"weights": 600.0, "gradients": 60.0}
