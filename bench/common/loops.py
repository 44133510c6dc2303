"""Loops that train with no Trainer: of Llama's shape, and of thousands of small tensors.

Imported by the scripts in the folder above.
"""

from collections.abc import Callable

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from common.blocks import BLOCK_SECONDS, Block, keep_to_some_cores, train
from common.ways import OFF, Way

LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
SMALL_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LAYERS = 16
TENSORS = 10_000
FEWER_TENSORS = 2_000
"""Whose training takes so long on a CPU that more would leave time for too few pairs."""

WIDTH = 4


class Loop:
    """A model, its fused AdamW and what one step feeds it.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Returns a loss of the model.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
        self._loss = loss
        self.steps = 1
        self.step(OFF)  # from now on there are states

    def fit_blocks(self) -> None:
        """Let a block have as many steps as fit in its time, one at least."""
        took = [self.block(OFF).wall for _ in range(3)]
        self.steps = max(1, round(BLOCK_SECONDS / float(np.median(took))))

    def step(self, way: Way) -> None:
        """Train one step."""
        with way.step() as next_phase:
            loss = self._loss()
            next_phase("backward")
            loss.backward()
            next_phase("optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad()

    def block(self, way: Way) -> Block:
        """Train a block."""
        return train(way, self.step, self.steps)

    def triple(self, way: Way, base: Way) -> tuple[Block, Block, Block]:
        """Train a block of one way between two of another."""
        return self.block(base), self.block(way), self.block(base)

    def keep_gradients(self) -> None:
        """Leave the gradients of one more batch, as they are before an optimizer's step."""
        self._loss().backward()


def llama(device: torch.device, *, small: bool, sequences: int = 1, tokens: int = 128) -> Loop:
    """Return a model of Llama's shape, and a batch of so many sequences of so many tokens."""
    shape = SMALL_LLAMA if small else LLAMA
    config = LlamaConfig(num_hidden_layers=LAYERS, tie_word_embeddings=True, **shape)
    with device:
        model = LlamaForCausalLM(config)
        ids = torch.randint(0, shape["vocab_size"], (sequences, tokens))
    return Loop(model, lambda: model(input_ids=ids, labels=ids).loss)


def chain(device: torch.device, tensors: int) -> Loop:
    """Return a chain of linear layers with so many tensors among them."""
    with device:
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(tensors // 2)])
        batch = torch.randn(8, WIDTH)
    return Loop(model, lambda: model(batch).square().mean())


def described(name: str, loop: Loop) -> str:
    """Return a model's name and size."""
    tensors = list(loop.model.parameters())
    elements = sum(one.numel() for one in tensors) / 1e6
    return f"{name}, {len(tensors):,} tensors, {elements:,.1f} M"


def device_for(*, small: bool) -> torch.device:
    """Return what to train on, and keep this process to some of the cores."""
    on_gpu = torch.cuda.is_available() and not small
    keep_to_some_cores(on_gpu=on_gpu)
    return torch.device("cuda" if on_gpu else "cpu")
