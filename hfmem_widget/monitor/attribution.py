"""What the memory is for: when the tensors of models, optimizers and KV caches are counted, and how often.

Counting follows Python objects that the user's own thread changes, so it is done on that thread alone, at
edges of spans and around an optimizer's step. On autograd's own thread the backward pass may replace a
gradient while it is read, which would free it under the reader.
"""

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from hfmem_widget.guard import seconds_of_an_event
from hfmem_widget.monitor.holdings import ByDevice, count, count_gradients, states_in
from hfmem_widget.monitor.subjects import Subjects, is_elsewhere
from hfmem_widget.session import Contents, SpanKind
from hfmem_widget.sources.counters import TensorSource
from hfmem_widget.sources.heap.tensors import unnoticed
from hfmem_widget.sources.libraries import FirstBuckets, wrapped_now
from hfmem_widget.sources.storages import MANAGED, Storage, storages_in, tensors_in

SHARE = 0.0005
"""Share of the time that counting may take at frequent edges: 10,000 parameters with AdamW take 0.2 s."""

SHARE_OF_NEW = 0.05
"""The same if a gradient, a state or an optimizer seems to be new."""

ALLOWANCE = 1.0
"""Seconds that counting new tensors may take beyond that: some trainings make them at every step."""

ALWAYS: frozenset[SpanKind] = frozenset({"cell", "train", "evaluate", "predict", "load"})
"""Kinds of spans at whose edges everything is counted at any cost: they are few, and people compare them."""


class Attribution:
    """Counts the memory of the `subjects` and passes it to a source; `clock` returns monotonic seconds."""

    def __init__(
        self,
        source: TensorSource | None = None,
        subjects: Subjects | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source if source is not None else TensorSource()
        self.subjects = subjects if subjects is not None else Subjects()
        self.contents = Contents()
        self.caches = Caches()
        self.rests = False
        """True during steps that are not measured: their edges and new gradients are not counted."""
        self.seconds_beside_edges = 0.0
        """Seconds spent on counting around optimizers' steps."""
        self.source.before_reading = self.refresh
        self._clock = clock
        self._lock = threading.Lock()
        self._passing_on = threading.RLock()
        self._held: ByDevice = {}
        self._gradients: ByDevice = {}
        self._buckets: dict[str, float] = {}
        self._first_buckets = FirstBuckets()
        self._left: dict[str, int] = {}
        self._probe: Callable[[], object] = lambda: None
        self._probe_thread: int | None = None
        self._states = 0
        self._full_count = _Effort()
        self._gradient_count = _Effort()
        self._state_check = _Effort()
        self._spent = 0.0
        self._at_optimizer = False

    def follow(self, *subjects: object) -> bool:
        """Count these models and optimizers from now on, and return whether one of them is new."""
        new = [self.subjects.add(subject) for subject in subjects]
        if any(new):
            self._full_count.was_forgotten = self._gradient_count.was_forgotten = True
        return any(new)

    def at_edge(self, kind: SpanKind, *, begins: bool) -> None:
        """Count what may have changed at a span's edge; on the user's thread, before the edge is read."""
        self.refresh()
        if kind in {"forward", "backward"}:
            # A model does not know what wraps it.
            self.follow(wrapped_now())
        elif kind in {"step", "substep"}:
            self._look_at_gradients(may_count=kind == "substep")
        elif kind == "optimizer" and begins:
            self._count_gradients()
            self._at_optimizer = True
        elif kind == "optimizer":
            self._at_optimizer = False
            self._count_after_step()
        elif kind not in {"prefill", "decode"}:
            self._look_at_gradients(may_count=False)  # which not every backward pass reports
            self._count_everything(always=kind in ALWAYS)

    def called(self, model: object) -> None:
        """Count a model from now on; a new one at once, since no edge of a span may follow."""
        if self.subjects.add(model):
            with self._beside_edges():
                self._count_new()

    def optimizer_steps(self, optimizer: object) -> None:
        """Count the gradients, which the backward pass has just completed."""
        with self._beside_edges():
            if self.subjects.add(optimizer):
                self._count_new()
            elif not (self._at_optimizer or self.rests):
                self._count_gradients()

    def optimizer_stepped(self) -> None:
        """Count the optimizer's states, if there are new ones."""
        with self._beside_edges():
            if not (self._at_optimizer or self.rests):
                self._count_after_step()

    def gradients_cleared(self) -> None:
        """Notice if the gradients were freed."""
        with self._beside_edges():
            if not self.rests:
                self._look_at_gradients(may_count=False)

    def cache_grew(self, *caches: object) -> None:
        """Count KV caches that this thread has just used."""
        for cache in caches:
            self.caches.see(cache)
        self._pass_on()

    def refresh(self) -> None:
        """Drop the caches and buckets that no longer exist; safe on any thread, because none is touched."""
        if self.caches.gone or self._first_buckets.left() != self._left:
            self._pass_on()

    def replace_lock(self) -> None:
        """Make new locks: for a forked child, where the thread that holds them does not exist."""
        self._lock = threading.Lock()
        self._passing_on = threading.RLock()

    def _count_after_step(self) -> None:
        if not self._state_check.is_due(self._clock(), SHARE_OF_NEW):
            return
        with self._state_check.measured(self._clock):
            has_new = states_in(self.subjects.optimizers()) != self._states
        if has_new:
            self._count_new()
        else:
            self._count_everything(always=False)

    def _count_new(self) -> None:
        began = self._clock()
        if self._spent < ALLOWANCE or self._full_count.is_due(began, SHARE_OF_NEW):
            self._count_everything(always=True)
            self._spent += self._clock() - began

    def _count_everything(self, *, always: bool) -> None:
        with self._alone() as alone:
            if not alone or not (always or self._full_count.is_due(self._clock())):
                return
            with self._full_count.measured(self._clock):
                modules, optimizers, caches = self.subjects.with_caches()
                self.caches.see_again()
                for cache in caches:
                    self.caches.see(cache)
                if not modules and not optimizers and not self._held:
                    if self.caches:
                        self._pass_on()
                    return
                elsewhere = self.subjects.by_thread()[1]
                holdings = count(modules, optimizers, elsewhere, self._first_buckets)
                self._states = states_in(self.subjects.optimizers())
            self.contents = holdings.contents
            self._held, self._buckets = holdings.held, holdings.buckets
            gradients = {
                device: {"gradients": parts["gradients"]}
                for device, parts in self._held.items()
                if "gradients" in parts
            }
            if gradients:
                self._keep_gradients(gradients, holdings.probe)
            self._pass_on()

    def _count_gradients(self) -> None:
        with self._alone() as alone:
            if not alone:
                return
            exist = self._gradients_exist()
            share = SHARE if exist else SHARE_OF_NEW
            if not self._gradient_count.is_due(self._clock(), share):
                self._put_gradients(self._gradients if exist else {})
                return
            with self._gradient_count.measured(self._clock):
                gradients, probe = count_gradients(self.subjects.by_thread()[0])
            if gradients:
                self._keep_gradients(gradients, probe)
            self._put_gradients(gradients)

    def _look_at_gradients(self, *, may_count: bool) -> None:
        with self._alone() as alone:
            # Another thread counts what it trains itself: from here a gradient is read while it changes.
            if not alone or is_elsewhere(self._probe_thread):
                return
            exist = self._gradients_exist()
            if exist is not None or not may_count:
                self._put_gradients(self._gradients if exist else {})
                return
        # No gradient is known yet: these are the first batches of a step that accumulates.
        if self._gradient_count.is_due(self._clock()):
            self._count_gradients()

    def _gradients_exist(self) -> bool | None:
        """Return whether a counted gradient still exists, and so probably all do; None if none is known."""
        parameter: Any = None if is_elsewhere(self._probe_thread) else self._probe()
        with unnoticed():
            return None if parameter is None else getattr(parameter, "grad", None) is not None

    def _keep_gradients(self, gradients: ByDevice, probe: Callable[[], object]) -> None:
        self._gradients, self._probe, self._probe_thread = gradients, probe, threading.get_ident()

    def _put_gradients(self, gradients: ByDevice) -> None:
        held = {device: {**parts} for device, parts in self._held.items()}
        for parts in held.values():
            parts.pop("gradients", None)
        for device, parts in gradients.items():
            held.setdefault(device, {}).update(parts)
        self._held = held
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on what was counted; of buckets only the bytes beyond the gradients that are views of them."""
        with self._passing_on:
            handed = dict(self._held)
            self._left = self._first_buckets.left()
            for device, size in self._buckets.items():
                parts = handed.get(device, {})
                not_gradients = max(0.0, size - parts.get("gradients", 0.0)) + self._left.get(
                    device, 0
                )
                handed[device] = {**parts, "libraries": parts.get("libraries", 0.0) + not_gradients}
            for device, cached in self.caches.held().items():
                handed[device] = {**handed.get(device, {}), **cached}
            self.source.count(handed)

    @contextmanager
    def _beside_edges(self) -> Iterator[None]:
        began = self._clock()
        yield
        self.seconds_beside_edges += self._clock() - began + seconds_of_an_event()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield True if no other thread is counting, and keep others from it meanwhile."""
        alone = self._lock.acquire(blocking=False)
        try:
            yield alone
        finally:
            if alone:
                self._lock.release()


class _Effort:
    """The time that counting took last, and whether its share of the time allows counting again."""

    def __init__(self) -> None:
        self._ended_at, self._took = -math.inf, 0.0
        self.was_forgotten = False
        """If True, counting is due at once by the usual share, but not by the one for new objects."""

    def is_due(self, now: float, share: float = SHARE) -> bool:
        is_due = now >= self._ended_at + self._took / share
        return is_due or (self.was_forgotten and share == SHARE)

    @contextmanager
    def measured(self, clock: Callable[[], float]) -> Iterator[None]:
        began = clock()
        yield
        self._ended_at = clock()
        self._took = self._ended_at - began
        self.was_forgotten = False


_Entry = tuple[weakref.ref[Any], int, tuple[Storage, ...]]
"""A cache, the thread that uses it, and the storages it had when it was read last."""


class Caches:
    """Counts the KV caches that it is given, and keeps none alive.

    A cache object is referred to weakly; if the cache is a tuple, which cannot be, each of its tensors is.
    The bytes of a cache count until it is read again, or its weak reference reports that it is freed.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by `id`
        self.gone: list[int] = []  # since they were counted last

    def __bool__(self) -> bool:
        return bool(self._entries)

    def see(self, cache: object) -> None:
        """Read a cache, which this thread is using."""
        with unnoticed():
            if isinstance(cache, (list, tuple)):
                for tensor in tensors_in(cache):
                    self._read(tensor)
            elif cache is not None:
                self._read(cache)

    def see_again(self) -> None:
        """Read all caches again, except those that another thread uses."""
        with unnoticed():
            for reference, thread, _ in list(self._entries.values()):
                cache = None if is_elsewhere(thread) else reference()
                if cache is not None:
                    self._read(cache)

    def held(self) -> ByDevice:
        """Return the bytes by device, each storage counted once, without touching a cache."""
        self.gone.clear()
        return self._bytes_of(list(self._entries.values()))

    def held_by(self, caches: Iterable[object]) -> ByDevice:
        """Return the bytes of some caches by device, as they were read last."""
        parts = (
            tensors_in(cache) if isinstance(cache, (list, tuple)) else (cache,) for cache in caches
        )
        entries = (self._entries.get(id(part)) for part in chain.from_iterable(parts))
        return self._bytes_of(filter(None, entries))

    @staticmethod
    def _bytes_of(entries: Iterable[_Entry]) -> ByDevice:
        storages = {
            storage[0]: storage
            for _, _, storages_of_cache in entries
            for storage in storages_of_cache
        }
        held: ByDevice = {}
        for _, device, size, _ in storages.values():
            if device != MANAGED:
                held.setdefault(device, {"kv_cache": 0.0})["kv_cache"] += size
        return held

    def _read(self, cache: Any) -> None:
        key = id(cache)
        entry = self._entries.get(key)
        if entry is None or entry[0]() is not cache:
            try:
                reference = weakref.ref(cache, partial(self._forget, key))
            except TypeError:  # of a class with slots: it would have to be kept
                return
        else:
            reference = entry[0]
        self._entries[key] = reference, threading.get_ident(), storages_in(cache)

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        # Wherever the last reference is dropped, also in the middle of the collector: no lock, no call.
        if key in self._entries and self._entries[key][0] is reference:
            del self._entries[key]
            self.gone.append(key)
