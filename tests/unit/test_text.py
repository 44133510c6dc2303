"""Text from outside is text; bytes and counts are as people read and write them."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.errors import OptionError
from hfmem_widget.text import (
    GIB,
    KIB,
    MAX_LENGTH,
    MIB,
    format_change,
    format_list,
    ordinal,
    parse_bytes,
    plain,
)


@given(st.text(max_size=2000))
def test_plain_text_is_short_and_has_no_control_characters(text: str) -> None:
    """Whatever comes in, one bounded line of visible characters goes out."""
    result = plain(text)

    assert len(result) <= MAX_LENGTH
    assert not {unicodedata.category(char) for char in result} & {"Cc", "Cf", "Cs", "Co"}


@given(st.text(max_size=200))
def test_plain_is_idempotent(text: str) -> None:
    """Plain text stays as it is."""
    assert plain(plain(text)) == plain(text)


def test_ten_thousand_characters_are_cut_with_an_ellipsis() -> None:
    """A cut shows as an ellipsis."""
    assert plain("x" * 10_000) == "x" * (MAX_LENGTH - 1) + "…"


def test_a_change_is_told_in_the_unit_of_the_larger_reading() -> None:
    """Both readings have the unit of the larger one."""
    assert format_change(0, 3.75 * GIB) == "0.00 → 3.75 GiB"
    assert format_change(math.nan, 2 * MIB) == "n/a → 2.00 MiB"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * GIB),
        ("1.5 MiB", 1.5 * MIB),
        (" 64kib ", 64 * KIB),
        ("4096", 4096),
        ("7 B", 7),
        ("2 TiB", 2048 * GIB),
    ],
)
def test_a_size_is_a_number_with_its_unit(text: str, size: float) -> None:
    """A size has a number and a unit; a number alone means bytes."""
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
    """The error suggests the binary unit for a decimal one."""
    pattern = f"^budget .* 20GiB, 500MiB or 64KiB, not '{text}'{hint}$"
    with pytest.raises(OptionError, match=pattern):
        parse_bytes(text, of="budget")


def test_a_number_in_a_row_is_written_as_it_is_said() -> None:
    """An ordinal has the ending that English gives it."""
    expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 102nd 111th"
    assert " ".join(map(ordinal, (1, 2, 3, 4, 11, 12, 13, 21, 102, 111))) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "a"), (3, "a, b and c"), (4, "a, b, c and d"), (5, "a, b, c and 2 more")],
)
def test_a_list_names_the_first_and_counts_the_others(count: int, expected: str) -> None:
    """One that is left is named, which takes no more room than to count it."""
    assert format_list("abcdefgh"[:count], 3) == expected
