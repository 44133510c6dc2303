"""What the Tab key offers on the line of a magic."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher
from IPython.core.interactiveshell import InteractiveShell

_BEFORE_CURSOR = re.compile(r"\s*(%%?)(\w+)[ \t]+(?:.*[ \t])?(\S*)$")

Offered = tuple[ArgumentParser, Sequence[str]]
"""The parser of a magic, and the words that it knows besides its options."""


def complete(shell: InteractiveShell, magics: Mapping[str, Offered]) -> Callable[[], None]:
    """Offer the options of magics, alone where an option is begun; return what ends that."""

    # A completer hook would come after Jedi's guesses, which are all of Python's names.
    @context_matcher(identifier="hfmem_widget", priority=200)
    def matcher(context: CompletionContext) -> dict[str, Any]:
        before = context.text_until_cursor
        found = _BEFORE_CURSOR.match(before)
        if found is None or found[2] not in magics:
            return {"completions": [], "suppress": False}
        sign, name, begun = found.groups()
        parser, words = magics[name]
        actions = parser._actions  # noqa: SLF001  (argparse names no other way to them)
        previous = before.split()[-1 if not begun else -2]
        if any(previous in action.option_strings and action.nargs != 0 for action in actions):
            return {"completions": [], "suppress": False}  # its value, which may be anything
        names = [action.option_strings for action in actions if action.option_strings]
        options = [next(name for name in each if name.startswith("--")) for each in names]
        is_option = begun.startswith("-")
        offered = options if is_option or sign == "%%" else [*words, *options]
        chosen = [text for text in offered if text.startswith(begun)]
        has_choices = any(action.choices for action in actions)
        return {
            "completions": [SimpleCompletion(text=text, type="magic option") for text in chosen],
            "matched_fragment": begun,
            "ordered": True,
            "suppress": bool(chosen) and (is_option or has_choices),
        }

    matchers = shell.Completer.custom_matchers
    matchers.append(matcher)
    return lambda: matchers.remove(matcher)
