"""A rank watches itself, from the start of torch.distributed to the end of the process.

If `HFMEM_RUN` names the directory of a run, a process that returns from ``init_process_group`` is one of its
ranks; `follow` makes a process a rank explicitly. The watch is a quiet one, recorded into the directory.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import opcode
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hfmem_widget.drivers.install import attach
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import entry
from hfmem_widget.monitor.monitor import code_of
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.monitor.process import Part, process_state
from hfmem_widget.options import WatchOptions, expanded, path_text
from hfmem_widget.ranks.directory import Member
from hfmem_widget.ranks.environment import CLAIMED, RUN, SOLO, handed_on, lends
from hfmem_widget.ranks.identity import ALONE, only_rank, rank_in_group, rank_of_process
from hfmem_widget.unseen import OVER, unseen

if TYPE_CHECKING:
    from hfmem_widget.drivers.watch import Watch
    from hfmem_widget.session import Session
    from hfmem_widget.session.rank_records import Rank

_BY = "pid-"

_LAUNCHERS = frozenset(
    [
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "mpirun", "mpiexec", "srun"),
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner", "ray"),
    ]
)
"""Words in the command line of a process that starts ranks."""


@dataclass(slots=True)
class OwnRank(Part):
    """The state of this process as a rank."""

    watch: Watch | None = None
    member: Member | None = None
    pid: int = 0  # of the process that is this rank
    has_exit_hooks: bool = False
    # The latest `sys.exit` of the main thread: its outermost frame, and the code.
    exit: tuple[FrameType, int] | None = None

    @property
    def is_followed(self) -> bool:
        """Whether this process itself is followed, not only its parent."""
        return self.watch is not None and self.pid == os.getpid()


@contextmanager
def _noting_exit(*_: object) -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        if threading.current_thread() is threading.main_thread():
            process_state(OwnRank).exit = _outermost(), code_of(error)
        raise


def _outermost() -> FrameType:
    return [frame for frame, _ in traceback.walk_stack(inspect.currentframe())][-1]


def _exit_code() -> int:
    """Return the exit code if the script has left by `sys.exit`; 0 if that was caught."""
    frame, code = process_state(OwnRank).exit or (None, 0)
    if frame is None or frame is _outermost():
        return 0
    # A frame that has returned stays at that instruction; one that ended by an error does not.
    last = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return 0 if last.startswith("RETURN") else code


@entry()
def joined() -> None:
    """Begin if this process is in a group of torch.distributed and belongs to a run."""
    directory = os.environ.get(RUN) or directory_here()
    if directory and not lends():
        begin(directory)


@entry()
def begin_alone() -> None:
    """Begin if ``hfmem run`` has started a script without a launcher; called once torch is imported."""
    directory = os.environ.get(RUN)
    rank = rank_of_process(os.environ)
    is_rank = rank is not None and rank.world > 1
    launches = any(os.path.basename(word) in _LAUNCHERS for word in sys.orig_argv[1:4])  # noqa: PTH119
    if directory and os.environ.get(SOLO) == "1" and not is_rank and not launches:
        begin(directory, rank or only_rank())


@entry(otherwise=lambda *_args, **_options: False, undo=lambda *_args, **_options: _leave())
def begin(directory: str | Path, rank: Rank | None = None) -> bool:
    """Begin to follow this process as a rank, and return True; not a second time, nor in a child of a rank.

    `directory` is that of the run. The rank comes from torch.distributed, or else from the environment.
    """
    own, group, launcher = process_state(OwnRank), rank_in_group(), _alone_around()
    is_in_group = group is not None and group[1] > 1
    if own.member is not None and own.is_followed:
        if own.member.rank.engine != ALONE or not is_in_group:
            return False
        end()  # it is not the only process after all
    elif launcher and not is_in_group:
        return False
    if os.environ.get(CLAIMED, str(os.getpid())) != str(os.getpid()):
        return False
    if rank is None:
        rank = rank_of_process(os.environ, group) or only_rank()
    own.member = member = Member(Path(directory).absolute(), rank, launcher)
    own.watch, own.pid = _watch_of(member), os.getpid()
    # Set before the watch begins: no child may take itself for this rank.
    if rank.engine == ALONE:
        os.environ[SOLO] = f"{_BY}{rank.pid}"
    else:
        os.environ[CLAIMED] = str(rank.pid)
    # Also its Trainer, and the group that it may join later, which knows its rank better.
    attach()
    from hfmem_widget.monitor.shared import shared_monitor

    # In a context of its own: it is not a watch of the user's, and takes no spans from one.
    session = Context().run(own.watch.start)
    if session.running:
        # The rank gets the steps of every other watch in this process, too.
        shared_monitor().register.echo_in(session)
        # At the end of a script there is no other way to learn how it has left.
        surround(sys, "exit", _noting_exit)
    if not own.has_exit_hooks:  # once in each process: a forked child forgets them
        from multiprocessing.util import Finalize

        own.has_exit_hooks = True
        # A script ends with the first, and a child of multiprocessing with the second, which sees the error
        # and runs before the process waits for its own children.
        atexit.register(_at_exit)
        Finalize(None, _at_exit, exitpriority=100)
    return True


def is_of_rank(session: Session) -> bool:
    """Return whether a session is that of this process as a rank, not of a watch of the user's."""
    watch = process_state(OwnRank).watch
    return watch is not None and watch.shows(session)


def directory_here() -> Path | None:
    """Return the directory of the run that this process is a rank of; None if it is not a rank."""
    own = process_state(OwnRank)
    return own.member.directory if own.member is not None and own.is_followed else None


def _alone_around() -> int:
    """Return the id of the process that is followed as the only rank, this one or a parent; 0 if none is."""
    number = os.environ.get(SOLO, "").removeprefix(_BY)
    return int(number) if number != os.environ.get(SOLO) and number.isdecimal() else 0


def _watch_of(member: Member) -> Watch:
    from hfmem_widget.drivers.watch import Watch
    from hfmem_widget.features.record.companion import FileRecording
    from hfmem_widget.monitor.shared import shared_monitor
    from hfmem_widget.view.screen import Screen

    given = {"quiet": True, "ranks": False, **handed_on(os.environ)}
    options = WatchOptions(label=f"rank {member.rank.rank}", **given)
    recording = FileRecording(options, member=member)
    return Watch(options, monitor=shared_monitor(), screen=Screen(), last=(recording,))


@entry()
def _at_exit() -> None:
    raised = sys.exception()
    if raised is None:
        raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(raised, SystemExit):
        # torch.multiprocessing leaves with a code after it has written the error to a file.
        raised = raised.__context__ or (raised if raised.code else None)
    code = _exit_code()
    end(raised or (SystemExit(code) if code else None))
    if type(raised) is KeyboardInterrupt:
        # What Python has noted of it, to end as the signal asks, is lost with any code that runs from a text,
        # as in the making of a dataclass: by another like it the note is there again.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102


def _leave(error: BaseException | None = None) -> None:
    """End the watch of this process as a rank; has no effect a second time, or in a forked child."""
    own = process_state(OwnRank)
    if own.watch is None or not own.is_followed:
        return
    own.watch.stop(error)
    restore(sys, "exit")
    own.exit = None
    for name, value in ((CLAIMED, str(own.pid)), (SOLO, f"{_BY}{own.pid}")):
        if os.environ.get(name) == value:
            del os.environ[name]
    own.watch = None  # last, so that an interrupted end is repeated


end = entry(undo=_leave)(_leave)


class Followed:
    """A function whose calls are followed as a rank of `run`, by default of the caller's `HFMEM_RUN`."""

    def __init__(self, function: Callable[..., Any], run: str = "") -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._run = run

    @unseen
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, followed as a rank."""
        directory = self._run or os.environ.get(RUN, "")
        began = bool(directory) and begin(directory)
        try:
            return self._function(*args, **kwargs)
        finally:
            if began:
                end(sys.exception())
            OVER  # noqa: B018

    def __reduce__(self) -> tuple[Any, ...]:
        name = getattr(self._function, "__qualname__", "")
        home: Any = sys.modules.get(getattr(self._function, "__module__", ""))
        if getattr(home, name, None) is self:
            # As a decorator it is found under the function's own name.
            self._function.__qualname__ = f"{name}.__wrapped__"
        return Followed, (self._function, self._run)


def follow(
    subject: Callable[..., Any] | str | os.PathLike[str] | None = None,
    *,
    run: str | os.PathLike[str] = "",
) -> Any:
    """Follow this process as a rank of a run, or a function wherever it is called.

    Parameters
    ----------
    subject : callable or path-like, optional
        The run's directory, which all ranks must see; this process is followed from now on until it ends. Or
        a function, such as the loop of a Ray ``TorchTrainer``.
    run : path-like, optional
        The directory, where a function is given.

    Returns
    -------
    callable or None
        A function in place of the one that was given; a process that calls it is followed for as long.

    Raises
    ------
    OptionError
        If it is neither a path nor a function.

    Examples
    --------
    >>> hfmem_widget.follow("/shared/run1")
    >>> trainer = TorchTrainer(hfmem_widget.follow(loop), scaling_config=ScalingConfig(num_workers=4))
    """
    directory = os.fspath(expanded(path_text(run, "run", "a folder"))) if run else ""
    if callable(subject):
        # Workers of a cluster do not inherit the variables that the watched cell has set.
        return Followed(subject, directory or os.environ.get(RUN, ""))
    if subject is not None:
        if run:
            message = "the directory is given twice"
            raise OptionError(message)
        directory = os.fspath(expanded(path_text(subject, "follow()", "a folder, or a function")))
    if directory := directory or os.environ.get(RUN, ""):
        begin(directory)
    return None
