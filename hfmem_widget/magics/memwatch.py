"""``%memwatch`` and ``%%memwatch``.

A cell magic that runs its cell with ``shell.run_cell`` hides its failures (ipython#11314): the reply says
"ok", and Run All and nbclient carry on. So ``%%memwatch`` does not run the cell. An input transformer turns
its first line into a call that starts a watch, and the watch ends with the `post_run_cell` event.
"""

from __future__ import annotations

import ast
import builtins
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core import magic
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import (
    entry,
    fault_text,
    harmless,
    interrupts_deferred,
    raised_by_handler,
    warn,
)
from hfmem_widget.magics.executions import Execution, Executions, name_code
from hfmem_widget.magics.first_line import arm_first_line, show_own_line
from hfmem_widget.magics.open import open_parser, open_recording, take_engines
from hfmem_widget.magics.usage import (
    OptionFlags,
    asks_for_help,
    check_output,
    find_variable,
    keep_result,
    manual,
    option,
    output,
    parse,
    remove,
    usage_errors,
    words_of,
)
from hfmem_widget.options import OPTIONS, WatchOptions
from hfmem_widget.text import (
    digest_of,
    first_line,
    format_bytes,
    format_counted,
    lines_of,
    parse_bytes,
    plain,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from hfmem_widget.drivers.watch import EveryCell, Watch
    from hfmem_widget.session import Session

NAME = "memwatch"
LEAST = "10MiB"
"""The least change of a cell that `%memwatch on` shows."""

ABOVE_CODE = (
    "%memwatch alone does not watch this cell. Write %%memwatch (two % signs) for this cell, or %memwatch on "
    "for every later cell."
)
_NEXT = (
    "%memanatomy       what the memory was for, at the peak and at the end",
    "%memholders       what still holds memory; --free frees it",
    "%memfit model     what a model needs, and whether it fits",
)
_COMPARE = "%memcompare       the watched cells, as a list or side by side"
ACTIONS = ("on", "off", "status")
OPEN, RANKS = "open", "ranks"
MOST_OF_TITLE = 40

# A semicolon at the end of the line silences a magic, from IPython 8.7 on.
_can_be_silenced = getattr(magic, "output_can_be_silenced", lambda method: method)


@magics_class
class MemwatchMagics(Magics):
    """``%memwatch`` and ``%%memwatch`` of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self._executions = Executions()
        self._every_cell: EveryCell | None = None
        self._in_every_cell: Execution | None = None

    @magic_arguments(NAME)
    @argument(
        "action",
        nargs="?",
        choices=(*ACTIONS, OPEN, RANKS),
        help="%%memwatch only: 'on' watches every later cell, 'off' ends that, 'status' (the default) says "
        "what is watched, 'open PATH' shows a recording or run, 'ranks NAME' follows ipyparallel's engines.",
    )
    @OptionFlags(OPTIONS)
    @output("session")
    @option(
        "--min",
        f"%%memwatch on only: show nothing of a cell that changed less than this. Default: {LEAST}; 0 "
        "shows every cell.",
        metavar="SIZE",
    )
    @_can_be_silenced
    @line_cell_magic(NAME)  # type: ignore[arg-type]  # it is typed for a callable of Never
    def memwatch(self, line: str, cell: str | None = None) -> Any:
        """Watch the memory of this cell, or of every later one.

        ::

            %%memwatch --label "fine-tune"
            trainer.train()

        shows a live chart while the cell runs, and afterwards a card: what it allocated, what it left
        behind, its exact peak, what the allocator reserved, how much room there was at the peak. The
        cell itself runs as if the first line were not there.

        ``%memwatch on`` does so for every later cell, with one chart for the notebook;
        ``%memwatch off`` ends that.

        ``%memwatch open PATH`` shows a recording, which ``--record PATH`` or ``session.save(PATH)`` wrote, or
        the run in a directory, live as long as its ranks write.
        """
        if cell is None:
            return self._control(words_of(line))
        return self._run_as_function(line, cell)

    memwatch.__doc__ = manual(memwatch.parser)

    @line_magic(f"%{NAME}")  # type: ignore[arg-type]  # as above
    def below_first_line(self, line: str) -> None:
        """Raise `UsageError`: below a cell's first line, IPython takes ``%%memwatch`` for a line magic."""
        del line
        message = f"%%{NAME} must be the first line of its cell, above all code and comments"
        raise UsageError(message)

    def arm_cell(self, line: str) -> None:
        """Watch the running cell; its transformed first line calls this. Raises only `UsageError`."""
        # One frame above is the cell.
        self._arm(line, sys._getframe(1))  # noqa: SLF001  (inspect.currentframe is the same)

    @entry(lets=UsageError)
    def _arm(self, line: str, cell: FrameType) -> None:
        show_own_line(cell, line)
        arguments = self._parsed_for_a_cell(self._expanded(line))
        execution = self._executions.current()
        if arguments is not None and execution is not None:
            self._watch(arguments, execution.watches)

    @entry()
    def cell_begins(self, info: ExecutionInfo) -> None:
        """Note that a cell begins; for the `pre_run_cell` event."""
        execution, lost = self._executions.begins(info, self._shell.execution_count)
        harmless(name_code, self._shell, execution)
        for earlier in lost:
            self._end([earlier], None)
        is_ours = (info.raw_cell or "").lstrip().startswith(f"%{NAME}")
        every_cell = None if is_ours or not execution.is_outermost else self._every_cell
        if every_cell is not None and self._in_every_cell is None:
            self._in_every_cell = execution
            title = f"[{execution.number}] {first_line(info.raw_cell or '')}"
            every_cell.cell_begins(plain(title.strip(), MOST_OF_TITLE))

    @entry()
    def cell_ends(self, result: ExecutionResult | None) -> None:
        """End the watches of the cell that ran; for the `post_run_cell` event."""
        # A cell can run others (get_ipython().run_cell), so only its own execution ends a watch. If a fault
        # prevents that, the next cell ends the watches.
        ended = self._executions.ends(result)
        if ended:
            self._end(ended, result)

    def close(self) -> None:
        """End everything that is watched."""
        for watch in self._executions.watches:
            harmless(watch.stop)
        harmless(self._turn_off)

    def _end(self, ended: list[Execution], announced: ExecutionResult | None) -> None:
        execution, shell = ended[0], self._shell
        candidates = announced, shell.displayhook.exec_result, shell.last_execution_result
        results = (each for each in candidates if each and each.info is execution.info)
        result: ExecutionResult | None = next(results, None)
        error = _failure(result or announced)
        watches = [watch for cell in ended for watch in cell.watches]
        # Before the first watch there is nothing to end, and nothing to import.
        drivers: Any = sys.modules.get("hfmem_widget.drivers.watch")
        interrupted = [] if drivers is None else drivers.kept_from_ending(error)
        for watch in (*interrupted, *reversed(watches)):
            harmless(watch.stop, error)
        if self._in_every_cell in ended:
            self._in_every_cell = None
            if self._every_cell is not None:
                harmless(self._every_cell.cell_ends, error, annotate=not execution.watches)

    def _control(self, words: list[str]) -> None:
        if asks_for_help(words) or words == ["help"]:
            print(self.memwatch.__doc__)  # noqa: T201
            return
        if words[:1] == [OPEN]:
            self._open(parse(open_parser(f"{NAME} {OPEN}"), words[1:], f"%{NAME} {OPEN}"))
            return
        if words[:1] == [RANKS]:
            print(take_engines(words[1:], self._shell.user_ns))  # noqa: T201
            return
        arguments = parse(self.memwatch.parser, words)
        action = arguments.action
        if action == "on":
            self._turn_on(arguments)
        elif len(words) > 1 or (words and action is None):
            what = "%memwatch on its own" if action is None else f"%memwatch {action}"
            raise UsageError(
                f"{what} takes no options. Put them after %%memwatch for one cell, or after %memwatch on for "
                "every later cell"
            )
        elif action == "off":
            print(self._turn_off() or "memwatch is already off.")  # noqa: T201
        elif self._every_cell is None and self._stands_above_code():
            print(ABOVE_CODE)  # noqa: T201
        else:
            print(self._home() if action is None else self._status())  # noqa: T201

    def _stands_above_code(self) -> bool:
        execution = self._executions.current()
        lines = [] if execution is None else lines_of(execution.info.raw_cell or "")
        code = [line for line in lines if line[0] != "#"]
        return len(code) > 1 and code[0] == f"%{NAME}"

    @usage_errors()
    def _open(self, arguments: Namespace) -> None:
        check_output(arguments.output, self._shell)
        opened, session = open_recording(arguments.path, self._shell)
        if session is not None:
            HISTORY.latest = session
        keep_result(opened, arguments, self._shell)

    @usage_errors()
    def _turn_on(self, arguments: Namespace) -> None:
        from hfmem_widget.drivers.watch import EveryCell
        from hfmem_widget.monitor.shared import shared_monitor
        from hfmem_widget.view.screen import Screen

        options = self._options(arguments)
        least = parse_bytes(arguments.min or LEAST, of="--min")
        monitor, screen = shared_monitor(), Screen(self._shell)
        with interrupts_deferred():
            # If the new one cannot begin, the earlier one goes on.
            monitor.end(monitor.begin(options))
            self._turn_off()
            every_cell = EveryCell(options, monitor=monitor, screen=screen, least=least)
            self._every_cell = every_cell
            self._keep(arguments, every_cell.session)
        if least and not options.quiet:
            print(f"memwatch is on. {_silence(least)}")  # noqa: T201

    def _turn_off(self) -> str:
        every_cell, self._every_cell = self._every_cell, None
        if every_cell is None:
            return ""
        every_cell.end()
        from hfmem_widget.view.card import cells_text

        texts = ["memwatch is off."]
        harmless(lambda: texts.append(cells_text(every_cell.session)))
        if any(span.parent is None for span in every_cell.session.spans):
            texts.append("%memcompare lists them.")
        return " ".join(texts)

    def _home(self) -> str:
        session, texts = HISTORY.latest, [self._status()]
        if session is not None and not session.running:
            from hfmem_widget.view.card import came_to

            harmless(lambda: texts.append(came_to(session)))
            runs = len({record.identity for record in HISTORY.records})
            texts.append("\n".join((*_NEXT, *([_COMPARE] if runs > 1 else []))))
        return "\n\n".join(filter(None, texts))

    def _status(self) -> str:
        every_cell = self._every_cell
        if every_cell is None:
            return "memwatch is off. %memwatch on watches every later cell; %%memwatch? shows the help."
        session = every_cell.session
        devices = ", ".join(f"{device.key} {device.name}" for device in session.devices)
        cells = sum(span.kind == "cell" and span.parent is None for span in session.spans)
        state = (
            f"memwatch is on: {format_counted(cells, 'cell')} so far, a sample every "
            f"{session.polling.current_interval:g} s while one runs."
        )
        silence = [_silence(every_cell.least)] if every_cell.least else []
        return "\n".join([state, *silence, f"Devices: {devices}.", *session.notes])

    def _parsed_for_a_cell(self, line: str) -> Namespace | None:
        words = words_of(line)
        if asks_for_help(words):
            print(f"{self.memwatch.__doc__}\nThis is the help text; the cell was not run.")  # noqa: T201
            return None
        arguments = parse(self.memwatch.parser, words, f"%%{NAME}")
        if arguments.action is not None:
            raise UsageError(f"write %memwatch {arguments.action} on its own line, with one % sign")
        if arguments.min:
            message = "--min belongs to %memwatch on; a cell with %%memwatch is always shown"
            raise UsageError(message)
        return arguments

    @usage_errors()
    def _options(self, arguments: Namespace) -> WatchOptions:
        check_output(arguments.output, self._shell)
        # Empty text, such as that of an empty {variable}, is not an option.
        options = vars(arguments).items()
        given = {name: value for name, value in options if name in OPTIONS and value != ""}
        if "on_finding" in given:
            name, variables = given["on_finding"], {**vars(builtins), **self._shell.user_ns}
            try:
                given["on_finding"] = find_variable(name, variables)
            except (KeyError, AttributeError):
                message = f"--on-finding needs the name of a function; there is no {plain(name)!r}"
                raise UsageError(message) from None
        return WatchOptions().changed(given, NAME)

    @usage_errors()
    def _watch(self, arguments: Namespace, watches: list[Watch]) -> None:
        options = self._options(arguments)
        try:
            # Before the imports: they take a while, and on another thread the next cell may begin.
            number = self._cell_number()
            from hfmem_widget.drivers.watch import Watch
            from hfmem_widget.monitor.shared import shared_monitor
            from hfmem_widget.view.screen import Screen

            monitor, screen = shared_monitor(), Screen(self._shell)
            title = f"cell [{number}]"
            watch = Watch(options, monitor=monitor, screen=screen, kind="cell", title=title)
            # Added before it starts: an interrupt held back meanwhile comes out of `start`.
            watches.append(watch)
            self._keep(arguments, watch.start())
        except Exception as error:
            if isinstance(error, OptionError) or raised_by_handler(error):
                raise
            # The cell runs despite a fault of ours.
            warn(f"this cell runs unwatched ({fault_text(error)})")

    def running_cell(self) -> Cell | None:
        """Return the cell that runs on this thread."""
        execution = self._executions.current()
        if execution is None:
            return None
        source = execution.info.raw_cell or ""
        own = getattr(execution.info, "cell_id", None) or digest_of(source)
        return Cell(execution.number, own, plain(first_line(source), MOST_OF_TITLE))

    def _cell_number(self) -> int | None:
        execution = self._executions.current()
        if execution is not None:
            return execution.number
        # The cell that loads the extension began before it was there.
        result: ExecutionResult | None = self._shell.displayhook.exec_result
        return None if result is None else result.execution_count

    def _expanded(self, line: str) -> str:
        """Return the options of a first line with variables expanded, as IPython does for other magics."""
        try:
            # The cell is four frames above, for names that are not in the user's namespace.
            expanded: str = self._shell.var_expand(line, 4)
        except Exception as error:
            if raised_by_handler(error):
                raise
            message = f"cannot expand the variables in the first line: {type(error).__name__}: {plain(error)}"
            raise UsageError(message) from None
        return expanded

    def _keep(self, arguments: Namespace, session: Session) -> None:
        HISTORY.latest = session
        keep_result(session, arguments, self._shell)

    def _run_as_function(self, line: str, cell: str) -> Any:
        """Run a cell for `run_cell_magic`, as of ``%%time``: it bypasses the input transformers."""
        arguments = self._parsed_for_a_cell(line)
        if arguments is None:
            return None
        watches: list[Watch] = []
        error: BaseException | None = None
        try:
            self._watch(arguments, watches)
            return _execute(self._shell, cell, self._cell_number())
        except BaseException as raised:
            error = raised
            raise
        finally:
            with interrupts_deferred():
                for watch in watches:
                    harmless(watch.stop, error)
            # The exception's traceback holds this frame, and the frame would hold the exception.
            error = None


def register(shell: InteractiveShell) -> None:
    """Add the magics, their events and the input transformer."""
    magics = MemwatchMagics(shell)
    shell.register_magics(magics)
    shell.events.register("pre_run_cell", magics.cell_begins)
    shell.events.register("post_run_cell", magics.cell_ends)
    shell.input_transformers_cleanup.append(arm_first_line)


def unregister(shell: InteractiveShell) -> None:
    """Remove everything that `register` has added."""
    remove(shell, f"%{NAME}")
    magics = remove(shell, NAME)
    if magics is None:
        return
    magics.close()
    shell.events.unregister("pre_run_cell", magics.cell_begins)
    shell.events.unregister("post_run_cell", magics.cell_ends)
    while arm_first_line in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(arm_first_line)


def _silence(least: float) -> str:
    return (
        f"Cells that change less than {format_bytes(least)} show nothing; %memwatch on --min 0 shows "
        "every cell."
    )


def _execute(shell: InteractiveShell, cell: str, number: int | None) -> Any:
    source = shell.transform_cell(cell)
    # By the shell's own compiler: it has the user's __future__ imports, not ours, and keeps the lines.
    compiler = shell.compile
    name = compiler.cache(source, number or 0, raw_code=cell)
    tree = shell.transform_ast(compiler.ast_parse(source, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compiler(tree, name, "exec"), shell.user_ns)  # noqa: S102  (the user's own cell)
    if last is None:
        return None
    expression = compiler(ast.Expression(last.value), name, "eval")  # type: ignore[arg-type]  # as `compile`, it takes a tree
    return eval(expression, shell.user_ns)  # noqa: S307  (the user's own cell)


def _failure(result: ExecutionResult | None) -> BaseException | None:
    """Return the error of a cell; without a result, the error that kept IPython from making one."""
    if result is None:
        return sys.exc_info()[1]
    # There are both if the first could not be shown. The truth value of an exception may be False.
    error = result.error_in_exec
    return result.error_before_exec if error is None else error
