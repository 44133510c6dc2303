"""Forecasts with more than a plain step: adapters, quantised weights, longest rows, real steps, one rank."""

import gc
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, GPT2Config, LlamaConfig, LlamaForCausalLM, LlavaConfig

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import trial
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.dry_run import training_step
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.model import Fit
from hfmem_widget.features.fit.on_meta import from_config, quantized_bytes
from hfmem_widget.features.fit.search import most_that_fit
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.trial import tried_step
from hfmem_widget.text import GIB, MIB
from tests.data.fit_models import bert, built, gpt2, llama, one_layer
from tests.data.forecasts import predict
from tests.unit.features.fit.test_fit import gpu, with_rooms

FUSED = "adamw_torch_fused"


def peak_of(fitted: Fit) -> int:
    assert fitted.tried is not None
    assert fitted.tried.seconds > 0
    return fitted.tried.peak


def parted(*shards: str, make: Callable[[], Any] = gpt2, **choices: Any) -> list[Any]:
    """Return the forecast of a whole training, and of a rank of each kind."""
    return [predict(make(), shards=kind, length=64, **choices) for kind in ("", *shards)]


def test_the_longest_rows_fit_and_much_longer_ones_do_not() -> None:
    """The returned length was forecast itself."""

    @cache
    def at(length: int) -> Any:
        return predict(config, batch=2, length=length, optimizer=FUSED, device="cpu")

    config = one_layer()
    room = at(200).total
    longest = most_that_fit(lambda n: at(n).total, 32, at(32).total / 32, room, 256)

    assert at(longest).total <= room
    assert 190 <= longest <= 200


def test_no_length_is_longer_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's positions are the limit if memory is not."""
    with_rooms(monkeypatch, gpu(GIB))
    fitted = fit(one_layer(), length=32, longest=True)

    assert fitted.verdicts[0].longest == 256
    assert "longest 256 tokens with batch 1" in repr(fitted)


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
        (one_layer(), {"shards": "ddp:4", "accumulation": 2}),
        # Tokens and labels that the model has: of two classes, with a token for the end that it has not.
        (bert("BertForTokenClassification"), {}),
        (GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=64), {}),
        (changed(), {"training": False}),
    ],
    ids=lambda each: ", ".join(map(str, each.values())) if isinstance(each, dict) else type(each).__name__,
)  # fmt: skip
def test_a_real_step_takes_the_forecast_memory(config: Any, choices: dict[str, Any]) -> None:
    """It is within two percent on the host, where the tensors of both are counted."""
    fitted = fit(config, batch=2, length=64, attempt=True, **choices)

    assert peak_of(fitted) == pytest.approx(fitted.forecast.total, rel=0.02)
    assert "A real step took" in repr(fitted)


def test_a_live_model_is_tried_with_its_frozen_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """Adafactor's temporaries are an upper bound; the progress line is overwritten."""
    model = built(bert("BertForTokenClassification"))
    model.config.architectures = None
    model.bert.embeddings.requires_grad_(False)
    fitted = fit(model, batch=2, length=64, optimizer="adafactor", attempt=True)
    low, high = fitted.forecast.interval

    assert low <= 1.02 * peak_of(fitted)
    assert peak_of(fitted) <= 1.02 * high
    shown = capsys.readouterr().err.split("\r")
    assert "in a new process" in shown[1]
    assert len(shown[2]) >= len(shown[1])
    assert not "".join(shown[2:]).strip()


def test_a_real_step_that_runs_out_of_memory_is_a_result() -> None:
    """It is shown beside the forecast, which does not change."""
    config = one_layer()
    config.vocab_size = 1 << 40  # of which no machine has the embedding
    fitted = fit(config, length=32, training=False, attempt=True)

    assert "A real step ran out of memory" in repr(fitted)
    assert fitted.forecast.total > config.vocab_size


class OwnModel(LlamaForCausalLM):  # type: ignore[misc]  # transformers is not followed
    """A model of the user's."""


class OwnConfig(LlamaConfig):  # type: ignore[misc]  # likewise
    """A configuration of the user's."""


@pytest.mark.parametrize(
    ("model", "choices", "reason"),
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
    model: Any, choices: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of another kind is tried instead."""
    monkeypatch.setattr(trial, "rooms", lambda: ((), ""))
    with pytest.raises(OptionError, match=f"cannot be tried with {reason}"):
        fit(model, length=32, attempt=True, **choices)


SETTING = Setting(length=32, device="cpu")


def test_a_configuration_without_json_cannot_be_tried() -> None:
    """A new process could not read it."""
    config = one_layer()
    config.mine = object()
    with pytest.raises(OptionError, match="is not JSON"):
        tried_step(config, SETTING)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (r"raise ImportError('gone\x1b')", "failed: ImportError: gone$"),
        (r"import os; os.write(2, b'\xff\n'); raise SystemExit('gone')", "failed: gone$"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "process was killed"),
    ],
    ids=["error", "end", "killed"],
)
def test_a_new_process_that_dies_is_one_sentence(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the last line of the process's own; it finds the same modules as this process."""
    (tmp_path / "transformers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=message):
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
    with pytest.raises(KeyboardInterrupt):
        tried_step(one_layer(), SETTING, progress=shown.append)
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


@pytest.mark.parametrize(
    ("method", "divided"),
    [
        ("zero1", {"optimizer"}),
        ("zero2", {"optimizer", "gradients"}),
        ("zero3", {"optimizer", "gradients", "weights"}),
        ("fsdp", {"optimizer", "gradients", "weights"}),
    ],
)
def test_a_rank_has_its_share(method: str, divided: set[str]) -> None:
    """One of four has a quarter of the divided parts and all others; parts add up to the total."""
    whole, rank = parted(f"{method}:4", optimizer=FUSED)

    for name in ("optimizer", "gradients", "weights"):
        share = 4 if name in divided else 1
        assert rank.full(name) == pytest.approx(whole.full(name) / share, abs=2)
    assert sum(part.bytes for part in rank.parts) == rank.total == max(rank.peaks.values())
    assert rank.bound == "lower"


def test_tensor_parallelism_divides_the_parameters_in_the_models_plan() -> None:
    """Norms are not in the plan, and stay whole."""
    whole, rank = parted("tp:4", make=llama)

    assert whole.full("weights") / 4 < rank.full("weights") < whole.full("weights")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("lora", [None, 4])
def test_a_rank_of_ddp_has_its_gradients_again_in_buckets(device: str, lora: int | None) -> None:
    """Throughout a step, those of trained weights alone; an evaluation has none."""
    whole, rank = parted("ddp:4", optimizer=FUSED, device=device, lora=lora)

    buckets = whole.full("gradients")
    assert rank.bytes("libraries") - whole.bytes("libraries") == buckets > 0
    assert rank.peaks == {name: peak + buckets for name, peak in whole.peaks.items()}
    assert sum(part.bytes for part in rank.parts) == rank.total == whole.total + buckets
    alone, evaluated = parted("ddp:4", training=False)
    assert evaluated.full("libraries") == alone.full("libraries")


def test_buckets_that_may_be_made_anew_are_not_sure_to_be_needed() -> None:
    """A GPU may have two sets of them with checkpointing; the least expected peak has neither."""
    whole, rank = parted("ddp:4", optimizer=FUSED, checkpointing=True)

    assert rank.interval[0] <= whole.total < rank.total <= rank.interval[1]


@pytest.mark.parametrize(
    "choices", [{"training": False}, {"optimizer": "sgd"}], ids=["inference", "no states"]
)
def test_a_note_says_if_nothing_is_divided(choices: dict[str, Any]) -> None:
    """It has words instead of an empty list."""
    notes = " ".join(predict(llama(), length=32, shards="zero1:8", **choices).notes)

    assert "each has a full copy, as zero1 divides nothing here;" in notes
    assert " ;" not in notes


def test_every_thread_has_a_workspace_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd's thread has one too; for an unknown device the largest size counts."""

    def libraries(device: str = "cuda") -> list[tuple[int, str]]:
        parts = predict(llama(), length=32, device=device).parts
        return [(part.bytes, part.bound) for part in parts if part.name == "libraries"]

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert libraries() == [(64 * MIB, "upper")]
    assert libraries("cpu") == []
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert libraries() == [(2 << 17, "exact")]


def checkpointed_in(layers: int) -> Any:
    """Return a model on meta of which the first layers are checkpointed."""
    model = from_config(gpt2(), torch.float32, for_training=True)
    for layer in model.transformer.h[:layers]:
        layer.gradient_checkpointing = True
    return model


def kept_by(model: Any) -> int:
    """Return the bytes that a checkpointed step keeps for its backward pass."""
    inputs = batch_for(model, 2, 64, with_labels=True)
    return training_step(model, inputs, checkpointing=True).kept


def test_nothing_of_a_checkpointed_step_stays() -> None:
    """The cache of a layer without checkpointing may be in a cycle with the node that holds it."""
    kept_by(model := checkpointed_in(1))
    gc.collect()

    assert model
    assert [one for one in gc.get_objects() if type(one) is DynamicCache] == []


def test_only_layers_with_checkpointing_on_are_recomputed() -> None:
    """In transformers, every second layer can be checkpointed."""
    assert kept_by(checkpointed_in(3)) < kept_by(checkpointed_in(1))


TARGETS = ["q_proj", "v_proj"]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")  # peft asks by the older name
def test_adapters_are_counted_as_peft_makes_them() -> None:
    """Weights, gradients and states of a real peft model after a step, to the byte; 2P + 16p in all."""
    config = llama(dtype="bfloat16")
    base = built(config).to(torch.bfloat16)
    real = get_peft_model(base, LoraConfig(r=4, target_modules=TARGETS))
    parameters = list(real.parameters())
    trained = [one for one in parameters if one.requires_grad]
    forecast = predict(config, length=32, precision="pure bf16", lora=(4, TARGETS), device="cpu")
    held = {name: forecast.full(name) for name in ("weights", "gradients", "optimizer")}
    size = sum(one.nbytes for one in trained)

    assert held["weights"] == sum(one.nbytes for one in parameters)
    assert forecast.trainable == sum(one.numel() for one in trained)
    assert (held["gradients"], held["optimizer"]) == (size, 2 * size)
    frozen = sum(one.numel() for one in parameters) - forecast.trainable
    # Though peft goes past the call of the model that it is put into.
    assert forecast.left_out == ()
    assert sum(held.values()) == 2 * frozen + 16 * forecast.trainable


def test_frozen_weights_have_no_gradients_and_no_states() -> None:
    """Patterns of names choose the trained parameters."""
    forecast = predict(bert("BertForSequenceClassification"), length=32, trainable=["classifier.*"])

    assert forecast.trainable == 128 * 2 + 2
    assert forecast.full("gradients") == 1024 + 512  # the bias rounds up to the allocator's least
    assert forecast.parameters > 100 * forecast.trainable


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int8", 128 * 256 + 256 * 4),
        ("nf4", 128 * 256 // 2 + 512 * 4 + 64),
        ("nf4-double", 128 * 256 // 2 + 512 + 2 * 4 + 64 + 1024 + 4),
    ],
)
def test_a_matrix_takes_its_bits_its_scales_and_its_tables(kind: str, expected: int) -> None:
    """Scales are a float a row in 8 bit, and a float or a byte for each 64 weights in 4 bit."""
    model = from_config(llama(), torch.bfloat16, for_training=True)
    sizes, largest = quantized_bytes(model, kind)

    assert sum(sizes[id(model.model.layers[0].mlp.up_proj.weight)]) == expected
    assert largest == 128 * 256


@pytest.mark.parametrize(
    "config",
    [llama(), llama(tie_word_embeddings=True), gpt2(), bert("BertForSequenceClassification")],
    ids=["Llama", "Llama, tied head", "GPT-2", "BERT, classifier"],
)
def test_heads_and_embeddings_are_not_quantised(config: Any) -> None:
    """By transformers' choice: the head, tied or not, and a classifier's last layer stay as they are."""
    model = from_config(config, torch.bfloat16, for_training=True)
    sizes, _ = quantized_bytes(model, "nf4")
    matrices = {name: one for name, one in model.named_parameters() if one.dim() == 2}
    kept = [name for name, one in matrices.items() if id(one) not in sizes]

    assert kept
    assert [name for name in kept if not re.search("emb|wte|wpe|head|classifier", name)] == []


def test_quantised_weights_are_a_fraction_and_adapters_train() -> None:
    """A forecast of QLoRA: smaller weights, the same adapters, and weights that are unpacked for a moment."""
    plain = predict(llama(), length=32, precision="pure bf16", lora=(4, TARGETS))
    packed = predict(llama(), length=32, quantized="nf4", lora=(4, TARGETS))

    assert packed.full("weights") < plain.full("weights")
    assert packed.trainable == plain.trainable
    assert packed.full("activations") == plain.full("activations") + 2 * 128 * 256
    assert packed.bound == "estimate"
