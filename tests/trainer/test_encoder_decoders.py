"""Generations of models with an encoder and a decoder, by dry runs, beside real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import VisionEncoderDecoderModel

import hfmem_widget
from hfmem_widget.features.fit.live_bytes import LiveBytes
from tests.trainer.test_out_of_memory import watched
from tests.trainer.test_passes import began, failing_after, moves_with
from tests.trainer.tiny import made

ROWS, SOURCE, WORDS = 8, 128, 1000
SPECIAL = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 1}
SIZES = {"d_model": 128, "vocab_size": WORDS, **SPECIAL}
SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 256))
}
BART = {**SIZES, **SIDES, "max_position_embeddings": 512, "forced_eos_token_id": None}


def reading() -> Any:
    """Return a model that reads images: ViT's encoder, TrOCR's decoder."""
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = made("ViTModel", **shape, intermediate_size=256, image_size=96, patch_size=8)
    sides = {name: size for name, size in SIDES.items() if name.startswith("decoder")}
    crossed = {"is_decoder": True, "add_cross_attention": True, "cross_attention_hidden_size": 128}
    model = VisionEncoderDecoderModel(
        encoder=encoder, decoder=made("TrOCRForCausalLM", **SIZES, **sides, **crossed)
    )
    for name, value in SPECIAL.items():
        setattr(model.config, name, value)
        setattr(model.generation_config, name, value)
    return model


T5 = {**SIZES, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
WHISPER = {
    **SIZES,
    **SIDES,
    "max_source_positions": 100,
    "max_target_positions": 200,
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens")),
}
MODELS: dict[str, Callable[[], Any]] = {
    "T5": partial(made, "T5ForConditionalGeneration", **T5),
    "BART": partial(made, "BartForConditionalGeneration", **BART),
    "Marian": partial(made, "MarianMTModel", **BART),
    "Pegasus": partial(made, "PegasusForConditionalGeneration", **BART),
    "mBART": partial(made, "MBartForConditionalGeneration", **BART),
    "Whisper": partial(made, "WhisperForConditionalGeneration", **WHISPER),
    "ViT and TrOCR": reading,
}
GIVEN = {
    "Whisper": {"input_features": torch.rand(ROWS, 80, 200)},
    "ViT and TrOCR": {"pixel_values": torch.rand(ROWS, 3, 96, 96)},
}
IDS = torch.randint(5, WORDS, (ROWS, SOURCE), generator=torch.Generator().manual_seed(0))


def source(kind: str, rows: int = ROWS, length: int = SOURCE) -> dict[str, torch.Tensor]:
    """Return what a model generates from."""
    text = {"input_ids": IDS[:, :length], "attention_mask": torch.ones_like(IDS[:, :length])}
    return {name: one[:rows] for name, one in GIVEN.get(kind, text).items()}


def took(model: Any, given: dict[str, torch.Tensor], **options: Any) -> int:
    """Return the bytes of all tensors at the peak of a real generation, beside weights and its source."""
    live = LiveBytes(device="cpu")
    live.leave_out([*model.parameters(), *model.buffers(), *given.values()])
    with live:
        model.generate(**given, **options)
    return live.peak


@pytest.mark.parametrize("new", [8, 100], ids=["short", "long"])
@pytest.mark.parametrize("beams", [1, 4], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_generation_has_the_peak_of_a_real_one(kind: str, beams: int, new: int) -> None:
    """Within 2 %: states and both caches for each beam, and the scores of the next token."""
    model, options = MODELS[kind]().eval(), {"num_beams": beams, "max_new_tokens": new}
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(**source(kind), **options)
    fitted = hfmem_widget.fit(session)
    peak = took(model, source(kind), **options)

    assert fitted.forecast.total - began(session) == pytest.approx(peak, rel=0.02)
    is_text = kind not in GIVEN
    text = f"Sources have {SOURCE} tokens, answers up to {new + 1}."
    assert fitted.forecast.notes == ((text,) if is_text else ())


@pytest.mark.parametrize("kind", ["T5", "Whisper"])
def test_what_is_said_to_fit_takes_what_was_said(kind: str) -> None:
    """Fewer rows, new tokens and beams, and of text shorter sources: each is run for real."""
    model, options = MODELS[kind]().eval(), {"num_beams": 4, "max_new_tokens": 100}
    whole = took(model, source(kind), **options)
    failing_after(model, 3)
    session = watched(lambda: model.generate(**source(kind), **options))
    # On the host no more than half of what is free is promised.
    listed = {
        move.name.rpartition(" instead of ")[0]: move for move in moves_with(session, 1.8 * whole)
    }
    real, run = MODELS[kind]().eval(), {}
    for name, move in listed.items():
        size = int(re.search(r"\d+", name)[0])  # type: ignore[index]
        given = (
            {"rows": size} if "sequence" in name else {"length": size} if "source" in name else {}
        )
        changed = dict(part.split("=") for part in move.code.split(", ") if part and not given)
        asked = options | {option: int(value) for option, value in changed.items()}
        run[name] = took(real, source(kind, **given), **asked)

    assert len(listed) == (4 if kind == "T5" else 3)
    for name, move in listed.items():
        assert move.peak - began(session) == pytest.approx(run[name], rel=0.02), name
        assert began(session) + run[name] <= move.high, name
