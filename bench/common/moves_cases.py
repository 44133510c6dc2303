"""What users run until memory runs out: models of random weights that train, are evaluated, or generate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hfmem_widget.text import checkpointing_option

DEEP: Final = {
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
}
LLAMA: Final = {
    **DEEP,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "head_dim": 64,
}
STEADY_GPT2: Final = {
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "eos_token_id": None,
}
STEADY_BERT: Final = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
"""Without dropout, each step of a model is the same."""

GPT2: Final = {"n_layer": 12, "n_embd": 1024, "n_head": 16, "n_positions": 2048, **STEADY_GPT2}
BERT: Final = {**DEEP, "max_position_embeddings": 514, **STEADY_BERT}
SIDES: Final = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 8), ("attention_heads", 16), ("ffn_dim", 4096))
}
SMALL: Final = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "d_ff": 128,
    "d_kv": 16,
    "num_layers": 1,
    "num_heads": 4,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "dim": 64,
    "hidden_dim": 128,
    "n_layers": 1,
    "n_heads": 4,
    "hidden_sizes": [32, 64, 96, 128],
    "depths": [1, 1, 1, 1],
    "embedding_size": 32,
    "max_source_positions": 100,
}


@dataclass(frozen=True, slots=True)
class Case:
    """What a user runs until memory runs out; a row has `tokens`, or is an image or a sound."""

    name: str
    cause: str
    kind: str  # the class, whose configuration is named alike
    own: Mapping[str, Any]
    gib: float
    rows: int
    tokens: int = 512
    labels: str = "ids"  # or "row", "token", or a number of tokens
    options: Mapping[str, Any] = field(default_factory=dict)  # of TrainingArguments
    run: str = "trainer.train()"
    config: str = ""
    lora: bool = False
    count: int = 0  # rows that there are
    generate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The name of the configuration's class."""
        return self.config or f"{self.kind.partition('For')[0]}Config"


T5: Final = {
    "d_model": 1024,
    "d_ff": 4096,
    "d_kv": 64,
    "num_layers": 8,
    "num_heads": 16,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
WHISPER: Final = {
    **SIDES,
    "d_model": 1024,
    "dropout": 0.0,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size": 51865,
}
VIT: Final = {**BERT, "image_size": 224, "patch_size": 16}
METRICS: Final = {"run": "trainer.evaluate()", "labels": "ids"}

CASES: Final = (
    Case("BERT", "activations", "BertForSequenceClassification", BERT, 9, 32, labels="row"),
    Case("RoBERTa", "logits", "RobertaForMaskedLM", {**BERT, "vocab_size": 50265}, 10, 16),
    Case("GPT-2", "activations", "GPT2LMHeadModel", GPT2, 12, 8, 1024, config="GPT2Config"),
    Case(
        "GPT-2, 3 batches a step",
        "accumulation",
        "GPT2LMHeadModel",
        GPT2,
        12,
        8,
        1024,
        config="GPT2Config",
        options={"gradient_accumulation_steps": 3},
    ),
    Case(
        "GPT-2, bf16",
        "activations",
        "GPT2LMHeadModel",
        GPT2,
        10,
        8,
        1024,
        config="GPT2Config",
        options={"bf16": True},
    ),
    Case("Llama", "logits", "LlamaForCausalLM", {**LLAMA, "vocab_size": 128256}, 12, 4, 1024),
    Case(
        "Llama, checkpointing",
        "activations",
        "LlamaForCausalLM",
        LLAMA,
        7,
        32,
        1024,
        options={checkpointing_option(): True, "bf16": True},
    ),
    Case("Llama", "optimizer", "LlamaForCausalLM", {**LLAMA, "num_hidden_layers": 32}, 8, 1, 256),
    Case("Llama, LoRA", "LoRA", "LlamaForCausalLM", LLAMA, 6, 16, 1024, lora=True),
    Case("Qwen3", "activations", "Qwen3ForCausalLM", LLAMA, 10, 8, 1024),
    Case("Qwen3, bf16", "long row", "Qwen3ForCausalLM", LLAMA, 8, 4, 4096, options={"bf16": True}),
    Case(
        "Gemma 3",
        "logits",
        "Gemma3ForCausalLM",
        {**LLAMA, "vocab_size": 262144, "num_hidden_layers": 6},
        14,
        4,
        1024,
        config="Gemma3TextConfig",
    ),
    Case(
        "Qwen3-MoE",
        "activations",
        "Qwen3MoeForCausalLM",
        {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024},
        14,
        8,
        1024,
        options={"bf16": True},
    ),
    Case(
        "OPT",
        "optimizer",
        "OPTForCausalLM",
        {
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "word_embed_proj_dim": 1024,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "dropout": 0.0,
        },
        5,
        2,
        256,
    ),
    Case("T5", "activations", "T5ForConditionalGeneration", T5, 9, 32, labels="128"),
    Case(
        "BART",
        "activations",
        "BartForConditionalGeneration",
        {**SIDES, "d_model": 1024, "dropout": 0.0, "forced_eos_token_id": None},
        11,
        16,
        1024,
        labels="256",
    ),
    Case(
        "DeBERTa-v2",
        "attention",
        "DebertaV2ForSequenceClassification",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        10,
        8,
        labels="row",
    ),
    Case(
        "ModernBERT",
        "activations",
        "ModernBertForMaskedLM",
        {**DEEP, "intermediate_size": 2624},
        10,
        16,
        1024,
    ),
    Case(
        "DistilBERT",
        "activations",
        "DistilBertForTokenClassification",
        {
            "dim": 1024,
            "hidden_dim": 4096,
            "n_layers": 8,
            "n_heads": 16,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        8,
        32,
        labels="token",
    ),
    Case("ViT", "vision", "ViTForImageClassification", VIT, 7, 96, labels="row"),
    Case(
        "ViT, bf16",
        "vision",
        "ViTForImageClassification",
        VIT,
        6,
        160,
        labels="row",
        options={"bf16": True},
    ),
    Case(
        "ResNet",
        "vision",
        "ResNetForImageClassification",
        {"depths": [3, 8, 36, 3]},
        9,
        128,
        labels="row",
    ),
    Case("Whisper", "sound", "WhisperForConditionalGeneration", WHISPER, 10, 16, labels="128"),
    Case(
        "GPT-2",
        "predictions",
        "GPT2LMHeadModel",
        GPT2,
        7,
        8,
        config="GPT2Config",
        count=64,
        options={"per_device_eval_batch_size": 8},
        **METRICS,
    ),
    Case(
        "RoBERTa",
        "predictions",
        "RobertaForMaskedLM",
        {**BERT, "vocab_size": 50265},
        6,
        8,
        count=64,
        options={"per_device_eval_batch_size": 8},
        **METRICS,
    ),
    Case(
        "BERT",
        "evaluation",
        "BertForMaskedLM",
        BERT,
        8,
        8,
        run="trainer.evaluate()",
        count=256,
        options={"per_device_eval_batch_size": 96},
    ),
    Case(
        "Llama",
        "KV cache",
        "LlamaForCausalLM",
        LLAMA,
        3,
        64,
        128,
        run="generate",
        generate={"max_new_tokens": 1000, "do_sample": False},
    ),
    Case(
        "GPT-2, 4 beams",
        "generation",
        "GPT2LMHeadModel",
        GPT2,
        3.5,
        16,
        128,
        config="GPT2Config",
        run="generate",
        generate={"max_new_tokens": 300, "num_beams": 4, "do_sample": False},
    ),
    Case(
        "Qwen3",
        "long prompts",
        "Qwen3ForCausalLM",
        LLAMA,
        6,
        64,
        2048,
        run="generate",
        generate={"max_new_tokens": 64, "do_sample": False},
    ),
    Case(
        "Gemma 3",
        "generation",
        "Gemma3ForCausalLM",
        {**LLAMA, "vocab_size": 262144, "num_hidden_layers": 6},
        2,
        64,
        256,
        config="Gemma3TextConfig",
        run="generate",
        generate={"max_new_tokens": 500, "do_sample": False},
    ),
    Case(
        "T5, 4 beams",
        "generation",
        "T5ForConditionalGeneration",
        T5,
        4,
        32,
        generate={"max_new_tokens": 200, "num_beams": 4, "do_sample": False},
    ),
    Case(
        "BART",
        "KV cache",
        "BartForConditionalGeneration",
        {**SIDES, "d_model": 1024, "decoder_start_token_id": 1, "forced_eos_token_id": None},
        3.5,
        64,
        generate={"max_new_tokens": 400, "do_sample": False},
    ),
)
