"""Forward hooks, which report where a forward pass begins and ends."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import CodeType, MethodType
from typing import Any

from hfmem_widget.guard import NO_THREADS, entry, is_for_user
from hfmem_widget.monitor.batch import see_batch, shape_of
from hfmem_widget.monitor.patch import Place, restore_with, surround
from hfmem_widget.monitor.process import Installed, process_state
from hfmem_widget.sources.heap.referents import fields_of
from hfmem_widget.sources.heap.tensors import modules_in

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ABOUT_HOOKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


@dataclass(slots=True)
class Hooked(Installed):
    """The modules that have hooks of ours."""

    hooks: weakref.WeakSet[ModelHooks] = field(default_factory=weakref.WeakSet)
    # By `id`, the modules that torch.compile has traced; they get no hooks again.
    traced: dict[int, weakref.ref[Any]] = field(default_factory=dict)


class ModelHooks:
    """Calls `before(counts)` and `after(error)` around every forward pass of one module, until removed.

    A module that torch.compile traces gets no hooks: they would make it compile again. Copies, pickles and
    scripts of a module have no hooks. The module is the outermost one: hooks of an inner module would run in
    the replicas of ``nn.DataParallel``. `before` gets the counts of the batch from `shape_of`, `after` the
    error of the pass or None, with `failures` only errors. If `unless` returns True, neither is called. On
    threads with a true value in `unguarded_on` signals are not deferred: `before` must withstand interrupts.
    """

    def __init__(
        self,
        module: Any,
        *,
        before: Callable[[Mapping[str, float]], None],
        after: Callable[[Exception | None], None],
        unless: Callable[[], bool] = bool,
        failures: bool = False,
        unguarded_on: Mapping[int, object] = NO_THREADS,
    ) -> None:
        self.module: weakref.ref[Any] = weakref.ref(module)
        self._handles: list[Any] = []
        if getattr(module, "_compiled_call_impl", None) is not None:
            return
        hooked = process_state(Hooked)
        if (traced := hooked.traced.get(id(module))) is not None and traced() is module:
            return
        hooked.hooks.add(self)
        try:
            _hide_from_copies(module)
            before_hook, after_hook = _Before(before, unless), _After(after, unless)
            before_hook.unguarded_on, after_hook.failures = unguarded_on, failures
            register = module.register_forward_pre_hook
            hooks = module._forward_pre_hooks  # noqa: SLF001  (torch has no other way to order them)
            ours = [key for key, hook in hooks.items() if isinstance(hook, _Hook)]
            # Before all other hooks: FSDP's gathers parameters, which is part of the pass.
            self._handles.append(register(before_hook, prepend=True, with_kwargs=True))
            for key in reversed(ours):  # but after our earlier ones
                hooks.move_to_end(key, last=False)
            self._handles.append(module.register_forward_hook(after_hook, always_call=True))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take the hooks off; a second call does nothing."""
        # Each is forgotten once it is off, so that a second call can finish after a fault.
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()
        hooked = process_state(Hooked)
        hooked.hooks.discard(self)
        if not hooked.hooks:
            restore_with(_hidden, _hidden_within)


@dataclass(eq=False, slots=True)
class HookedModule:
    """A module that is followed by hooks, and not kept alive."""

    module: weakref.ref[Any]
    depth: int = 0  # below the outermost one
    hooks: ModelHooks | None = None  # None until they are on
    was_called: bool = False
    counts: Mapping[str, float] = field(default_factory=dict)  # of the pass that runs


def take_off(modules: dict[int, HookedModule], keys: Iterable[int]) -> None:
    """Take the hooks off some modules, by `id`; can be called again after a fault."""
    for key in tuple(keys):
        if (hooks := modules[key].hooks) is not None:
            hooks.remove()
        del modules[key]


class _Hook:
    """A hook whose copies do nothing: a class may have its own way to be copied or pickled."""

    def __init__(self, report: Callable[[Any], None], unless: Callable[[], bool]) -> None:
        self._report = report
        self._unless = unless
        # A hook must not become part of what torch.compile or torch.jit traces.
        torch = sys.modules["torch"]
        self._compiled: Callable[[], bool] = torch.compiler.is_compiling
        # What every call of a module asks, so it is in the caches.
        self._traced: Callable[[], object] = torch._C._get_tracing_state  # noqa: SLF001  (as it does)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # It takes a hook's three arguments, returns None, and exists where this package is not installed.
        return (getattr, (nullcontext(), "__exit__"))


class _Before(_Hook):
    unguarded_on: Mapping[int, object] = NO_THREADS
    largest = 0.0  # tokens of a batch so far, or samples

    def __call__(
        self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        # torch passes no `kwargs` while another thread registers or removes the hook.
        if kwargs is None or self._compiled() or self._unless() or self._traced():
            return
        try:
            counts = shape_of(args, kwargs)
            size = counts.get("tokens") or counts.get("samples", 0.0)
            # Deferring signals takes longer than everything else in a short step.
            if size <= self.largest and self.unguarded_on.get(threading.get_ident()):
                self._report(counts)
                return
        except Exception as error:
            if is_for_user(error):
                raise
            return
        self._report_guarded(counts, size, (module, args, kwargs))

    @entry()
    def _report_guarded(
        self, counts: Mapping[str, float], size: float, call: tuple[object, Any, Any]
    ) -> None:
        if size > self.largest and sys.modules["torch"].is_grad_enabled():
            self.largest = size
            see_batch(*call, counts, is_training=True)
        self._report(counts)


class _After(_Hook):
    failures = False

    def __call__(self, _module: object, _args: object, result: object) -> None:
        is_let_alone = self.failures and result is not None
        if not (is_let_alone or self._compiled() or self._unless() or self._traced()):
            self._report_guarded(result)

    @entry()
    def _report_guarded(self, result: object) -> None:
        # If the pass raised, torch calls this within its `except` clause, without a result.
        error = sys.exception() if result is None else None
        self._report(error if isinstance(error, Exception) else None)


def _hide_from_copies(module: object) -> None:
    """Surround the functions that copy, pickle or script a module, until no module has hooks."""
    for kind in type(module).__mro__[:-1]:
        if "__getstate__" in vars(kind):
            surround(kind, "__getstate__", _hidden)
            break
    if (scripting := sys.modules.get("torch.jit._recursive")) is not None:
        surround(scripting, "create_script_module", _hidden_within)


@contextmanager
def _hidden(module: object) -> Iterator[None]:
    """Take our hooks out of a module's fields while other code copies the fields."""
    fields = vars(module)
    usual = {name: fields[name] for name in _HOOKS if name in fields}
    ours = {
        key for hooks in usual.values() for key, hook in hooks.items() if isinstance(hook, _Hook)
    }
    if not ours:
        yield
        return
    usual |= {name: fields[name] for name in _ABOUT_HOOKS if name in fields}
    try:
        for name, hooks in usual.items():
            fields[name] = type(hooks)(
                (key, hook) for key, hook in hooks.items() if key not in ours
            )
        yield
    finally:
        # The same dicts as before: the handles that remove hooks refer to them.
        fields.update(usual)


def _without_hooks(
    code: CodeType,
    globals_: Mapping[str, object],
    locals_: Mapping[str, object],
    *more: Any,
    **_: Any,
) -> AbstractContextManager[object]:
    """Take our hooks off the modules that traced code may call: torch.compile would trace the hooks."""
    is_ours = str(globals_.get("__name__")).partition(".")[0] == __name__.partition(".")[0]
    hooked = process_state(Hooked)
    if hooked.hooks and not is_ours:
        roots = [*locals_.values(), *map(globals_.get, code.co_names)]
        roots += [value for cell in more[1] for value in gc.get_referents(cell)]
        inside = {id(inner) for root in roots for inner in _modules_near(root)}
        if "forward" in code.co_name:  # a whole pass, or its rest after a graph break
            # This module's hooks have run already, outside of what is traced.
            inside.discard(id(locals_.get("self")))
        for key in [key for key, module in hooked.traced.items() if module() is None]:
            del hooked.traced[key]
        for hooks in [hooks for hooks in hooked.hooks if id(hooks.module()) in inside]:
            hooks.remove()
            hooked.traced[id(hooks.module())] = hooks.module
    return nullcontext()


PLACES = (Place("torch._dynamo.convert_frame", "", "_compile", _without_hooks, whole_call=True),)


def _modules_near(value: Any) -> Iterator[Any]:
    """Yield the modules in a value, in its items and its fields, and all within them."""
    near = [value.__self__ if type(value) is MethodType else value]
    near += value if type(value) in {list, tuple} else fields_of(near[0]).values()
    for root in near:
        if issubclass(type(root), sys.modules["torch"].nn.Module):
            yield from (inner for _, inner in modules_in(root))


@contextmanager
def _hidden_within(module: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for inner in module.modules():
            stack.enter_context(_hidden(inner))
        yield
