"""What to type next, by what a watched cell came to: the commands that would say or save more."""

from __future__ import annotations

from collections.abc import Iterator

from hfmem_widget.analysis.facts import findings_of, ran_out
from hfmem_widget.analysis.left_behind import LEAST, left_behind
from hfmem_widget.session import Session, Span


def next_steps(session: Session, span: Span, *, has_parts: bool) -> list[tuple[str, str]]:
    """Return the commands of a notebook that make sense now, and what each shows, the most useful first.

    There are none for what is no cell of this notebook, or has not ended.
    """
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
