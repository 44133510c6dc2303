"""Users' code with our package, without hardware: each piece returns `RESULT`, even if we fail."""

import os
import sys
from collections.abc import Callable
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget import guard
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore, restore_all, surround, surround_all
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.identity import PLACES
from tests.unit.monitor.conftest import Bench

PIECE = 1 << 20
RESULT = "the user's result"


class UsersError(Exception):
    """The exception of the user's own code."""


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


class Library:
    """Another library, one of whose methods is surrounded."""

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

    bench.allocator.free(bench.allocator.alloc(16 * PIECE))
    with hfmem_widget.watch(model, optimizer, quiet=True):
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not model._forward_pre_hooks, "a hook of ours was left"
    assert not model._forward_hooks, "a hook of ours was left"

    return RESULT


def in_a_loop(bench: Bench) -> str:
    """Train in a loop without spans, with accumulated batches, a closure, and an evaluation."""
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


def made_trainer(bench: Bench) -> Any:
    """Return a Trainer that fires the events of transformers' own, without its slow parts."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.trainer_callback import TrainerControl, TrainerState

    from hfmem_widget.drivers import trainer as ours

    class Trainer:
        def __init__(self) -> None:
            self.callback_handler = SimpleNamespace(callbacks=[])
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

    for place in ours.PLACES:
        surround(Trainer, place.name, place.around)
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
    assert not process_state(ours.Loads).calls, "a load of ours was left"
    return result


class Kept(SimpleNamespace):
    """Stands in for a cache, and supports weak references."""


class Decoder:
    """Stands in for a model of transformers that generates, and keeps keys and values."""

    def __init__(self) -> None:
        self.kept = Kept(layers=[])

    def __call__(self, ids: object, **_: object) -> dict[str, object]:
        torch = pytest.importorskip("torch")
        layer = SimpleNamespace(keys=torch.ones(1, 1, 3, 4), values=torch.ones(1, 1, 3, 4))
        self.kept.layers = [layer]
        return {"past_key_values": self.kept, "logits": torch.ones(1, 1, 2)}

    forward = __call__

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
    usual, model, base = Decoder.__call__, Decoder(), type("PreTrainedModel", (Decoder,), {})
    surround(Decoder, "generate", ours.generating, whole_call=True)
    unless = ours.is_let_alone
    surround(base, "__call__", ours.ModelCall, whole_call=True, unless=unless, is_inherited=True)
    try:
        with hfmem_widget.watch("watched", quiet=True):
            result = model.generate(torch.ones(1, 3, dtype=torch.int64))
            with torch.no_grad():
                assert "logits" in base()(torch.ones(1, 3), past_key_values=(), use_cache=True)
    finally:
        restore(Decoder, "generate")
        restore(base, "__call__")
    state = process_state(ours.GenerateContext)
    assert state.generation is None, "a generation is left"
    assert not state.in_call, "a call is left"
    assert Decoder.__call__ is usual
    assert "__call__" not in vars(base)
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
    guard.harmless(ours.follow_pipelines, home)
    pipeline = Pipeline()
    try:
        with hfmem_widget.watch("watched", quiet=True):
            result = pipeline()
    finally:
        ours.leave_pipelines(home)
    assert process_state(ours.PipelineContext).call is None, "a call is left"
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
        surround_all(PLACES)
        try:
            result: str = vars(group)["init_process_group"]()
        finally:
            follow.end()
            restore_all(PLACES)
            install.detach()
    assert follow.directory_here() is None, "a rank is left"
    assert "HFMEM_CLAIMED" not in os.environ
    return result


SCENARIOS: tuple[Callable[[Bench], str], ...] = (
    in_spans,
    raising,
    reading_the_counters,
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
