"""Models of several parts: those without input are named, and their forecasts are never called exact."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers

from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.dry_run import Step as DryStep
from hfmem_widget.features.fit.dry_run import training_step
from hfmem_widget.features.fit.html import fit_bundle
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.trial import real_batch
from hfmem_widget.text import GIB
from tests.data.breadth import some_of
from tests.data.fit_models import VOCABULARY, Step, built, one_layer
from tests.data.forecasts import predict
from tests.unit.features.fit.test_fit import gpu, with_rooms

TEXT: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
PAIRED: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": VOCABULARY, "max_position_embeddings": 77, "eos_token_id": 2,
}  # fmt: skip
SECTIONS = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}

PARTS: Mapping[str, Mapping[str, Any]] = {
    "Gemma3ForConditionalGeneration": {
        "text_config": {"model_type": "gemma3_text", "head_dim": 16, **TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **IMAGE},
        "mm_tokens_per_image": 4,
    },
    "Idefics3ForConditionalGeneration": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": IMAGE,
    },
    "Llama4ForConditionalGeneration": {
        "text_config": {"intermediate_size_mlp": 64, "head_dim": 16, "num_local_experts": 4, **TEXT},
        "vision_config": {
            **IMAGE, "intermediate_size": 128, "vision_output_dim": 64, "projector_input_dim": 64,
            "projector_output_dim": 64,
        },
    },
    "LlavaForConditionalGeneration": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", "projection_dim": 32, **IMAGE},
    },
    "PaliGemmaForConditionalGeneration": {
        "text_config": {"model_type": "gemma", "head_dim": 16, **TEXT},
        "vision_config": {"model_type": "siglip_vision_model", "projection_dim": 64, **IMAGE},
        "projection_dim": 64,
        "hidden_size": 64,
    },
    "Qwen2VLForConditionalGeneration": {
        "text_config": {"model_type": "qwen2_vl_text", **SECTIONS, **TEXT},
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4},
    },
    "Qwen2_5_VLForConditionalGeneration": {
        "text_config": {"model_type": "qwen2_5_vl_text", **SECTIONS, **TEXT},
        "vision_config": {
            "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 4, "intermediate_size": 64,
        },
    },
    "SmolVLMForConditionalGeneration": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": IMAGE,
    },
}  # fmt: skip
"""By class: those in whose text tokens stand for images."""

RAISES = {"Llama4ForConditionalGeneration": "5.24.0"}
"""By class, the release of transformers whose own forward pass raises an error, and so is not tried."""

WITH_IMAGES = some_of(
    [kind for kind in PARTS if RAISES.get(kind) != transformers.__version__],
    ["LlavaForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
)

SPECIAL = (
    *("image_token_id", "image_token_index", "video_token_id"),
    *("vision_start_token_id", "vision_end_token_id"),
)
ALL_AT_ONCE = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="before transformers 5 parts go by values of tensors",
)

WHOLE: Mapping[str, Mapping[str, Any]] = {
    "CLIPModel": {"text_config": PAIRED, "vision_config": IMAGE, "projection_dim": 32},
    "SiglipModel": {"text_config": PAIRED, "vision_config": IMAGE},
    "VisionEncoderDecoderModel": {
        "encoder": {"model_type": "vit", **IMAGE},
        "decoder": {
            "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY,
            "add_cross_attention": True, "is_decoder": True,
        },
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
    },
    "WhisperForConditionalGeneration": {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "vocab_size": VOCABULARY, "max_source_positions": 50, "max_target_positions": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
}  # fmt: skip
"""By class: those of which all parts get input."""


def config_of(kind: str, choices: Mapping[str, Any]) -> Any:
    # transformers 4 takes its parts out of what it is given.
    config = getattr(transformers, kind).config_class(**copy.deepcopy(dict(choices)))
    config.architectures = [kind]
    for index, name in enumerate(SPECIAL):
        if hasattr(config, name):
            setattr(config, name, VOCABULARY - 1 - index)
    return config


def dry_and_real(config: Any, length: int, **more: Any) -> tuple[DryStep, Step]:
    """Return a dry step and a real one, of two rows each."""
    model = from_config(config, torch.float32, for_training=True)
    inputs = batch_for(model, 2, length, with_labels=True, **more)
    forecast = training_step(model, inputs, device="cpu")
    return forecast, Step(built(config), config, given=real_batch(inputs, "cpu"))


@ALL_AT_ONCE
@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_an_image_is_part_of_each_row(kind: str) -> None:
    """The whole model runs, and keeps as much as a real step with an image in each row."""
    forecast, real = dry_and_real(config_of(kind, PARTS[kind]), 40, image=IMAGE["image_size"] * 2)

    # Qwen2.5-VL turns windows of patches around, of which a row of indices stays.
    assert forecast.kept == pytest.approx(real.kept, abs=256)
    assert forecast.forward.bytes == pytest.approx(real.forward, abs=256)
    assert forecast.backward.bytes == pytest.approx(real.backward, abs=256)


@ALL_AT_ONCE
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_assumptions_on_an_image_are_noted(kind: str, *, training: bool) -> None:
    """A note has its size and its tokens; nothing is left out, and the forecast is not called exact."""
    config = config_of(kind, PARTS[kind])
    forecast = predict(config, length=32, device="cpu", training=training, image=56)

    assert forecast.left_out == ()
    assert forecast.bound in {"estimate", "upper"}
    assert any("one image of" in note and "tokens of 32" in note for note in forecast.notes)


@ALL_AT_ONCE
def test_a_row_is_as_long_as_its_image_needs() -> None:
    """A row shorter than its image is made longer, with a note."""
    kind = "LlavaForConditionalGeneration"
    forecast = predict(config_of(kind, PARTS[kind]), length=4)

    assert any("longer than 4 tokens" in note for note in forecast.notes)


def test_a_part_without_input_is_named() -> None:
    """Its weights are counted; the forecast is at least that much."""

    class Guarded(transformers.LlamaForCausalLM):  # type: ignore[misc]  # transformers is not typed
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.guard = transformers.LlamaModel(config)

    forecast = predict(Guarded(one_layer()), length=32, device="cpu")

    assert forecast.left_out == ("guard",)
    assert forecast.bound == "lower"
    assert {part.bound for part in forecast.parts if part.name == "activations"} == {"lower"}
    assert any("guard (LlamaModel)" in note for note in forecast.notes)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", WHOLE)
def test_a_model_whose_parts_all_run_lacks_nothing(kind: str, *, training: bool) -> None:
    """Images and sound are made from the configuration."""
    forecast = predict(config_of(kind, WHOLE[kind]), length=32, device="cpu", training=training)

    assert forecast.left_out == ()
    assert forecast.bytes("activations") > 0


@pytest.mark.parametrize("kind", ["CLIPModel", "SiglipModel"])
def test_text_and_images_keep_as_much_as_a_real_run(kind: str) -> None:
    """The kept bytes of both towers are exact."""
    forecast, real = dry_and_real(config_of(kind, WHOLE[kind]), 32)

    assert forecast.kept == real.kept
    assert forecast.forward.bytes == real.forward


@pytest.mark.parametrize("training", [True, False])
def test_any_module_has_a_partial_forecast(*, training: bool) -> None:
    """It has weights, gradients and optimizer states, and a note that activations are left out."""
    layer = torch.nn.Linear(1000, 100, bias=False)
    fitted = fit(layer, training=training, optimizer="adamw_torch").forecast
    sizes = {part.name: part.bytes for part in fitted.parts}

    weights = {"weights": 400_000}
    assert sizes == (
        weights | {"gradients": 400_000, "optimizer": 800_000} if training else weights
    )
    assert fitted.bound == "lower"
    assert fitted.left_out == ("activations",)
    assert any("Linear" in note for note in fitted.notes)


def test_an_incomplete_forecast_never_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it alone is too large, it does not fit; otherwise verdict and largest batch are unknown."""
    layer = torch.nn.Linear(1 << 14, 1 << 12)
    for room, fits in ((gpu(100 * GIB), None), (gpu(0.1 * GIB), False)):
        with_rooms(monkeypatch, room)
        fitted = fit(layer)
        text = fit_bundle(fitted)["text/plain"]

        assert fitted.verdicts[0].fits is fits
        assert fitted.verdicts[0].largest_batch is None
        assert "At least: peak without activations." in text
        assert "exact" not in text.splitlines()[-1]
        assert "Fits on" not in text


TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SOUND = {"max_length": 64, "num_mel_bins": 32}


@pytest.mark.parametrize(
    ("kind", "choices", "size"),
    [
        ("ViTForImageClassification", {**TINY, "image_size": 32}, ""),
        ("ResNetForImageClassification", {"depths": [1, 1], "hidden_sizes": [8, 16]}, ""),
        ("ViTMAEForPreTraining", {**TINY, "image_size": 32}, ""),
        ("ASTForAudioClassification", {**TINY, **SOUND}, ""),
        ("Wav2Vec2ForCTC", {**TINY, "vocab_size": 40}, " \u00d7 8,000"),
        ("BertModel", TINY, " \u00d7 512"),
    ],
)
def test_images_have_no_length(
    monkeypatch: pytest.MonkeyPatch, kind: str, choices: dict[str, Any], size: str
) -> None:
    """Spectra of a fixed size have none either; rows of tokens and of raw sound have one."""
    with_rooms(monkeypatch, gpu(GIB))
    length = 8000 if "Wav2Vec2" in kind else 512
    fitted = fit(config_of(kind, choices), batch=2, longest=True, length=length)

    assert f" \u00b7 batch 2{size} \u00b7 " in repr(fitted)
    assert (fitted.verdicts[0].longest is None) == (size == "")
