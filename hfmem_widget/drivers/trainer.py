"""`MemoryCallback`, and the following of a `Trainer` without one.

The Trainer's public methods are surrounded: it calls no callback after an error, or before an evaluation.
"""

from __future__ import annotations

import contextlib
import copy
import math
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from transformers.trainer_callback import TrainerCallback

from hfmem_widget.drivers.follow import directory_here, follow, is_of_rank
from hfmem_widget.drivers.install import Attachment
from hfmem_widget.drivers.training.loop import resume_steps, yield_steps
from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.drivers.training.run import TrainingRun, logged, prefix_of
from hfmem_widget.drivers.watch import Watch
from hfmem_widget.errors import OptionError
from hfmem_widget.features.budget.companion import Budget, should_end
from hfmem_widget.guard import NO_THREADS, call_all, entry, warn
from hfmem_widget.monitor.companion import begun
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.patch import Place, surround_all
from hfmem_widget.monitor.process import Part, process_state, threads_in_group
from hfmem_widget.monitor.shared import current_watch, running_monitor, shared_monitor
from hfmem_widget.options import WatchKeywords, WatchOptions, lists_options, run_directory
from hfmem_widget.recording.file import path_for
from hfmem_widget.session import LocalNote, Session, SpanKind
from hfmem_widget.sources.libraries import has_buckets
from hfmem_widget.text import GIB
from hfmem_widget.view.front_end import running_shell
from hfmem_widget.view.screen import screen_here

if TYPE_CHECKING:
    from hfmem_widget.ranks.run import Run

TRACKER_NOTE = (
    "skip_memory_metrics=False makes training 1.2 to 2 times slower, because the Trainer's own tracker runs "
    "a busy loop on a thread. Remove it for speed; the figures here are correct either way."
)

NO_RUN = (
    "MemoryCallback(ranks=True) logs nothing of the other ranks, because this training is not followed. "
    "Start it with hfmem run, or name a directory that all ranks see: MemoryCallback(log=True, ranks=PATH)."
)

AT_ONCE_NOTE = (
    "Several Trainers ran at once, in separate threads. Only the first one's steps and evaluations are "
    "shown, and its figures include what the others allocated."
)


@dataclass(slots=True)
class _ActiveRuns(Part):
    # By Trainer, while it trains.
    runs: WeakKeyDictionary[object, TrainingRun] = field(default_factory=WeakKeyDictionary)
    # Held from the check that no other Trainer trains until a run has begun.
    beginning: threading.Lock = field(default_factory=threading.Lock)


def _passed_on(event: str, *, is_of_step: bool = True) -> Callable[..., None]:
    @entry(unless_on=threads_in_group if is_of_step else NO_THREADS)
    def on_event(callback: MemoryCallback, *_: Any, **__: Any) -> None:
        if callback._run is not None:  # noqa: SLF001  (a method of its own)
            getattr(callback._run, event)()  # noqa: SLF001

    return on_event


@lists_options
class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Separates the phases of a `Trainer`'s training, and measures the exact peak of each.

    It is only needed where the extension is not loaded, or for `log`. Without another watch, it watches the
    training itself.

    Parameters
    ----------
    log : bool, optional
        Add ``hfmem/peak_allocated_gib``, ``hfmem/peak_reserved_gib``, ``hfmem/allocated_gib`` (GiB, of the
        device where it is highest) and ``hfmem/tokens`` (padding included) to the Trainer's logs: the peaks
        and the tokens of the steps since the last log. In an evaluation's log the peaks are those of the
        evaluation, and the names have the prefix of its metrics: ``eval_hfmem/peak_allocated_gib``.
        With ``ranks=True``, also add the figures of all ranks of a distributed training: ``hfmem/ranks/`` and
        ``peak_allocated_gib_max``, ``_median``, ``_min``, ``worst_rank``, ``reporting``. They come from the
        directory of the run in which this rank is followed; ``ranks=PATH`` names one that all ranks see.
    options : WatchOptions, optional
        The options of the watch, if the callback watches the training itself.
    **given
        The same one by one.

    Attributes
    ----------
    options : WatchOptions
    was_refused : bool
        Whether the last training could not be followed.

    Raises
    ------
    OptionError
        If the value of an option is not allowed, or the recording cannot be written.

    Examples
    --------
    >>> trainer = Trainer(model, args, callbacks=[MemoryCallback(log=True)])
    """

    def __init__(
        self,
        *,
        log: bool = False,
        options: WatchOptions | None = None,
        **given: Unpack[WatchKeywords],
    ) -> None:
        follow_for_good()
        self.log = log
        self.ranks = run_directory(given.pop("ranks", False))
        if not given.get("label", True):  # an empty label does not replace that of `options`
            del given["label"]
        self.options = (options or WatchOptions()).changed(given, "MemoryCallback()")
        if given.get("record"):  # checked now, except in a copy
            path_for(self.options.record, self.options.label, time.time())
        self._trainer: Any = None
        self._run: TrainingRun | None = None
        self._watch: Watch | None = None
        self._hooks: ModelHooks | None = None
        self._attempts = 0
        self._epochs = 0
        self._all_ranks: Run | None = None
        self._budgets: list[Budget] = []  # of watches that may end a training
        self.was_refused = False

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        # The callback of a copied Trainer does not follow this training.
        return partial(MemoryCallback, log=self.log, ranks=self.ranks, options=self.options), ()

    @entry()
    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Surround the Trainer's methods; its module may have been imported only now."""
        follow_for_good()

    def begins(self, trainer: Any, args: Any, *, may_watch: bool) -> None:
        """Begin to follow a training, in the current watch or, if it `may_watch`, in a watch of its own."""
        self._trainer = trainer
        self._attempts = 0
        self._budgets = begun(Budget)
        if isinstance(self.ranks, str):
            follow(self.ranks)
        monitor, session = current_watch() or (None, None)
        has_own = self.options != WatchOptions()
        if session is not None and has_own and may_watch and is_of_rank(session):
            session = None  # the callback's options apply even if the rank is followed
        if session is None and may_watch:
            monitor = shared_monitor()
            # A notebook drops the messages of a forked child, with a warning for each.
            forked = multiprocessing.parent_process() is not None and running_shell() is not None
            options = replace(self.options, quiet=self.options.quiet or forked)
            watch = partial(Watch, monitor=monitor, screen=screen_here(), title="training")
            self._watch = watch(options)
            try:
                session = self._watch.start()
            except OptionError as error:
                # Without a recording that cannot be written; any other error is raised again.
                self._watch = watch(replace(options, record=""))
                session = self._watch.start()
                why = f"There is no recording: {error}."
                warn(why)
                if session.running:
                    monitor.recorder(session).note(LocalNote(why))
        if monitor is None or session is None:
            return
        with process_state(_ActiveRuns).beginning:
            if _trains_elsewhere(monitor, session):
                return
            self._run = TrainingRun(monitor, session, batches=args.gradient_accumulation_steps)
            yield_steps(self._run)
            if trainer is not None:
                process_state(_ActiveRuns).runs[trainer] = self._run
        if getattr(args, "skip_memory_metrics", True) is False and session.running:
            monitor.recorder(session).note(TRACKER_NOTE)

    def for_training(self, trainer: Any) -> MemoryCallback:
        """Return this callback, or a copy if it is following another training."""
        with process_state(_ActiveRuns).beginning:
            if self._trainer is not None:
                return copy.copy(self)
            self._trainer = trainer
        return self

    def ends(self, error: BaseException | None) -> None:
        """End everything, with the training's error if any; a second call ends what a fault has left."""
        parts: list[Callable[[], object]] = [self._forget_trainer]
        if self._hooks is not None:
            parts.append(self._hooks.remove)
        if self._all_ranks is not None:
            parts.append(self._all_ranks.close)
        if self._run is not None:
            parts += partial(resume_steps, self._run), partial(self._run.ended, outcome_of(error))
        if self._watch is not None:
            parts.append(partial(self._watch.stop, error))
        call_all(*parts)
        self._hooks = self._all_ranks = self._run = self._watch = None

    def _forget_trainer(self) -> None:
        if self._trainer is not None:
            with process_state(_ActiveRuns).beginning:
                process_state(_ActiveRuns).runs.pop(self._trainer, None)
        self._trainer = None

    @contextlib.contextmanager
    def apart(
        self, run: TrainingRun, kind: SpanKind, counts: Mapping[str, float]
    ) -> Iterator[None]:
        """Keep an evaluation, a prediction or a save outside of a training open, and log its figures."""
        before, self._run = self._run, run
        try:
            with run.aside(kind, kind, counts):
                yield
        finally:
            self._run = before

    @entry()
    def on_train_begin(self, args: Any, state: Any, _control: Any, **given: Any) -> None:
        """Open the training's span, and hook its model."""
        if self._trainer is None and (self._run is None or not self._run.alive):
            if any(run.alive for run in process_state(_ActiveRuns).runs.values()):
                return  # another callback of this class follows it
            if self.was_refused:
                return  # it could not begin, which has been reported
            # Its class overrides `train`, so that is not surrounded.
            self.begins(None, args, may_watch=True)
        run = self._run
        if run is None:
            return
        model = given.get("model")
        run.follow(model, given.get("optimizer"))
        self._attempts += 1
        # The epochs of the training that is resumed, if any. Later ones are counted here, because the Trainer
        # knows none for data without a length.
        self._epochs = int(state.epoch or 0)
        label = "train"
        if self._attempts > 1:
            size = getattr(state, "train_batch_size", None)
            label = f"train, attempt {self._attempts}" + (f", batch size {size}" if size else "")
        counts = {"steps": float(state.max_steps), "done_before": float(state.global_step)}
        if epochs := _epochs_of(state):
            counts["epochs"] = float(epochs)
        counts |= _loss_and_batch(self._trainer, args)
        run.train_begins(label, counts)
        if self._hooks is not None:
            self._hooks.remove()
        wrapped = getattr(self._trainer, "model_wrapped", None)
        outermost = model if wrapped is None else wrapped
        if has_buckets(outermost):
            run.follow(outermost)
        if hasattr(outermost, "register_forward_pre_hook"):
            self._hooks = ModelHooks(
                outermost,
                before=run.forward_begins,
                after=run.forward_ended,
                failures=True,
                unguarded_on=threads_in_group,
            )

    @entry()
    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close the training's span."""
        if self._run is not None and self._trainer is None:
            self.ends(None)
        elif self._run is not None:
            self._run.ended()

    @entry()
    def on_epoch_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Open the epoch's span."""
        if self._run is not None:
            self._epochs += 1
            epochs = _epochs_of(state)
            self._run.epoch_begins(f"epoch {self._epochs}" + (f" of {epochs}" if epochs else ""))

    # At a step's begin and end the run itself defers interrupts.
    @entry(unless_on=threads_in_group, defers=False)
    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Open the step's span."""
        if self._run is not None:
            self._run.step_begins(state.global_step + 1)

    on_epoch_end = _passed_on("epoch_ended", is_of_step=False)
    on_substep_end = _passed_on("substep_ended")
    on_pre_optimizer_step = _passed_on("optimizer_begins")
    on_optimizer_step = _passed_on("optimizer_ended")

    @entry(defers=False)
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the step's span; save and end the training if a watch's budget says so."""
        if self._run is not None:
            self._run.step_ended()
            if self._budgets:
                is_last = 0 < state.max_steps <= state.global_step
                if should_end(state.global_step, alone=args.world_size == 1, is_last=is_last):
                    control.should_save = control.should_training_stop = True

    @entry()
    def on_log(
        self, _args: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Add the figures to the logs, if `log` is set."""
        run = self._run
        if not self.log or run is None or logs is None:
            return
        evaluating = run.evaluating
        figures = run.take_figures("evaluate" if evaluating else "step")
        added = logged(figures, prefix=prefix_of(logs) if evaluating else "")
        if self.ranks and not evaluating and state.is_world_process_zero:
            added |= self._of_all_ranks()
        logs.update(added)
        # The Trainer has already added a copy of the logs to its history.
        if state.log_history:
            state.log_history[-1].update(added)

    def _of_all_ranks(self) -> Mapping[str, float]:
        """Return the logged figures of all ranks; {} if there is no run."""
        if self._all_ranks is None:
            directory = directory_here()
            if directory is None:
                warn(NO_RUN)
                self.ranks = False
                return {}
            from hfmem_widget.ranks.run import Run

            self._all_ranks = Run(directory)
            self._all_ranks.start()
        return figures_of(self._all_ranks)


def figures_of(run: Run) -> Mapping[str, float]:
    """Return entries of a log: the peaks of all ranks as last read, without a collective; {} at first."""
    peaks = {rank: row.peak / GIB for rank, row in run.ranks.items() if math.isfinite(row.peak)}
    if not peaks:
        return {}
    worst = max(peaks, key=lambda rank: peaks[rank])
    entries = {
        "peak_allocated_gib_max": peaks[worst],
        "peak_allocated_gib_median": statistics.median(peaks.values()),
        "peak_allocated_gib_min": min(peaks.values()),
        "worst_rank": float(worst),
        "reporting": float(len(peaks)),
    }
    return {f"hfmem/ranks/{name}": value for name, value in entries.items()}


def _trains_elsewhere(monitor: Monitor, session: Session) -> bool:
    """Return whether a training on another thread is followed in a session; the session then says so."""
    runs = process_state(_ActiveRuns).runs.values()
    if not any(run.session is session and run.is_elsewhere for run in runs):
        return False
    monitor.recorder(session).note(AT_ONCE_NOTE)
    return True


def _loss_and_batch(trainer: Any, args: Any) -> dict[str, float]:
    """Return the counts of a training: the size of a step, and whether the loss is the user's or smoothed."""
    base = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    kind = type(trainer)
    is_own = base is None or getattr(kind, "compute_loss", None) is not base.compute_loss
    is_own |= getattr(trainer, "compute_loss_func", None) is not None
    is_smoothed = getattr(trainer, "label_smoother", None) is not None
    options = ("rows", "per_device_train_batch_size"), ("batches", "gradient_accumulation_steps")
    counts = {name: float(getattr(args, option, 1)) for name, option in options}
    return counts | ({"own_loss": 1.0} if is_own else {"smoothed_loss": 1.0} if is_smoothed else {})


def _epochs_of(state: Any) -> int:
    """Return the planned epochs of a training; 0 if they are unknown."""
    epochs = state.num_train_epochs
    # For data without a length it is `sys.maxsize`.
    return epochs if 0 < epochs < 1_000_000 else 0


def callback_of(trainer: Any) -> MemoryCallback | None:
    """Return the first `MemoryCallback` of a Trainer."""
    callbacks = trainer.callback_handler.callbacks
    return next((callback for callback in callbacks if isinstance(callback, MemoryCallback)), None)


def _training(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context that follows a call of ``trainer.train()``, if there is a callback or a watch."""
    callback = callback_of(trainer)
    if callback is None and running_monitor() is None:
        return contextlib.nullcontext()
    return _Following(trainer, trainer.callback_handler.callbacks, callback)


class _Following:
    """One call of ``trainer.train()``; a second exit ends what a fault has left."""

    def __init__(self, trainer: Any, callbacks: list[Any], own: MemoryCallback | None) -> None:
        self._trainer = trainer
        self._callbacks = callbacks
        self._own = own
        self._place = len(callbacks) if own is None else callbacks.index(own)
        following = process_state(Attachment)
        for_good = following.trainers_for_good
        self._callback = MemoryCallback() if own is None else own.for_training(trainer)
        if own is None:  # a callback for one call does not keep Trainers followed after the watch
            following.trainers_for_good = for_good

    def __enter__(self) -> None:
        ours = self._callback
        # First, so that the callbacks that write logs see its entries.
        others = (c for c in self._callbacks if c is not ours and c is not self._own)
        self._callbacks[:] = [ours, *others]
        ours.was_refused = True
        ours.begins(self._trainer, self._trainer.args, may_watch=self._own is not None)
        ours.was_refused = False

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        call_all(partial(self._callback.ends, error), self._put_back)

    def _put_back(self) -> None:
        others = [other for other in self._callbacks if other is not self._callback]
        if len(others) < len(self._callbacks):
            others[self._place : self._place] = [] if self._own is None else [self._own]
            self._callbacks[:] = others


def _aside(
    trainer: Any, kind: SpanKind, data: Any = None
) -> contextlib.AbstractContextManager[None]:
    """Return a context that follows ``evaluate``, ``predict`` or ``save_model``, in a training or outside."""
    run = process_state(_ActiveRuns).runs.get(trainer)
    counts = _of_an_evaluation(trainer, kind, data)
    if run is not None:
        return run.aside(kind, f"{kind} at step {trainer.state.global_step}", counts)
    if (watch := current_watch()) is None:
        return contextlib.nullcontext()
    monitor, session = watch
    with process_state(_ActiveRuns).beginning:
        if _trains_elsewhere(monitor, session):
            return contextlib.nullcontext()
    callback, run = callback_of(trainer), TrainingRun(monitor, session)
    run.follow(getattr(trainer, "model", None))
    return run.aside(kind, kind, counts) if callback is None else callback.apart(run, kind, counts)


def _of_an_evaluation(trainer: Any, kind: SpanKind, data: Any) -> dict[str, float]:
    """Return the rows of a batch, whether predictions stay on the device, and of how many rows if they do."""
    args: Any = getattr(trainer, "args", None)
    if kind not in {"evaluate", "predict"} or not hasattr(args, "per_device_eval_batch_size"):
        return {}
    wants = kind == "predict" or getattr(trainer, "compute_metrics", None) is not None
    is_moved = args.prediction_loss_only or args.eval_accumulation_steps
    keeps = wants and not is_moved
    counts = {"rows": float(args.per_device_eval_batch_size), "keeps": float(keeps)}
    others = ("batch_eval_metrics", "include_for_metrics", "include_inputs_for_metrics")
    is_usual = not any(getattr(args, name, None) for name in others)
    is_usual = is_usual and getattr(args, "eval_do_concat_batches", True)
    if keeps and is_usual and getattr(trainer, "preprocess_logits_for_metrics", None) is None:
        with contextlib.suppress(Exception):  # of the user's, which may have no length
            dataset = trainer.eval_dataset
            evaluated = (
                dataset if data is None else dataset[data] if isinstance(data, str) else data
            )
            counts["kept_rows"] = 0.0 if isinstance(evaluated, dict) else float(len(evaluated))
    return counts


_MODULE = "transformers.trainer"

PLACES = (
    Place(_MODULE, "Trainer", "train", _training),
    Place(
        *(_MODULE, "Trainer", "evaluate"),
        lambda trainer, eval_dataset=None, *_, **__: _aside(trainer, "evaluate", eval_dataset),
        whole_call=True,
    ),
    Place(
        *(_MODULE, "Trainer", "predict"),
        lambda trainer, test_dataset=None, *_, **__: _aside(trainer, "predict", test_dataset),
        whole_call=True,
    ),
    Place(_MODULE, "Trainer", "save_model", lambda trainer: _aside(trainer, "save")),
)


def follow_for_good() -> None:
    """Follow ``Trainer`` also without a watch: it may be given a callback at any time."""
    process_state(Attachment).trainers_for_good = True
    surround_all(PLACES)
