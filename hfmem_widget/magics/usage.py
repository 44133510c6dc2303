"""What all magics make of their line, and of what is wrong with it."""

from __future__ import annotations

import difflib
import keyword
import re
import shlex
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain

_SHELLS = re.compile(r"__\w+__|In|Out|_{1,3}|_\d+|_i{1,3}|_i\d+|_[iod]h|exit|quit|get_ipython")
"""What IPython keeps in the user's namespace, or puts there in the course of time."""

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a value, though it begins as an option does."""

HELP = frozenset({"-h", "--help"})


def words_of(line: str) -> list[str]:
    """Return the words of a magic's line, without their quotes.

    Raises
    ------
    UsageError
        If a quotation has no end.
    """
    # IPython's own parse_argstring leaves the quotes in --label "fine-tune".
    try:
        return shlex.split(line)
    except ValueError as error:
        message = f"{error} in: {plain(line)}"
        raise UsageError(message) from None


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether the words of a line ask for the manual."""
    return any(word in HELP for word in words)


def parse(parser: ArgumentParser, words: Sequence[str], magic: str = "") -> Namespace:
    """Return the arguments that words are.

    Parameters
    ----------
    parser : ArgumentParser
        Of the magic.
    words : sequence of str
    magic : str, optional
        What the user wrote, such as ``%%memwatch``. Default: the magic's name after one % sign.

    Raises
    ------
    UsageError
        If they are not what the magic takes; the message says what it does.
    """
    words = list(words)
    magic = magic or f"%{parser.prog}"
    _Line(parser, magic).check(words)
    try:
        return parser.parse_args(words)
    except UsageError as error:
        # argparse' "argument" is what nobody has typed.
        message = plain(re.sub(r"^argument ", "", str(error)))
        raise UsageError(message) from None


class _Line:
    """The words of one line, looked at before argparse does: it does not say what was meant."""

    def __init__(self, parser: ArgumentParser, magic: str) -> None:
        actions = parser._actions  # noqa: SLF001  (argparse names no other way to them)
        self._magic = magic
        self._options = {name: one for one in actions for name in one.option_strings}
        self._positional = next((one for one in actions if not one.option_strings), None)

    def check(self, words: list[str]) -> None:
        """Raise UsageError where a word is not what the magic takes."""
        found: list[str] = []
        option = ""  # the one whose value was just read
        rest = iter(enumerate(words))
        for at, word in rest:
            if word == "--":
                return
            if _is_value(word):
                if option and not self._has_room_for(word, found):
                    self._refuse_further_words(option, words, at)
                found.append(word)
                self._check_positional(found)
                continue
            option, given, value = self._option(word)
            if self._options[option].nargs == 0:
                if given:
                    self._refuse(f"{option} takes no value, not {plain(value)!r}")
                option = ""
                continue
            if not given:
                _, value = next(rest, (0, "--"))
                if not _is_value(value):
                    self._refuse(
                        f"{option} needs a value: {option} {_metavar(self._options[option])}"
                    )
            self._check_value(option, value)
        positional = self._positional
        if not found and positional is not None and positional.nargs is None:
            self._refuse(f"{self._magic} needs a {positional.dest}; {self._manual()}")

    def _option(self, word: str) -> tuple[str, bool, str]:
        """Return the whole name of an option, whether a value was given along with it, and which."""
        name, given, value = word.partition("=")
        if name in self._options:
            return name, bool(given), value
        meant = f"-{name}"
        if not name.startswith("--") and word[:2] in self._options and meant not in self._options:
            if self._options[word[:2]].nargs == 0:  # -qi 1 is -q -i 1
                return self._option(f"-{word[2:]}")
            return word[:2], True, word[2:]
        begun = [one for one in self._options if name.startswith("--") and one.startswith(name)]
        if len({id(self._options[one]) for one in begun}) == 1:
            return begun[0], bool(given), value
        if begun:
            self._refuse(f"{plain(name)} is ambiguous: {_either(begun)}")
        near = difflib.get_close_matches(f"--{name.lstrip('-')}", self._options, n=1)
        hint = f"did you mean {near[0]}?" if near else self._manual()
        return self._refuse(f"{self._magic} has no option {plain(name)}; {hint}")

    def _check_value(self, option: str, value: str) -> None:
        kind = self._options[option].type
        if kind not in {int, float}:
            return
        try:
            kind(value)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            self._refuse(f"{option} must be {what}, not {plain(value)!r}")

    def _check_positional(self, found: list[str]) -> None:
        of, word = self._positional, plain(found[-1])
        choices = [] if of is None else [str(one) for one in of.choices or ()]
        if of is None or (choices and self._magic.startswith("%%") and word not in choices):
            label = f"; for a label, write --label {word}" if "--label" in self._options else ""
            self._refuse(f"{self._magic} takes options only, not {word!r}{label}")
        if choices and word not in choices:
            near = difflib.get_close_matches(word, choices, n=1, cutoff=0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._refuse(f"{self._magic} takes {_either(choices)}, not {word!r}{hint}")
        if len(found) > 1 and of.nargs != "*":
            told = " and ".join(repr(plain(one)) for one in found)
            self._refuse(f"{self._magic} takes one {of.dest}, not {told}; {self._manual()}")

    def _has_room_for(self, word: str, found: list[str]) -> bool:
        of = self._positional
        if of is None or of.nargs == "*":
            return of is not None
        return not found and (not of.choices or word in of.choices)

    def _refuse_further_words(self, option: str, words: list[str], at: int) -> None:
        """Refuse words that were meant for the option before them, if it is one that takes words."""
        if self._options[option].type is not None:
            return
        more = next((n for n, one in enumerate(words[at:]) if not _is_value(one)), len(words))
        whole = plain(" ".join(words[at - 1 : at + more]))
        self._refuse(f'several words need quotes: {option} "{whole}"')

    def _manual(self) -> str:
        return f"{self._magic} -h lists its options"

    def _refuse(self, message: str) -> NoReturn:
        raise UsageError(message)


def _is_value(word: str) -> bool:
    """Return whether argparse takes a word for a value."""
    if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
        return True
    return " " in word and "=" not in word


def _metavar(action: Action) -> str:
    return str(action.metavar or action.dest.upper())


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def check_output(name: str, shell: InteractiveShell) -> None:
    """Raise UsageError unless what ``--output`` was given can be a variable, or nothing was."""
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        message = f"--output must be the name of a variable, not {plain(name)!r}"
        raise UsageError(message)
    if _SHELLS.fullmatch(name) or name in shell.user_ns_hidden:
        message = (
            f"--output cannot be {plain(name)!r}, which belongs to IPython; choose another name"
        )
        raise UsageError(message)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn an OptionError into the UsageError that IPython tells in one line."""
    try:
        yield
    except OptionError as error:
        raise UsageError(str(error)) from None
