"""``hfmem run NOTEBOOK.ipynb``: each cell is recorded, and compared with that of an earlier run."""

import json
import os
import shlex
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from hfmem_widget.analysis.record import UNUSED, Record, record_of, whole
from hfmem_widget.cli.compare import AllowedRise, judge, parse_limit
from hfmem_widget.cli.output import FINE, NO, remark, say
from hfmem_widget.cli.write import stem, what_is_in
from hfmem_widget.errors import OptionError
from hfmem_widget.options import expanded
from hfmem_widget.recording.file import checked_path, read, read_regular
from hfmem_widget.recording.limits import SUFFIX
from hfmem_widget.text import (
    digest_of,
    first_line,
    format_counted,
    format_duration,
    lines_of,
    plain,
)
from hfmem_widget.view.line import line

TITLE, LIST = 40, 400  # letters at most
MOST_BYTES = 256 << 20  # of a notebook, with its outputs
OWN = ", but not above its own start."


def run_notebook(arguments: Namespace) -> int:
    """Run a notebook; the code is not 0 where a cell fails, or takes more than the limit allows."""
    if len(arguments.words) > 1 or arguments.label:
        raise OptionError("a notebook takes no arguments and no --label")
    limit = parse_limit(arguments.fail_over or "2%")
    before = _cells_in(checked_path(arguments.baseline)) if arguments.baseline else {}
    if arguments.baseline and not before:
        raise OptionError(f"{plain(arguments.baseline)} has no recordings of a notebook's cells")
    if arguments.dir and any(expanded(arguments.dir).glob(f"*{SUFFIX}*")):
        raise OptionError(f"{plain(arguments.dir)} has recordings already; choose another folder")
    client = _client(checked_path(arguments.words[0]), arguments.kernel)
    client.timeout = arguments.timeout
    cells = list[Path]()
    folder, failure = _record(client, arguments.dir, cells, remark if arguments.json else say)
    is_judged = bool(before) and not failure
    judgement = _compare(before, _cells_in(folder), limit) if is_judged else Judgement()
    if arguments.json:
        say(json.dumps(_data(folder, cells, failure, judgement)))
    elif failure:
        say(plain(failure, LIST))
    elif is_judged:
        say("\n".join(("", *judgement.lines(limit))))
    judgement.require_figures()
    return NO if failure or judgement.is_over else FINE


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a comparison with a baseline.

    `judged` has for each cell that both runs have and each device whether it is over the limit, and a
    sentence; `notes` says which cells only one run has; `unknown` names cells without comparable figures.
    """

    judged: Sequence[Sequence[tuple[bool, str]]] = ()
    notes: Sequence[str] = ()
    unknown: Sequence[str] = ()

    @property
    def is_over(self) -> bool:
        """Whether a cell is over the limit."""
        return any(is_over for cell in self.judged for is_over, _ in cell)

    def require_figures(self) -> None:
        """Raise `OptionError` if a cell could not be judged, and no other is over the limit."""
        if self.unknown and not self.is_over:
            which = ", ".join(self.unknown)
            raise OptionError(plain(f"the baseline has no figures to judge {which} by", LIST))

    def lines(self, limit: AllowedRise) -> Iterator[str]:
        """Yield the cells that are over the limit, how many are not, and the notes."""
        yield from (text for cell in self.judged for is_over, text in cell if is_over)
        fine = sum(not any(is_over for is_over, _ in cell) for cell in self.judged)
        yield f"{format_counted(fine, 'cell')} not over the limit of {limit.text}."
        yield from self.notes


def _data(folder: Path, cells: list[Path], failure: str, judgement: Judgement) -> dict[str, Any]:
    explained = [
        {"recording": path.name, "explanation": what_is_in(path).explain().to_dict()}
        for path in cells
    ]
    judged = [
        {"is_over": is_over, "sentence": text}
        for cell in judgement.judged
        for is_over, text in cell
    ]
    return {
        "schema": "hfmem.notebook/1",
        "folder": os.fspath(folder),
        "cells": explained,
        "failure": plain(failure, LIST),
        "judged": judged,
        "notes": judgement.notes,
    }


def _client(path: Path, kernel: str) -> Any:
    """Return nbclient's `NotebookClient` for a notebook, or raise `OptionError`."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        raise OptionError("running a notebook needs nbclient: pip install nbclient") from None
    data = read_regular(path, MOST_BYTES)
    try:
        notebook = nbformat.reads(data, as_version=4)
        for each in notebook.cells:
            each.source.encode()  # as the kernel will be sent it
            each.metadata["tags"] = each.metadata.get("tags") or []
        has_code = any(each.cell_type == "code" and each.source.strip() for each in notebook.cells)
    except Exception as error:  # noqa: BLE001  (a file may hold anything)
        raise OptionError(f"{plain(path)} is not a notebook: {plain(error)}") from None
    if not has_code:
        raise OptionError(f"{plain(path)} has no code to run")
    place = {"metadata": {"path": os.fspath(path.absolute().parent)}}
    # After an error that is not allowed a kernel refuses for a moment what comes, which would be ours.
    client = NotebookClient(notebook, kernel_name=kernel, resources=place, allow_errors=True)
    client.shutdown_kernel = "immediate"  # one that is interrupted is busy
    manager: Any = client.create_kernel_manager()
    try:
        language = manager.kernel_spec.language
    except KeyError:  # NoSuchKernel
        language = "not installed"
    if language.lower() != "python":
        what = f"{plain(manager.kernel_name)!r} is {plain(language)}"
        raise OptionError(f"a Python kernel is needed, but {what}; choose one with --kernel")
    return client


def _ask(client: Any, call: str) -> None:
    code = f"__import__('hfmem_widget.drivers.recordings', fromlist=['_']).{call}"
    asked = client.kc.execute(code, silent=True, store_history=False, stop_on_error=False)
    reply = client.wait_for_reply(asked)
    if reply is None:
        raise RuntimeError("the kernel does not answer")
    if (said := reply["content"])["status"] == "error":
        raise RuntimeError(f"{said['ename']}: {said['evalue']}")


def _record(
    client: Any, given: str, cells: list[Path], show: Callable[[str], object]
) -> tuple[Path, str]:
    """Run a notebook; return the folder of the recordings, and what ended the run early, or ``""``."""
    try:
        with client.setup_kernel():
            _ask(client, "cells()")
            folder = expanded(given or tempfile.mkdtemp(prefix="hfmem-"))
            folder.mkdir(parents=True, exist_ok=True)
            remark(f"The cells are recorded in {plain(shlex.quote(os.fspath(folder)), 4096)}")
            failure = _run(client, folder, cells, show)
            client.shutdown_kernel = "graceful"
    except TimeoutError as error:
        failure = str(error)
    except (OSError, RuntimeError) as error:
        raise OptionError(f"the notebook cannot be recorded: {plain(error)}") from None
    return folder, failure


def _run(client: Any, folder: Path, cells: list[Path], show: Callable[[str], object]) -> str:
    """Return what ended the run early, or ``""``."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    number, errors = 0, list[dict[str, str]]()
    client.on_cell_error = lambda **said: errors.append(said["execute_reply"]["content"])
    for index, cell in enumerate(client.nb.cells):
        tags, source = cell.metadata["tags"], cell.source
        if cell.cell_type != "code" or not source.strip() or client.skip_cells_with_tag in tags:
            continue
        number += 1
        title = plain(f"[{number}] {first_line(source).removesuffix(':')}", TITLE)
        code = next((each for each in lines_of(source) if not each.startswith("#")), "")
        path = folder / f"{number:03d}-{digest_of(source)}{SUFFIX}"
        has_own = code.startswith("%%memwatch")
        errors.clear()
        try:
            _ask(client, f"cells().cell_begins({title!r}, {os.fspath(path)!r}, has_own={has_own})")
            client.execute_cell(cell, index)
            _ask(client, f"cells().cell_ends(failed={bool(errors)})")
        except DeadKernelError:
            return f"The kernel ended in {title}."
        except CellTimeoutError:
            raise TimeoutError(
                f"{title} took longer than {format_duration(client.timeout)}."
            ) from None
        try:
            session = read(path)
            cells.append(path)
            span = replace(whole(session), label=title)
            shown = line(session, span, brief=True).removeprefix("memwatch ")
        except OptionError:
            shown = f'"{title}" · not recorded'
        show(shown)
        if errors and "raises-exception" not in tags:
            return f"{title} raised {': '.join(filter(None, (errors[0]['ename'], errors[0]['evalue'])))}"
    return ""


def _cells_in(folder: Path) -> dict[str, Record]:
    """Return the cells recorded in a folder, by label, or else by the digest of the source."""
    cells: list[tuple[str, Record]] = []
    for path in sorted(folder.glob(f"[0-9]*-*{SUFFIX}*")):
        number, _, digest = stem(path).partition("-")
        session = read(path)
        record = record_of(session, whole(session), label=session.label)
        has_label = f"[{number.lstrip('0')}]" not in record.name
        cells.append((record.name if has_label else digest, record))
    # Which of several is which is known only where another run has as many.
    names, count = [name for name, _ in cells], Counter(name for name, _ in cells)
    return {
        f"{name} {names[:at].count(name)} of {count[name]}": record
        for at, (name, record) in enumerate(cells)
    }


def _compare(before: dict[str, Record], cells: dict[str, Record], limit: AllowedRise) -> Judgement:
    order = [each for each in before if each in cells]
    common = [each for each in cells if each in before]
    blocks = SequenceMatcher(None, order, common, autojunk=False).get_matching_blocks()
    stayed = {each for at, _, size in blocks for each in order[at : at + size]}
    by_cell, unknown = list[list[tuple[bool, str]]](), [] if common else ["any cell"]
    for a, b in ((before[each], cells[each]) for each in common):
        judged = [*judge(replace(a, label="the baseline"), b, "peak", limit)]
        # What earlier cells have left is not this one's: it must itself take so much more.
        two = [(each, a.device(each.key) or UNUSED) for each in b.devices]
        if all(new.above_start - old.above_start <= limit.of(old.peak.value) for new, old in two):
            judged = [(False, f"{text[:-1]}{OWN if is_over else '.'}") for is_over, text in judged]
        by_cell += [judged] if judged else []
        unknown += [] if judged else [b.name]
    compared = f"Compared: {len(by_cell)} of {format_counted(len(cells), 'cell')}."
    notes = [compared] if len(by_cell) < len(cells) else []
    for what, names in (
        ("No match in the baseline", [cells[each].name for each in cells if each not in before]),
        ("No match in this run", [before[each].name for each in before if each not in cells]),
        ("Moved", [cells[each].name for each in common if each not in stayed]),
    ):
        notes += [plain(f"{what}: {', '.join(names)}.", LIST)] if names else []
    return Judgement(by_cell, notes, unknown)
