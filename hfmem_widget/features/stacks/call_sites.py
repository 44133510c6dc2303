"""The source of an allocation by the frames of its stack: line, module and operator."""

import ast
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from hfmem_widget.session.segments import Frames
from hfmem_widget.session.stacks import (
    BACKWARD,
    BEFORE,
    MOVED,
    NO_PYTHON,
    OPERATOR,
    OUTSIDE,
    TORCHS_OWN,
    Site,
)
from hfmem_widget.text import plain

Frame = Mapping[str, Any]

SOURCE_LENGTH = 72

READ_AS = "read as"
"""The key of a foreign frame's local file: that of the same library, if any. No other file is opened."""

_INPUT = re.compile(r"<ipython-input-(\d+)-")
_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]")
_LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
# By default torch's own snapshots also have frames of C++, around those of Python.
_COMPILED = re.compile(r"\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hxx|inc|so[.\d]*)$|^\?*$")
_OPTIMIZERS = re.compile(
    r"[/\\](torch[/\\]optim|bitsandbytes[/\\]optim)[/\\]|[/\\]optimization\.py$"
)
_MODULE_MACHINERY = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_BACKWARD_FILES = re.compile(
    r"[/\\]torch[/\\](autograd[/\\](graph|function|__init__)|_tensor|utils[/\\]checkpoint)\.py$"
)


def place_of(stack: Frames | None, cells: Mapping[str, int]) -> Site:
    """Return the place where a stack allocates, as a site without bytes; the stack None is unknown.

    `cells` has the numbers of the notebook's cells by the file names of their compiled code.
    """
    if stack is None:
        return Site(BEFORE, BEFORE, BEFORE, "before", 0, 0)
    frames = [frame for frame in stack if not str(frame["filename"]).startswith(_OURS)]
    if not frames:
        return Site(NO_PYTHON, BACKWARD, BACKWARD, "backward", 0, 0)
    frames = [frame for frame in frames if not _COMPILED.search(frame["filename"])] or frames
    python = [frame for frame in frames if frame["filename"] != OPERATOR]
    line, *text = _line(python, cells)
    module, kind = _module(python)
    return Site(line, module, _operator(frames, cells), kind, 0, 0, *text)


def _line(frames: Frames, cells: Mapping[str, int]) -> tuple[str, str, str]:
    """Return name, text and function of the innermost line of the user, or else of a library but torch."""
    own = (frame for frame in frames if _is_users(frame["filename"]))
    others = (frame for frame in frames if not _is_torch(frame["filename"]))
    frame = next(chain(own, others), None)
    if frame is None:
        return (BACKWARD if any(map(_is_backward, frames)) else TORCHS_OWN), "", ""
    return _name_of_line(frame, cells), _source(frame), qualified(frame).replace("<locals>.", "")


def _source(frame: Frame) -> str:
    """Return a line's text; empty for a snapshot from another machine, whose files may differ."""
    if READ_AS in frame:
        return ""
    return plain(linecache.getline(frame["filename"], frame["line"]).strip(), SOURCE_LENGTH)


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
    """Return the module whose forward ran, or else the optimizer or a placeholder, and the `Site.kind`."""
    in_backward = next((at for at, frame in enumerate(frames) if _is_backward(frame)), None)
    for frame in frames:
        if _last_name(frame) == "step" and _OPTIMIZERS.search(frame["filename"]):
            return f"{qualified(frame).removesuffix('.step')} (optimizer step)", "optimizer"
    forwards = [frame for frame in frames[:in_backward] if _last_name(frame) == "forward"]
    forwards = [frame for frame in forwards if not _MODULE_MACHINERY.search(frame["filename"])]
    own = (frame for frame in forwards if not _is_torch(frame["filename"]))
    forward = next(chain(own, forwards), None)
    if forward is not None:
        file = plain(Path(forward["filename"]).name)
        name = f"{qualified(forward).removesuffix('.forward')} \u00b7 {file}"
        return (name, "forward") if in_backward is None else (f"{name}, run again", "backward")
    if in_backward is not None:
        return BACKWARD, "backward"
    is_moved = any(
        frame["name"].endswith("_apply") and _MODULE_MACHINERY.search(frame["filename"])
        for frame in frames
    )
    return (MOVED if is_moved else OUTSIDE), "elsewhere"


def _operator(frames: Frames, cells: Mapping[str, int]) -> str:
    """Return the innermost call: the recorded operator, or else a line or function of Python."""
    innermost = frames[0]
    if innermost["filename"] == OPERATOR:
        return plain(innermost["name"])
    if _is_users(innermost["filename"]):
        return _source(innermost) or _name_of_line(innermost, cells)
    return qualified(innermost)


def qualified(frame: Frame) -> str:
    """Return a function's name with its class, which the allocator's frames leave out."""
    name = plain(frame["name"])
    if "." in name or name.startswith("<"):
        return name
    scopes = _scopes(frame.get(READ_AS, frame["filename"]))
    around = [scope for first, last, scope in scopes if first <= frame["line"] <= last]
    is_same = bool(around) and (READ_AS not in frame or around[-1].rpartition(".")[2] == name)
    return plain(around[-1]) if is_same else name


@lru_cache(maxsize=64)
def _scopes(filename: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # not Python of this version
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
    if _TORCH.search(filename) or filename == OPERATOR or _COMPILED.search(filename):
        return True
    # A torch that was built in place is outside of site-packages.
    root = getattr(sys.modules.get("torch"), "__file__", None)
    return root is not None and filename.startswith(str(Path(root).parent) + os.sep)


def _is_backward(frame: Frame) -> bool:
    if "autograd::Engine::" in frame["name"]:
        return True  # the engine's thread runs no Python
    is_named = _last_name(frame) in {"backward", "_engine_run_backward", "apply"}
    return is_named and bool(_BACKWARD_FILES.search(frame["filename"]))


def _last_name(frame: Frame) -> str:
    return str(frame["name"]).rpartition(".")[2]
