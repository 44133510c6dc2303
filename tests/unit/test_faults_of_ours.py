"""Whatever of ours fails, the user's code does what it does unwatched, and the next watch is healthy."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget import guard as faults
from hfmem_widget import guard as interrupts
from hfmem_widget.monitor import shared as monitor
from hfmem_widget.monitor.monitor import BROKEN_OFF_NOTE
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.environment import SITE, lends
from hfmem_widget.ranks.process_group import follow_groups, leave_groups
from hfmem_widget.session import Session
from tests.data.faults_everywhere import Injection, Place
from tests.unit.monitor.conftest import Bench

PIECE = 1 << 20
RESULT = "the user's result"


class UsersError(Exception):
    """What the user's own code raises."""


def in_spans(bench: Bench) -> str:
    with hfmem_widget.watch("watched", quiet=True):
        with hfmem_widget.span("step", tokens=5) as step:
            with hfmem_widget.span("forward"):
                block = bench.allocator.alloc(16 * PIECE)
            bench.allocator.free(block)
            step.count(samples=2)
        with hfmem_widget.span("a block"):
            bench.clock.advance(1.0)
    return RESULT


def raising(bench: Bench) -> str:
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    with hfmem_widget.watch("watched", quiet=True), hfmem_widget.span("step"):
        raise UsersError(RESULT)


def reading_the_counters(bench: Bench) -> str:
    with hfmem_widget.watch("watched", quiet=True):
        bench.allocator.free(bench.allocator.alloc(64 * PIECE))
        bench.allocator.user_reset(0)
        bench.allocator.free(bench.allocator.alloc(16 * PIECE))
        bench.allocator.user_stats(0)
    return RESULT


def decorated(bench: Bench) -> str:
    @hfmem_widget.watch("watched", quiet=True)
    @hfmem_widget.span("forward")
    def function() -> str:
        bench.allocator.free(bench.allocator.alloc(16 * PIECE))
        return RESULT

    @hfmem_widget.span("awaited")
    async def coroutine() -> str:
        return function()

    @hfmem_widget.span("generated")
    def generator() -> Iterator[str]:
        yield asyncio.run(coroutine())

    return next(generator())


class Library:
    """Somebody else's, of which a method is surrounded."""

    def generate(self) -> str:
        return RESULT


def surrounded(bench: Bench) -> str:
    surround(Library, "generate", lambda _library: hfmem_widget.span("generate"))
    try:
        with hfmem_widget.watch("watched", quiet=True):
            bench.allocator.free(bench.allocator.alloc(16 * PIECE))
            return Library().generate()
    finally:
        restore(Library, "generate")


def importing(bench: Bench) -> str:
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    sys.modules.pop("this_is_no_module", None)
    seen: list[ModuleType] = []
    finder = WhenImported({"antigravity_of_ours": seen.append, "colorsys": seen.append})
    sys.modules.pop("colorsys", None)
    finder.begin()
    try:
        import colorsys
    finally:
        finder.end()
    assert callable(colorsys.rgb_to_hls)
    return RESULT


def overlapping(bench: Bench) -> str:
    first = hfmem_widget.watch("first", quiet=True)
    with first, hfmem_widget.watch("second", quiet=True) as second:
        if second.running:  # else a fault has come before
            bench.monitor.recorder(second).on_step(lambda _span: None)
        bench.allocator.free(bench.allocator.alloc(16 * PIECE))
        with hfmem_widget.span("step"):
            pass
        bench.pass_time(0.1)
    return RESULT


def with_optimizer(bench: Bench) -> str:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.int64)}
    mask = torch.ones(2, 3, dtype=torch.int64)
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    with hfmem_widget.watch(model, optimizer, quiet=True):
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not model._forward_pre_hooks, "a hook of ours was left"
    assert not model._forward_hooks, "a hook of ours was left"
    assert len(batch) == 1
    assert mask.sum() == 6
    return RESULT


def in_a_loop(bench: Bench) -> str:
    """Train in a loop that nobody names, with batches that add up, a closure, and an evaluation."""
    torch = pytest.importorskip("torch")
    backward, made = torch.autograd.backward, torch.optim.Optimizer.__init__
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    with hfmem_widget.watch(quiet=True):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(2, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.step(lambda: model(torch.ones(2, 2)).sum().backward())
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 2))
            model(torch.ones(2, 2))
        model(torch.ones(2, 2))
    for module in (model, *model):
        assert not module._forward_pre_hooks, "a hook of ours was left"
    assert torch.autograd.backward is backward, "a function of torch is still surrounded"
    assert torch.optim.Optimizer.__init__ is made, "a method of torch is still surrounded"
    return RESULT


class Handler:
    """Holds a Trainer's callbacks."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []


def made_trainer(bench: Bench) -> Any:
    """Return a Trainer that goes through the events of transformers' own, with none of what takes it time."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.trainer_callback import TrainerControl, TrainerState

    from hfmem_widget.drivers import trainer as ours

    class Trainer:
        def __init__(self) -> None:
            self.callback_handler = Handler()
            self.args = SimpleNamespace(gradient_accumulation_steps=2, world_size=1)
            self.state = TrainerState(max_steps=2, num_train_epochs=1, epoch=0.0)
            self.control = TrainerControl()
            self.model = self.model_wrapped = torch.nn.Linear(2, 2)
            self.optimizer = torch.optim.SGD(self.model.parameters())

        def tell(self, event: str, **more: Any) -> None:
            for callback in self.callback_handler.callbacks:
                got = getattr(callback, event)(
                    self.args,
                    self.state,
                    self.control,
                    model=self.model,
                    optimizer=self.optimizer,
                    **more,
                )
                self.control = self.control if got is None else got

        def train(self) -> str:
            self.tell("on_train_begin")
            self.tell("on_epoch_begin")
            for self.state.global_step in range(2):
                self.tell("on_step_begin")
                self.model(torch.ones(2, 2)).sum().backward()
                self.tell("on_substep_end")
                self.model(torch.ones(2, 2)).sum().backward()
                self.tell("on_pre_optimizer_step")
                self.optimizer.step()
                self.tell("on_optimizer_step")
                self.optimizer.zero_grad()
                self.tell("on_step_end")
                self.tell("on_log", logs={"loss": 1.0})
            self.evaluate()
            self.tell("on_epoch_end")
            self.tell("on_train_end")
            return RESULT

        def evaluate(self) -> None:
            self.tell("on_log", logs={"eval_loss": 1.0})

    for name in ("train", "evaluate"):
        surround(Trainer, name, ours._METHODS[name])
    return Trainer()


def training(bench: Bench) -> str:
    trainer = made_trainer(bench)
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    with hfmem_widget.watch("watched", quiet=True):
        result: str = trainer.train()
    assert trainer.control.should_training_stop is False
    assert not trainer.callback_handler.callbacks, "a callback of ours was left"
    assert not trainer.model._forward_pre_hooks, "a hook of ours was left"
    return result


def training_with_a_callback(bench: Bench) -> str:
    trainer = made_trainer(bench)
    from hfmem_widget import MemoryCallback

    trainer.callback_handler.callbacks.append(
        MemoryCallback(log=True, options=WatchOptions(quiet=True))
    )
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    result: str = trainer.train()
    assert len(trainer.callback_handler.callbacks) == 1
    return result


class Weights:
    """Stands in for a model that transformers loads."""

    @classmethod
    def from_pretrained(cls, name: str) -> str:
        cls._load_pretrained_model(cls(), [name])
        return RESULT

    @classmethod
    def _load_pretrained_model(cls, model: object, files: list[str]) -> None:
        assert files == ["a file"]


def loading(bench: Bench) -> str:
    from hfmem_widget.drivers import loading as ours

    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    surround(Weights, "from_pretrained", ours._loading)
    surround(Weights, "_load_pretrained_model", ours._in_load(ours._reading), whole_call=True)
    with hfmem_widget.watch("watched", quiet=True):
        result: str = Weights.from_pretrained("a file")
    assert not ours._loads, "a load of ours was left"
    return result


class Kept(SimpleNamespace):
    """Stands in for a cache, which can be referred to weakly."""


class Decoder:
    """Stands in for a model of transformers that generates, and keeps keys and values."""

    def __init__(self) -> None:
        self.kept = Kept(layers=[])

    def __call__(self, ids: object, **_: object) -> dict[str, object]:
        torch = pytest.importorskip("torch")
        layer = SimpleNamespace(keys=torch.ones(1, 1, 3, 4), values=torch.ones(1, 1, 3, 4))
        self.kept.layers = [layer]
        return {"past_key_values": self.kept, "logits": torch.ones(1, 1, 2)}

    def generate(self, ids: object) -> str:
        for _ in range(3):
            self._update_model_kwargs_for_generation(self(ids), {})
        return RESULT

    def _update_model_kwargs_for_generation(self, _outputs: object, kwargs: object) -> object:
        return kwargs


def generating(bench: Bench) -> str:
    torch = pytest.importorskip("torch")
    from hfmem_widget.drivers import generating as ours

    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    usual, model, home = Decoder.__call__, Decoder(), ModuleType("transformers.modeling_utils")
    surround(Decoder, "generate", ours.generating, whole_call=True)
    vars(home)["PreTrainedModel"] = type("PreTrainedModel", (Decoder,), {})
    ours.follow_calls(home)
    try:
        with hfmem_widget.watch("watched", quiet=True):
            result = model.generate(torch.ones(1, 3, dtype=torch.int64))
            with torch.no_grad():
                other = vars(home)["PreTrainedModel"]()
                assert "logits" in other(torch.ones(1, 3), past_key_values=(), use_cache=True)
    finally:
        restore(Decoder, "generate")
        ours.leave_calls(home)
    assert ours._here.generation is None, "a generation is left"
    assert not ours._here.in_call, "a call is left"
    assert Decoder.__call__ is usual
    assert "__call__" not in vars(vars(home)["PreTrainedModel"])
    return result


def diffusion(bench: Bench) -> str:
    torch: Any = pytest.importorskip("torch")
    from hfmem_widget.drivers import diffusion as ours
    from hfmem_widget.drivers.install import PIPELINES

    class Scheduler:
        def step(self) -> None:
            bench.clock.advance(1.0)

    class Vae(torch.nn.Module):  # type: ignore[misc]
        def decode(self, latents: Any) -> Any:
            return latents

    class Pipeline:
        def __init__(self) -> None:
            self.register_modules()

        def register_modules(self) -> None:
            self.unet, self.vae, self.scheduler = torch.nn.Linear(2, 2), Vae(), Scheduler()

        def progress_bar(self) -> range:
            return range(2)

        def __call__(self) -> str:
            for _ in self.progress_bar():
                latents = self.unet(torch.ones(1, 2))
                self.scheduler.step()
            self.vae.decode(latents)
            return RESULT

    home = ModuleType(PIPELINES)
    vars(home)["DiffusionPipeline"] = Pipeline
    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    usual = Pipeline.__call__, Pipeline.progress_bar, Scheduler.step, Vae.decode
    faults.harmless(ours.follow_pipelines, home)
    pipeline = Pipeline()
    try:
        with hfmem_widget.watch("watched", quiet=True):
            result = pipeline()
    finally:
        ours.leave_pipelines(home)
    assert ours._here.call is None, "a call is left"
    assert not pipeline.unet._forward_pre_hooks, "a hook is left"
    assert (Pipeline.__call__, Pipeline.progress_bar, Scheduler.step, Vae.decode) == usual
    return result


def following(bench: Bench) -> str:
    from hfmem_widget.drivers import follow, install

    def init_process_group() -> str:
        return RESULT

    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    group, home = ModuleType("torch.distributed"), ModuleType("torch.distributed.distributed_c10d")
    for module in (group, home):
        vars(module)["init_process_group"] = init_process_group
    vars(group).update(is_available=lambda: True, is_initialized=lambda: True)
    vars(group).update(get_rank=lambda: 1, get_world_size=lambda: 2)
    with (
        pytest.MonkeyPatch.context() as patched,
        TemporaryDirectory(
            ignore_cleanup_errors=True  # what was broken off may still be written
        ) as folder,
    ):
        for module in (group, home):
            patched.setitem(sys.modules, module.__name__, module)
        patched.setattr(follow, "atexit", SimpleNamespace(register=lambda _function: None))
        patched.setattr("multiprocessing.util.Finalize", lambda *_, **__: None)
        patched.setenv("HFMEM_RUN", folder)
        follow_groups()
        try:
            result: str = vars(group)["init_process_group"]()
        finally:
            follow.end()
            leave_groups()
            install.detach()
    assert follow._here is None, "a rank is left"
    assert "HFMEM_CLAIMED" not in os.environ
    return result


SCENARIOS: tuple[Callable[[Bench], str], ...] = (
    in_spans,
    raising,
    reading_the_counters,
    decorated,
    surrounded,
    importing,
    overlapping,
    with_optimizer,
    in_a_loop,
    training,
    training_with_a_callback,
    loading,
    generating,
    diffusion,
    following,
)


_gone_through: set[Place] = set()


@pytest.fixture
def fake_monitor(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Bench]:
    """Return what makes a monitor without hardware the one of this process, as often as it is wanted."""

    def make() -> Bench:
        bench = Bench()
        monkeypatch.setattr(monitor, "_shared", bench.monitor)
        return bench

    return make


def result_of(scenario: Callable[[Bench], str], bench: Bench) -> str:
    """Return what the user's code comes to: what it returns, or the text of its own error."""
    try:
        return scenario(bench)
    except UsersError as error:
        return str(error)


def what_is_left_of_the_process() -> Iterator[str]:
    """Yield what is not as it was of what a process has once."""
    if interrupts.is_deferring():
        yield "signals are held back"
    if isinstance(signal.getsignal(signal.SIGINT), interrupts._StandIn):
        yield "a handler is left"
    if lends() or SITE in os.environ.get("PYTHONPATH", ""):
        yield "the environment is still lent"


def what_is_wrong(bench: Bench) -> Iterator[str]:
    """Yield what a fault has left behind, or has spoilt of the watch after it."""
    if bench.monitor._register.all():
        yield "a session is left"
    if bench.tickers and bench.tickers[-1].alive:
        bench.tickers[-1].step()
        if bench.tickers[-1].alive:
            yield "the poller runs"
    yield from what_is_left_of_the_process()
    peak = bench.allocator.user_stats(0)["allocated_bytes"]["all"]["peak"]
    if peak != 16 * PIECE:
        yield f"the user's own peak reads {peak}"
    with hfmem_widget.watch("the next one", quiet=True) as session, hfmem_widget.span("step"):
        bench.allocator.free(bench.allocator.alloc(PIECE))
    if session.notes or len(session.spans) != 2:
        yield f"the next watch has {session.notes} and {len(session.spans)} spans"
    for span in session.spans:
        known = span.peaks.get("cuda:0/allocated")
        if known is None or (known.value, known.certainty) != (PIECE, "exact"):
            yield f"the next watch's {span.kind} has the peak {known}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_fault_at_any_line_of_ours_stays_ours(
    scenario: Callable[[Bench], str],
    fake_monitor: Callable[[], Bench],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A `MemoryError` at every line below an entry, the first time that it is reached.

    What another scenario has gone through already is tried at every seventh line.
    """
    result_of(scenario, fake_monitor())
    bench, counting = fake_monitor(), Injection()
    assert counting(lambda: result_of(scenario, bench)) == RESULT
    wrong: list[str] = []

    known = [place for place in counting.reached if place in _gone_through]
    places = [place for place in counting.reached if place not in _gone_through] + known[::7]
    _gone_through.update(counting.reached)
    for place in places:
        bench, injection = fake_monitor(), Injection(place)
        try:
            got = injection(partial(result_of, scenario, bench))
        except BaseException as error:  # noqa: BLE001  (whatever reaches the user is what this is about)
            got = f"{type(error).__name__}: {error}"
        found = [f"the user's code came to {got!r}"] if got != RESULT else []
        found += what_is_wrong(bench)
        capsys.readouterr()
        wrong += [f"{injection.where}: {one}" for one in found]

    assert len(counting.reached) > 50
    assert not wrong, f"{len(wrong)} of {len(places)} lines:\n" + "\n".join(wrong[:20])


def entries() -> Iterator[object]:
    """Yield what transformers, torch and IPython call of ours, and what the user's code does."""
    from hfmem_widget import MemoryCallback
    from hfmem_widget.drivers import api as watching
    from hfmem_widget.drivers import follow, generating, optimizers
    from hfmem_widget.drivers import span as spans
    from hfmem_widget.drivers import watch as stretch
    from hfmem_widget.drivers.training import model_hooks
    from hfmem_widget.magics.memwatch import MemwatchMagics
    from hfmem_widget.monitor.patch import _Around
    from hfmem_widget.monitor.peaks import PeakLedger

    yield from (one for name, one in vars(MemoryCallback).items() if name.startswith("on_"))
    yield from (spans.span, watching.watch, stretch.Watch._start, stretch.Watch.stop)
    scope = spans.SpanScope
    yield from (
        scope._enter,
        scope._exit,
        scope.count,
        scope._another,
        stretch.Watch._another,
    )
    yield from (_Around.__enter__, _Around.__exit__, optimizers._act, WhenImported._find)
    yield from (follow.joined, follow.begin, follow.begin_alone, follow.end, follow._at_exit)
    yield from (generating._is_wanted, generating._begin, generating._ended)
    yield from (model_hooks._Before._tell, model_hooks._After._tell)
    yield from (PeakLedger._show, PeakLedger._before_reset, PeakLedger._after_reset)
    yield from (MemwatchMagics._arm, MemwatchMagics.cell_begins, MemwatchMagics.cell_ends)


@pytest.mark.parametrize("one", list(entries()), ids=lambda one: one.__qualname__)
def test_every_way_in_goes_through_the_guard(one: Any) -> None:
    """What holds signals back and keeps faults in is one function, around each of them."""
    assert one.__code__ is faults.entry()(print).__code__


def test_what_a_fault_has_kept_from_being_watched_is_said(
    fake_monitor: Callable[[], Bench],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The session ends where the fault was, says so, and goes by the figures that it has."""
    bench = fake_monitor()
    with hfmem_widget.watch("watched", quiet=True) as session:
        bench.allocator.alloc(PIECE)
        with hfmem_widget.span("whole"):
            pass
        with monkeypatch.context() as broken:
            broken.setattr(bench.ledger, "open", lambda **_: 1 // 0)
            with hfmem_widget.span("broken"):
                pass
        with hfmem_widget.span("after it"):
            pass

    assert session.notes == [BROKEN_OFF_NOTE.format("ZeroDivisionError")]
    assert [span.label for span in session.spans] == ["watched", "whole"]
    assert all(span.stop is not None for span in session.spans)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fault_that_comes_again_is_said_once_in_a_watch(
    fake_monitor: Callable[[], Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    """A hook that fails in every step has one line on stderr, and one more in the next watch."""
    fake_monitor()

    def failing() -> None:
        message = "ours"
        raise RuntimeError(message)

    lines = []
    for _ in range(2):
        with hfmem_widget.watch(quiet=True):
            for _ in range(100):
                faults.harmless(failing)
        lines.append(capsys.readouterr().err)

    assert lines == ["memwatch: RuntimeError: ours\n"] * 2


WHO_COMES_NEXT: dict[str, Callable[[Bench, Session], object]] = {
    "a longer span": lambda bench, healthy: bench.monitor.close_span(
        healthy, bench.monitor.open_span(healthy, "block", "next").id
    ),
    "the poller": lambda bench, _healthy: bench.pass_time(1.0),
    "who looks": lambda _bench, healthy: healthy.spans,
    "the end": lambda _bench, _healthy: None,
}
"""Each enters what was left for later, of all sessions."""


@pytest.mark.parametrize("who", WHO_COMES_NEXT)
def test_a_fault_of_one_session_is_no_other_ones(
    who: str, fake_monitor: Callable[[], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits of one session is entered by whoever comes next: a fault in it breaks off that one alone."""
    bench = fake_monitor()
    one = bench.monitor
    broken, healthy = (one.begin(WatchOptions(label=label)) for label in ("broken", "healthy"))
    own = one.open_span(broken, "cell")
    cell = one.open_span(healthy, "cell")
    monkeypatch.setattr(one.recorder(broken), "open_span", lambda *_: 1 // 0)
    bench.allocator.free(bench.allocator.alloc(PIECE))
    one.open_span(broken, "forward")

    WHO_COMES_NEXT[who](bench, healthy)
    one.close_span(healthy, cell.id)
    one.end(healthy)

    assert broken.notes == [BROKEN_OFF_NOTE.format("ZeroDivisionError")]
    assert not broken.running
    assert [span.id for span in broken.spans] == [own.id]
    assert healthy.notes == []
    assert {span.outcome for span in healthy.spans} == {"done"}
    peak = healthy.span(cell.id).peaks["cuda:0/allocated"]
    assert (peak.value, peak.certainty) == (PIECE, "exact")


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_a_source_lacks_for_once_it_has_at_the_next_reading(
    error: type[Exception], fake_monitor: Callable[[], Bench]
) -> None:
    """The same watch goes on with it, and nobody is asked to report a fault of the source."""
    bench = fake_monitor()
    with hfmem_widget.watch("watched", quiet=True) as session:
        bench.host.failure = error("for once")
        with hfmem_widget.span("without"):
            pass
        bench.host.failure = None
        bench.clock.advance(1.0)
        with hfmem_widget.span("with"):
            pass

    _, without, again = session.spans
    assert math.isnan(session.value(without.before, "cpu/allocated"))
    assert session.value(again.before, "cpu/allocated") == 10.0
    assert session.notes == []


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_a_source_lacks_once_it_may_have_again(
    error: type[Exception], fake_monitor: Callable[[], Bench]
) -> None:
    """Where there was no memory, or no stack, to read a source, the next reading counts."""
    bench = fake_monitor()
    bench.host.failure = error("for once")
    with hfmem_widget.watch("without", quiet=True):
        pass
    bench.host.failure = None
    with hfmem_widget.watch("with", quiet=True) as session:
        pass

    assert session.latest("cpu/allocated") == 10.0
    assert session.notes == []


def test_where_nothing_can_be_written_a_script_goes_on() -> None:
    """A full disk under stderr is no reason for the user's script to end."""
    script = (
        "import hfmem_widget, sys\n"
        "with hfmem_widget.watch('train'): pass\n"
        "from hfmem_widget.guard import warn\n"
        "warn('x')\n"
        "open(sys.argv[1], 'w').write('saved')\n"
    )
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-u", "-c", script, "/dev/null"], stdout=full, stderr=full, check=False
        )

    assert run.returncode == 0
