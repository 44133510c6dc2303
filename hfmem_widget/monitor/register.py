"""The sessions that a monitor watches, and what is said to all of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar

from hfmem_widget.errors import WatchStateError
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.session import Session

_opened_here: ContextVar[tuple[weakref.ref[Watched], ...]] = ContextVar("opened_here", default=())
"""Those whose outermost span was opened in this context, a thread's or an asynchronous task's."""

HAS_ENDED = "this session has ended; start a new one with hfmem_widget.watch()"


class Register:
    """The sessions that are watched, in the order in which they were begun."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._watched: dict[int, Watched] = {}
        self._lock = threading.RLock()

    def add(self, watched: Watched, if_first: Callable[[], None]) -> None:
        """Take in a session; call `if_first` before that where no other is watched."""
        with self._lock:
            if not self._watched:
                if_first()
            self._watched[id(watched.session)] = watched

    def opens_here(self, watched: Watched) -> None:
        """Note that a session's outermost span is opened in this thread, or asynchronous task."""
        with self._lock:
            all_watched = self._watched.values()
            others = (other for other in _opened_here.get() if other() in all_watched)
            _opened_here.set((*others, weakref.ref(watched)))
        watched.thread = threading.get_ident()

    def remove(self, session: Session) -> None:
        """Let a session go."""
        with self._lock:
            self._watched.pop(id(session), None)

    def get(self, session: Session) -> Watched | None:
        """Return what is kept of a session; None once it has ended."""
        with self._lock:
            return self._watched.get(id(session))

    def find(self, session: Session) -> Watched:
        """Return what is kept of a session.

        Raises
        ------
        WatchStateError
            If it has ended.
        """
        watched = self.get(session)
        if watched is None:
            raise WatchStateError(HAS_ENDED)
        return watched

    def enclosing(self) -> Watched | None:
        """Return what was opened last in this thread or asynchronous task, and is open."""
        here = {reference() for reference in _opened_here.get()}
        return next((each for each in reversed(self.listening()) if each in here), None)

    def current(self) -> Watched | None:
        """Return where further spans belong: in the watch that encloses them.

        A thread that opened none, such as one of a pool or of autograd's, belongs to what is watched; where
        several threads watch, to what the main thread watches.
        """
        listening = self.listening()
        if len(listening) < 2:
            return listening[0] if listening else None
        if len({watched.thread for watched in listening}) > 1:
            main = threading.main_thread().ident
            listening = [watched for watched in listening if watched.thread == main]
        return self.enclosing() or next(reversed(listening), None)

    def all(self) -> list[Watched]:
        """Return all of them."""
        with self._lock:
            return list(self._watched.values())

    def listening(self) -> list[Watched]:
        """Return those with an open span, which every tick is added to."""
        return [watched for watched in self.all() if watched.windows]

    def take_over(self, watched: Watched) -> None:
        """Give a session the devices and series that have appeared, and the notes of the sources."""
        version = self._sampler.version
        if watched.version == version:
            return
        watched.version = version
        watched.adopt(self._sampler.devices, self._sampler.series)
        # The sessions of now show a sentence; one begun later does not repeat it.
        for sentence in self._sampler.take_notes():
            self.note(sentence, watched)

    def note(self, sentence: str, *also: Watched) -> None:
        """Note a sentence once in every open session, and in others."""
        for watched in (*also, *self.listening()):
            watched.recorder.note(sentence)

    def replace_locks(self) -> None:
        """Forget who holds which lock: for a forked child, where those threads do not exist."""
        self._lock = threading.RLock()
        for watched in self._watched.values():
            watched.edges = threading.RLock()
            watched.recorder.replace_lock()
