"""One real step at a forecast's size, with random weights: whether the forecast holds.

It is made only where somebody asks for it, and leaves nothing: the model is thrown away, and the allocator's
cache is given back.
"""

from __future__ import annotations

import gc
from typing import Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.dry_run import (
    cast_to_float,
    generation_options,
    loss_of,
    undisturbed,
)
from hfmem_widget.features.fit.inputs import Batch, batch_for
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.optimizers import OF_TORCH
from hfmem_widget.features.fit.predict import HALVES, weights_type
from hfmem_widget.features.fit.setting import Setting, foreign
from hfmem_widget.monitor.shared import running_monitor, shared_monitor
from hfmem_widget.sources.allocator import reading_of
from hfmem_widget.text import plain

STEPS: Final = 2  # the optimizer's states are there from the second on

_OPTIMIZERS: Final = {name: kind for name, kind in OF_TORCH.items() if kind != "Adafactor"}
"""The Adafactor of a Trainer is transformers' own, and no real step is made with it."""


def tried_step(model_or_config: Any, setting: Setting) -> int:
    """Return the bytes that a real step of a setting takes at its peak, or raise OptionError.

    A new model with random weights makes it, on the current GPU, or on the host, where tensors are counted.
    """
    config = getattr(model_or_config, "config", model_or_config)
    unsupported = [name for name in ("lora", "quantized", "kv", "shards") if getattr(setting, name)]
    if not hasattr(config, "model_type"):
        unsupported.append("a model that is not of transformers")
    if setting.training and setting.optimizer not in _OPTIMIZERS:
        unsupported.append(plain(setting.optimizer))
    if unsupported:
        raise OptionError(f"a real step cannot be tried with {', '.join(unsupported)}")
    with foreign("the real step failed"), undisturbed():
        try:
            if setting.device == "cuda":
                return _on_gpu(config, setting)
            with LiveBytes(device="cpu") as live:
                _run(config, setting, "cpu")
            return int(live.peak)
        finally:
            gc.collect()


def _on_gpu(config: Any, setting: Setting) -> int:
    index = torch.cuda.current_device()
    ledger = shared_monitor().ledger
    torch.empty(1, device="cuda")  # so that the allocator is in use when the window opens
    before = reading_of(ledger.allocator.stats(index)).allocated
    try:
        with torch.random.fork_rng(devices=[index]):
            window = ledger.open()
            try:
                _make_workspaces(training=setting.training)
                _run(config, setting, "cuda")
            finally:
                peaks = ledger.close(window)
        return int(peaks[f"cuda:{index}/allocated"].value - before)
    finally:
        gc.collect()
        ledger.allocator.empty_cache()
        if running_monitor() is None:
            ledger.uninstall()


def _make_workspaces(*, training: bool) -> None:
    """Let cuBLAS take its workspaces, which stay, before the model is there.

    In what a large tensor leaves behind, a workspace would keep all of that reserved.
    """
    small = torch.ones(16, 16, device="cuda", requires_grad=training)
    with torch.set_grad_enabled(training):
        product = (small @ small).sum()
    if training:
        product.backward()


def _run(config: Any, setting: Setting, device: str) -> None:
    """Build the model, and make the steps."""
    dtype = weights_type(setting.precision, training=setting.training) or torch.float32
    ghost = from_config(config, dtype, for_training=setting.training)
    batch = batch_for(
        ghost, setting.batch, setting.length, with_labels=setting.training, image=setting.image
    )
    with torch.device(device):
        model = type(ghost)._from_config(ghost.config, dtype=dtype)  # noqa: SLF001  (what AutoModel.from_config calls)
    model.train(setting.training)
    if not setting.training:
        with torch.no_grad(), Checked():
            model(**_real(batch, device), **generation_options(model))
        return
    if setting.checkpointing:
        # Renamed in transformers 5.
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    options = {"fused": True} if setting.optimizer.endswith("_fused") else {}
    optimizer = getattr(torch.optim, _OPTIMIZERS[setting.optimizer])(model.parameters(), **options)
    autocast = HALVES.get(setting.precision)
    for _ in range(STEPS):
        for _ in range(setting.accumulation):
            with torch.autocast(device, autocast, enabled=autocast is not None), Checked():
                outputs = model(**_real(batch, device))
            if autocast is not None:
                cast_to_float(outputs)
            loss = loss_of(outputs)
            del outputs
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()


def _real(batch: Batch, device: str) -> dict[str, Any]:
    """Return a batch with values, random where they are not whole numbers."""

    def real(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.is_meta:
            return torch.randn(tensor.shape, dtype=tensor.dtype, device=device)
        return tensor.to(device, copy=True)

    return {name: real(one) for name, one in batch.given.items()}


class Checked(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Raises OptionError where tokens of a batch do not fit a model: after that, no call of CUDA works.

    Labels always fit.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, message = getattr(func, "__name__", "").removesuffix("_"), ""
        if name == "embedding":
            # torch.embedding, which the other calls, takes them the other way round.
            rows, weight = args[:2] if func is functional.embedding else args[1::-1]
            has_values = rows.numel() and not rows.is_meta
            least, most = (int(rows.amin()), int(rows.amax())) if has_values else (0, -1)
            count = weight.shape[0]
            if least < 0 or most >= count:
                index = least if least < 0 else most
                message = f"an embedding of {count:,} rows is asked for number {index:,}"
        elif name == "masked_scatter" and len(args) == 3:
            whole, mask, source = args
            places, has = int(mask.expand_as(whole).sum()), source.numel()
            if places > has:
                message = f"{places:,} elements stand for an image or a sound, which has {has:,}"
        if message:
            raise OptionError(message)
        return func(*args, **(kwargs or {}))
