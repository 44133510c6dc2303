"""What the Tab key offers on the line of a magic."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from IPython.core import completer
from IPython.core.interactiveshell import InteractiveShell

_BEFORE_CURSOR = re.compile(r"\s*(%%?)(\w+)[ \t]+(?:.*[ \t])?(\S*)$")

Offered = tuple[ArgumentParser, Sequence[str]]
"""The parser of a magic, and the words that it knows besides its options."""


class Choice(NamedTuple):
    """What can stand where the cursor is."""

    begun: str = ""
    words: Sequence[str] = ()
    is_complete: bool = False
    """Whether nothing else can stand there."""


def choice(before: str, magics: Mapping[str, Offered]) -> Choice:
    """Return what can follow the text before the cursor, on the line of a magic."""
    match = _BEFORE_CURSOR.match(before)
    if match is None or match[2] not in magics:
        return Choice()
    sign, name, begun = match.groups()
    parser, words = magics[name]
    actions = parser._actions  # noqa: SLF001  (argparse names no other way to them)
    previous = before.split()[-1 if not begun else -2]
    if any(previous in action.option_strings and action.nargs != 0 for action in actions):
        return Choice()  # its value, which may be anything
    names = [action.option_strings for action in actions if action.option_strings]
    options = [next(name for name in flags if name.startswith("--")) for flags in names]
    is_option = begun.startswith("-")
    offered = options if is_option or sign == "%%" else [*words, *options]
    chosen = [text for text in offered if text.startswith(begun)]
    has_choices = any(action.choices for action in actions)
    return Choice(begun, chosen, is_complete=bool(chosen) and (is_option or has_choices))


def complete(shell: InteractiveShell, magics: Mapping[str, Offered]) -> Callable[[], None]:
    """Offer the options of magics, alone where an option is begun; return what ends that."""

    def matches(_token: str) -> list[str]:
        return [*choice(shell.Completer.text_until_cursor, magics).words]

    def matches_in_context(context: completer.CompletionContext) -> dict[str, Any]:
        begun, words, is_complete = choice(context.text_until_cursor, magics)
        return {
            "completions": [completer.SimpleCompletion(text=text, type="option") for text in words],
            "matched_fragment": begun,
            "ordered": True,
            "suppress": is_complete,
        }

    # A completer hook would come after Jedi's guesses, which are all of Python's names. IPython below 8.6
    # takes texts alone, and shows them beside those.
    in_context = getattr(completer, "context_matcher", None)
    matcher: Any = matches
    if in_context is not None:
        matcher = in_context(identifier="hfmem_widget", priority=200)(matches_in_context)
    matchers = shell.Completer.custom_matchers
    matchers.append(matcher)
    return lambda: matchers.remove(matcher)
