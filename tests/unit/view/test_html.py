"""The kit of cards and tables: what is described once is the same in HTML and in plain text."""

from __future__ import annotations

import re
from html import unescape

import pytest

from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, TableRow, table
from tests.unit.view.test_hostile_text import CORPUS, Strict


def seen(fragment: kit.Fragment) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", fragment.html)).replace("\u25a0", " ").split())


def everything(text: str) -> list[kit.Fragment]:
    """Return a text in each place that the kit has for one."""
    row = TableRow(
        (kit.marked("#000", text), text, (text, text)), facts=text, below=(text, kit.code(text))
    )
    columns = (Column(text), Column(text, is_quiet=True), Column(text, is_words=True))
    return [
        kit.headed(text, text, at_right=text),
        kit.note(text),
        kit.line(kit.strong(text), kit.faint(text)),
        kit.phrases([text, text]),
        kit.fold(text, kit.note(text)),
        kit.figures([(text, text, text)]),
        kit.section(text, text, kit.note(text)),
        kit.Fragment(kit.bar([("#000", 1.0, text)], 2.0, text)),
        kit.Fragment(kit.caption(text)),
        table(columns, [row], scrolls=text),
        table(columns, [row], names_last=True),
    ]


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_no_place_of_the_kit_lets_a_text_become_markup(text: str) -> None:
    """Whatever the text is, the tags are the kit's, all closed, and nothing steers a terminal."""
    found = everything(text)
    assert found
    for one in found:
        Strict(one.html)
        assert all(char.isprintable() or char in "\n\u00a0" for char in one.html + one.text)


@pytest.mark.parametrize("names_last", [False, True])
def test_a_table_says_the_same_in_both_forms(*, names_last: bool) -> None:
    """Each name and figure of the HTML is a word of the text."""
    rows = [
        TableRow((kit.code("a.b"), "1", "10 %"), facts="two tensors", below=("also c",)),
        TableRow(("sum", "3"), is_sum=True, is_ruled=True),
    ]
    made = table((Column(""), Column(""), Column("")), rows, names_last=names_last)
    told = set(re.sub(r"[()]", " ", made.text).replace("\u2500", " ").split())

    assert told == set(seen(made).split())


def test_what_stands_small_below_figures_has_a_line_of_its_own() -> None:
    """Aligned with its figure; where nobody has any there is no line."""
    rows = [TableRow(("a", ("5", "", "+4"), ("55", "1-2", ""))), TableRow(("bb", "6", "7"))]

    assert table((Column("n"), Column("x"), Column("y")), rows).text.splitlines() == [
        "n    x    y",
        "a    5   55",
        "        1-2",
        "    +4",
        "bb   6    7",
    ]


def test_a_table_without_rows_is_nothing() -> None:
    """Neither heads nor an empty frame."""
    assert not table((Column("n"),), [])
    assert not kit.note("")


def test_sections_are_apart_in_plain_text() -> None:
    """A blank line stands between two of them, and none before what follows both."""
    parts = (
        kit.section("a", "", kit.note("x")),
        kit.section("b", "", kit.note("y")),
        kit.note("end"),
    )

    assert kit.bundle(kit.headed("t"), *parts)["text/plain"] == "a\nx\n\nb\ny\nend"


def test_parts_of_a_bar_are_kept_apart_by_a_line() -> None:
    """In grey print some of them are alike."""
    assert '<g stroke="#000' in kit.bar([("#111", 1.0, "a"), ("#222", 1.0, "b")], 2.0, "both")


def test_words_beside_figures_keep_a_width_where_there_is_little_room() -> None:
    """They break in a few lines, not in one for each word; a name of one word needs none."""
    columns = [Column("phase"), Column("peak"), Column(is_words=True)]
    drawn = table(columns, [TableRow(("step", "7.00 GiB", "worst: step 15 (5,056 tokens)"))]).html
    (width,) = re.findall(r"min-width:(\d+)px", drawn)
    assert int(width) > 100


def test_a_figure_is_not_broken_where_styles_are_removed() -> None:
    """Nor is its head, unless that is longer; names and words break."""
    heads = (Column("a name"), Column("a peak"), Column("a long head"), Column("so", is_words=True))
    drawn = table(heads, [TableRow(("of two", "7.00 GiB", "1 %", "two words"))]).html
    found = re.findall(r"<t[hd] [^>]*>([^<]*)<", drawn)
    assert found[:4] == ["a name", "a\u00a0peak", "a long head", "so"]
    assert found[4:] == ["of two", "7.00\u00a0GiB", "1\u00a0%", "two words"]
