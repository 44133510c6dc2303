"""The first line of a ``%%memwatch`` cell becomes a call that starts a watch."""

import linecache
import re
import shlex
import textwrap
from types import FrameType

from hfmem_widget.magics.usage import asks_for_help

_FIRST_LINE = re.compile(r"%%memwatch(?:[ \t]+(?P<options>.*?))?[ \t]*\r?\n?$")
_CELL_MAGIC = re.compile(r"%%(?P<name>\w+)(?:[ \t]+(?P<line>.*?))?[ \t]*\r?\n?$")
_NO_CODE = re.compile(r"\s*(#|$)")


def arm_first_line(lines: list[str]) -> list[str]:
    """Turn the first line of a ``%%memwatch`` cell into a call that starts a watch; an input transformer.

    Comments may stand above it. No line is added or removed, so that each keeps its number.
    """
    at = next((at for at, line in enumerate(lines) if not _NO_CODE.match(line)), len(lines))
    above, own, below = lines[:at], "".join(lines[at : at + 1]), lines[at + 1 :]
    match = _FIRST_LINE.match(own)
    if match is None:
        return lines
    options = match["options"] or ""
    try:
        wants_help = asks_for_help(shlex.split(options))
    except ValueError:  # a quotation without an end: starting the watch says so
        wants_help = False
    if not wants_help and not "".join(below).strip():
        return lines
    call = f"get_ipython().magics_manager.registry['MemwatchMagics'].arm_cell({options!r})\n"
    return [*above, call, *([] if wants_help else _body(below))]


def show_own_line(cell: FrameType, options: str) -> None:
    """Have tracebacks and `inspect` show the user's line instead of the call at which a frame is.

    It is shown as a comment, because the code that marks errors within a line parses all lines of the cell.
    """
    entry = linecache.cache.get(cell.f_code.co_filename)
    lines = entry[2] if entry is not None and len(entry) == 4 else []
    at = cell.f_lineno - 1
    if at < len(lines) and "arm_cell(" in lines[at]:
        lines[at] = f"# %%memwatch {options}".rstrip() + "\n"


def _body(lines: list[str]) -> list[str]:
    armed = arm_first_line(lines)
    if armed != lines:
        return armed
    at, first = next((at, line) for at, line in enumerate(lines) if line.strip())
    inner = _CELL_MAGIC.match(first)
    if inner is not None:
        # IPython looks for a cell magic only on a cell's first line that is not empty.
        name, line, body = inner["name"], inner["line"] or "", "".join(lines[at + 1 :])
        return [*lines[:at], f"get_ipython().run_cell_magic({name!r}, {line!r}, {body!r})\n"]
    # IPython accepts a cell that is indented as a whole.
    if not first[0].isspace():
        return lines
    return textwrap.dedent("".join(lines)).splitlines(keepends=True)
