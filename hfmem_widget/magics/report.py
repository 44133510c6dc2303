"""What the line magics that show something on demand have in common."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import ArgDecorator, argument, magic_arguments

from hfmem_widget.magics.usage import asks_for_help, check_output, parse, usage_errors, words_of
from hfmem_widget.options import Option


class ReportMagics(Magics):
    """One line magic: parse, ask, show."""

    name: ClassVar[str]
    """What follows the % sign; the method has this name, too."""

    words: ClassVar[tuple[str, ...]] = ()
    """What the Tab key offers besides the options."""

    def __init_subclass__(cls) -> None:
        magics_class(cls)

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Show texts by MIME type below the cell."""
        from hfmem_widget.view.screen import Screen

        Screen(self._shell).show(bundle)

    def keep(self, arguments: Namespace, result: object) -> None:
        """Put a result into the variable of `output`, if one was named."""
        if arguments.output:
            self._shell.user_ns[arguments.output] = result


Report = TypeVar("Report", bound=ReportMagics)


class OptionFlags(ArgDecorator):
    """Adds the flags of some options, below the headings of their groups."""

    def __init__(self, options: Mapping[str, Option]) -> None:
        self._options = options

    def add_to_parser(self, parser: Any, group: Any) -> None:
        """Add them; options that are not given are not in the namespace."""
        group = group or parser
        for name, option in self._options.items():
            group = parser.add_argument_group(option.heading) if option.heading else group
            group.add_argument(*option.flags, dest=name, default=SUPPRESS, **option.argument)
            flag, text = option.off
            if flag:
                group.add_argument(
                    flag, dest=name, default=SUPPRESS, action="store_false", help=text
                )


def output(what: str) -> Any:
    """Return the option that names a variable in which a result is kept."""
    text = f"Keep the {what} in this variable."
    return argument("-o", "--output", default="", metavar="NAME", help=text)


def report(action: Callable[[Report, Namespace], None]) -> Callable[[Report, str], None]:
    """Make a line magic of a method that takes parsed arguments; an OptionError is shown in one line."""

    @wraps(action)
    def magic(self: Report, line: str) -> None:
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
