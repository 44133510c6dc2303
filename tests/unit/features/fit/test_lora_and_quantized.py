"""Adapters, frozen weights, quantised weights."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from hfmem_widget.features.fit.on_meta import from_config, quantized_bytes
from tests.data.fit_models import bert, built, gpt2, llama
from tests.data.forecasts import predict

TARGETS = ["q_proj", "v_proj"]


@pytest.mark.filterwarnings(
    "ignore:.*gradient_checkpointing"
)  # peft asks transformers by the older name
def test_adapters_are_counted_as_peft_makes_them() -> None:
    """Weights, gradients and states of a real peft model after a step, to the byte; 2P + 16p in all."""
    config = llama(dtype="bfloat16")
    base = built(config).to(torch.bfloat16)
    real = get_peft_model(base, LoraConfig(r=4, target_modules=TARGETS))
    parameters = list(real.parameters())
    trained = [one for one in parameters if one.requires_grad]
    told = predict(config, length=32, precision="pure bf16", lora=(4, TARGETS), device="cpu")

    assert told.full("weights") == sum(one.nbytes for one in parameters)
    assert told.trainable == sum(one.numel() for one in trained)
    assert told.full("gradients") == sum(one.nbytes for one in trained)
    assert told.full("optimizer") == 2 * sum(one.nbytes for one in trained)
    frozen = sum(one.numel() for one in parameters) - told.trainable
    assert told.left_out == ()  # though peft goes past the call of the model that it is put into
    held = told.full("weights") + told.full("gradients") + told.full("optimizer")
    assert held == 2 * frozen + 16 * told.trainable


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    """Patterns choose the trained parameters."""
    told = predict(bert("BertForSequenceClassification"), length=32, trainable=["classifier.*"])

    assert told.trainable == 128 * 2 + 2
    assert told.full("gradients") == 1024 + 512  # the bias rounds up to the allocator's least
    assert told.parameters > 100 * told.trainable


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("int8", 128 * 256 + 256 * 4),
        ("nf4", 128 * 256 // 2 + 512 * 4 + 64),
        ("nf4-double", 128 * 256 // 2 + 512 + 2 * 4 + 64 + 1024 + 4),
    ],
)
def test_a_matrix_takes_its_bits_its_scales_and_its_tables(how: str, expected: int) -> None:
    """A float a row in 8 bit; each 64 weights in 4 bit, or a byte where scales are quantised too."""
    model = from_config(llama(), torch.bfloat16, for_training=True)
    sizes, largest = quantized_bytes(model, how)

    assert sum(sizes[id(model.model.layers[0].mlp.up_proj.weight)]) == expected
    assert largest == 128 * 256


def test_heads_and_embeddings_are_not_quantised() -> None:
    """By transformers' choice: the head, tied or not, and a classifier's last layer stay as they are."""
    for config in (
        llama(),
        llama(tie_word_embeddings=True),
        gpt2(),
        bert("BertForSequenceClassification"),
    ):
        model = from_config(config, torch.bfloat16, for_training=True)
        sizes, _ = quantized_bytes(model, "nf4")
        kept = [
            name
            for name, one in model.named_parameters()
            if one.dim() == 2 and id(one) not in sizes
        ]

        assert all("emb" in name or "wte" in name or "wpe" in name or "head" in name or "classifier" in name
                   for name in kept), kept  # fmt: skip
        assert kept


def test_quantised_weights_are_a_fraction_and_adapters_train() -> None:
    """A forecast of QLoRA: smaller weights, the same adapters, and weights that are unpacked for a moment."""
    plain = predict(llama(), length=32, precision="pure bf16", lora=(4, TARGETS))
    packed = predict(llama(), length=32, quantized="nf4", lora=(4, TARGETS))

    assert packed.full("weights") < plain.full("weights")
    assert packed.trainable == plain.trainable
    assert packed.full("activations") == plain.full("activations") + 2 * 128 * 256
    assert packed.bound == "estimate"
