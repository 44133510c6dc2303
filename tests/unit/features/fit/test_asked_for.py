"""The parts of a forecast that come only on request: longest rows, real steps, quantised caches, one rank."""

from __future__ import annotations

import gc
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import DynamicCache, GPT2Config, LlamaConfig, LlamaForCausalLM, LlavaConfig

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import trial
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.dry_run import training_step
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.model import Fit
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.search import most_that_fit
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.trial import tried_step
from hfmem_widget.features.fit.workspaces import within
from hfmem_widget.text import GIB, MIB
from tests.data.fit_models import bert, built, gpt2, llama, one_layer
from tests.data.forecasts import predict
from tests.unit.features.fit.test_fit import gpu, with_rooms

FUSED = "adamw_torch_fused"


def peak_of(told: Fit) -> int:
    assert told.tried is not None
    assert told.tried.seconds > 0
    return told.tried.peak


def test_the_longest_rows_fit_and_much_longer_ones_do_not() -> None:
    """The returned length was forecast itself."""

    @cache
    def at(length: int) -> Any:
        return predict(config, batch=2, length=length, optimizer=FUSED, device="cpu")

    config = one_layer()
    room = at(200).total
    found = most_that_fit(lambda n: at(n).total, 32, at(32).total / 32, room, 256)

    assert at(found).total <= room
    assert 190 <= found <= 200


def test_no_length_is_longer_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's positions are the limit if memory is not."""
    with_rooms(monkeypatch, gpu(GIB))
    told = fit(one_layer(), length=32, longest=True)

    assert told.verdicts[0].longest == 256
    assert "longest 256 tokens with batch 1" in repr(told)


def changed() -> Any:
    """Return an inconsistent configuration: a part with fewer layers than types of layers."""
    text = {"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 128}
    sight = {"hidden_size": 48, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
    config = LlavaConfig(text_config=text, vision_config=sight, image_token_index=127)
    config.text_config.num_hidden_layers = 1
    return config


@pytest.mark.parametrize(
    ("config", "choices"),
    [
        (one_layer(), {"optimizer": "sgd", "checkpointing": True}),
        pytest.param(one_layer(), {"optimizer": FUSED, "checkpointing": True}, marks=pytest.mark.full),
        pytest.param(one_layer(), {"optimizer": FUSED, "precision": "bf16"}, marks=pytest.mark.full),
        (one_layer(), {"optimizer": FUSED, "precision": "pure bf16", "accumulation": 2}),
        (one_layer(), {"lora": 4, "precision": "bf16", "checkpointing": True}),
        (one_layer(), {"training": False, "precision": "bf16"}),
        # Tokens and labels that the model has: of two classes, with a token for the end that it has not.
        (bert("BertForTokenClassification"), {}),
        (GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=64), {}),
        (changed(), {"training": False}),
    ],
    ids=lambda each: ", ".join(map(str, each.values())) if isinstance(each, dict) else type(each).__name__,
)  # fmt: skip
def test_a_real_step_takes_the_forecast_memory(config: Any, choices: dict[str, Any]) -> None:
    """Within two percent on the host, where the tensors of both are counted."""
    told = fit(config, batch=2, length=64, attempt=True, **choices)

    assert peak_of(told) == pytest.approx(told.forecast.total, rel=0.02)
    assert "A real step took" in repr(told)


def test_a_live_model_is_tried_with_its_frozen_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With Adafactor, whose temporaries are an upper bound; the progress line is overwritten."""
    model = built(bert("BertForTokenClassification"))
    model.config.architectures = None
    model.bert.embeddings.requires_grad_(False)
    told = fit(model, batch=2, length=64, optimizer="adafactor", attempt=True)
    low, high = told.forecast.interval

    assert low <= 1.02 * peak_of(told)
    assert peak_of(told) <= 1.02 * high
    shown = capsys.readouterr().err.split("\r")
    assert "in a new process" in shown[1]
    assert len(shown[2]) >= len(shown[1])
    assert not "".join(shown[2:]).strip()


def test_a_real_step_that_runs_out_of_memory_is_a_result() -> None:
    """It is shown beside the forecast, which does not change."""
    config = one_layer()
    config.vocab_size = 1 << 40  # of which no machine has the embedding
    told = fit(config, length=32, training=False, attempt=True)

    assert "A real step ran out of memory" in repr(told)
    assert told.forecast.total > config.vocab_size


class OwnModel(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not followed
    """A model of the user's."""


class OwnConfig(LlamaConfig):  # type: ignore[misc]  # likewise
    """A configuration of the user's."""


@pytest.mark.parametrize(
    ("what", "choices", "reason"),
    [
        (one_layer(), {"shards": "zero2:2"}, "shards"),
        (one_layer(), {"training": False, "kv": "int8"}, "kv"),
        (one_layer(), {"optimizer": "adamw_8bit"}, "adamw_8bit, which needs"),
        (one_layer(), {"quantized": "nf4", "lora": 4}, "nf4, which needs"),
        (OwnModel(one_layer()), {}, "OwnModel"),
        (OwnConfig(**one_layer().to_dict()), {}, "OwnConfig"),
        (torch.nn.Linear(2, 2), {}, "Linear"),
    ],
    ids=["shards", "cache", "optimizer", "quantised", "model", "configuration", "module"],
)
def test_a_model_that_cannot_be_tried_is_an_error(
    what: Any, choices: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a step of another kind."""
    monkeypatch.setattr(trial, "rooms", lambda: ((), ""))
    with pytest.raises(OptionError, match=f"cannot be tried with {reason}"):
        fit(what, length=32, attempt=True, **choices)


SETTING = Setting(length=32, device="cpu")


def test_a_configuration_without_json_cannot_be_tried() -> None:
    """A new process could not read it."""
    config = one_layer()
    config.mine = object()
    with pytest.raises(OptionError, match="is not JSON"):
        tried_step(config, SETTING)


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (r"raise ImportError('gone\x1b')", "failed: ImportError: gone$"),
        (r"import os; os.write(2, b'\xff\n'); raise SystemExit('gone')", "failed: gone$"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "process was killed"),
    ],
    ids=["error", "end", "killed"],
)
def test_a_new_process_that_dies_is_one_sentence(
    happens: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last line of its error; it finds the same modules as this process."""
    (tmp_path / "transformers.py").write_text(happens)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=told):
        tried_step(one_layer(), SETTING)


def test_a_real_step_is_stopped_in_time() -> None:
    """It leaves no process behind."""
    others = psutil.Process().children()
    with pytest.raises(OptionError, match=r"took longer than 0\.01 s"):
        tried_step(one_layer(), SETTING, seconds=0.01)
    assert psutil.Process().children() == others


def test_an_interrupt_ends_a_real_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the user; no process is left, and the progress line is overwritten."""
    interrupt = "os.read(0, 1); os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal, time; {interrupt}")
    monkeypatch.syspath_prepend(tmp_path)
    shown: list[str] = []
    others = psutil.Process().children()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            tried_step(one_layer(), SETTING, progress=shown.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert psutil.Process().children() == others
    assert shown[-1] == ""


def test_a_new_process_reads_nothing_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's file may have the name of a module that this process found elsewhere."""
    (tmp_path / "json.py").write_text("raise SystemExit('read')")
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])

    assert tried_step(one_layer(), replace(SETTING, training=False)).device == "cpu"


def test_a_quantised_cache_takes_its_share() -> None:
    """Eight bits are half of a cache in bfloat16, two an eighth."""
    sizes = [
        predict(llama(), length=64, training=False, precision="bf16", kv=kv).full("kv_cache")
        for kv in ("", "int8", "int2")
    ]

    assert [sizes[0] / size for size in sizes[1:]] == [2, 8]


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
    """One of four has a quarter of the divided parts and all others; parts add up to the total."""
    whole, told = sharded(""), sharded(f"{way}:4")

    for name in ("optimizer", "gradients", "weights"):
        share = 4 if name in divided else 1
        assert told.full(name) == pytest.approx(whole.full(name) / share, abs=2)
    assert sum(part.bytes for part in told.parts) == told.total == max(told.peaks.values())
    assert told.bound == "lower"


def test_tensor_parallelism_divides_the_parameters_in_the_models_plan() -> None:
    """Norms stay whole."""
    whole, told = (predict(llama(), length=64, shards=shards) for shards in ("", "tp:4"))

    assert whole.full("weights") / 4 < told.full("weights") < whole.full("weights")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("lora", [None, 4])
def test_a_rank_of_ddp_has_its_gradients_again_in_buckets(device: str, lora: int | None) -> None:
    """Throughout a step, those of trained weights alone; an evaluation has none."""
    usual: dict[str, Any] = {"length": 64, "optimizer": FUSED, "device": device, "lora": lora}
    whole, told = (predict(gpt2(), shards=shards, **usual) for shards in ("", "ddp:4"))

    buckets = whole.full("gradients")
    assert told.bytes("libraries") - whole.bytes("libraries") == buckets > 0
    assert told.peaks == {name: peak + buckets for name, peak in whole.peaks.items()}
    assert sum(part.bytes for part in told.parts) == told.total == whole.total + buckets
    assert predict(gpt2(), length=64, training=False, shards="ddp:4").full("libraries") == (
        predict(gpt2(), length=64, training=False).full("libraries")
    )


def test_buckets_that_may_be_made_anew_are_not_sure_to_be_needed() -> None:
    """With checkpointing a GPU may have two sets of them; the least expected peak counts neither."""
    usual: dict[str, Any] = {"length": 64, "optimizer": FUSED, "checkpointing": True}
    whole, told = (predict(gpt2(), shards=shards, **usual) for shards in ("", "ddp:4"))

    assert told.interval[0] <= whole.total < told.total <= told.interval[1]


@pytest.mark.parametrize(
    "choices", [{"training": False}, {"optimizer": "sgd"}], ids=["inference", "no states"]
)
def test_where_nothing_is_divided_that_is_said(choices: dict[str, Any]) -> None:
    """Rather than a list of nothing."""
    notes = " ".join(predict(llama(), length=32, shards="zero1:8", **choices).notes)

    assert "each has a full copy, as zero1 divides nothing here;" in notes
    assert " ;" not in notes


def test_every_thread_has_a_workspace_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also autograd's; for an unknown device the largest counts, so that no forecast is too low."""

    def libraries(device: str = "cuda") -> list[tuple[int, str]]:
        parts = predict(llama(), length=32, device=device).parts
        return [(part.bytes, part.bound) for part in parts if part.name == "libraries"]

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert libraries() == [(64 * MIB, "upper")]
    assert libraries("cpu") == []
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert libraries() == [(2 << 17, "exact")]


def test_workspaces_of_kernels_are_counted() -> None:
    """The flash kernel sums gradients of queries in float32, and those of shared keys for each head."""
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
    """Layers without checkpointing have a cache, which may hold the node that holds it."""
    model = from_config(gpt2(), torch.float32, for_training=True)
    model.transformer.h[0].gradient_checkpointing = True
    training_step(model, batch_for(model, 2, 64, with_labels=True), checkpointing=True)
    gc.collect()

    assert [one for one in gc.get_objects() if type(one) is DynamicCache] == []


def test_only_layers_with_checkpointing_on_are_recomputed() -> None:
    """In transformers, every second layer can be checkpointed."""
    model = from_config(gpt2(), torch.float32, for_training=True)
    model.transformer.h[0].gradient_checkpointing = True
    inputs = batch_for(model, 2, 64, with_labels=True)
    one = training_step(model, inputs, checkpointing=True).kept
    for layer in model.transformer.h:
        layer.gradient_checkpointing = True
    every = training_step(model, inputs, checkpointing=True).kept

    assert every < one
