"""The line magics that show something on demand: parse, ask, show."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from hfmem_widget.analysis.history import HISTORY, HOW_TO_WATCH
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.magics.usage import (
    OptionFlags,
    find_variable,
    keep_result,
    option,
    output,
    report,
    switch,
)
from hfmem_widget.options import options_of
from hfmem_widget.text import format_counted, parse_bytes, plain

if TYPE_CHECKING:
    from hfmem_widget.session import Session
    from hfmem_widget.sources.heap.model import Holders

NOW, PEAK, LAST = "now", "peak", "last"
SETTING = options_of(Setting)

WORDS: Mapping[str, tuple[str, ...]] = {
    "memanatomy": (NOW, PEAK),
    "memcompare": (),
    "memfit": (LAST,),
    "memholders": ("errors", "outputs", "all", "garbage", "cache"),  # for --free
}
"""The magics here, with what the Tab key offers besides their options."""

RENAMED: Mapping[str, str] = {
    "memfree": "memholders --free",
    "memhistory": "memcompare",
    "memmap": "memanatomy --layout",
}
"""What the magics of 0.1 are called now; they go with the next version."""


def _last_training() -> Session | None:
    from hfmem_widget.features.fit.beside import LastTraining
    from hfmem_widget.monitor.process import process_state

    return process_state(LastTraining).session or HISTORY.latest


@magics_class
class ReportMagics(Magics):
    """The line magics of one shell that show something on demand."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self._latest: dict[str, Holders] = {}  # by device
        self._renamed_used: set[str] = set()

    @report
    @argument(
        "moment",
        nargs="?",
        metavar="now|peak|N",
        help="'now' takes a reading, 'peak' is the highest point of the watch, and a number is the peak of "
        "that step. Default: the end of the watch beside its peak.",
    )
    @option(
        "-d --device",
        "Which device, such as cuda:0. Default: the one with the most memory allocated.",
    )
    @switch("-a --all", "Show every device that was used.")
    @switch(
        "-l --layout",
        "Show the layout of the allocator's reserved memory, and which free memory cannot be used; for "
        "the CPU, the heap of this process.",
    )
    def memanatomy(self, arguments: Namespace) -> None:
        """Show what the memory is for: weights, gradients, optimizer states, activations, cache.

        ::

            %%memwatch
            trainer.train()

            %memanatomy

        shows two bars and a table, now and at the peak: each part in bytes and as a share of the device,
        and unknown memory as a part of its own.

        It shows the newest watched cell, running or finished: ``%memanatomy peak`` only its peak,
        ``%memanatomy 12`` the peak of step 12. ``%memanatomy now`` takes a reading, without a watched cell.

        ``%memanatomy --layout`` draws each segment of the allocator as a bar, with its blocks coloured, and
        says what fits without more memory from the driver, what ``torch.cuda.empty_cache()`` returns, and
        what it cannot. It allocates and frees nothing, and does not wait for the GPU. ``%%memwatch --map``
        shows the same while a cell runs.

        In code, use ``session.anatomy()`` and ``hfmem_widget.memory_map()``.
        """
        if arguments.layout:
            self._show_layout(arguments)
            return
        if arguments.all and arguments.device:
            raise UsageError("use --all or --device, not both")
        moments = [_moment(arguments.moment)] if arguments.moment else [NOW, PEAK]
        session = HISTORY.latest
        if session is None and PEAK in moments and len(moments) > 1:
            moments = [NOW]
        if moments == [NOW] and not (session is not None and session.running):
            from hfmem_widget.monitor.shared import read_once

            session = read_once()
        if session is None:
            raise UsageError(HOW_TO_WATCH)
        from hfmem_widget.analysis.facts import active_devices
        from hfmem_widget.view.anatomy import anatomy_bundle, contents_text

        devices = [arguments.device]
        if arguments.all:
            devices = [device.key for device in active_devices(session)]
        anatomies = [session.anatomy(at, device) for device in devices for at in moments]
        if moments == [NOW]:
            anatomies = [replace(anatomy, moment=NOW) for anatomy in anatomies]
        self._show(
            anatomy_bundle(anatomies, title=session.label, contents=contents_text(session.contents))
        )

    def _show_layout(self, arguments: Namespace) -> None:
        if arguments.moment not in {None, NOW}:
            raise UsageError("--layout shows the allocator as it is now")
        from hfmem_widget.features.memory_map.api import memory_map
        from hfmem_widget.features.memory_map.html import memory_map_bundle

        self._show(memory_map_bundle(memory_map(arguments.device)))

    @report
    @argument(
        "names",
        nargs="*",
        help="Labels of watched cells (a label means all of its runs), or cell numbers. "
        "Without: list the watched cells.",
    )
    @option(
        "--by",
        "How to align the chart. Default: by step, if every cell has steps. Or line or module: what "
        "each allocated more or less at the peak, of cells watched with --stacks. By line if all were.",
        metavar="{step,time,line,module}",
    )
    @option("-d --device", "Which device. Default: the one used by the most cells.")
    @option("-b --baseline", "The cell that the others are compared with. Default: the first.")
    @option(
        "--sort",
        "The order of the list: as the cells ran last, or by the newest run's peak, by what it left "
        "behind or by its duration, highest first. Default: cell.",
        default="cell",
        metavar="{cell,peak,left,time}",
    )
    @argument("--last", type=int, metavar="N", help="List only the N cells that ran last.")
    @switch("--runs", "List every run in a row of its own.")
    @option("--csv", "Write the list to a new .csv file.", metavar="PATH")
    @switch("--clear", "Forget all runs. Files stay as they are.")
    @output("comparison or the list")
    def memcompare(self, arguments: Namespace) -> None:
        """Compare watched cells side by side, or list them.

        ::

            %%memwatch --label base
            trainer.train()

            %%memwatch --label "with checkpointing"
            trainer.train()

            %memcompare base "with checkpointing"

        shows their peaks with all parts, what they left behind and how fast they were, each with its
        difference to the first. A cell that ran several times is shown with the median and the range of its
        runs.

        ``%memcompare`` alone lists every watched cell, block and training so far, with its duration, its
        peak, what it left behind, and what was found; of a cell that was run again, how that moved from run
        to run. The list ends with the kernel.

        In code, use ``hfmem_widget.compare()`` and ``hfmem_widget.history()``.
        """
        if not arguments.names:
            self._list_cells(arguments)
            return
        _refuse(arguments, ("last", "runs", "csv", "clear"), "goes without names")
        from hfmem_widget.features.compare.api import compare
        from hfmem_widget.features.compare.html import whole_bundle

        comparison = compare(
            *arguments.names,
            *filter(None, [arguments.baseline]),
            by=arguments.by,
            device=arguments.device,
            baseline=arguments.baseline,
        )
        self._show(whole_bundle(comparison))
        keep_result(comparison, arguments, self._shell)

    def _list_cells(self, arguments: Namespace) -> None:
        from hfmem_widget.features.history.html import history_bundle
        from hfmem_widget.features.history.model import history

        cells = history(sort=arguments.sort, last=arguments.last, each_run=arguments.runs)
        if arguments.clear:
            HISTORY.clear()
            print("The history is empty now. Files were left as they are.")  # noqa: T201
            return
        if not cells.runs:
            raise UsageError(HOW_TO_WATCH)
        keep_result(cells, arguments, self._shell)
        if arguments.csv:
            path = cells.save(arguments.csv)
            runs = format_counted(len(cells.runs), "run")
            print(f"{runs} written to {plain(path)}.")  # noqa: T201
            return
        self._show(history_bundle(cells))
        if len({run.identity for run in cells.runs}) > 1:
            print("To compare: %memcompare LABEL LABEL, or cell numbers.")  # noqa: T201

    @report
    @argument(
        "model",
        nargs="?",
        help="A variable that holds a model or a configuration, a folder or JSON file with one, or the name "
        "of a model in the local cache; nothing is downloaded. Or a session. Default, or last: the training "
        "that was watched last, and what to change so that it fits.",
    )
    @switch("--train --training", "Forecast a training step. This is the default.")
    @argument(
        "--write",
        type=int,
        metavar="N",
        help="Insert a new cell below: your own call with change N of the last list. Nothing is run.",
    )
    @OptionFlags(SETTING)
    @output("forecast")
    def memfit(self, arguments: Namespace) -> None:
        """Forecast the memory of a model, part by part, and whether it fits here. Nothing is loaded.

        ::

            %memfit ./bert-large --batch 16 --length 512 --precision bf16
            %memfit config --lora 16,q_proj,v_proj --quantized nf4
            %memfit model --inference --batch 8 --length 2048
            %memfit

        runs one step of the model on PyTorch's meta device, where tensors have shapes but no memory.
        """
        given = vars(arguments)
        if arguments.train and "training" in given:
            raise UsageError("use --train or --inference, not both")
        from hfmem_widget.features.fit.api import fit
        from hfmem_widget.features.fit.html import fit_bundle

        choices: Any = {name: given[name] for name in SETTING if name in given}
        if arguments.write is not None:
            if choices or arguments.model:
                raise UsageError("--write takes a number, and nothing else")
            self._write(arguments.write)
            return
        subject = name = arguments.model or LAST  # what is not a variable is the name of a model
        with suppress(KeyError, AttributeError):
            subject = find_variable(name, {LAST: _last_training(), **self._shell.user_ns})
        if subject is None:
            raise UsageError(HOW_TO_WATCH)
        fitted = fit(subject, **choices)
        self._show(fit_bundle(fitted))
        keep_result(fitted, arguments, self._shell)

    def _write(self, number: int) -> None:
        from hfmem_widget.analysis.facts import ran_out
        from hfmem_widget.features.fit.write import made_anew, written
        from hfmem_widget.view.what_fits import FREES

        session = _last_training()
        moves = [] if session is None else session.moves
        if not 1 <= number <= len(moves):
            there = f"the last list has {len(moves)}" if moves else "%memfit lists changes"
            raise UsageError(f"there is no change {number}; {there}")
        move = moves[number - 1]
        if not move.changes:
            raise UsageError(
                f"no call in your cells takes change {number}; make it by hand: {plain(move.name)}"
            )
        history: Any = self._shell.history_manager
        text = written(history.input_hist_raw[1:], move.changes)
        before = [name for name in made_anew(text) if name in self._shell.user_ns]
        failed = session is not None and any(map(ran_out, session.findings))
        kinds = [type(self._shell.user_ns[name]) for name in before]
        if failed or any(hasattr(kind, "named_parameters") for kind in kinds):
            # What the cell creates again would otherwise exist twice.
            frees = [FREES if failed else FREES.removesuffix(" errors"), *before]
            magic, line, rest = text.partition("\n") if text.startswith("%%") else ("", "", text)
            text = f"{magic}{line}{' '.join(frees)}\n{rest}"
        self._shell.set_next_input(text)
        print(f"The new cell below has: {plain(move.name)}.")  # noqa: T201

    @report
    @argument(
        "what",
        nargs="*",
        help="With --free: errors, outputs, all (both of them), garbage, cache, an output such as Out[12], "
        "or variables.",
    )
    @option("-d --device", "Only this device, such as cuda:0. Default: all.")
    @option(
        "-l --least",
        "Combine everything smaller than this in one line. Default: %(default)s.",
        default="1MiB",
        metavar="SIZE",
    )
    @switch("--detail", "Also show the largest parts of what each name holds.")
    @switch("--since", "Show what has grown since the last %%memholders with the same --device.")
    @switch(
        "--free",
        "Free what is named, then measure what that freed. Without names nothing is freed: it shows "
        "what could be.",
    )
    @option(
        "-v --variable --variables",
        "With --free: a variable, even if its name is one of those words.",
        action="append",
        default=[],
        metavar="NAME",
    )
    @switch("-n --dry-run", "With --free: only show what would be freed.")
    @switch("--no-gc --no-collect", "With --free: do not collect garbage (gc.collect).")
    @switch(
        "--no-cache --no-empty-cache",
        "With --free: do not empty CUDA's cache (torch.cuda.empty_cache).",
    )
    @switch(
        "--trim",
        "With --free: make malloc return its free memory to the system (malloc_trim of glibc), and "
        "Arrow what its pool keeps, if it is loaded.",
    )
    def memholders(self, arguments: Namespace) -> None:
        """Show what still holds memory: variables, outputs, errors, closures, graphs; or free it.

        ::

            %memholders

        lists the names that hold tensors, arrays or data frames, largest first, with their paths, such as
        ``losses[0..99]``, ``Out[12]``, ``the error of cell [7] → train() → activations``. Each byte counts
        once, for the most likely culprit; other names that reach it are listed as "also". The last row is
        allocated memory that no name explains. ``--since`` shows what has grown since the last %memholders.

        It runs no code of your objects, frees nothing and holds no object. ``%memholders --free`` alone still
        frees nothing: it shows what could be freed, and how much memory nothing else holds, such as the last
        error with the variables of every function in its traceback, and the outputs (``Out``, ``_12``).

        ::

            %memholders --free errors outputs
            %memholders --free losses model

        frees what you name and nothing else. Then it collects garbage, empties CUDA's cache, and shows the
        figures before and after, and what holds the rest. ``all`` frees the last error and the outputs,
        ``garbage`` only collects and empties, ``cache`` only empties.

        In code, use ``hfmem_widget.holders()`` and ``hfmem_widget.free()``.
        """
        if arguments.free:
            self._free(arguments)
            return
        for name in (*arguments.what, *arguments.variable):
            raise UsageError(
                f"%memholders takes options only, not {plain(name)!r}; with --free it takes what to free"
            )
        _refuse(arguments, ("dry_run", "no_gc", "no_cache", "trim"), "goes with --free")
        from hfmem_widget.features.holders.api import holders
        from hfmem_widget.features.holders.html import growth_bundle, holders_bundle

        least = parse_bytes(arguments.least, of="--least")
        current = holders(self._shell.user_ns, device=arguments.device)
        earlier = self._latest.get(arguments.device)
        self._latest[arguments.device] = current
        if not arguments.since:
            self._show(holders_bundle(current, least=least, detail=arguments.detail))
        elif earlier is not None:
            self._show(growth_bundle(current.since(earlier), least=least))
        else:
            raise UsageError(
                "--since needs an earlier %memholders of the same --device to compare with; this run is "
                "stored for the next one"
            )

    def _free(self, arguments: Namespace) -> None:
        from hfmem_widget.features.free.api import parse_request, release
        from hfmem_widget.features.free.html import release_bundle

        request = parse_request(
            arguments.what,
            arguments.variable,
            shell=self._shell,
            collect=not arguments.no_gc,
            empty_cache=not arguments.no_cache,
            trim=arguments.trim,
        )
        released = release(request, self._shell, dry_run=arguments.dry_run)
        self._show(release_bundle(released))
        if released.interrupted:
            raise KeyboardInterrupt

    def run_renamed(self, name: str, line: str) -> None:
        """Run a renamed magic by its old name, and print the new name once."""
        magic, *option = RENAMED[name].split()
        if name not in self._renamed_used:
            self._renamed_used.add(name)
            print(f"%{name} is now %{RENAMED[name]}; the next version removes the old name.")  # noqa: T201
        getattr(self, magic)(" ".join((*option, line)))

    def _show(self, bundle: Mapping[str, Any]) -> None:
        from hfmem_widget.view.screen import Screen

        Screen(self._shell).show(bundle)


def _refuse(arguments: Namespace, names: Sequence[str], why: str) -> None:
    given = next((name for name in names if getattr(arguments, name)), "")
    if given:
        raise UsageError(f"--{given.replace('_', '-')} {why}")


def _moment(word: str) -> str | int:
    if word in {NOW, PEAK}:
        return word
    if word.isdecimal():
        return int(word)
    raise UsageError(f"%memanatomy takes 'now', 'peak' or a step number, not {plain(word)!r}")
