"""Findings as sentences with a figure, at most three in sight, and the commands to type next."""

import re
from collections.abc import Iterator, Sequence

from hfmem_widget.analysis.facts import findings_of, ran_out
from hfmem_widget.analysis.left_behind import LEAST, left_behind
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.text import format_counted, plain
from hfmem_widget.view import palette
from hfmem_widget.view.html import FAINT, Fragment, block, fold, shown

IN_SIGHT = 3
MOST = 12  # on one card, which must stay small
SENTENCE = 300  # characters
MOST_ADVICE = 5

MARKS = {
    "critical": ("\u25c6", palette.BAD, "critical"),
    "warn": ("\u25b2", palette.BAD, "warning"),
    "info": ("\u25cf", palette.ALLOCATED, "note"),
}
"""The sign before a finding of each severity, its colour, and the word for screen readers."""

_TYPED = re.compile(  # a magic or an option in a sentence
    r"%%?mem\w+(?: --free (?:errors|outputs|garbage|all)\b| --?[a-z]+)*|(?<!\S)--[a-z][a-z-]+"
)
_CODE = "display:inline-block;background:none;padding:0;color:inherit"

_STOPS = {"", ".", "!", "?", "\u2026"}
_HANGING = "padding-left:17px;text-indent:-17px"
_INDENTED = "margin:1px 0 0 17px"


def findings_html(
    findings: Sequence[Finding], in_sight: int = IN_SIGHT, *, is_open: bool = False
) -> str:
    """Return a section of a card with a few findings in sight; their advice is folded unless it `is_open`."""
    if not findings:
        return ""
    drawn = [_finding(each, is_open=is_open) for each in findings[: max(in_sight, MOST)]]
    first, rest = drawn[:in_sight], drawn[in_sight:]
    more = fold(format_counted(len(rest), "more finding"), *rest, style="margin:4px 0 0")
    return block("margin:9px 0 0", *first, more if rest else "").html


def findings_lines(findings: Sequence[Finding], in_sight: int = IN_SIGHT) -> list[str]:
    """Return the findings as lines of plain text, each with its first advice."""
    lines: list[str] = []
    for each in findings[:in_sight]:
        lines.append(f"  {MARKS[each.severity][2]}: {sentence(each.title)}")
        lines += [f"    {sentence(text)}" for text in each.advice[:1]]
    more = len(findings) - in_sight
    return [*lines, f"  {format_counted(more, 'more finding')}"] if more > 0 else lines


def _finding(finding: Finding, *, is_open: bool) -> Fragment:
    mark, colour, word = MARKS[finding.severity]
    html = (
        f'<div style="{_HANGING}"><span role="img" aria-label="{word}:" style="color:{colour};'
        f'display:inline-block;width:17px;text-indent:0">{mark}</span>{_shown(finding.title)}</div>'
    )
    first, *rest = [*finding.advice[:MOST_ADVICE], ""]
    if first:
        html += f'<div style="{_INDENTED};{FAINT}">{_shown(first)}</div>'
    items = "".join(f'<li style="margin:2px 0 0">{_shown(text)}</li>' for text in rest if text)
    if items:
        more = Fragment(f'<ol start="2" style="margin:0;padding-left:20px">{items}</ol>')
        html += fold("what else to do", more, style=_INDENTED, is_open=is_open).html
    return block("margin:4px 0 0", Fragment(html))


def _shown(text: str) -> str:
    html = shown(sentence(text), SENTENCE + 1).html
    return _TYPED.sub(rf'<code style="{_CODE}">\g<0></code>', html)


def sentence(text: str, limit: int = SENTENCE) -> str:
    """Return a text as a sentence: plain, and with a full stop unless it ends with punctuation."""
    text = plain(text, limit)
    return text if text[-1:] in _STOPS else f"{text}."


def next_steps(session: Session, span: Span, *, has_parts: bool) -> list[tuple[str, str]]:
    """Return the commands to type after a cell of this notebook, and what each shows; most useful first."""
    is_cell_of_here = span.kind == "cell" and span.stop is not None and session.is_of_here
    return list(_steps(session, span, has_parts=has_parts)) if is_cell_of_here else []


def _steps(session: Session, span: Span, *, has_parts: bool) -> Iterator[tuple[str, str]]:
    findings = findings_of(session, span)
    has_run_out = any(map(ran_out, findings))
    written = (at for at, move in enumerate(session.moves, 1) if move.changes)
    if has_run_out and (number := next(written, 0)):
        yield f"%memfit --write {number}", "that change, in a new cell"
    is_advised = any("%memholders" in text for each in findings for text in each.advice)
    if is_advised or any(left.bytes >= LEAST for left in left_behind(session, span)):
        yield "%memholders", "which names hold memory"
    # Without the size of a batch there is no forecast.
    has_batches = any(group.start >= span.start and group.longest > 0 for group in session.steps)
    if has_batches and not has_run_out:
        yield "%memfit", "what would fit"
    if has_parts:
        yield "%memanatomy", "what each part is for"
