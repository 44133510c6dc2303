"""Loops of other libraries, each with its steps, phases, model and optimizer, with no word from the user.

Each is skipped where its library is missing: these are no requirements of the development. docs/support.md
says with which versions they were run.
"""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import hfmem_widget
from tests.data.loops import STEP, adam, batches, loss_of, model_of, outlined, usual

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run each test in a folder of its own, and restore the environment."""
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ):
        yield


def rows() -> Any:
    return torch.utils.data.TensorDataset(torch.cat(list(batches(3))))


def lightning_module(library: Any, *, manual: bool = False) -> Any:
    class Module(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of(8, 8, 1)
            self.automatic_optimization = not manual
            self.losses: list[float] = []

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = loss_of(self.net, batch[0])
            self.losses.append(loss.item())
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, _index: int) -> None:
            self.log("loss", loss_of(self.net, batch[0]))

        def configure_optimizers(self) -> Any:
            return adam(self)

    return Module()


def lightning(name: str, *, manual: bool = False) -> list[float]:
    library = pytest.importorskip(name)
    module = lightning_module(library, manual=manual)
    loader = torch.utils.data.DataLoader(rows(), batch_size=4)
    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    library.Trainer(max_epochs=1, accelerator="cpu", **off).fit(module, loader, loader)
    losses: list[float] = module.losses
    return losses


def accelerated() -> list[float]:
    library = pytest.importorskip("accelerate")
    accelerator = library.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = model_of(8, 8, 1)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2)
    scheduler: Any
    model, optimizer, loader = accelerator.prepare(model, adam(model), loader)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.LinearLR(optimizer))
    losses = []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_optimizer(name: str, make: Callable[[Any, Any], Any]) -> Callable[[], list[float]]:
    def train() -> list[float]:
        library = pytest.importorskip(name)
        model = model_of(8, 8, 1)
        optimizer = make(library, model)
        getattr(optimizer, "train", lambda: None)()
        return usual(model, optimizer.step, optimizer.zero_grad, count=3)

    return train


def deepspeed() -> list[float]:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    with contextlib.redirect_stdout(io.StringIO()):
        library = pytest.importorskip("deepspeed", exc_type=Exception)  # type: ignore[arg-type]
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        model = model_of(8, 8, 1)
        engine, *_ = library.initialize(
            model=model,
            optimizer=adam(model),
            config={"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1},
            dist_init_required=False,
        )
        losses = []
        for batch in batches(3):
            loss = loss_of(engine, batch)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def ignited() -> list[float]:
    library = pytest.importorskip("ignite.engine")
    model = model_of(8, 8, 1)
    losses: list[float] = []
    trainer = library.create_supervised_trainer(
        model, adam(model), lambda made, _wanted: made.square().mean()
    )
    trainer.add_event_handler(
        library.Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    trainer.run([(batch, batch) for batch in batches(3)])
    return losses


def with_keras() -> list[float]:
    os.environ["KERAS_BACKEND"] = "torch"
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    batch = torch.cat(list(batches(3))).numpy()
    history = model.fit(batch, batch[:, :1], batch_size=4, verbose=0, shuffle=False)
    losses: list[float] = history.history["loss"]
    return losses


LIBRARIES: dict[str, Callable[[], list[float]]] = {
    "lightning": lambda: lightning("lightning"),
    "lightning, manual": lambda: lightning("lightning", manual=True),
    "pytorch_lightning": lambda: lightning("pytorch_lightning"),
    "accelerate": accelerated,
    "schedulefree": with_optimizer(
        "schedulefree", lambda made, model: made.AdamWScheduleFree(model.parameters(), lr=0.01)
    ),
    "pytorch_optimizer's Lookahead": with_optimizer(
        "pytorch_optimizer", lambda made, model: made.Lookahead(adam(model))
    ),
    "torch_optimizer's Lookahead": with_optimizer(
        "torch_optimizer", lambda made, model: made.Lookahead(adam(model))
    ),
    "galore_torch": with_optimizer(
        "galore_torch", lambda made, model: made.GaLoreAdamW(model.parameters())
    ),
    "deepspeed": deepspeed,
    "ignite": ignited,
}
ACCUMULATED = {"accelerate": "step(substep(forward backward) substep(forward backward) optimizer)"}
"""The last step of a loop that is made of more than `STEP`."""


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_librarys_loop_is_followed(name: str) -> None:
    """A loop of three steps has its phases, and its losses are bit for bit those of the bare loop."""
    train = LIBRARIES[name]
    bare = train()
    with hfmem_widget.watch(quiet=True) as session:
        watched = train()

    assert watched == bare
    assert session.steps.count == 3
    last = [span for span in session.spans if span.kind == "step"][-1]
    assert f"step({outlined(session, last.id)})" == ACCUMULATED.get(name, STEP)
    assert session.peak("cpu/weights") > 0
    assert session.peak("cpu/optimizer") > 0


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning"])
def test_lightnings_epochs_and_validations_have_spans(name: str) -> None:
    """Lightning's check comes first; each epoch has its steps, and its validation after them."""
    lightning(name)  # its first run imports much
    with hfmem_widget.watch(quiet=True) as session:
        lightning(name)

    assert outlined(session) == f"evaluate epoch({STEP} {STEP} {STEP} evaluate)"


def test_keras_on_torch_has_no_optimizer_of_torch() -> None:
    """Keras on torch, whose optimizer is not torch's, has no steps."""
    with hfmem_widget.watch(quiet=True) as session:
        with_keras()

    assert session.steps.count == 0
