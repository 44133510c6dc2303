"""``from_pretrained`` as a span of the current watch, with a span for each shard; the places of ``generate``.

Releases of transformers read shards in two ways. Up to 4.57 a function loads one file after the other. Since
5.0 all files are opened at once, and their tensors put into the model in the order of their names: a shard is
complete with the last of its tensors. In both, "shard 2 of 5" is the time until the second one is complete.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from hfmem_widget.drivers.generating import STEP, ModelCall, generating, is_let_alone, stepping
from hfmem_widget.drivers.span import span
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.patch import Around, Place, restore_with
from hfmem_widget.monitor.process import Part, process_state
from hfmem_widget.monitor.shared import current_watch
from hfmem_widget.session import Session
from hfmem_widget.text import plain


@dataclass(slots=True)
class Loads(Part):
    """The calls that are running, the latest last."""

    calls: list[Load] = field(default_factory=list)


class Shards:
    """Tells which files of a checkpoint are complete; `sizes` has the bytes of each tensor by file."""

    def __init__(self, files: Sequence[str] = ()) -> None:
        self.sizes = {file: _sizes_in(file) for file in files}
        self._file_of = {name: file for file, sizes in self.sizes.items() for name in sizes}
        self._waiting: Counter[str] = Counter()
        self._placing: tuple[str, ...] = ()

    @property
    def wanted(self) -> int:
        """The number of files with a tensor that the model takes."""
        return len(self._waiting)

    def collect(self, name: str) -> None:
        """Note a tensor that the model takes."""
        file = self._file_of.get(name)
        if file is not None:
            self._waiting[file] += 1

    def place(self, names: Iterable[str]) -> Iterator[tuple[int, bool]]:
        """Note the tensors placed next; yield the bytes of the earlier ones, and if each completed a file."""
        placed, self._placing = self._placing, tuple(names)
        for name in placed:
            file = self._file_of.pop(name, None)
            if file is not None:
                self._waiting[file] -= 1
                yield self.sizes[file][name], not self._waiting[file]


class Load:
    """One call of ``from_pretrained`` as a span: a context manager that follows the loading of shards."""

    def __init__(self, monitor: Monitor, session: Session, label: str) -> None:
        self.thread = threading.get_ident()
        self._monitor = monitor
        self._session = session
        self._label = label
        self._close = partial(monitor.close_span, session)
        self._span = 0
        self.shards = Shards()
        self._number = self._completed = self._shard = 0
        self._bytes = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether its span is open: the watch may end before the call."""
        return self._monitor.is_open(self._session, self._span)

    def __enter__(self) -> Self:
        self._span = self._monitor.open_span(self._session, "load", self._label).id
        process_state(Loads).calls.append(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self in (calls := process_state(Loads).calls):
            calls.remove(self)
        if self.goes_on:
            self._close(self._span, outcome_of(error))

    @contextmanager
    def reading(self, model: object, files: Sequence[str]) -> Iterator[None]:
        """Follow the loading of a checkpoint, of one file or several, into a model."""
        self._monitor.attribution.follow(model)
        self.shards = Shards(files)
        self._number = self._completed = 0
        self._bytes = 0.0
        sizes = self.shards.sizes.values()
        if sizes:
            counts = {"shards": float(len(files))}
            if all(sizes):
                counts["bytes"] = float(sum(sum(file.values()) for file in sizes))
            self._monitor.recorder(self._session).count(self._span, counts)
        outcome = "done"
        try:
            yield
            if self.goes_on:
                self.place(())
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.shards = Shards()
            if self.goes_on:
                self._end_shard(outcome)

    @contextmanager
    def shard(self, file: str) -> Iterator[None]:
        """Follow the reading of a single file."""
        sizes = self.shards.sizes.get(file)
        if sizes is not None:
            self._begin_shards(len(self.shards.sizes))
        yield
        if sizes is not None and self.goes_on:
            self._bytes += sum(sizes.values())
            self._complete()

    def place(self, names: Iterable[str]) -> None:
        """Note the tensors of the checkpoint that go into the model next."""
        if self.shards.wanted:
            self._begin_shards(self.shards.wanted)
        for size, completes in self.shards.place(names):
            self._bytes += size
            if completes:
                self._complete()

    def _begin_shards(self, number: int) -> None:
        if self._number:
            return
        self._number = number
        if number > 1:
            self._shard = self._monitor.open_span(self._session, "shard", self._shard_label()).id

    def _complete(self) -> None:
        self._completed += 1
        if self._shard and self._completed < self._number:
            self._count_bytes()
            closing, label = self._shard, self._shard_label()
            self._shard = self._monitor.turn(self._session, closing, "shard", label).id
        else:
            self._end_shard("done")

    def _end_shard(self, outcome: str) -> None:
        if self._shard:
            self._count_bytes()
            self._close(self._shard, outcome)
            self._shard = 0

    def _shard_label(self) -> str:
        return f"shard {self._completed + 1} of {self._number}"

    def _count_bytes(self) -> None:
        if self._bytes:
            self._monitor.recorder(self._session).count(self._shard, {"bytes": self._bytes})
            self._bytes = 0.0


def _sizes_in(file: str) -> dict[str, int]:
    """Return the bytes of each tensor in a safetensors file; {} for any other file."""
    if not file.endswith(".safetensors"):
        return {}
    from hfmem_widget.features.fit.checkpoint import entries

    try:
        return {name: size for name, _, size in entries(Path(file))}
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}  # transformers, which reads it next, raises the better error


def _loading(kind: type) -> AbstractContextManager[object]:
    watch = current_watch()
    return nullcontext() if watch is None else Load(*watch, f"load {plain(kind.__name__)}")


def _in_load(follow: Callable[..., AbstractContextManager[object] | None]) -> Around:
    """Return the context of a call in a load; `follow` takes the innermost load and the call's arguments."""

    def around(*args: Any, **kwargs: Any) -> AbstractContextManager[object]:
        thread = threading.get_ident()
        calls = reversed(process_state(Loads).calls)
        load = next((call for call in calls if call.thread == thread and call.goes_on), None)
        return (load and follow(load, *args, **kwargs)) or nullcontext()

    return around


def _reading(load: Load, *args: Any, **kwargs: Any) -> AbstractContextManager[object]:
    # The position of the files among the arguments depends on the release; they are the first list.
    lists = (argument for argument in args if isinstance(argument, list))
    files = kwargs.get("checkpoint_files", next(lists, None))
    objects = (argument for argument in args if not isinstance(argument, type))
    model = kwargs.get("model", next(objects, None))
    return load.reading(model, [os.fspath(file) for file in files or ()])


def _placing(load: Load, weights: Any) -> None:
    load.place([name for names in weights.layer_targets.values() for name in names])


def leave_steps(_module: object = None) -> None:
    """Stop following the steps of ``generate``, including those of models that override the method."""
    restore_with(stepping)


def _none_loads() -> bool:
    """Return whether no watched load is running; other loads ask for each of their tensors."""
    return not process_state(Loads).calls


_GENERATION = "transformers.generation.utils"
_MODELS, _WEIGHTS = "transformers.modeling_utils", "transformers.core_model_loading"

PLACES = (
    Place(_MODELS, "PreTrainedModel", "from_pretrained", _loading),
    Place(
        *(_MODELS, "PreTrainedModel", "__call__", ModelCall),
        whole_call=True,
        unless=is_let_alone,
        is_inherited=True,
    ),
    Place(
        _MODELS, "PreTrainedModel", "_load_pretrained_model", _in_load(_reading), whole_call=True
    ),
    # With `HF_ENABLE_PARALLEL_LOADING` it runs on threads of its own, and no shard is followed.
    Place(_MODELS, "", "load_shard_file", _in_load(lambda load, args: load.shard(args[0]))),
    Place(
        # Its arguments are itself, the name in the model, and the name in the checkpoint.
        *(_WEIGHTS, "WeightTransform", "add_tensor"),
        _in_load(lambda load, *args, **_: load.shards.collect(args[2])),
        whole_call=True,
        unless=_none_loads,
    ),
    Place(_WEIGHTS, "WeightRenaming", "convert", _in_load(_placing), unless=_none_loads),
    Place(_WEIGHTS, "WeightConverter", "convert", _in_load(_placing), unless=_none_loads),
    Place("peft.peft_model", "PeftModel", "from_pretrained", _loading),
    Place(_GENERATION, "GenerationMixin", "generate", generating, whole_call=True),
    Place(_GENERATION, "GenerationMixin", STEP, stepping, whole_call=True),
    *(
        place
        for home in ("lightning.pytorch.loops", "pytorch_lightning.loops")
        for place in (
            Place(f"{home}.fit_loop", "_FitLoop", "advance", lambda _: span("epoch")),
            Place(f"{home}.evaluation_loop", "_EvaluationLoop", "run", lambda _: span("evaluate")),
        )
    ),
)
"""In a release without one of them there are fewer spans."""
