"""Small models of the families for which forecasts are tested, and the memory of a real step of them."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from hfmem_widget.features.fit.live_bytes import LiveBytes

BATCH, LENGTH = 2, 64
VOCABULARY = 1024

logging.getLogger("transformers").setLevel(logging.ERROR)


def llama(**more: Any) -> Any:
    """Return a Llama with four query heads to each head of keys and values."""
    return transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"], hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=256,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip


def one_layer() -> Any:
    """Return a Llama whose forecast is quick."""
    config = llama()
    config.num_hidden_layers = 1
    return config


def gpt2(dropout: float = 0.0) -> Any:
    return transformers.GPT2Config(
        architectures=["GPT2LMHeadModel"], n_embd=128, n_layer=3, n_head=4, vocab_size=VOCABULARY,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def bert(kind: str = "BertForMaskedLM", dropout: float = 0.0) -> Any:
    return transformers.BertConfig(
        architectures=[kind], hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=256, vocab_size=VOCABULARY, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip


def t5() -> Any:
    """Return an encoder and a decoder."""
    return transformers.T5Config(
        architectures=["T5ForConditionalGeneration"], d_model=128, d_kv=32, d_ff=256, num_layers=2,
        num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip


CONFIGS: Mapping[str, Any] = {
    "Llama, grouped heads": llama(),
    "Llama, eager attention": llama(attn_implementation="eager"),
    "GPT-2": gpt2(),
    "GPT-2, dropout": gpt2(0.1),
    "BERT, masked": bert(),
    "BERT, masked, dropout": bert(dropout=0.1),
    "BERT, classifier": bert("BertForSequenceClassification"),
    "T5": t5(),
}


def built(config: Any) -> Any:
    return getattr(transformers, config.architectures[0])._from_config(config)


def batch(config: Any, rows: int = BATCH, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Return a full batch, with labels."""
    ids = torch.randint(0, VOCABULARY, (rows, length))
    is_classifier = config.architectures[0].endswith("SequenceClassification")
    labels = torch.zeros(rows, dtype=torch.long) if is_classifier else ids.clone()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class Step:
    """A real step on the CPU with autograd's own engine, with a count of its tensors as they come and go."""

    def __init__(self, model: Any, config: Any, *, bf16: bool = False, given: Any = None) -> None:
        given = batch(config) if given is None else given
        live = LiveBytes(device="cpu")
        live.leave_out([*model.parameters(), *model.buffers()])
        model.train()
        with live:
            copy = {
                name: one.clone() if isinstance(one, torch.Tensor) else one
                for name, one in given.items()
            }
            live.hold(copy.values())
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                outputs = model(**copy)
            del copy
            if bf16:
                for name in list(outputs):
                    if isinstance(outputs[name], torch.Tensor):
                        outputs[name] = outputs[name].float()
            loss = outputs.loss
            del outputs
            self.kept = live.now
            self.forward = live.peak
            live.restart()
            loss.backward()
            self.backward = live.peak
