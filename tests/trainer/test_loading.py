"""`from_pretrained` of real checkpoints, with nothing written by the user."""

import itertools
import operator
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    EncoderDecoderModel,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedModel,
)

import hfmem_widget
from hfmem_widget.drivers import install as attaching
from hfmem_widget.monitor.shared import running_monitor
from hfmem_widget.session import Session
from tests.data.threads import on_threads
from tests.trainer.tiny import made, of_kind, outline, tiny_model

try:
    from transformers import core_model_loading as core
except ImportError:
    core = None

since_5 = pytest.mark.skipif(core is None, reason="is there since transformers 5.0")


def llama() -> Any:
    torch.manual_seed(0)
    ids = {"vocab_size": 128, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    heads = {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
    return made("LlamaForCausalLM", **ids, **heads, hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    llama().save_pretrained(folder, max_shard_size="200KB")
    return folder


def files_in(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))


def size_of(model: Any) -> int:
    return sum(one.numel() * one.element_size() for one in model.parameters())


def loaded(path: Any, kind: Any = AutoModelForCausalLM, **options: Any) -> tuple[Session, Any]:
    """Return the session of a load, and the model."""
    with hfmem_widget.watch(quiet=True) as session:
        model = kind.from_pretrained(path, **options)
    return session, model


def shards_of(session: Session) -> list[str]:
    return [span.label for span in session.spans if span.label.startswith("shard")]


def numbered(number: int) -> list[str]:
    return [f"shard {one} of {number}" for one in range(1, number + 1)]


def same(one: Any, other: Any) -> bool:
    """Return whether two models have the same weights, to the bit and of the same types."""
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in first
    )


def test_each_shard_is_a_span_with_its_bytes(sharded: Path) -> None:
    """Shards follow one another within the load, and their bytes add up to the checkpoint's."""
    session, model = loaded(sharded, LlamaForCausalLM)
    (load,) = of_kind(session, "load")
    shards = [span for span in session.spans if span.parent == load.id]

    assert load.label == "load LlamaForCausalLM"
    assert load.counts == {"shards": files_in(sharded), "bytes": size_of(model)}
    assert [one.label for one in shards] == numbered(files_in(sharded))
    assert files_in(sharded) > 3
    assert sum(one.counts["bytes"] for one in shards) == size_of(model)
    assert all(one.counts["bytes"] > 0 and one.outcome == "done" for one in shards)
    assert all(one.stop == other.start for one, other in itertools.pairwise(shards))
    assert "cpu/allocated" in load.peaks


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": torch.bfloat16}, {"device_map": "cpu"}, {"dtype": "auto"}],
    ids=["plain", "cast", "device map", "auto"],
)
def test_a_watch_does_not_change_what_is_loaded(sharded: Path, options: dict[str, Any]) -> None:
    """Weights are the same to the bit, however they are loaded."""
    bare = AutoModelForCausalLM.from_pretrained(sharded, **options)
    assert running_monitor() is None
    session, watched = loaded(sharded, **options)

    assert same(bare, watched)
    assert len(of_kind(session, "load")) == 1
    assert shards_of(session) == numbered(files_in(sharded))


@since_5
def test_unthreaded_shards_are_followed(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard has a span, too, if transformers is set to load without threads."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    session, _ = loaded(sharded)

    assert shards_of(session) == numbered(files_in(sharded))


@since_5
def test_a_shard_without_weights_of_the_model_has_no_span(tmp_path: Path) -> None:
    """A model without a head needs fewer shards than its checkpoint has."""
    llama().save_pretrained(tmp_path, max_shard_size="40KB")
    session, _ = loaded(tmp_path, AutoModel)
    (load,) = of_kind(session, "load")

    assert load.counts["shards"] == files_in(tmp_path)
    assert shards_of(session) == numbered(files_in(tmp_path) - 1)


def test_weights_that_are_given_have_no_shards() -> None:
    """A load from a state dict reads no file and has no shards."""
    model = tiny_model()
    given = {"config": model.config, "state_dict": model.state_dict()}
    session, _ = loaded(None, GPT2LMHeadModel, **given)

    assert outline(session) == "load GPT2LMHeadModel"
    assert of_kind(session, "load")[0].counts == {}


def test_a_model_made_of_models_has_a_load_for_each(tmp_path: Path) -> None:
    """The parts of an encoder-decoder model are two loads, one after the other."""
    sizes = {"hidden_size": 16, "intermediate_size": 16}
    part = made("BertModel", **sizes, num_hidden_layers=2, num_attention_heads=2)
    for name in ("encoder", "decoder"):
        part.save_pretrained(tmp_path / name)
    with hfmem_widget.watch(quiet=True) as session:
        EncoderDecoderModel.from_encoder_decoder_pretrained(
            str(tmp_path / "encoder"), str(tmp_path / "decoder")
        )

    assert outline(session) == "load BertModel\nload BertLMHeadModel"


def test_adapters_are_loads_of_their_own(sharded: Path, tmp_path: Path) -> None:
    """The load of PEFT's adapter follows the load of its base model."""
    peft = pytest.importorskip("peft")
    attaching.detach()
    attaching.attach()
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, base_model_name_or_path=str(sharded))
    base = LlamaForCausalLM.from_pretrained(sharded)
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    by_peft, _ = loaded(tmp_path, peft.AutoPeftModel)
    integrated, _ = loaded(tmp_path, LlamaForCausalLM)

    assert [span.label for span in of_kind(by_peft, "load")] == [
        "load LlamaForCausalLM",
        "load PeftModel",
    ]
    assert [span.label for span in of_kind(integrated, "load")] == ["load LlamaForCausalLM"]


@pytest.fixture
def transformers_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what loading swaps for all threads: two at a time leave each other's stand-ins behind."""
    for name in ("init_weights", "tie_weights"):
        monkeypatch.setattr(PreTrainedModel, name, getattr(PreTrainedModel, name))
    swapped = sys.modules.get("transformers.initialization")
    for module in map(sys.modules.get, getattr(swapped, "TORCH_MODULES_TO_PATCH", ())):
        for name in getattr(swapped, "TORCH_INIT_FUNCTIONS", ()):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))


@since_5  # two loads at a time leave models of transformers 4 on the meta device, with or without us
@pytest.mark.usefixtures("transformers_as_it_was")
def test_loads_on_two_threads_do_not_mix(sharded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both loads have the right weights and a closed span, and nothing is printed on stderr."""
    bare = LlamaForCausalLM.from_pretrained(sharded)
    loaded: list[Any] = []

    def load() -> None:
        loaded.append(LlamaForCausalLM.from_pretrained(sharded))

    with hfmem_widget.watch(quiet=True) as session:
        on_threads(load, load)

    assert [same(bare, one) for one in loaded] == [True, True]
    assert len(of_kind(session, "load")) == 2
    assert all(span.stop is not None for span in session.spans)
    assert "memwatch" not in capsys.readouterr().err


def test_a_model_is_counted_as_it_is_loaded(sharded: Path) -> None:
    """A model counts before a variable holds it. Cast, its weights are on the heap and in no mapped file."""
    session, model = loaded(sharded, LlamaForCausalLM, dtype=torch.bfloat16)
    (load,) = of_kind(session, "load")

    assert load.after is not None
    assert session.value(load.after, "cpu/weights") == size_of(model)


def methods_of_reading() -> list[Any]:
    converters = (core.WeightRenaming, core.WeightConverter)
    return [vars(core.WeightTransform)["add_tensor"], *(vars(one)["convert"] for one in converters)]


@since_5
def test_methods_of_reading_are_surrounded_only_while_a_load_is_watched(sharded: Path) -> None:
    """After a watched load, also one that failed, they are the library's own."""
    before = methods_of_reading()
    LlamaForCausalLM.from_pretrained(sharded)
    with pytest.raises(TypeError):
        loaded(sharded, LlamaForCausalLM, no_such_option=1)
    loaded(sharded, LlamaForCausalLM)

    assert all(map(operator.is_, before, methods_of_reading()))
