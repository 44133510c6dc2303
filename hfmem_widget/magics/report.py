"""How a line magic is made of a method that takes parsed arguments."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from IPython.core.magic import line_magic
from IPython.core.magic_arguments import ArgDecorator, argument, magic_arguments

from hfmem_widget.magics.usage import asks_for_help, check_output, parse, usage_errors, words_of
from hfmem_widget.options import Option, add_flags


class OptionFlags(ArgDecorator):
    """Adds the flags of some options, below the headings of their groups."""

    def __init__(self, options: Mapping[str, Option]) -> None:
        self._options = options

    def add_to_parser(self, parser: Any, group: Any) -> None:
        """Add them; options that are not given are not in the namespace."""
        add_flags(parser, self._options, group)


def output(what: str) -> Any:
    """Return the option that names a variable in which a result is kept."""
    text = f"Keep the {what} in this variable."
    return argument("-o", "--output", default="", metavar="NAME", help=text)


def report(action: Callable[[Any, Namespace], None]) -> Callable[[Any, str], None]:
    """Make a line magic of a method that takes parsed arguments; an OptionError is shown in one line."""

    @wraps(action)
    def magic(self: Any, line: str) -> None:
        words = words_of(line)
        if asks_for_help(words):
            print(parser.format_help())  # noqa: T201
            return
        with usage_errors():
            arguments = parse(parser, words)
            check_output(getattr(arguments, "output", ""), self._shell)
            action(self, arguments)

    made: Any = magic_arguments()(magic)
    parser = made.parser
    return line_magic(made)  # type: ignore[return-value]  # it is typed for a callable of Never
