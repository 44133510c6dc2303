"""Making magics: their options, the parsing and completion of their line, and the errors for a wrong one."""

from __future__ import annotations

import builtins
import difflib
import keyword
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce, wraps
from itertools import takewhile
from typing import Any

from IPython.core import completer
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import line_magic
from IPython.core.magic_arguments import ArgDecorator, argument, magic_arguments

from hfmem_widget.errors import OptionError
from hfmem_widget.options import Option, add_flags
from hfmem_widget.text import plain, wrong_value

_IPYTHONS = re.compile(r"__\w+__|In|Out|_{1,3}|_\d+|_i{1,3}|_i\d+|_[iod]h|exit|quit|get_ipython")
"""Names that IPython keeps in the user's namespace."""

_BEFORE_UNIT = re.compile(r"((?:^|\0)[\d.]+)\0(?=[kmgt]i?b(?:\0|$))", re.IGNORECASE)
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""A value for argparse, although it begins like an option."""


def words_of(line: str) -> list[str]:
    """Return the words of a magic's line without their quotes; UsageError if a quotation has no end."""
    # IPython's own parse_argstring leaves the quotes in --label "fine-tune".
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error} in: {plain(line)}") from None
    # A size such as 20 GiB is one word.
    return _BEFORE_UNIT.sub(r"\1", "\0".join(words)).split("\0") if words else []


def manual(parser: ArgumentParser) -> str:
    """Return a magic's help: what it does, how its line is written, examples, and each option."""
    marked = parser.format_help()
    usage, does, rest = marked.replace("::\n\n", "").replace("``", "").split("\n\n", 2)
    return f"{does}\n\n{usage}\n\n{rest}"


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether the words of a line ask for the manual."""
    return not {"-h", "--help"}.isdisjoint(words)


def parse(parser: ArgumentParser, words: list[str], magic: str = "") -> Namespace:
    """Return words as the arguments of a magic, or raise `UsageError` that says what is allowed."""
    _UsageLine(parser, magic or f"%{parser.prog}").check(words)
    try:
        return parser.parse_args(words)
    except UsageError as error:
        # argparse's word "argument" is not in the line.
        raise UsageError(plain(re.sub(r"^argument ", "", str(error)))) from None


class _UsageLine:
    """Checks the words of a line before argparse does, whose errors suggest nothing."""

    def __init__(self, parser: ArgumentParser, magic: str) -> None:
        actions = parser._actions  # noqa: SLF001  (argparse names no other way to them)
        self._magic = magic
        self._manual = f"{magic} -h lists its options"
        self._options = {name: action for action in actions for name in action.option_strings}
        self._positional = next((action for action in actions if not action.option_strings), None)

    def check(self, words: list[str]) -> None:
        """Raise `UsageError` if a word is not allowed."""
        positionals: list[str] = []
        option = ""  # the one whose value was just read
        rest = iter(enumerate(words))
        for at, word in rest:
            if word == "--":
                return
            if _is_value(word):
                if option and self._options[option].type is None:
                    self._check_quotes(option, words, at, positionals)
                positionals.append(word)
                self._check_positional(positionals)
                continue
            option, given, value = self._option(word)
            action = self._options[option]
            if action.nargs == 0:
                if given:
                    raise UsageError(f"{option} takes no value, not {plain(value)!r}")
                option = ""
                continue
            if not given:
                _, value = next(rest, (0, "--"))
                if not _is_value(value):
                    metavar = action.metavar or action.dest.upper()
                    raise UsageError(f"{option} needs a value: {option} {metavar}")
            self._check_value(option, value)
        positional = self._positional
        if not positionals and positional is not None and positional.nargs is None:
            raise UsageError(f"{self._magic} needs a {positional.dest}; {self._manual}")

    def _option(self, word: str) -> tuple[str, bool, str]:
        name, given, value = word.partition("=")
        if name in self._options:
            return name, bool(given), value
        if (
            not name.startswith("--")
            and word[:2] in self._options
            and f"-{name}" not in self._options
        ):
            if self._options[word[:2]].nargs == 0:  # -qi 1 is -q -i 1
                return self._option(f"-{word[2:]}")
            return word[:2], True, word[2:]
        flags = [flag for flag in self._options if name.startswith("--") and flag.startswith(name)]
        if len({id(self._options[flag]) for flag in flags}) == 1:
            return flags[0], bool(given), value
        if flags:
            raise UsageError(f"{plain(name)} is ambiguous: {_either(flags)}")
        near = difflib.get_close_matches(f"--{name.lstrip('-')}", self._options, n=1)
        hint = f"did you mean {near[0]}?" if near else self._manual
        raise UsageError(f"{self._magic} has no option {plain(name)}; {hint}")

    def _check_value(self, option: str, value: str) -> None:
        kind: Any = self._options[option].type
        try:
            _ = kind in {int, float} and kind(value)
        except ValueError:
            allowed = "a whole number" if kind is int else "a number"
            raise UsageError(str(wrong_value(value, option, allowed))) from None

    def _check_positional(self, positionals: list[str]) -> None:
        positional, word = self._positional, plain(positionals[-1])
        choices = [] if positional is None else [str(choice) for choice in positional.choices or ()]
        is_choice = not choices or word in choices
        if positional is None or (self._magic.startswith("%%") and not is_choice):
            label = f"; for a label, write --label {word}" if "--label" in self._options else ""
            raise UsageError(f"{self._magic} takes options only, not {word!r}{label}")
        if not is_choice:
            near = difflib.get_close_matches(word, choices, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{self._magic} takes {_either(choices)}, not {word!r}{hint}")
        if len(positionals) > 1 and positional.nargs != "*":
            given = " and ".join(repr(plain(value)) for value in positionals)
            raise UsageError(
                f"{self._magic} takes one {positional.dest}, not {given}; {self._manual}"
            )

    def _check_quotes(self, option: str, words: list[str], at: int, positionals: list[str]) -> None:
        """Raise `UsageError` for a word that is no positional: it continues the text of the option before."""
        positional = self._positional
        if positional is not None:
            choices = positional.choices or words
            if positional.nargs == "*" or (not positionals and words[at] in choices):
                return
        text = plain(" ".join([words[at - 1], *takewhile(_is_value, words[at:])]))
        raise UsageError(f'several words need quotes: {option} "{text}"')


def _is_value(word: str) -> bool:
    if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
        return True
    return " " in word and "=" not in word


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def check_output(name: str, shell: InteractiveShell) -> None:
    """Raise `UsageError` if the name given with ``--output`` cannot be a variable of the user's."""
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(str(wrong_value(name, "--output", "the name of a variable")))
    is_ipythons = _IPYTHONS.fullmatch(name) or name in shell.user_ns_hidden
    if is_ipythons or hasattr(builtins, name):
        owner = "IPython" if is_ipythons else "Python"
        raise UsageError(
            f"--output cannot be {plain(name)!r}, which belongs to {owner}; choose another name"
        )


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn an `OptionError` into a `UsageError`, which IPython shows in one line."""
    try:
        yield
    except OptionError as error:
        raise UsageError(str(error)) from None


def remove(shell: InteractiveShell, name: str) -> Any:
    """Unregister a magic, and return its object; None if there is none."""
    for magics in shell.magics_manager.magics.values():
        magics.pop(name, None)
    return shell.magics_manager.registry.pop(f"{name.capitalize()}Magics", None)


class OptionFlags(ArgDecorator):
    """A decorator that adds the flags of options, below the headings of their groups."""

    def __init__(self, options: Mapping[str, Option]) -> None:
        self._options = options

    def add_to_parser(self, parser: Any, group: Any) -> None:
        """Add the flags; options that are not given are not in the namespace."""
        add_flags(parser, self._options, group)


def switch(flags: str, text: str) -> Any:
    """Return the decorator for an option without a value."""
    return argument(*flags.split(), action="store_true", help=text)


def option(flags: str, text: str, **given: Any) -> Any:
    """Return the decorator for an option with a value, by default a text."""
    return argument(*flags.split(), **{"default": "", "help": text} | given)


def output(what: str) -> Any:
    """Return the decorator for the option that names a variable for the result."""
    return option("-o --output", f"Keep the {what} in this variable.", metavar="NAME")


def report(action: Callable[[Any, Namespace], None]) -> Callable[[Any, str], None]:
    """Make a line magic of a method that takes parsed arguments; an `OptionError` is shown in one line."""

    @wraps(action)
    def run(self: Any, line: str) -> None:
        words = words_of(line)
        if asks_for_help(words):
            print(magic.__doc__)  # noqa: T201
            return
        with usage_errors():
            arguments = parse(magic.parser, words)
            check_output(getattr(arguments, "output", ""), self._shell)
            action(self, arguments)

    magic: Any = magic_arguments()(run)
    magic.__doc__ = manual(magic.parser)
    return line_magic(magic)  # type: ignore[return-value]  # it is typed for a callable of Never


def find_variable(name: str, variables: Mapping[str, Any]) -> Any:
    """Return a variable, or with dots an attribute of one; `KeyError` or `AttributeError` if missing."""
    first, *attributes = name.split(".")
    return reduce(getattr, attributes, variables[first])


def keep_result(result: object, arguments: Namespace, shell: InteractiveShell) -> None:
    """Assign a result to the variable that ``--output`` names, if it was given."""
    if arguments.output:
        shell.user_ns[arguments.output] = result


_BEFORE_CURSOR = re.compile(r"\s*(%%?)(\w+)[ \t]+(?:.*[ \t])?(\S*)$")

Offered = tuple[ArgumentParser, Sequence[str]]
"""The parser of a magic, and the words that it takes besides its options."""


def choice(before: str, magics: Mapping[str, Offered]) -> tuple[str, Sequence[str], bool]:
    """Return the word before the cursor, its completions, and whether these are all that is possible."""
    match = _BEFORE_CURSOR.match(before)
    if match is None or match[2] not in magics:
        return "", (), False
    sign, name, begun = match.groups()
    parser, words = magics[name]
    actions = parser._actions  # noqa: SLF001  (argparse names no other way to them)
    previous = before.split()[-1 if not begun else -2]
    if any(previous in action.option_strings and action.nargs != 0 for action in actions):
        return "", (), False  # its value, which may be anything
    names = [action.option_strings for action in actions if action.option_strings]
    options = [next(name for name in flags if name.startswith("--")) for flags in names]
    is_option = begun.startswith("-")
    offered = options if is_option or sign == "%%" else [*words, *options]
    chosen = [text for text in offered if text.startswith(begun)]
    has_choices = any(action.choices for action in actions)
    return begun, chosen, bool(chosen) and (is_option or has_choices)


def complete(shell: InteractiveShell, magics: Mapping[str, Offered]) -> Callable[[], None]:
    """Offer the options of magics to the completer; return a function that ends this."""

    def matches(_token: str) -> list[str]:
        return [*choice(shell.Completer.text_until_cursor, magics)[1]]

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
