"""KV caches of real models that decode: to the byte, at every step, however they decode."""

import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

import hfmem_widget
from hfmem_widget.drivers import install as attaching
from hfmem_widget.session import Session
from hfmem_widget.view.tokens import kv_cache_text
from tests.data.breadth import some_of
from tests.data.caches import Look, alive, owned
from tests.trainer import tiny
from tests.trainer.test_generation_forecasts import MODELS
from tests.trainer.tiny import of_kind, outline

WORDS = 99
SIZES = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
NEW = 12

IDS = torch.randint(3, WORDS, (3, 12), generator=torch.Generator().manual_seed(0))


SMALL = SIZES | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

llama = partial(tiny.made, "LlamaForCausalLM", **SMALL)
mistral = partial(tiny.made, "MistralForCausalLM", **SMALL, sliding_window=8)
gpt2 = partial(tiny.made, "GPT2LMHeadModel", **SIZES, n_embd=32, n_layer=2, n_head=4)
mamba = partial(
    tiny.made, "MambaForCausalLM", **SIZES, hidden_size=32, state_size=8, num_hidden_layers=2
)
t5 = MODELS["T5"]
whisper = MODELS["Whisper"]
"""It has a `generate` of its own, which calls the usual one for each piece of a sound."""


def made(model: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return model().eval()


def generate(model: Any, ids: Any = IDS, **options: Any) -> tuple[Session, Look, Any, int]:
    gc.collect()
    look = Look()
    with hfmem_widget.watch(quiet=True) as session:
        look.session = session
        usual = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
        result = model.generate(
            ids, stopping_criteria=StoppingCriteriaList([look]), **(usual | options)
        )
    return session, look, result, owned(*alive())


def session_of(model: Any, ids: Any = IDS, **options: Any) -> Session:
    with hfmem_widget.watch(quiet=True) as session:
        model.generate(ids, **{"max_new_tokens": NEW, **options})
    return session


def cache_now(session: Session) -> float:
    """Return the bytes of all caches, read once more."""
    with hfmem_widget.span("look"):
        pass
    return session.latest("cpu/kv_cache")


def quantized() -> dict[str, Any]:
    return {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


HABITS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "grouped queries": (llama, {}),
    "one head each": (gpt2, {}),
    "sliding window": (mistral, {}),
    "encoder and decoder": (t5, {}),
    "static": (llama, {"cache_implementation": "static"}),
    "static, sliding window": (mistral, {"cache_implementation": "static"}),
    "static, encoder and decoder": (t5, {"cache_implementation": "static"}),
    "quantized": (llama, quantized()),
    "beams": (llama, {"num_beams": 3}),
    "beams, encoder and decoder": (t5, {"num_beams": 2}),
    "sampled": (llama, {"do_sample": True}),
    "several of each": (llama, {"do_sample": True, "num_return_sequences": 2}),
    "prefill in pieces": (llama, {"prefill_chunk_size": 5}),
    "prompt lookup": (llama, {"ids": IDS[:1], "prompt_lookup_num_tokens": 3}),
    "state space": (mamba, {}),
    "a generate of its own": (whisper, {"ids": torch.zeros(1, 80, 200)}),
}


USUAL = (
    *("grouped queries", "sliding window", "encoder and decoder", "static", "quantized", "beams"),
    "a generate of its own",
)


@pytest.mark.parametrize("habit", some_of(HABITS, USUAL))
def test_the_figure_at_every_step_is_what_the_cache_owns(habit: str) -> None:
    """The figure is exact to the byte for every cache; older releases keep a static one in the model."""
    kind, options = HABITS[habit]
    try:
        session, look, _, left = generate(made(kind), **options)
    except (ImportError, ValueError, TypeError) as error:
        pytest.skip(f"not in this release of transformers: {error}")

    assert look.ours == look.theirs
    assert len(look.ours) >= 4
    assert min(look.ours) > 0
    assert session.latest("cpu/kv_cache") == left


def test_the_caches_of_a_model_and_its_assistant_both_count() -> None:
    """Calls of an assistant have no spans: there would be one for each few tokens."""
    session, look, *_ = generate(made(llama), IDS[:1], assistant_model=made(llama))

    assert look.ours == look.theirs
    assert [span.label for span in session.spans if span.label == "generate"] == ["generate"]
    assert max(look.ours) > 2 * 256 * len(IDS[0])


def test_a_generation_has_a_prefill_and_a_decode() -> None:
    """Both spans have peaks and tokens of their own; the steps of the decode are one span."""
    session = session_of(made(llama))
    (prefill,), (decode,) = of_kind(session, "prefill"), of_kind(session, "decode")

    assert outline(session) == "generate\n  prefill\n  decode"
    assert [span.label for span in of_kind(session, "block")[1:]] == ["generate"]
    counts = {"made_of_each": 1, "whole": 12 + NEW, "sampled": 0, "beams": 1}
    assert prefill.counts == {"samples": 3, "longest": 12, "tokens": 36, **counts}
    assert {"steps": 11, "tokens": 33, "samples": 3, "longest": 23}.items() <= decode.counts.items()
    assert prefill.peaks["cpu/allocated"].value > 0
    assert decode.peaks["cpu/allocated"].value > 0
    assert decode.counts["tokens_per_second"] > 0


def test_the_cache_of_a_prefill_that_runs_out_of_memory_is_counted() -> None:
    """The cache is found in what the error holds, since no call has returned it yet."""
    model = made(llama)
    model.model.layers[1].mlp.forward = Mock(side_effect=RuntimeError("CPU out of memory."))
    with pytest.raises(RuntimeError), hfmem_widget.watch(quiet=True) as session:
        model.generate(IDS, max_new_tokens=NEW)
    (prefill,) = of_kind(session, "prefill")

    assert prefill.after is not None
    assert session.value(prefill.after, "cpu/kv_cache") == 2 * 2 * 2 * 8 * 4 * 3 * 12
    assert [one.kind for one in session.findings] == ["oom"]


def test_unattributed_memory_does_not_rise_within_a_generation() -> None:
    """Memory of a generation besides weights and cache is activations and temporaries."""
    session, *_ = generate(made(llama))
    block = next(span for span in session.spans if span.label == "generate")
    (inside,) = of_kind(session, "decode")

    before = session.value(block.before, "cpu/unattributed")
    assert before >= 0, "it is known"
    assert session.value(inside.before, "cpu/unattributed") == before


def test_bytes_a_token_are_those_of_all_layers_and_sequences() -> None:
    """A token has keys and values in two layers and two heads, eight floats each, for three sequences."""
    session, *_ = generate(made(llama))
    cache = session.kv_cache()

    assert cache is not None
    assert cache.token_bytes == 2 * 2 * 2 * 8 * 4 * 3
    assert (cache.sequences, cache.length) == (3, 23)
    assert cache.bytes == cache.token_bytes * 23
    assert cache.longest != cache.longest, "the longest that fits is unknown on the host"
    assert "each token takes 0.75 KiB (3 sequences, all layers)." in kv_cache_text(
        session, session.spans[0]
    )


def test_the_sentence_on_a_sliding_window_says_where_it_stops_growing() -> None:
    """Layers with a window keep no more tokens than that."""
    session, look, *_ = generate(made(mistral))
    cache = session.kv_cache()

    assert cache is not None
    assert (cache.token_bytes, cache.window_bytes, cache.window) == (0, 768, 8)
    assert look.ours[2:] == look.ours[1:-1]
    assert "it stops growing at 8 tokens" in kv_cache_text(session, session.spans[0])


def test_the_sentence_on_a_static_cache_has_its_limit() -> None:
    """A static cache is allocated at once."""
    session, look, *_ = generate(made(llama), cache_implementation="static")
    cache = session.kv_cache()

    assert cache is not None
    assert cache.limit == len(IDS[0]) + NEW - 1
    assert len(set(look.ours)) == 1
    assert "for at most 23 tokens" in kv_cache_text(session, session.spans[0])


def test_a_static_cache_with_a_sliding_window_does_not_grow() -> None:
    """A static cache with a window is allocated at once, for the window."""
    session, look, *_ = generate(made(mistral), cache_implementation="static")

    assert len(set(look.ours)) == 1
    assert "allocated at once for at most 8 tokens" in kv_cache_text(session, session.spans[0])


def test_a_cache_in_a_variable_counts_until_it_is_deleted() -> None:
    """A cache counts in the next watch, too, and nothing of ours keeps it."""
    model, kept = made(llama), DynamicCache()
    assert session_of(model, past_key_values=kept).latest("cpu/kv_cache") == owned(kept)

    with hfmem_widget.watch(quiet=True) as session:
        assert session.latest("cpu/kv_cache") == owned(kept)
        del kept
        assert cache_now(session) == 0


@pytest.mark.parametrize("has_one", [True, False], ids=["with a cache", "without a cache"])
def test_the_cache_of_a_call_has_no_bytes_of_an_earlier_one(*, has_one: bool) -> None:
    """An earlier cache that is kept counts in the series alone."""
    model = made(llama)
    with hfmem_widget.watch(quiet=True):
        kept = model.generate(IDS, max_new_tokens=NEW, return_dict_in_generate=True)
    session = session_of(model, IDS[:1], max_new_tokens=4, use_cache=has_one)
    cache = session.kv_cache()

    assert session.latest("cpu/kv_cache") == owned(kept.past_key_values)
    assert (cache is not None) is has_one
    assert cache is None or cache.bytes == cache.token_bytes * cache.length


def test_a_cache_filled_before_is_found_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache counts although no call that filled it was seen."""
    with torch.no_grad():
        output = made(llama)(IDS, use_cache=True)
    monkeypatch.setattr("__main__.a_cell_s_output", output, raising=False)
    with hfmem_widget.watch(quiet=True) as session:
        pass

    assert session.latest("cpu/kv_cache") == owned(output.past_key_values)


def steps_by_hand(model: Any, session: Session) -> Iterator[tuple[float, int]]:
    """Decode as one would without `generate`, and yield what we say and what is there."""
    ids, past = IDS, None
    with torch.no_grad():
        for _ in range(NEW):
            output = model(ids, past_key_values=past, use_cache=True)
            past, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
            del output
            yield cache_now(session), owned(past)


@pytest.mark.parametrize("kind", [llama, gpt2, mistral], ids=["llama", "gpt2", "mistral"])
def test_a_loop_by_hand_is_followed(kind: Callable[[], Any]) -> None:
    """A loop is followed though no variable of the notebook holds its model, whoever makes the cache."""
    with hfmem_widget.watch(quiet=True) as session:
        seen = list(steps_by_hand(made(kind), session))

    assert [ours for ours, _ in seen] == [theirs for _, theirs in seen]
    assert min(ours for ours, _ in seen) > 0
    assert session.latest("cpu/kv_cache") == 0
    assert session.latest("cpu/weights") == 0


class Older(torch.nn.Module):  # type: ignore[misc]
    """What an older model of one's own returns: a tuple for each layer."""

    def forward(self, past: Any = None) -> Any:
        new = torch.ones(1, 1, 8)
        old = past or ((new[:, :0], new[:, :0]),) * 2
        return tuple(tuple(torch.cat([each, new], 1) for each in layer) for layer in old)


def test_a_tuple_of_tuples_counts_while_its_tensors_are_there() -> None:
    """A tuple cannot be referred to weakly, so each tensor is."""
    from hfmem_widget.monitor.shared import shared_monitor

    model, past = Older(), None
    with hfmem_widget.watch(quiet=True) as session:
        for length in (1, 2, 3):
            past = model(past)
            shared_monitor().cache_grew(past)
            assert cache_now(session) == 2 * 2 * length * 8 * 4
        past = None
        assert cache_now(session) == 0


def test_a_model_that_returns_tuples_is_followed() -> None:
    """`return_dict=False` gives a tuple with the cache in it."""
    model = made(llama)
    with hfmem_widget.watch(quiet=True) as session, torch.no_grad():
        output = model(IDS, use_cache=True, return_dict=False)
        assert cache_now(session) == owned(output[1])


def test_an_encoder_has_no_series_of_a_cache() -> None:
    """Without a filled cache there is no series."""
    with hfmem_widget.watch(quiet=True) as session, torch.no_grad():
        made(t5).get_encoder()(IDS)

    assert session.index("cpu/kv_cache") is None


def test_the_cache_of_a_training_is_part_of_the_activations() -> None:
    """A cache with gradients belongs to the graph, and has no series."""
    with hfmem_widget.watch(quiet=True) as session:
        made(llama)(IDS, labels=IDS, use_cache=True).loss.backward()

    assert session.index("cpu/kv_cache") is None


@pytest.mark.parametrize("habit", ["static", "beams"])
def test_a_watch_does_not_change_what_is_generated(habit: str) -> None:
    """Sequences and scores are the same bit for bit."""
    kind, options = HABITS[habit]
    wanted = {"return_dict_in_generate": True, "output_scores": True}
    attaching.detach()
    _, _, bare, _ = generate(made(kind), **options, **wanted)
    attaching.attach()
    _, _, watched, _ = generate(made(kind), **options, **wanted)

    assert torch.equal(bare.sequences, watched.sequences)
    assert all(map(torch.equal, bare.scores, watched.scores))


def test_a_generation_on_another_thread_is_followed() -> None:
    """A generation on another thread is followed, as with a streamer that the notebook's thread reads."""

    class Words:
        def decode(self, ids: Any, **_: Any) -> str:
            return " ".join(map(str, torch.as_tensor(ids).tolist()))

    model = made(llama)
    streamer = TextIteratorStreamer(Words())
    options = {"max_new_tokens": NEW, "streamer": streamer}
    with hfmem_widget.watch(quiet=True) as session:
        thread = threading.Thread(target=model.generate, args=(IDS[:1],), kwargs=options)
        thread.start()
        text = "".join(streamer)
        thread.join()

    assert text
    assert of_kind(session, "decode")[0].counts["steps"] == NEW - 1
    assert session.latest("cpu/kv_cache") == 0


def test_a_generation_that_fails_ends_its_phases() -> None:
    """After a generation that failed, the next one is followed."""

    class Failing(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the user's own")

    model = made(llama)
    with hfmem_widget.watch(quiet=True) as session:
        with pytest.raises(RuntimeError, match="the user's own"):
            model.generate(IDS, stopping_criteria=StoppingCriteriaList([Failing()]))
        model.generate(IDS, max_new_tokens=2)

    assert outline(session) == "\n".join(2 * ["generate\n  prefill\n  decode"])
    outcomes = [span.outcome for span in session.spans if span.label in {"generate", "decode"}]
    assert outcomes == [*["raised RuntimeError"] * 2, *["done"] * 2]


def test_a_compiled_model_stays_in_one_graph() -> None:
    """The wrapper around a call leaves nothing in the graph, and returns what the model returns."""
    model = made(llama)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        bare = model(IDS, use_cache=False).logits
        with hfmem_widget.watch(quiet=True):
            got = compiled(IDS, use_cache=False).logits
    assert torch.equal(bare, got)


def test_a_cache_is_copied_and_pickled_as_ever() -> None:
    """A cache has no attribute of ours."""
    model, kept = made(llama), DynamicCache()
    with hfmem_widget.watch(quiet=True):
        model.generate(IDS, past_key_values=kept, max_new_tokens=2)
        copied = pickle.loads(pickle.dumps(kept))

    assert owned(copied) == owned(kept)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_that_is_just_called_is_counted(mode: Callable[[], Any]) -> None:
    """A model without mask and cache counts, too; what was unattributed before is known."""
    model = made(gpt2)
    with hfmem_widget.watch(quiet=True) as session, mode():
        model(IDS, labels=IDS)

    assert session.latest("cpu/weights") == sum(one.nbytes for one in model.parameters())
    assert session.index("cpu/unattributed") is not None


def test_the_user_is_not_warned_of_an_old_name_that_only_we_use(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers 5 warns once in a process of the old name `past_key_values`, and only its users."""
    logger = transformers.utils.logging.get_logger("transformers")
    monkeypatch.setattr(logger, "propagate", True)
    type(logger).warning_once.cache_clear()
    session_of(made(llama), max_new_tokens=2, pad_token_id=0)
    with hfmem_widget.watch(quiet=True), torch.no_grad():
        made(llama)(IDS, use_cache=True)

    assert "deprecated" not in caplog.text
