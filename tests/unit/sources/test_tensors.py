"""What was counted, as a source tells it."""

from __future__ import annotations

import math

from hfmem_widget.sources.tensors import TensorSource


def by_key(source: TensorSource) -> dict[str, float]:
    values = source.read(0.0)
    return {series.key: value for series, value in zip(source.series, values, strict=True)}


def test_before_anything_is_counted_there_are_no_series() -> None:
    """A session without models carries no columns for them."""
    assert TensorSource().series == ()


def test_a_device_has_all_parts_of_a_training_at_once() -> None:
    """What a device has none of is 0, and what only a session knows is not available."""
    source = TensorSource()

    source.count({"cuda:0": {"weights": 5.0}})

    read = by_key(source)
    assert math.isnan(read.pop("cuda:0/unattributed"))
    assert read == {
        "cuda:0/weights": 5.0,
        "cuda:0/buffers": 0.0,
        "cuda:0/gradients": 0.0,
        "cuda:0/optimizer": 0.0,
    }


def test_series_only_grow_at_the_end() -> None:
    """A second device comes after the first, whose columns stay where they are."""
    source = TensorSource()
    source.count({"cuda:1": {"weights": 5.0}})
    before = source.series

    source.count({"cuda:0": {"weights": 7.0}, "cuda:1": {"weights": 6.0}})

    assert source.series[: len(before)] == before
    assert by_key(source)["cuda:1/weights"] == 6.0
    assert by_key(source)["cuda:0/weights"] == 7.0


def test_a_device_that_was_emptied_reads_zero() -> None:
    """After the model moved away, the device's parts are 0, not its last ones."""
    source = TensorSource()
    source.count({"cuda:0": {"weights": 5.0}})

    source.count({"cpu": {"weights": 5.0}})

    assert by_key(source)["cuda:0/weights"] == 0.0


def test_what_was_true_at_an_instant_can_be_kept() -> None:
    """Values that were taken are not changed by a later count."""
    source = TensorSource()
    source.count({"cuda:0": {"weights": 5.0}})
    kept = source.latest

    source.count({"cuda:0": {"weights": 6.0}})

    assert kept[0] == 5.0
    assert source.latest[0] == 6.0


def test_what_is_rarer_has_a_series_once_there_is_some() -> None:
    """A column costs the page bytes; it stays when the last of it is gone."""
    source = TensorSource()
    source.count({"cpu": {"weights": 5.0}})
    known = source.series
    source.count({"cpu": {"weights": 5.0, "kv_cache": 3.0}})

    assert source.series[: len(known)] == known
    assert [series.key for series in source.series[len(known) :]] == ["cpu/kv_cache"]
    assert by_key(source)["cpu/kv_cache"] == 3.0
    source.count({"cpu": {"weights": 5.0}})
    assert by_key(source)["cpu/kv_cache"] == 0.0
