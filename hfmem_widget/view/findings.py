"""How findings look: sentences with a figure, at most three in sight, each with what to do one click away."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hfmem_widget.session import Finding
from hfmem_widget.text import plain
from hfmem_widget.view import palette

IN_SIGHT = 3
MOST = 12
"""More in one card nobody reads, and the card must stay small."""

SENTENCE = 300
MOST_ADVICE = 5

MARKS = {
    "critical": ("\u25c6", palette.BAD, "critical"),
    "warn": ("\u25b2", palette.BAD, "warning"),
    "info": ("\u25cf", palette.ALLOCATED, "note"),
}
"""What stands before a finding of each severity: a form, its colour, and the word for who sees neither."""

_STOPS = {"", ".", "!", "?", "\u2026"}
_UNSEEN = (
    "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap"
)
_HANGING = "margin:0;padding-left:17px;text-indent:-17px;overflow-wrap:anywhere"
_SUMMARY = "cursor:pointer;font-size:11.5px;opacity:.72"


def findings_html(findings: Sequence[Finding], in_sight: int = IN_SIGHT) -> str:
    """Return the findings as a section of a card, those beyond the first few folded; empty without any."""
    if not findings:
        return ""
    first, rest = findings[:in_sight], findings[in_sight:MOST]
    folded = ""
    if rest:
        folded = _folded(_more(len(rest)), "".join(map(_finding, rest)), "margin:4px 0 0")
    return f'<div style="margin:9px 0 0">{"".join(map(_finding, first))}{folded}</div>'


def findings_lines(findings: Sequence[Finding], in_sight: int = IN_SIGHT) -> list[str]:
    """Return the findings as lines of plain text."""
    told = [f"  {MARKS[one.severity][2]}: {sentence(one.title)}" for one in findings[:in_sight]]
    more = len(findings) - len(told)
    return [*told, f"  {_more(more)}"] if more > 0 else told


def _more(count: int) -> str:
    return f"{count} more {'finding' if count == 1 else 'findings'}"


def _finding(finding: Finding) -> str:
    mark, colour, word = MARKS[finding.severity]
    title = (
        f'<div style="{_HANGING}"><span aria-hidden="true" style="color:{colour};display:inline-block;'
        f'width:17px;text-indent:0">{mark}</span><span style="{_UNSEEN};text-indent:0">{word}: </span>'
        f"{escape(sentence(finding.title))}</div>"
    )
    advice = "".join(
        f'<li style="margin:2px 0 0">{escape(sentence(one))}</li>'
        for one in finding.advice[:MOST_ADVICE]
    )
    if advice:
        items = f'<ol style="margin:0;padding-left:20px">{advice}</ol>'
        title += _folded("what to do", items, "margin:0 0 0 17px")
    return f'<div style="margin:4px 0 0">{title}</div>'


def _folded(summary: str, inside: str, style: str) -> str:
    return f'<details style="{style}"><summary style="{_SUMMARY}">{summary}</summary>{inside}</details>'


def sentence(text: str, limit: int = SENTENCE) -> str:
    """Return a text as a sentence: plain, and with a full stop unless it ends with something of the kind."""
    told = plain(text, limit)
    return told if told[-1:] in _STOPS else f"{told}."
