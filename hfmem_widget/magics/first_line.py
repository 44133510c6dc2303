"""What becomes of the first line of a ``%%memwatch`` cell: a call that arms a watch."""

from __future__ import annotations

import re

_FIRST_LINE = re.compile(r"%%memwatch(?:[ \t]+(?P<options>.*?))?[ \t]*\r?\n?$")
_CELL_MAGIC = re.compile(r"%%(?P<name>\w+)(?:[ \t]+(?P<line>.*?))?[ \t]*\r?\n?$")


def arm_first_line(lines: list[str]) -> list[str]:
    """Turn the first line of a ``%%memwatch`` cell into a call that arms a watch; an input transformer."""
    match = _FIRST_LINE.match(lines[0]) if lines else None
    if match is None or not "".join(lines[1:]).strip():
        return lines
    call = f"get_ipython().magics_manager.registry['MemwatchMagics'].arm_cell({match['options'] or ''!r})"
    below = arm_first_line(lines[1:])
    if below != lines[1:]:
        return [f"{call}\n", *below]
    inner = _CELL_MAGIC.match(lines[1])
    if inner is None:
        return [f"{call}\n", *lines[1:]]
    # Another cell magic stands below: IPython only looks for one on a cell's first line.
    body = "".join(lines[2:])
    run = f"get_ipython().run_cell_magic({inner['name']!r}, {inner['line'] or ''!r}, {body!r})"
    return [f"{call}; {run}\n"]
