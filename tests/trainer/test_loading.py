"""`from_pretrained` of real checkpoints, with nothing written by the user."""

from __future__ import annotations

import itertools
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
    """Return a checkpoint of several shards."""
    folder = tmp_path_factory.mktemp("sharded")
    llama().save_pretrained(folder, max_shard_size="200KB")
    return folder


def files_in(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))


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
    """They lie one behind the other in the load's, and their bytes add up to the checkpoint's."""
    with hfmem_widget.watch(quiet=True) as session:
        model = LlamaForCausalLM.from_pretrained(sharded)
    (load,) = of_kind(session, "load")
    shards = [span for span in session.spans if span.parent == load.id]
    total = sum(one.numel() * one.element_size() for one in model.parameters())

    assert load.label == "load LlamaForCausalLM"
    assert load.counts == {"shards": files_in(sharded), "bytes": total}
    assert [one.label for one in shards] == numbered(files_in(sharded))
    assert files_in(sharded) > 3
    assert sum(one.counts["bytes"] for one in shards) == total
    assert all(one.counts["bytes"] > 0 and one.outcome == "done" for one in shards)
    assert all(one.stop == other.start for one, other in itertools.pairwise(shards))
    assert "cpu/allocated" in load.peaks


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": torch.bfloat16}, {"device_map": "cpu"}, {"dtype": "auto"}],
    ids=["plain", "cast", "device map", "auto"],
)
def test_what_is_loaded_is_the_same(sharded: Path, options: dict[str, Any]) -> None:
    """To the bit, however it is loaded."""
    bare = AutoModelForCausalLM.from_pretrained(sharded, **options)
    assert running_monitor() is None
    with hfmem_widget.watch(quiet=True) as session:
        watched = AutoModelForCausalLM.from_pretrained(sharded, **options)

    assert same(bare, watched)
    assert len(of_kind(session, "load")) == 1
    assert shards_of(session) == numbered(files_in(sharded))


@since_5
def test_one_after_the_other_is_followed_too(
    sharded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where transformers is told to use no threads."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    with hfmem_widget.watch(quiet=True) as session:
        AutoModelForCausalLM.from_pretrained(sharded)

    assert shards_of(session) == numbered(files_in(sharded))


@since_5
def test_a_shard_that_is_not_wanted_is_not_counted(tmp_path: Path) -> None:
    """Of a checkpoint with a head the model without one needs less: what it needs is what is told."""
    llama().save_pretrained(tmp_path, max_shard_size="40KB")
    with hfmem_widget.watch(quiet=True) as session:
        AutoModel.from_pretrained(tmp_path)
    (load,) = of_kind(session, "load")

    assert load.counts["shards"] == files_in(tmp_path)
    assert shards_of(session) == numbered(files_in(tmp_path) - 1)


def test_weights_that_are_given_have_no_shards(tmp_path: Path) -> None:
    """Nothing is read."""
    model = tiny_model()
    with hfmem_widget.watch(quiet=True) as session:
        GPT2LMHeadModel.from_pretrained(None, config=model.config, state_dict=model.state_dict())

    assert outline(session) == "load GPT2LMHeadModel"
    assert of_kind(session, "load")[0].counts == {}


def test_a_model_made_of_models_has_a_load_for_each(tmp_path: Path) -> None:
    """One after the other."""
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
    """PEFT's are followed too, behind their base's."""
    peft = pytest.importorskip("peft")
    attaching.detach()
    attaching.attach()
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, base_model_name_or_path=str(sharded))
    base = LlamaForCausalLM.from_pretrained(sharded)
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    with hfmem_widget.watch(quiet=True) as session:
        peft.AutoPeftModel.from_pretrained(tmp_path)
    with hfmem_widget.watch(quiet=True) as integrated:
        LlamaForCausalLM.from_pretrained(tmp_path)

    assert [span.label for span in of_kind(session, "load")] == [
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
def test_loads_on_other_threads_do_not_mix(
    sharded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two at a time load what they should, nothing is complained of, and no span stays open."""
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
    """Though no variable holds it yet. Cast, so that its weights are on the heap and no mapped file's."""
    with hfmem_widget.watch(quiet=True) as session:
        model = LlamaForCausalLM.from_pretrained(sharded, dtype=torch.bfloat16)
    total = sum(one.numel() * one.element_size() for one in model.parameters())
    (load,) = of_kind(session, "load")

    assert load.after is not None
    assert session.value(load.after, "cpu/weights") == total


FOLLOWED_WHILE_READING = [
    ("WeightTransform", "add_tensor"),
    ("WeightRenaming", "convert"),
    ("WeightConverter", "convert"),
]


@since_5
def test_what_is_done_per_tensor_is_followed_only_while_it_is_watched(sharded: Path) -> None:
    """Otherwise the methods are those of the library, whatever happened in the watched load."""
    before = [vars(getattr(core, owner))[name] for owner, name in FOLLOWED_WHILE_READING]
    LlamaForCausalLM.from_pretrained(sharded)
    with hfmem_widget.watch(quiet=True), pytest.raises(TypeError):
        LlamaForCausalLM.from_pretrained(sharded, no_such_option=1)
    with hfmem_widget.watch(quiet=True):
        LlamaForCausalLM.from_pretrained(sharded)
    after = [vars(getattr(core, owner))[name] for owner, name in FOLLOWED_WHILE_READING]

    assert all(one is other for one, other in zip(before, after, strict=True))
