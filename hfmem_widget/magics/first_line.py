"""What becomes of the first line of a ``%%memwatch`` cell: a call that arms a watch."""

from __future__ import annotations

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
    """Turn the first line of a ``%%memwatch`` cell into a call that arms a watch; an input transformer.

    Comments may stand above it. No line is added or taken away, so that each keeps its number.
    """
    at = next((at for at, line in enumerate(lines) if not _NO_CODE.match(line)), len(lines))
    above, own, below = lines[:at], "".join(lines[at : at + 1]), lines[at + 1 :]
    match = _FIRST_LINE.match(own)
    if match is None:
        return lines
    options = match["options"] or ""
    wants_help = _asks_for_help(options)
    if not wants_help and not "".join(below).strip():
        return lines
    call = f"get_ipython().magics_manager.registry['MemwatchMagics'].arm_cell({options!r})\n"
    if wants_help:
        return [*above, call]
    return [*above, call, *_body(below)]


def show_own_line(cell: FrameType, options: str) -> None:
    """Have tracebacks and `inspect` show the user's line where the call stands that a frame is at.

    It stands there as a comment: who marks what failed within a line parses all lines of the cell.
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
    inner = _CELL_MAGIC.match(lines[0])
    if inner is None:
        return _without_indent(lines)
    # Another cell magic stands below: IPython only looks for one on a cell's first line.
    body = "".join(lines[1:])
    return [f"get_ipython().run_cell_magic({inner['name']!r}, {inner['line'] or ''!r}, {body!r})\n"]


def _without_indent(lines: list[str]) -> list[str]:
    """Return the lines as IPython makes them of a cell that is indented as a whole."""
    first = next(line for line in lines if line.strip())
    if not first[0].isspace():
        return lines
    return textwrap.dedent("".join(lines)).splitlines(keepends=True)


def _asks_for_help(options: str) -> bool:
    try:
        return asks_for_help(shlex.split(options))
    except ValueError:  # a quotation without an end, which is told when it is armed
        return False
