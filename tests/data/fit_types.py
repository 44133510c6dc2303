"""Types of models in transformers, with their default configurations, and the results of their forecasts."""

from collections.abc import Mapping
from typing import Any, Final

import transformers

LENGTH: Final = 64
SAMPLES: Final = 16_000  # of raw sound

LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")

OTHERWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    "funnel": {"block_sizes": [2, 2, 2]},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "jamba": {"num_hidden_layers": 8},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2},
}
"""What makes models shallow whose layers differ or are set otherwise; each kind of layer is there."""

DEEP: Final = ("mllama", "vipllava")
"""Those whose parts need all their layers, which are named one by one."""

FORECAST: Final = (
    "albert", "bart", "beit", "bert", "big_bird", "blenderbot", "blip", "bloom", "camembert",
    "clip", "clipseg", "cohere", "data2vec-audio", "deberta", "deberta-v2", "deepseek_v3", "deit",
    "dinov2", "distilbert", "dpt", "electra", "ernie4_5_moe", "falcon", "falcon_mamba", "funnel",
    "gemma", "gemma2", "glm4", "glm4_moe", "got_ocr2", "gpt2", "gpt_neo", "gpt_neox", "gpt_oss",
    "gptj", "granite", "granitemoe", "hubert", "idefics2", "internvl", "jamba", "jetmoe",
    "layoutlmv3", "lfm2_vl", "llama", "llama4_text", "llava", "llava_next", "llava_onevision",
    "longformer", "m2m_100", "mamba", "mamba2", "marian", "mbart", "minimax", "mistral", "mistral3",
    "mixtral", "mllama", "mobilevit", "modernbert", "mpnet", "mpt", "mt5", "nllb-moe", "olmo",
    "olmo2", "olmoe", "opt", "paligemma", "pegasus", "persimmon", "phi", "phi3", "phimoe",
    "prophetnet", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen3", "qwen3_moe", "resnet", "roberta",
    "rwkv", "segformer", "siglip", "speech_to_text", "stablelm", "starcoder2", "swin", "vipllava",
    "vit", "wav2vec2", "wavlm", "whisper", "xlm-roberta", "yolos",
)  # fmt: skip
"""Those that are forecast whole."""

REFUSED: Final[Mapping[str, str]] = {
    "aria": "Number of patches 49 not found",
    "dbrx": "rope_theta",
    "detr": "requires the timm library",
    "gemma3": "stride should not be zero",
    "idefics3": "is invalid for input of size",
    "longt5": "decoder_start_token_id",
    "nemotron": "NoneType",
    "qwen3_vl": "Image features and image tokens do not match",
    "reformer": "is_decoder=True",
    "smolvlm": "is invalid for input of size",
    "switch_transformers": "decoder_start_token_id",
    "t5": "decoder_start_token_id",
}
"""Those whose defaults make no model that runs, and a word of the reason; checkpoints have other sizes."""


def shallow(name: str) -> Any:
    """Return the default configuration of a type with two layers, where a number sets them."""
    kind = transformers.CONFIG_MAPPING[name]
    made = kind(**OTHERWISE.get(name, dict.fromkeys(_numbers_of_layers(kind()), 2)))
    if name not in DEEP:
        for part in filter(None, (getattr(made, one, None) for one in kind.sub_configs)):
            for layers in _numbers_of_layers(part):
                setattr(part, layers, 2)
    return made


def _numbers_of_layers(config: Any) -> list[str]:
    return [name for name in LAYERS if isinstance(getattr(config, name, None), int)]


def length_of(name: str) -> int:
    """Return the length of a row: tokens, or samples of sound."""
    sounds = {"wav2vec2", "hubert", "wavlm", "unispeech", "sew", "data2vec-audio", "speecht5"}
    return SAMPLES if name in sounds else LENGTH
