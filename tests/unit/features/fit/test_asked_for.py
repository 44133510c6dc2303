"""What a forecast says only where it is asked: longest rows, real steps, quantised caches, one rank."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GPT2Config

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.dry_run import training_step
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.search import longest_rows
from hfmem_widget.features.fit.workspaces import LARGE, of_cublas, within
from hfmem_widget.text import GIB, MIB
from tests.data.fit_models import bert, gpt2, llama, one_layer
from tests.data.forecasts import predict
from tests.unit.features.fit.test_fit import gpu, with_rooms

FUSED = "adamw_torch_fused"


def test_the_longest_rows_fit_and_much_longer_ones_do_not() -> None:
    """What is returned was forecast itself."""

    @cache
    def at(length: int) -> Any:
        return predict(config, batch=2, length=length, optimizer=FUSED, device="cpu")

    config = one_layer()
    room = at(200).total
    found = longest_rows(at, at(32), room, 256)

    assert at(found).total <= room
    assert 190 <= found <= 200


def test_no_length_is_longer_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions are the limit where memory is not."""
    with_rooms(monkeypatch, gpu(GIB))
    told = fit(one_layer(), length=32, longest=True)

    assert told.verdicts[0].longest == 256
    assert "longest 256 tokens with batch 1" in repr(told)


@pytest.mark.parametrize(
    "choices",
    [
        {"optimizer": "sgd", "checkpointing": True},
        pytest.param({"optimizer": FUSED, "checkpointing": True}, marks=pytest.mark.full),
        pytest.param({"optimizer": FUSED, "precision": "bf16"}, marks=pytest.mark.full),
        {"optimizer": FUSED, "precision": "pure bf16", "accumulation": 2},
        {"training": False, "precision": "bf16"},
    ],
    ids=lambda choices: ", ".join(map(str, choices.values())),
)
def test_a_real_step_takes_what_was_forecast(choices: dict[str, Any]) -> None:
    """Within two percent on the host, where the tensors of both are counted."""
    told = fit(one_layer(), batch=2, length=64, attempt=True, **choices)

    assert told.tried == pytest.approx(told.forecast.total, rel=0.02)
    assert "A real step took" in repr(told)


@pytest.mark.parametrize(
    "config",
    [
        bert("BertForTokenClassification"),
        GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=64),
    ],
    ids=["two classes", "a token for the end beyond the vocabulary"],
)
def test_a_real_step_gets_tokens_and_labels_that_the_model_has(config: Any) -> None:
    """Though other tokens than those have higher numbers."""
    told = fit(config, batch=2, length=32, attempt=True)

    assert told.tried == pytest.approx(told.forecast.total, rel=0.02)


@pytest.mark.parametrize("choices", [{"lora": 4}, {"optimizer": "adafactor"}])
def test_what_cannot_be_tried_is_said(choices: dict[str, Any]) -> None:
    """Rather than a step of another kind."""
    with pytest.raises(OptionError, match="cannot be tried"):
        fit(one_layer(), length=32, attempt=True, **choices)


def test_a_quantised_cache_takes_its_share() -> None:
    """Of a cache in bfloat16, eight bits are half and two an eighth."""
    sizes = [
        predict(llama(), length=64, training=False, precision="bf16", kv=kv).full("kv_cache")
        for kv in ("", "int8", "int2")
    ]

    assert [sizes[0] / size for size in sizes[1:]] == [2, 8]


def test_a_quantised_cache_is_for_inference() -> None:
    """Training keeps none."""
    with pytest.raises(OptionError, match="is for inference"):
        predict(llama(), length=32, kv="int8")


@cache
def sharded(shards: str) -> Any:
    return predict(gpt2(), shards=shards, length=64, optimizer=FUSED)


@pytest.mark.parametrize(
    ("way", "divided"),
    [
        ("zero1", {"optimizer"}),
        ("zero2", {"optimizer", "gradients"}),
        ("zero3", {"optimizer", "gradients", "weights"}),
        ("fsdp", {"optimizer", "gradients", "weights"}),
    ],
)
def test_a_rank_has_its_share(way: str, divided: set[str]) -> None:
    """Of four, a quarter of what is divided and all of the rest; parts add up to the total."""
    whole, told = sharded(""), sharded(f"{way}:4")

    for name in ("optimizer", "gradients", "weights"):
        share = 4 if name in divided else 1
        assert told.full(name) == pytest.approx(whole.full(name) / share, abs=2)
    assert sum(part.bytes for part in told.parts) == told.total == max(told.peaks.values())
    assert ("gathered" in {part.name for part in told.parts}) == ("weights" in divided)
    assert told.bound != "exact"


def test_tensor_parallelism_divides_what_the_models_plan_names() -> None:
    """Norms stay whole."""
    whole, told = (predict(llama(), length=64, shards=shards) for shards in ("", "tp:4"))

    assert whole.full("weights") / 4 < told.full("weights") < whole.full("weights")


@pytest.mark.parametrize("text", ["zero4:2", "zero3", "fsdp:0", "tp:many"])
def test_another_way_to_divide_is_refused(text: str) -> None:
    """With those that there are."""
    with pytest.raises(OptionError, match="zero1, zero2, zero3, fsdp, tp"):
        predict(llama(), shards=text)


def test_every_thread_has_a_workspace_of_cublas() -> None:
    """Autograd's too; without the device the largest is counted, so that no forecast is too low."""
    assert of_cublas(environ={}) == (LARGE, False)
    assert of_cublas(environ={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == (1 << 17, True)


def test_the_workspaces_are_in_a_forecast_for_a_gpu() -> None:
    """And in none for the host."""
    gpu, host = (predict(llama(), length=32, device=device) for device in ("cuda", "cpu"))

    assert gpu.bytes("libraries") == 64 * MIB
    assert host.bytes("libraries") == 0


def test_what_kernels_take_while_they_run_is_counted() -> None:
    """The flash kernel sums the gradients of queries in float32, and those of shared keys for each head."""
    query, key = (
        torch.empty(2, heads, 128, 64, dtype=torch.bfloat16, device="meta") for heads in (4, 2)
    )
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward.default

    rows = 2 * 4 * 128
    sums, shared = rows * 4 + rows * 64 * 4, 2 * rows * 64 * 2
    assert within(kernel, (query, query, query, query)) == sums
    assert within(kernel, (query, query, key, key)) == sums + shared
    assert within(torch.ops.aten.mm.default, (query, key)) == 0


def test_nothing_of_a_checkpointed_step_stays() -> None:
    """Beside layers that are not checkpointed there is a cache, which may hold the node that holds it."""
    model = from_config(gpt2(), torch.float32, for_training=True)
    model.transformer.h[0].gradient_checkpointing = True
    training_step(model, batch_for(model, 2, 64, with_labels=True), checkpointing=True)
    gc.collect()

    assert [one for one in gc.get_objects() if type(one) is DynamicCache] == []


def test_layers_that_are_switched_on_already_stay_the_only_ones() -> None:
    """In transformers every second layer can be computed again."""
    model = from_config(gpt2(), torch.float32, for_training=True)
    model.transformer.h[0].gradient_checkpointing = True
    inputs = batch_for(model, 2, 64, with_labels=True)
    one = training_step(model, inputs, checkpointing=True).kept
    for layer in model.transformer.h:
        layer.gradient_checkpointing = True
    every = training_step(model, inputs, checkpointing=True).kept

    assert every < one
