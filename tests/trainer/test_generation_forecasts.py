"""Generations beside real ones: with an encoder and a decoder, with any cache, and however they decode."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, StaticCache, VisionEncoderDecoderModel
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.live_bytes import LiveBytes
from tests.data.breadth import some_of
from tests.trainer.test_passes import began, failing_after, moves_with
from tests.trainer.tiny import made, watched

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
    text = {"input_ids": IDS[:, :length], "attention_mask": torch.ones_like(IDS[:, :length])}
    return {name: one[:rows] for name, one in GIVEN.get(kind, text).items()}


def took(model: Any, given: dict[str, torch.Tensor], **options: Any) -> int:
    """Return the bytes of all tensors at the peak of a real generation, beside weights and its source."""
    live = LiveBytes(device="cpu")
    live.leave_out([*model.parameters(), *model.buffers(), *given.values()])
    with live:
        model.generate(**given, **options)
    return live.peak


@pytest.mark.parametrize("new", [8, 60], ids=["short", "long"])
@pytest.mark.parametrize("beams", [1, 4], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_generation_has_the_peak_of_a_real_one(kind: str, beams: int, new: int) -> None:
    """The forecast is within 2 %: states and both caches for each beam, and scores of the next token."""
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
def test_a_change_that_fits_takes_the_forecast_memory(kind: str) -> None:
    """Changes to rows, new tokens, beams and the length of a text are each run for real."""
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
        reduced = options | {option: int(value) for option, value in changed.items()}
        run[name] = took(real, source(kind, **given), **reduced)

    assert len(listed) == (4 if kind == "T5" else 3)
    for name, move in listed.items():
        assert move.peak - began(session) == pytest.approx(run[name], rel=0.02), name
        assert began(session) + run[name] <= move.high, name


PROMPT, NEW = 24, 72
TOKENS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
SHAPE = TOKENS | HEADS | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
STATES = {"hidden_size": 128, "state_size": 16, "num_hidden_layers": 2}

llama = partial(made, "LlamaForCausalLM", **SHAPE)
mistral = partial(made, "MistralForCausalLM", **SHAPE, sliding_window=32)
gemma = partial(made, "Gemma2ForCausalLM", **SHAPE, sliding_window=32)
mixtral = partial(made, "MixtralForCausalLM", **SHAPE, **EXPERTS)
mamba = partial(made, "MambaForCausalLM", **TOKENS, **STATES)
bart = MODELS["BART"]

STATIC = {"cache_implementation": "static"}
FP8 = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


class HalfLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keeps keys and values in half precision."""

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(
            one.float() for one in super().update(keys.half(), values.half(), *args, **kwargs)
        )


class NewestLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keeps the newest forty tokens."""

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        whole = super().update(keys, values, *args, **kwargs)
        self.keys, self.values = (one[:, :, -40:].clone() for one in whole)
        return whole


def of_config(kind: Any, **choices: Any) -> Any:
    return kind(config=llama().config, **choices)


Case = tuple[Callable[[], Any], dict[str, Any]]
"""A model, and the options of its call; a function makes the option."""

CASES: dict[str, Case] = {
    "growing": (llama, {}),
    "static": (llama, STATIC),
    "static, longer than asked": (llama, {**STATIC, "max_cache_len": 300}),
    "static, beams": (llama, {**STATIC, "num_beams": 3}),
    "static, sliding window": (mistral, STATIC),
    "static, some layers with a window": (gemma, STATIC),
    "static, encoder and decoder": (bart, STATIC),
    "quantised": (llama, FP8),
    "quantised, beams": (llama, {**FP8, "num_beams": 2}),
    "sliding window": (mistral, {}),
    "some layers with a window": (gemma, {}),
    "no cache": (llama, {"use_cache": False}),
    "no cache, beams": (llama, {"use_cache": False, "num_beams": 2}),
    "no cache, encoder and decoder": (bart, {"use_cache": False}),
    "one's own growing": (llama, {"cache": DynamicCache}),
    "one's own by the old name": (llama, {"past_key_values": DynamicCache}),
    "one's own without a window": (mistral, {"cache": DynamicCache}),
    "one's own static": (llama, {"cache": partial(of_config, StaticCache, max_cache_len=300)}),
    "one's own for both sides": (
        bart,
        {"cache": lambda: EncoderDecoderCache(DynamicCache(), DynamicCache())},
    ),
    "a class of one's own": (llama, {"cache": partial(Cache, layer_class_to_replicate=HalfLayer)}),
    "one that forgets": (llama, {"cache": partial(Cache, layer_class_to_replicate=NewestLayer)}),
    "prefill in pieces": (llama, {"prefill_chunk_size": 7}),
    "static, prefill in pieces": (llama, {**STATIC, "prefill_chunk_size": 7}),
    "several of each": (llama, {"do_sample": True, "num_return_sequences": 3}),
    "beams, several of each": (llama, {"num_beams": 5, "num_return_sequences": 3}),
    "beams, sampled": (llama, {"num_beams": 3, "do_sample": True}),
    "other scores": (llama, {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2}),
    "all logits of the prompt": (llama, {"logits_to_keep": 0, "max_new_tokens": 4}),
    "a single token": (llama, {"max_new_tokens": 1}),
    "experts": (mixtral, {}),
    "states instead of a cache": (mamba, {}),
}
USUAL = (
    *("static", "static, some layers with a window", "quantised", "no cache", "one's own static"),
    *("a class of one's own", "static, encoder and decoder", "beams, several of each"),
    "sliding window",
)
PROMPTS = torch.randint(5, WORDS, (ROWS, PROMPT), generator=torch.Generator().manual_seed(0))


def generated(case: Case, given: dict[str, torch.Tensor] | None = None) -> tuple[float, int]:
    """Return the forecast of a watched generation above its beginning, and the peak of a real one."""
    make, options = case
    given = given or (source("BART") if make is bart else {"input_ids": PROMPTS})

    def new_options() -> dict[str, Any]:
        made_now = {name: one() if callable(one) else one for name, one in options.items()}
        return {"max_new_tokens": NEW, **made_now}

    model = make().eval()
    try:
        peak = took(model, given, **new_options())
    except (ImportError, ValueError, TypeError) as error:
        pytest.skip(f"not in this release of transformers: {error}")
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(**given, **new_options())
    return hfmem_widget.fit(session).forecast.total - began(session), peak


@pytest.mark.parametrize("name", some_of(CASES, USUAL))
def test_a_generation_with_any_cache_has_the_peak_of_a_real_one(name: str) -> None:
    """The forecast is within 2 %, whichever tokens a cache keeps, and however the next is chosen."""
    forecast, peak = generated(CASES[name])

    assert forecast == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("kind", ["growing", "static", "static, encoder and decoder"])
def test_rows_with_padding_take_a_mask(kind: str) -> None:
    """A mask on the host is known to be padded, and without one attention takes less."""
    case = CASES[kind]
    given = source("BART") if case[0] is bart else {"input_ids": PROMPTS}
    mask = torch.ones_like(given["input_ids"])
    mask[:, :5] = 0
    forecast, peak = generated(case, {**given, "attention_mask": mask})

    assert forecast == pytest.approx(peak, rel=0.02)


def test_options_may_be_given_in_an_object() -> None:
    """Options may be given in an object, by position, too, as in the call's own signature."""
    model, options = llama().eval(), GenerationConfig(max_new_tokens=NEW, **STATIC)
    peak = took(model, {"input_ids": PROMPTS}, generation_config=options)
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(PROMPTS, options)

    assert hfmem_widget.fit(session).forecast.total - began(session) == pytest.approx(peak, 0.02)


class Uncopied(DynamicCache):  # type: ignore[misc]  # transformers has no types
    """Cannot be copied."""

    def __deepcopy__(self, _: object) -> Any:
        raise RuntimeError("not this one")


def filled() -> Any:
    cache = DynamicCache()
    llama()(PROMPTS[:1, :-4], cache=cache, use_cache=True)
    return cache


class InBlocksLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Has what says that tokens are packed many at a time."""

    residual_length = 64


REFUSED: dict[str, dict[str, Any]] = {
    "its cache had tokens as it began": {"cache": filled},
    "its options cannot be read or copied": {"cache": Uncopied},
    "its cache is quantised, many tokens at a time": {
        "cache": lambda: Cache(layers=[InBlocksLayer() for _ in range(3)])
    },
    "what output_scores needs is unknown": {"output_scores": True, "return_dict_in_generate": True},
    "what guidance_scale needs is unknown": {"guidance_scale": 2.0},
    "what assistant_model needs is unknown": {"assistant_model": llama},
    "what prompt_lookup_num_tokens needs is unknown": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_generation_with_unknown_needs_has_no_forecast(why: str) -> None:
    """One sentence says why there is no forecast."""
    with pytest.raises(OptionError, match=f"this generation has no forecast: {why}"):
        generated((llama, REFUSED[why]), {"input_ids": PROMPTS[:1]})


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_a_cache_on_the_host_has_no_forecast(kind: str) -> None:
    """Offloading needs a GPU, so the call fails here; what was asked for is known."""
    model = llama()
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(PROMPTS, max_new_tokens=2)
        with pytest.raises((AssertionError, RuntimeError)):
            model.generate(PROMPTS, max_new_tokens=2, cache_implementation=kind)

    with pytest.raises(OptionError, match="its cache is offloaded to the host"):
        hfmem_widget.fit(session)


@pytest.mark.parametrize("cut", [False, True], ids=["alike", "unlike"])
def test_a_long_sound_has_a_forecast_where_its_pieces_are_alike(*, cut: bool) -> None:
    """Whisper drops a row that has ended, and the pieces after that are smaller."""
    model = MODELS["Whisper"]().eval()
    model.generation_config.no_timestamps_token_id = WORDS - 100
    model.generation_config.is_multilingual = False
    frames = 500
    mask = torch.ones(4, frames, dtype=torch.int64)
    mask[0, 200 if cut else frames :] = 0
    given = {"input_features": torch.rand(4, 80, frames), "attention_mask": mask}
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(**given, return_timestamps=True, max_new_tokens=60)
    if cut:
        with pytest.raises(OptionError, match="its sounds were cut into unlike pieces"):
            hfmem_widget.fit(session)
        return
    pieces = [span for span in session.spans if span.kind == "prefill"]
    total = hfmem_widget.fit(session).forecast.total
    alone = took(model, {"input_features": torch.rand(4, 80, 200)}, max_new_tokens=60)
    last = session.value(pieces[-1].before, "cpu/allocated")

    assert len(pieces) > 1
    assert total - last == pytest.approx(alone, rel=0.02)
