"""Where an allocation came from, told from the frames of its stack: line, module, operator."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hfmem_widget.features.stacks.live_at_peak import Frames, LiveBlock
from hfmem_widget.session.stacks import OPERATOR, Site
from hfmem_widget.text import plain

Frame = Mapping[str, Any]

BEFORE = "before the recording"
BACKWARD = "autograd (backward)"
NO_PYTHON = "no Python code (autograd's backward thread)"
OUTSIDE = "outside any module"
MOVED = "a model that was moved or cast (Module.to)"
TORCHS_OWN = "torch's own code"
NO_NAMES = {BEFORE, BACKWARD, NO_PYTHON, OUTSIDE, MOVED, TORCHS_OWN}
"""What stands in the place of a name."""

SOURCE_LENGTH = 72
LONGEST_FILE = 2_000_000

_INPUT = re.compile(r"<ipython-input-(\d+)-")
_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]")
_LIBRARIES = tuple(
    {
        path
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    }
)
_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
_OPTIMIZERS = re.compile(
    r"[/\\](torch[/\\]optim|bitsandbytes[/\\]optim)[/\\]|[/\\]optimization\.py$"
)
_MODULE_MACHINERY = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_BACKWARD_FILES = re.compile(
    r"[/\\]torch[/\\](autograd[/\\](graph|function|__init__)|_tensor|utils[/\\]checkpoint)\.py$"
)


def sites_of(blocks: Iterable[LiveBlock], cells: Mapping[str, int]) -> tuple[Site, ...]:
    """Return where live blocks were allocated, those of one place together, biggest first.

    Parameters
    ----------
    blocks : iterable of LiveBlock
    cells : mapping of str to int
        The numbers of the notebook's cells by the file names under which they were compiled.
    """
    places: dict[int, tuple[str, str, str, str, str]] = {}
    together: dict[tuple[str, str, str, str, str], list[int]] = {}
    for block in blocks:
        # The same stack is the same list for every block that has it.
        key = id(block.frames) if block.seen else 0
        if key not in places:
            places[key] = _place(block, cells)
        together.setdefault(places[key], []).append(block.size)
    sites = (
        Site(*place[:4], sum(sizes), len(sizes), place[4]) for place, sizes in together.items()
    )
    return tuple(sorted(sites, key=lambda site: -site.bytes))


def _place(block: LiveBlock, cells: Mapping[str, int]) -> tuple[str, str, str, str, str]:
    """Return line, module, operator, kind and the line's text of one block."""
    if not block.seen:
        return BEFORE, BEFORE, BEFORE, "before", ""
    frames = [frame for frame in block.frames if not str(frame["filename"]).startswith(_OURS)]
    if not frames:
        return NO_PYTHON, BACKWARD, BACKWARD, "backward", ""
    python = [frame for frame in frames if frame["filename"] != OPERATOR]
    line, source = _line(python, cells)
    module, kind = _module(python)
    return line, module, _operator(frames, cells), kind, source


def _line(frames: Frames, cells: Mapping[str, int]) -> tuple[str, str]:
    """Return the innermost line of the user's own code, else of a library that is not torch, and its text."""
    mine = next((one for one in frames if _is_users(one["filename"])), None)
    shown = mine or next((one for one in frames if not _is_torch(one["filename"])), None)
    if shown is None:
        return (BACKWARD if any(map(_is_backward, frames)) else TORCHS_OWN), ""
    text = linecache.getline(shown["filename"], shown["line"]).strip()
    return _name_of_line(shown, cells), plain(text, SOURCE_LENGTH)


def _name_of_line(frame: Frame, cells: Mapping[str, int]) -> str:
    name, line = str(frame["filename"]), frame["line"]
    number = cells.get(name)
    if number is None and (match := _INPUT.match(name)):
        number = int(match[1])
    if number is not None:
        return f"cell [{number}] line {line}"
    if _KERNEL.search(name):
        return f"a cell's line {line}"
    return plain("/".join(Path(name).parts[-2:])) + f":{line}"


def _module(frames: Frames) -> tuple[str, str]:
    """Return the module whose forward ran, or what else did, and when that was."""
    in_backward = next((at for at, one in enumerate(frames) if _is_backward(one)), None)
    for one in frames:
        if one["name"].rpartition(".")[2] == "step" and _OPTIMIZERS.search(one["filename"]):
            return f"{qualified(one).removesuffix('.step')} (optimizer step)", "optimizer"
    forwards = [one for one in frames[:in_backward] if _is_forward(one)]
    told = next((one for one in forwards if not _is_torch(one["filename"])), None)
    told = told or next(iter(forwards), None)
    if told is None and in_backward is not None:
        return BACKWARD, "backward"
    if told is None:
        is_moved = any(
            one["name"].endswith("_apply") and _MODULE_MACHINERY.search(one["filename"])
            for one in frames
        )
        return (MOVED if is_moved else OUTSIDE), "elsewhere"
    name = f"{qualified(told).removesuffix('.forward')} \u00b7 {plain(Path(told['filename']).name)}"
    return (name, "forward") if in_backward is None else (f"{name}, run again", "backward")


def _operator(frames: Frames, cells: Mapping[str, int]) -> str:
    """Return the innermost call: an operator where one was recorded, else what Python knows of it."""
    innermost = frames[0]
    if innermost["filename"] == OPERATOR:
        return plain(innermost["name"])
    if _is_users(innermost["filename"]):
        text = linecache.getline(innermost["filename"], innermost["line"]).strip()
        return plain(text, SOURCE_LENGTH) or _name_of_line(innermost, cells)
    return qualified(innermost)


def qualified(frame: Frame) -> str:
    """Return a function's name with its class, which the allocator's frames leave out."""
    name = plain(frame["name"])
    if "." in name or name.startswith("<"):
        return name
    found = _scopes(frame["filename"])
    around = [scope for first, last, scope in found if first <= frame["line"] <= last]
    return plain(around[-1]) if around else name


@lru_cache(maxsize=64)
def _scopes(filename: str) -> tuple[tuple[int, int, str], ...]:
    """Return first line, last line and qualified name of a file's functions, outer ones first."""
    text = "".join(linecache.getlines(filename))
    if not text or len(text) > LONGEST_FILE:
        return ()
    try:
        tree = ast.parse(text)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # not Python, or not this Python's
        return ()
    return tuple(_functions_in(tree.body, ""))


def _functions_in(body: Sequence[ast.stmt], prefix: str) -> Iterable[tuple[int, int, str]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno or node.lineno, prefix + node.name
            yield from _functions_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _functions_in(node.body, prefix)


def _is_users(filename: str) -> bool:
    if filename.startswith(("<frozen", "<string", OPERATOR)) or "/site-packages/" in filename:
        return False
    if _INPUT.match(filename) or _KERNEL.search(filename):
        return True
    return not filename.startswith(_LIBRARIES) and not _is_torch(filename)


def _is_torch(filename: str) -> bool:
    if _TORCH.search(filename) or filename in {OPERATOR, "??", ""}:
        return True
    # Built in place, it lies among the user's own files.
    root = getattr(sys.modules.get("torch"), "__file__", None)
    return root is not None and filename.startswith(str(Path(root).parent) + os.sep)


def _is_forward(frame: Frame) -> bool:
    is_forward = frame["name"].rpartition(".")[2] == "forward"
    return is_forward and not _MODULE_MACHINERY.search(frame["filename"])


def _is_backward(frame: Frame) -> bool:
    name = frame["name"].rpartition(".")[2]
    return name in {"backward", "_engine_run_backward", "apply"} and bool(
        _BACKWARD_FILES.search(frame["filename"])
    )
