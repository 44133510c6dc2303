"""The architectures that forecasts are checked with: a configuration, a batch and a step of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
import transformers

from hfmem_widget.features.fit.inputs import Batch, batch_for
from hfmem_widget.features.fit.on_meta import from_config

TEXT: Final[Mapping[str, Any]] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32_000, "max_position_embeddings": 4096,
    "n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 4096, "d_model": 1024, "d_ff": 4096,
    "d_kv": 64, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 16, "encoder_layers": 12,
    "decoder_layers": 12, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "ffn_dim": 4096, "word_embed_proj_dim": 1024, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "num_experts": 8,
    "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 1024, "q_lora_rank": 256,
    "kv_lora_rank": 128, "v_head_dim": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
    "use_cache": False, "image_size": 224, "patch_size": 16,
}  # fmt: skip
"""What each configuration takes of it."""

SMALL: Final[Mapping[str, Any]] = {
    **TEXT, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "ffn_dim": 128, "word_embed_proj_dim": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 8,
    "image_size": 56, "patch_size": 14, "rotary_dim": 8, "n_layers": 2, "n_heads": 4, "dim": 64,
    "hidden_dim": 128,
}  # fmt: skip

SIGHT: Final = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SPECIAL: Final = ("image_token_id", "image_token_index", "video_token_id", "vision_start_token_id")


@dataclass(frozen=True, slots=True)
class Case:
    """A model type, what its configuration has of its own, and what is done with it.

    `own` is of the model, or of the text where it has a part for images, whose own is in `sight`; fractions
    there are shares of the text's width. `kind` names the class where the type has several.
    """

    name: str
    type: str
    kind: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    sight: Mapping[str, Any] | None = None
    text: str = ""  # the type of the text's part
    whole: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "bf16"
    batch: int = 4
    length: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)
    group: str = "dense"
    base: Mapping[str, Any] = field(
        default_factory=lambda: TEXT
    )  # empty: the configuration as it is


INFER: Final = {"training": False}
LLAMA: Final = {"num_hidden_layers": 16, "vocab_size": 128_256}

CASES: Final = (
    Case(
        "Llama, inference",
        "llama",
        own={**LLAMA, "use_cache": True},
        batch=8,
        length=2048,
        options=INFER,
    ),
    Case(
        "Qwen3-MoE, inference",
        "qwen3_moe",
        own={"use_cache": True},
        batch=8,
        length=2048,
        options=INFER,
        group="experts",
    ),
    Case(
        "Whisper, inference",
        "whisper",
        "WhisperForConditionalGeneration",
        batch=8,
        own={"max_target_positions": 448},
        options=INFER,
        group="sound",
    ),
    Case(
        "BERT",
        "bert",
        "BertForSequenceClassification",
        precision="fp32",
        own={"num_hidden_layers": 24},
        batch=8,
    ),
    Case("RoBERTa", "roberta", "RobertaForMaskedLM", batch=16),
    Case("ELECTRA", "electra", "ElectraForMaskedLM", own={"embedding_size": 1024}, batch=16),
    Case(
        "DeBERTa-v2",
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        batch=8,
        own={"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    Case(
        "ModernBERT",
        "modernbert",
        "ModernBertForMaskedLM",
        batch=16,
        own={"cls_token_id": 1, "sep_token_id": 2},
    ),
    Case("GPT-2", "gpt2", batch=4, length=1024),
    Case("GPT-NeoX", "gpt_neox", batch=4, length=1024),
    Case("OPT", "opt", batch=4, length=1024),
    Case("BLOOM", "bloom", batch=4, length=512),
    Case("Llama", "llama", own=LLAMA, batch=2, length=1024),
    Case(
        "Llama, checkpointing",
        "llama",
        own=LLAMA,
        precision="pure bf16",
        batch=8,
        length=2048,
        options={"checkpointing": True},
    ),
    Case(
        "Mistral",
        "mistral",
        precision="pure bf16",
        batch=4,
        length=2048,
        own={"sliding_window": 1024},
    ),
    Case("Qwen2", "qwen2", precision="pure bf16", batch=4, length=2048),
    Case("Qwen3", "qwen3", precision="fp32", batch=2, length=1024),
    Case("Gemma 2", "gemma2", batch=2, length=1024),
    Case("Phi-3", "phi3", precision="pure bf16", batch=4, length=2048),
    Case(
        "T5",
        "t5",
        "T5ForConditionalGeneration",
        precision="fp32",
        batch=4,
        own={"decoder_start_token_id": 0},
    ),
    Case("BART", "bart", "BartForConditionalGeneration", batch=8),
    Case("Mamba", "mamba", batch=2, length=64, own={"num_hidden_layers": 12}),
    Case(
        "Mixtral",
        "mixtral",
        precision="fp32",
        batch=4,
        group="experts",
        own={"num_hidden_layers": 6},
    ),
    Case("Qwen3-MoE", "qwen3_moe", batch=4, length=1024, group="experts"),
    Case("OLMoE", "olmoe", precision="pure bf16", batch=4, length=1024, group="experts"),
    Case(
        "gpt-oss",
        "gpt_oss",
        precision="pure bf16",
        batch=4,
        length=1024,
        group="experts",
        own={"intermediate_size": 1024},
    ),
    Case(
        "DeepSeek-V3",
        "deepseek_v3",
        batch=4,
        length=512,
        group="experts",
        own={"num_key_value_heads": 16, "head_dim": 32},
    ),
    Case("Granite-MoE", "granitemoe", batch=4, group="experts", own={"intermediate_size": 1024}),
    Case(
        "Phi-MoE",
        "phimoe",
        precision="pure bf16",
        batch=4,
        group="experts",
        own={"intermediate_size": 1024, "router_jitter_noise": 0.0, "input_jitter_noise": 0.0},
    ),
    Case(
        "LLaVA",
        "llava",
        text="llama",
        sight={"model_type": "clip_vision_model"},
        group="images",
        batch=4,
        length=1024,
    ),
    Case(
        "Qwen2.5-VL",
        "qwen2_5_vl",
        text="qwen2_5_vl_text",
        group="images",
        own={"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
        sight={
            "depth": 12,
            "num_heads": 16,
            "out_hidden_size": 1.0,
            "fullatt_block_indexes": [3, 7, 11],
            "patch_size": 14,
        },
    ),
    Case(
        "PaliGemma",
        "paligemma",
        text="gemma",
        sight={"model_type": "siglip_vision_model"},
        whole={"projection_dim": 1.0},
        group="images",
    ),
    Case(
        "Gemma 3",
        "gemma3",
        text="gemma3_text",
        sight={"model_type": "siglip_vision_model"},
        whole={"mm_tokens_per_image": 4},
        group="images",
    ),
    Case(
        "Idefics3",
        "idefics3",
        text="llama",
        sight={},
        precision="pure bf16",
        group="images",
        batch=8,
    ),
    Case(
        "Llama 3.2 Vision",
        "mllama",
        text="mllama_text_model",
        sight={
            "max_num_tiles": 4,
            "vision_output_dim": 2.0,
            "attention_heads": 16,
            "num_global_layers": 2,
            "intermediate_layers_indices": [1],
        },
        own={"cross_attention_layers": [1]},
        precision="pure bf16",
        group="images",
    ),
    Case(
        "CLIP",
        "clip",
        "CLIPModel",
        text="clip_text_model",
        sight={},
        own={"max_position_embeddings": 77},
        batch=32,
        length=77,
        group="images",
    ),
    Case("ViT", "vit", "ViTForImageClassification", batch=64, group="images"),
    Case(
        "SegFormer",
        "segformer",
        "SegformerModel",
        batch=32,
        group="images",
        own={"num_attention_heads": [1, 2, 5, 8], "num_hidden_layers": 4, "image_size": 512},
    ),
    Case(
        "Whisper",
        "whisper",
        "WhisperForConditionalGeneration",
        batch=4,
        length=448,
        own={"max_target_positions": 448},
        group="sound",
    ),
    Case(
        "Wav2Vec2",
        "wav2vec2",
        "Wav2Vec2ForSequenceClassification",
        batch=4,
        length=80_000,
        group="sound",
        own={"apply_spec_augment": False, "layerdrop": 0.0},
    ),
)


def config_of(case: Case, *, small: bool) -> Any:
    """Return the configuration of a case."""
    base = {name: SMALL.get(name, size) if small else size for name, size in case.base.items()}
    kind = transformers.CONFIG_MAPPING[case.type]
    own = {name: value for name, value in case.own.items() if not small or name in SMALL_TOO}
    if small and "num_key_value_heads" in case.own:
        own["num_key_value_heads"] = base["num_attention_heads"]
    if case.sight is None:
        config = kind(**accepted(kind, base) | own)
    else:
        text = accepted(transformers.CONFIG_MAPPING[case.text], base) | own
        if small and "rope_scaling" in text:
            text["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
        whole = {name: scaled(value, base) for name, value in case.whole.items()}
        sight = sight_of(case, base, small=small) | whole
        config = kind(text_config={"model_type": case.text, **text}, vision_config=sight, **whole)
        for at, name in enumerate(SPECIAL):
            if hasattr(config, name):
                setattr(config, name, base["vocab_size"] - 1 - at)
    if case.kind:
        config.architectures = [case.kind]
    return config


def accepted(kind: Any, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration takes of a base."""
    known = kind()
    return {name: value for name, value in base.items() if hasattr(known, name)}


def scaled(value: Any, base: Mapping[str, Any]) -> Any:
    """Return a share of the text's width in elements, and anything else as it is."""
    return int(value * base["hidden_size"]) if isinstance(value, float) else value


def sight_of(case: Case, base: Mapping[str, Any], *, small: bool) -> dict[str, Any]:
    """Return the configuration of the part for images."""
    sight = {name: base[name] for name in (*SIGHT, "image_size", "patch_size")}
    sight["num_hidden_layers"] = 2 if small else 12
    sight |= {name: scaled(value, base) for name, value in (case.sight or {}).items()}
    if small:
        less = {"depth": 2, "num_heads": 4, "attention_heads": 4, "fullatt_block_indexes": [1]}
        sight |= {name: value for name, value in less.items() if name in sight}
    return sight


SMALL_TOO: Final = {
    "max_target_positions", "cls_token_id", "sep_token_id", "relative_attention", "pos_att_type",
    "max_position_embeddings", "router_jitter_noise", "input_jitter_noise", "apply_spec_augment",
    "layerdrop", "decoder_start_token_id", "num_attention_heads", "hidden_sizes", "use_cache",
    "rope_scaling", "cross_attention_layers", "sliding_window",
}  # fmt: skip
"""What a small model has of a case's own, too."""


def ghost_of(case: Case, config: Any) -> Any:
    """Return the model on the meta device."""
    training = case.options.get("training", True)
    is_half = case.precision.startswith("pure") or not training
    dtype = torch.bfloat16 if is_half else torch.float32
    return from_config(config, dtype, for_training=training)


def built(case: Case, config: Any, device: str) -> tuple[Any, Batch]:
    """Return the model with random weights, and its batch."""
    training = case.options.get("training", True)
    ghost = ghost_of(case, config)
    batch = batch_for(ghost, case.batch, case.length, with_labels=training)
    with torch.device(device):
        model = type(ghost)._from_config(config, dtype=ghost.dtype)  # noqa: SLF001  (as AutoModel.from_config)
    if case.options.get("checkpointing"):
        # Renamed in transformers 5.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.train(training), batch


def loss_of(case: Case, model: Any, given: Mapping[str, Any], device: str) -> torch.Tensor:
    """Run forward as a Trainer does, and return the loss."""
    half = case.precision == "bf16"
    with torch.autocast(device, torch.bfloat16, enabled=half):
        outputs = model(**given)
    for name in list(outputs) if half else ():
        if isinstance(outputs[name], torch.Tensor) and outputs[name].is_floating_point():
            outputs[name] = outputs[name].float()
    loss: torch.Tensor | None = getattr(outputs, "loss", None)
    if loss is not None:
        return loss
    first = next(
        one for one in outputs.values() if isinstance(one, torch.Tensor) and one.is_floating_point()
    )
    mean: torch.Tensor = first.float().mean()
    return mean


def smaller(case: Case) -> Case:
    """Return a case that a CPU does in seconds."""
    return replace(case, batch=2, length=min(case.length, 4000 if case.length > 10_000 else 64))
