"""Bytes and seconds as people read them."""

from __future__ import annotations

import math

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.text import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
    format_share,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 MiB"),
        (1.5 * MIB, "1.50 MiB"),
        (12.34 * MIB, "12.3 MiB"),
        (612 * MIB, "612.0 MiB"),
        (999.4 * MIB, "999.4 MiB"),
        (999.6 * MIB, "0.98 GiB"),
        (6.994 * GIB, "6.99 GiB"),
        (140.4 * GIB, "140.4 GiB"),
        (1234 * GIB, "1234 GiB"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(value: float, text: str) -> None:
    """MiB below 1000 MiB, GiB above; what is not a number is not available."""
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.75 * GIB, "+3.75 GiB"), (-12.5 * MIB, "\u221212.5 MiB"), (0, "±0 MiB"), (100, "±0 MiB")],
)
def test_changes_are_signed(value: float, text: str) -> None:
    """A change too small to show is ±0, never -0."""
    assert format_bytes(value, signed=True) == text


def test_counts_have_separators() -> None:
    """Thousands are set off by commas, and what is not known is "n/a"."""
    assert [format_count(count) for count in (7, 1024.0, math.nan)] == ["7", "1,024", "n/a"]


def test_a_change_is_told_in_the_unit_of_the_larger_reading() -> None:
    """Both readings share one unit."""
    assert format_change(0, 3.75 * GIB) == "0.00 → 3.75 GiB"
    assert format_change(math.nan, 2 * MIB) == "n/a → 2.00 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.01, "10 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (11.64, "11.6 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (187, "3 min 07 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (-1, "0.0 ms"),
        (math.nan, "n/a"),
    ],
)
def test_durations_have_the_unit_that_suits(seconds: float, text: str) -> None:
    """From a fraction of a millisecond to hours."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * GIB),
        ("1.5 MiB", 1.5 * MIB),
        (" 64kib ", 64 * KIB),
        ("4096", 4096),
        ("7 B", 7),
    ],
)
def test_a_size_is_a_number_with_its_unit(text: str, size: float) -> None:
    """Bytes, where it has none."""
    assert parse_bytes(text, of="budget") == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("20GB", r"; did you mean 20GiB\?"),
        ("1.5m", r"; did you mean 1\.5MiB\?"),
        ("much", ""),
        ("", ""),
    ],
)
def test_what_is_no_size_is_told_what_one_is(text: str, hint: str) -> None:
    """And of a decimal unit, which binary one comes near."""
    says = f"^budget is a size such as 20GiB, 500MiB or 64KiB, not '{text}'{hint}$"
    with pytest.raises(OptionError, match=says):
        parse_bytes(text, of="budget")


def test_counts_agree_with_their_nouns() -> None:
    """One of something has the singular, and thousands have their comma."""
    assert format_counted(1, "object") == "1 object"
    assert format_counted(1024, "object") == "1,024 objects"


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.0, "0 %"), (0.0001, "<0.1 %"), (0.0042, "0.4 %"), (0.0994, "9.9 %"), (0.62, "62 %")],
)
def test_a_share_is_written_one_way(share: float, told: str) -> None:
    """As a percentage, with a decimal below ten, and what is hardly anything is not told as nothing."""
    assert format_share(share) == told
