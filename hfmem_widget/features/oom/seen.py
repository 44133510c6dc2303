"""Observations while an error is alive: the holders of memory, and the memory needed next.

Only texts and figures are kept.
"""

import dis
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from hfmem_widget.features.oom.errors import about_memory
from hfmem_widget.features.oom.model import Cache, OtherModels, Seen
from hfmem_widget.monitor.subjects import Subjects, main_variables
from hfmem_widget.sources.heap import referents, roots, tensors
from hfmem_widget.sources.heap.model import ARROW, Holder
from hfmem_widget.sources.heap.referents import CONTAINERS, fields_of, in_frame, outwards
from hfmem_widget.sources.heap.roots import OF_AN_ERROR
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.sources.storages import growth_of, is_cache, storages_in, storages_of
from hfmem_widget.text import format_count, plain
from hfmem_widget.view.front_end import running_shell

MOST_SECONDS = 1.5  # of a scan; the user waits for the error
MOST_NAMED = 3

STATES = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "nadam", "radam", "adamax", "adadelta"), 2),
    **dict.fromkeys(("adagrad", "rmsprop", "lion"), 1),
    "sgd": 0,
}
"""By an optimizer's name, the number of states that it has for each weight, each as large as the weight."""

_ONE_MORE = ("amsgrad", "momentum", "centered")  # settings that each add one state
# Lists in a model's output:
_OF_ONE_OUTPUT = re.compile(r"hidden_states|attentions|past_key_values")


def seen_in(error: BaseException, device: str, optimizers: Sequence[Any]) -> Seen:
    """Return the observations on a device while `error` is alive; `optimizers` are those known so far."""
    cause, _ = about_memory(error) or (error, None)
    named: list[tuple[str, Any]] = []
    with tensors.unnoticed():
        running, others = _running(error, cause), _roots(error)
        held = scan(main_variables(), others=others, most_seconds=MOST_SECONDS, subjects=named)
        rows = held.of(device).rows
        models, stepping = Subjects(lambda: {str(at): one for at, one in enumerate(running)}).all()
        used = {id(each): each for one in (*models, *stepping) for each in _weights_of(one)}
        with_groups = [
            each for each in (*stepping, *optimizers, *dict(named).values()) if _groups(each)
        ]
        used_by = (
            optimizer
            for optimizer in with_groups
            if not used.keys().isdisjoint(map(id, _weights_of(optimizer)))
        )
        stepping = list({id(optimizer): optimizer for optimizer in used_by}.values())
        ungraded = [each for each in used.values() if tensors.gradient_of(each) is None]
        # `%memholders --free errors` frees the rows that are held by errors only.
        freed = (row.bytes for row in rows if all(map(OF_AN_ERROR.match, (row.path, *row.also))))
        return Seen(
            freed=0 if held.bound else sum(freed),
            kept=next(map(_without_error, filter(_is_kept, rows)), None),
            other=_other_models(models, used.keys(), running, named, device),
            gradients=_bytes(filter(_is_trained, ungraded), device) if stepping else 0,
            states=sum(_states_to_come(each, device) for each in stepping),
            optimizers=tuple(dict.fromkeys(plain(type(each).__name__) for each in stepping)),
            cache=_cache(cause, device),
        )


def _running(error: BaseException, cause: BaseException) -> list[Any]:
    """Return the variables of the running functions, and the globals that these read."""
    users = {"__main__", *roots.user_modules()}
    catching = error.__traceback__ and error.__traceback__.tb_frame
    callers = ((frame, frame.f_lasti) for frame in outwards(catching and catching.f_back))
    ran = [call for call in callers if call[0].f_globals.get("__name__") in users]
    ran += [*_steps(error.__traceback__), *_steps(cause.__traceback__)]
    variables = [held for frame, _ in ran for _, held in in_frame(frame)]
    return [*variables, *_globals_read(ran, users)]


def _roots(error: BaseException) -> list[roots.Root]:
    shell, catching = running_shell(), error.__traceback__ and error.__traceback__.tb_frame
    # Frames called by the catching function only handle the error, and hold it for a moment.
    stack = [id(frame) for frame in outwards(sys._getframe())]  # noqa: SLF001
    inner = stack[: stack.index(id(catching))] if id(catching) in stack else []
    kept_roots = [root for root in roots.kernel_roots(shell) if id(root.value) not in inner]
    name = roots.error_name(error, roots.cells_of(shell)) or "sys.last_value"
    return [*kept_roots, roots.Root(name, error, roots.Precedence.ERROR)]


def _steps(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield each frame of a traceback with the offset of its instruction."""
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lasti
        traceback = traceback.tb_next


def _globals_read(ran: Iterable[tuple[FrameType, int]], users: Collection[str]) -> Iterator[Any]:
    """Yield the globals that the user's running code reads, also through the functions that it names.

    A global that is assigned, and not read before that, belongs to an earlier run.
    """
    waiting = [(frame.f_code, at, frame.f_globals) for frame, at in ran]
    codes = {code for code, *_ in waiting}
    for code, at, variables in waiting:
        if variables.get("__name__") not in users:
            continue
        read, assigned = set(), set()
        for step in dis.get_instructions(code):
            if step.opname in {"STORE_NAME", "STORE_GLOBAL"} and step.offset > at:
                assigned.add(step.argval)
            elif step.opname in {"LOAD_NAME", "LOAD_GLOBAL"} and step.argval not in assigned:
                read.add(step.argval)
        values = [variables[name] for name in read if name in variables]
        yield from values
        kinds = (each if issubclass(type(each), type) else type(each) for each in values)
        methods = [each for kind in kinds for base in kind.__mro__ for each in vars(base).values()]
        functions = [each for each in (*values, *methods) if type(each) is FunctionType]
        more = [(each.__code__, each.__globals__) for each in functions]
        more += [(each, variables) for each in code.co_consts if type(each) is CodeType]
        waiting += [(within, -1, namespace) for within, namespace in more if within not in codes]
        codes.update(within for within, _ in more)


def _is_kept(row: Holder) -> bool:
    """Return whether a row has several tensors with their graphs that are not one forward pass' output."""
    is_graphs = row.graphs > 1 and 2 * row.graph_bytes >= row.bytes
    return is_graphs and row.pattern.endswith("[*]") and not _OF_ONE_OUTPUT.search(row.pattern)


def _without_error(row: Holder) -> Holder:
    """Return a row without the error at the beginning of its path."""
    of_error, _, path = row.path.partition(ARROW)
    return replace(row, path=path) if path and OF_AN_ERROR.match(of_error) else row


def _groups(subject: Any) -> Any:
    """Return the groups of an optimizer; empty for other objects, also for a wrapper of one."""
    return fields_of(subject).get("param_groups") or ()


def _weights_of(subject: Any) -> Iterator[Any]:
    """Yield the weights of a model, or those that an optimizer updates."""
    for group in _groups(subject):
        yield from group["params"]
    for _, module in tensors.modules_in(subject):
        owned = tensors.own_tensors(module)
        yield from (tensor for kind, _, tensor in owned if kind == "weights" and tensor is not None)


def _is_trained(weight: Any) -> bool:
    return bool(weight.requires_grad and weight.is_leaf)


def _bytes(tensors_held: Iterable[Any], device: str) -> int:
    """Return the bytes of tensors on a device, each storage counted once."""
    storages = (storage for tensor in tensors_held for storage in storages_of(tensor))
    return sum({key: size for key, place, size, _ in storages if place == device}.values())


def _other_models(
    models: list[Any], used: Iterable[int], running: list[Any], named: list[Any], device: str
) -> OtherModels | None:
    """Return the unused models of the same classes as those in use."""
    inner = {id(module) for model in models for path, module in tensors.modules_in(model) if path}
    classes = {type(model) for model in models if id(model) not in inner}
    # Attributes of an object with a running method are in use as well, such as a Trainer's reference model.
    objects = {id(each) for each in running if type(each) not in CONTAINERS}
    users = {name for name, value in list(main_variables().items()) if id(value) in objects}
    optimizers = [(path, one) for path, one in named if _groups(one)]
    others: list[OtherModels] = []
    for path, model in named:
        weights = list(_weights_of(model)) if type(model) in classes else []
        ids = set(map(id, weights))
        if not _bytes(weights, device) or ids & set(used) or re.split(r"[.\[]", path)[0] in users:
            continue
        steppers = [(at, one) for at, one in optimizers if ids & {*map(id, _weights_of(one))}]
        states = [state for _, one in steppers for _, state in tensors.states_in(one)]
        around = path.rpartition("[")[0]
        at = around if any(name.startswith(f"{around}[") for name, _ in steppers) else path
        count = sum(each.numel() for each in weights)
        size = f"{count / 1e6:,.0f} M" if count >= 1e6 else format_count(count)
        what = f"Another {plain(type(model).__name__)} of {size} parameters"
        what += " with its optimizer" if steppers else ""
        held = _bytes([*weights, *map(tensors.gradient_of, weights), *states], device)
        others.append(OtherModels(what, at, held))
    if len(others) < 2:
        return next(iter(others), None)
    paths = ", ".join(other.at for other in others[:MOST_NAMED])
    whole = sum(other.bytes for other in others)
    return OtherModels(f"{len(others)} other models of the same class", paths, whole)


def _states_to_come(optimizer: Any, device: str) -> int:
    """Return the bytes of an optimizer's missing states; 0 for an unknown kind of optimizer."""
    fields, size = fields_of(optimizer), 0
    for group in _groups(optimizer) if type(optimizer).__name__.lower() in STATES else ():
        states_per_weight = STATES[type(optimizer).__name__.lower()]
        states_per_weight += sum(bool(group.get(setting)) for setting in _ONE_MORE)
        weights = filter(_is_trained, group["params"])
        new = (weight for weight in weights if not dict.get(fields["state"], weight))
        size += states_per_weight * _bytes(new, device)
    return size


def _cache(error: BaseException, device: str) -> Cache | None:
    """Return the KV cache of a call of `generate`, with its size at the requested length."""
    variables = list(referents.variables_of(error))
    lengths = [
        length
        for variable in variables
        if type(variable).__name__ == "GenerationConfig"
        if type(length := fields_of(variable).get("max_length")) is int
    ]
    sizes: list[Cache] = []
    for cache in filter(is_cache, variables) if lengths else ():
        growth, storages = growth_of(cache), storages_in(cache)
        layers = fields_of(fields_of(cache).get("self_attention_cache", cache)).get("layers") or []
        shapes: list[Any] = [getattr(fields_of(layer).get("keys"), "shape", ()) for layer in layers]
        filled = [shape for shape in shapes if len(shape) == 4]
        if growth is None or not filled or {place for _, place, _, _ in storages} != {device}:
            continue
        length = growth.limit or lengths[-1]
        whole = growth.token_bytes * length
        whole += growth.window_bytes * min(length, growth.window or length)
        # In a prefill, the layers still to come will be as large as those so far.
        whole *= len(layers) / len(filled)
        held = float(sum(size for _, _, size, _ in storages))
        sizes.append(Cache(int(filled[0][0]), length, held, max(held, whole), len(filled)))
    return max(sizes, key=lambda cache: cache.whole, default=None)
