"""One of several ranks by itself: its collectives move nothing, and it takes the memory that a rank takes.

PyTorch has such a process group for its own tests of memory. Accelerate wraps the model, as in a Trainer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hfmem_widget.features.fit.predict import HALVES
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.sharding import layers_of, parsed

WAYS: Final = frozenset({"ddp", "fsdp"})
"""The ways of `DIVIDED` in which real steps can be made."""


class OneRank:
    """The first rank of a setting's `shards`; there is one in a process, which others must not use."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        way, ranks = parsed(setting.shards)
        own = {"RANK": 0, "LOCAL_RANK": device.index or 0, "WORLD_SIZE": ranks, "MASTER_PORT": 1}
        os.environ |= {name: str(value) for name, value in own.items()}
        os.environ["MASTER_ADDR"] = "localhost"  # accelerate asks for it; nothing connects
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        import accelerate
        from accelerate.utils import DistributedDataParallelKwargs, DistributedType

        self.is_divided = way == "fsdp"
        # The options of a Trainer.
        self._plugin = plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
        of_ddp = DistributedDataParallelKwargs(find_unused_parameters=not setting.checkpointing)
        half = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        self._accelerator = accelerate.Accelerator(
            cpu=device.type == "cpu",
            mixed_precision=half.get(HALVES.get(setting.precision), "no"),
            fsdp_plugin=plugin if self.is_divided else None,
            kwargs_handlers=[of_ddp],
        )
        if self.is_divided:  # which accelerate has for GPUs alone
            self._accelerator.state.distributed_type = DistributedType.FSDP
            self._accelerator.state.fsdp_plugin = plugin
        self._device = device

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build its model in a block: on the device, or without weights if these are to be divided."""
        from accelerate import init_empty_weights

        # A mode that counts tensors leaves marks on empty ones, and accelerate copies no marked ones.
        empty = init_empty_weights(include_buffers=False)
        contexts = (empty, _disable_current_modes()) if self.is_divided else (self._device,)
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            yield

    def wrapped(self, model: Any) -> Any:
        """Return a model with the weights that this rank has, which are random."""
        if not self.is_divided:
            model = self._accelerator.prepare(model)
            # torch's own expects a result, and this group has none.
            model.register_comm_hook(None, lambda _state, bucket: _done(bucket.buffer()))
            return model
        from accelerate.utils import fsdp2_prepare_model

        model.tie_weights()
        self._plugin.transformer_cls_names_to_wrap = layers_of(model)
        model = fsdp2_prepare_model(self._accelerator, model)
        # Buffers have their values; weights are still on the meta device.
        model._apply(self._on_device)  # noqa: SLF001  (as Module.to_empty does)
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.detach().normal_(std=0.02)
        return model

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return torch.empty_like(tensor, device=self._device)
        return tensor.to(self._device)

    def accumulating(self, model: Any, *, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of a batch: ranks reduce gradients after the last one of a step."""
        waiting: AbstractContextManager[object] = self._accelerator.no_sync(model)
        return nullcontext() if is_last else waiting


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    result.set_result(tensor)
    return result
