"""Text from outside is text."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.text import MAX_LENGTH, for_plotly, plain
from hfmem_widget.view.html import shown


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


def test_a_bidi_override_is_dropped() -> None:
    """A label cannot turn the text around it."""
    assert plain("a\u202eevil\u202c") == "aevil"


def test_ten_thousand_characters_are_cut_with_an_ellipsis() -> None:
    """A cut is visible."""
    assert plain("x" * 10_000) == "x" * (MAX_LENGTH - 1) + "…"


def test_html_is_escaped_in_text_and_attributes() -> None:
    """Neither tags nor quotes survive."""
    assert shown("<b onclick='x'>\"").html == "&lt;b onclick=&#x27;x&#x27;&gt;&quot;"


def test_plotly_gets_no_dollar_and_no_tag() -> None:
    """Plotly reads tags and, with MathJax, anything between dollars (plotly.js#8051)."""
    text = for_plotly(r"$\href{javascript:alert(1)}{x}$<a href='x'>")

    assert "$" not in text
    assert "<" not in text
