"""Many types of models: each is forecast, or refused with the true reason; and mixtures of experts."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.dry_run import training_step
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.on_meta import from_config
from tests.data.breadth import some_of
from tests.data.fit_models import BATCH, LENGTH, VOCABULARY, Step, built
from tests.data.fit_types import FORECAST, REFUSED, length_of, shallow
from tests.data.forecasts import predict

SINCE_5 = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="types, defaults, and products of all experts at once, are transformers 5's",
)

ALWAYS = ("bert", "clip", "gpt2", "llava", "wav2vec2")
"""Text in and out, images, sound; `make test-full` tries the others."""


@SINCE_5
@pytest.mark.parametrize("name", some_of(FORECAST, ALWAYS))
def test_a_type_is_forecast(name: str) -> None:
    """The forecast has its activations, and no part is left out."""
    forecast = predict(
        shallow(name), length=length_of(name), precision="bf16", optimizer="adamw_torch_fused"
    )

    assert forecast.bytes("activations") > 0 or forecast.moment == "optimizer"
    assert forecast.left_out == ()


@SINCE_5
@pytest.mark.parametrize("name", some_of(REFUSED, ["detr", "gemma3", "t5"]))
def test_a_type_is_refused_with_its_reason(name: str) -> None:
    """The error has the words of transformers or of the model."""
    with pytest.raises(OptionError, match=REFUSED[name]):
        predict(shallow(name), length=length_of(name), precision="bf16")


SMALL: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "d_model": 64, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4,
}  # fmt: skip
"""What each configuration takes of it."""

MIXTURES: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in (
        "afmoe", "cohere2_moe", "deepseek_v2", "doge", "dots1", "ernie4_5_moe", "exaone_moe", "flex_olmo",
        "glm4_moe", "gpt_oss", "granitemoe", "granitemoeshared", "hunyuan_v1_moe", "llama4_text",
        "mimo_v2_flash", "minimax", "minimax_m2", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "solar_open",
    )},
    "deepseek_v3": {"head_dim": 8},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "phimoe": {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0},
    "qwen3_5_moe_text": {"num_hidden_layers": 4},
    "qwen3_next": {"num_hidden_layers": 4},
}  # fmt: skip
"""By type, and what its configuration has of its own."""

ONE_BY_ONE: Mapping[str, Mapping[str, Any]] = {
    "jetmoe": {"kv_channels": 16},
    "switch_transformers": {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "decoder_start_token_id": 0,
    },
    "nllb-moe": {"architectures": ["NllbMoeForConditionalGeneration"], "decoder_start_token_id": 0},
}
"""Those that go through the experts in a loop over values, in transformers 5 too."""

IN_HALF = ("mixtral", "gpt_oss", "glm4_moe", "deepseek_v3")
"""Those that are run in bfloat16 as well."""

SLOW = ("qwen3_5_moe_text", "mimo_v2_flash")
"""Those that are built like another and take seconds to run."""

USUAL_MIXTURES = ("mixtral", "gpt_oss")
"""Experts without biases and with them; `make test-full` tries the others."""

CHOICES = [
    {"precision": precision, "training": training}
    for training in (True, False)
    for precision in ("fp32", "bf16", "fp16")
]


def small_mixture(name: str, own: Mapping[str, Any]) -> Any:
    """Return a small configuration; skip where transformers is too old for the type."""
    kind = transformers.CONFIG_MAPPING._mapping.get(name)
    if kind is None:
        pytest.skip(f"this transformers has no {name}")
    kind = transformers.CONFIG_MAPPING[name]
    known = kind()
    config = kind(**{key: value for key, value in SMALL.items() if hasattr(known, key)} | dict(own))
    if not config.architectures:
        config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[kind].__name__]
    return config


@SINCE_5
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: " ".join(map(str, choice.values())))
@pytest.mark.parametrize("name", some_of(MIXTURES, USUAL_MIXTURES))
def test_every_mixture_is_forecast_in_every_precision(name: str, choice: dict[str, Any]) -> None:
    """Training with autocast and a forward pass both have complete forecasts."""
    forecast = predict(small_mixture(name, MIXTURES[name]), length=32, **choice)

    assert forecast.bytes("activations") > 0
    assert forecast.left_out == ()


@SINCE_5
@pytest.mark.parametrize(
    "mixture",
    some_of(
        [(name, False) for name in MIXTURES if name not in SLOW]
        + [(name, True) for name in IN_HALF],
        [("mixtral", False), ("jamba", False), ("gpt_oss", True)],
    ),
)
def test_as_much_is_kept_as_in_a_real_run(mixture: tuple[str, bool]) -> None:
    """Kept bytes are exact, wherever tokens go; the backward pass of state spaces is within three percent."""
    name, half = mixture
    config = small_mixture(name, MIXTURES[name])
    model = from_config(config, torch.float32, for_training=True)
    inputs = batch_for(model, BATCH, LENGTH, with_labels=True)
    autocast = torch.bfloat16 if half else None
    forecast = training_step(model, inputs, device="cpu", autocast=autocast)
    torch.manual_seed(0)
    real = Step(built(config), config, bf16=half)

    assert forecast.kept == real.kept
    assert forecast.forward.bytes == real.forward
    assert forecast.backward.bytes == pytest.approx(real.backward, rel=0.03)


@SINCE_5
@pytest.mark.parametrize("training", [True, False])
def test_forecasts_with_experts_are_never_exact(*, training: bool) -> None:
    """They are estimates on the CPU too; a note says how tokens are counted."""
    forecast = predict(small_mixture("mixtral", {}), length=32, device="cpu", training=training)

    assert forecast.bound != "exact"
    assert any("per expert" in note for note in forecast.notes)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", some_of(ONE_BY_ONE, ["jetmoe"]))
def test_experts_in_a_loop_get_equal_numbers_of_tokens(name: str, *, training: bool) -> None:
    """Such a model has a complete forecast, and a note has the assumption."""
    forecast = predict(
        small_mixture(name, ONE_BY_ONE[name]), length=32, device="cpu", training=training
    )

    assert forecast.left_out == ()
    assert forecast.bound != "exact"
    assert any("spread evenly" in note for note in forecast.notes)


@pytest.mark.parametrize(
    ("device", "stored"), [("cpu", 6 * 10 * 4), ("cuda", 6 * 12 * 4)], ids=["CPU", "GPU"]
)
def test_rows_are_aligned_like_the_kernels(device: str, stored: int) -> None:
    """A GPU's rows begin at multiples of 16 bytes."""
    rows, weights = torch.empty(6, 8, device="meta"), torch.empty(4, 10, 8, device="meta")
    ends = torch.empty(4, dtype=torch.int32, device="meta")
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    with AsOnDevice(device):
        product = grouped(rows, weights.mT, offs=ends)

    assert product.shape == (6, 10)
    assert product.untyped_storage().nbytes() == stored - (8 if device == "cuda" else 0)


@SINCE_5
def test_transformers_own_grouped_product_is_supported() -> None:
    """It is used where PyTorch has none."""
    transformers.MixtralForCausalLM  # noqa: B018  (what defines it is imported with the model)
    rows, weights = torch.empty(6, 8, device="meta"), torch.empty(4, 8, 10, device="meta")
    ends = torch.empty(4, dtype=torch.int32, device="meta")
    with AsOnDevice("cpu") as mode:
        product = torch.ops.transformers.grouped_mm_fallback(rows, weights, offs=ends)

    assert product.shape == (6, 10)
    assert mode.routes
