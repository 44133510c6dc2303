"""Models of transformers with one layer or two, trainings of them, and the peaks of their real steps."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.moves import DryRuns, moves_of
from hfmem_widget.features.fit.predict import changed_forecast
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.training import Training
from hfmem_widget.session import Device, Move
from tests.trainer.tiny import made

Make = Callable[[], Any]

SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None}
SIDES = {f"{side}_{name}": size for side in ("encoder", "decoder")
         for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 128))}  # fmt: skip

gpt2 = partial(
    made, "GPT2LMHeadModel", vocab_size=64, n_positions=128, n_embd=64, n_layer=1, n_head=2,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0), **IDS,
)  # fmt: skip
gpt2_of_two_layers = partial(gpt2, n_layer=2)
llama = partial(made, "LlamaForCausalLM", **SMALL)
bert_classifier = partial(made, "BertForSequenceClassification", **SMALL, **NO_DROPOUT)
bart = partial(
    made, "BartForConditionalGeneration", vocab_size=64, d_model=64, max_position_embeddings=128,
    dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    forced_eos_token_id=None, **SIDES,
)  # fmt: skip
MODELS: dict[str, Make] = {
    "gpt2": gpt2,
    "llama": llama,
    "qwen3": partial(made, "Qwen3ForCausalLM", **SMALL, num_key_value_heads=1, head_dim=32),
    "bert_masked": partial(made, "BertForMaskedLM", **SMALL, **NO_DROPOUT),
    "bert_classifier": bert_classifier,
    "distilbert": partial(
        made, "DistilBertForTokenClassification", vocab_size=64, dim=64, hidden_dim=128, n_layers=1,
        n_heads=2, max_position_embeddings=128, dropout=0.0, attention_dropout=0.0,
    ),
    "bart": bart,
}  # fmt: skip
vit = partial(
    made, "ViTForImageClassification", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, image_size=48, **NO_DROPOUT,
)  # fmt: skip
resnet = partial(
    made, "ResNetForImageClassification", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]
)
t5 = partial(
    made, "T5ForConditionalGeneration", vocab_size=64, d_model=64, d_ff=128, d_kv=32, num_layers=1,
    num_heads=2, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
)  # fmt: skip
whisper = partial(
    made, "WhisperForConditionalGeneration", vocab_size=64, d_model=64, max_source_positions=100,
    max_target_positions=64, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, **SIDES,
)  # fmt: skip


def training(make: Make, room: float = math.inf, optimizer: str = "AdamW", **setting: Any) -> Any:
    """Return a training of eight rows of 64 tokens, of a model that is here."""
    torch.manual_seed(0)
    model = make()
    steps = getattr(torch.optim, optimizer)(model.parameters())
    ran = Setting(batch=8, length=64, precision="fp32", optimizer=optimizer, device="cpu")
    ran = replace(ran, **setting)
    forecast = changed_forecast(model, ran, steps)
    return Training(Device("cpu", ""), model, steps, ran, forecast, "model", room)


def moves(run: Any) -> list[Move]:
    return list(moves_of(run, DryRuns(run, time.monotonic() + 60)))


def options_of(move: Move) -> dict[str, Any]:
    return {change.name: eval(change.value) for change in move.changes}


def states_of(optimizer: Any) -> list[Any]:
    return [each for state in optimizer.state.values() for each in state.values()]


def real_peak(make: Make, rows: dict[str, Any], checkpointing: bool, batches: int = 1) -> float:
    """Return the bytes at the peak of a real step of some batches."""
    model = (ran := training(make)).model.train()
    if checkpointing:
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return peak_of(model, ran.optimizer, rows, batches)


def peak_of(model: Any, optimizer: Any, rows: dict[str, Any], batches: int = 1) -> float:
    """Return the bytes of all tensors at the peak of a second step, counted as they are made."""
    for _ in range(2):
        live = LiveBytes(device="cpu")
        live.leave_out([*model.parameters(), *model.buffers(), *states_of(optimizer)])
        with live:
            for _ in range(batches):
                batch = {name: tensor.clone() for name, tensor in rows.items()}
                result = model(**batch)
                loss = result["loss"]
                del result
                loss.backward()
                del loss, batch
            optimizer.step()
            optimizer.zero_grad()
    held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return float(live.peak + held + sum(one.nbytes for one in states_of(optimizer) if one.ndim))
