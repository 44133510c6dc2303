"""Forecasts on the meta device leave models as they were, and know values that follow from the batch."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.live_bytes import MOST, LiveBytes, meta_copy, values_of
from hfmem_widget.features.fit.on_meta import copy_of, from_config
from hfmem_widget.features.fit.predict import changed_forecast
from hfmem_widget.features.fit.setting import Setting
from tests.data.fit_models import bert, built, gpt2, llama
from tests.data.forecasts import predict


def test_no_device_is_asked_and_no_engine_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking whether there are GPUs would forbid forking; the engine would start threads."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a forecast asked for a device")

    monkeypatch.setattr(torch.cuda, "is_available", never)
    monkeypatch.setattr(torch.cuda, "device_count", never)
    monkeypatch.setattr(torch.cuda, "_lazy_init", never)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", never)
    monkeypatch.setattr("torch.autograd.graph._engine_run_backward", never)
    monkeypatch.setattr("torch.autograd._engine_run_backward", never)

    for choice in ({"checkpointing": True, "precision": "bf16", "lora": 4}, {"training": False}):
        assert predict(llama(), batch=2, length=32, **choice).total > 0
    assert predict(built(gpt2(0.1)), batch=2, length=32).total > 0
    assert torch.cuda.is_current_stream_capturing is never


def test_random_numbers_go_on_where_they_were() -> None:
    """A forecast uses up neither PyTorch's nor Python's."""
    model = built(gpt2(0.1))
    before, python = torch.get_rng_state(), random.getstate()
    predict(model, length=32)
    predict(gpt2(0.1), length=32, checkpointing=True)

    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own, of torch.jit
@pytest.mark.parametrize("wrap", [lambda model: model, torch.compile], ids=["plain", "compiled"])
def test_a_model_has_the_forecast_of_its_configuration(wrap: Callable[[Any], Any]) -> None:
    """A compiled model has it too, though its forward pass is in fields of its own."""
    config = llama()

    assert fit(wrap(built(config)), length=32).forecast == fit(config, length=32).forecast


def test_a_live_model_is_left_alone() -> None:
    """It gets no gradient, no training mode and no call of a hook, and its weights do not move."""
    model = built(bert()).eval()
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("hook"))
    model.bert.register_forward_pre_hook(lambda *_: calls.append("pre-hook"))
    weights = copy.deepcopy(model.state_dict())
    places = [one.data_ptr() for one in model.parameters()]
    predict(model, length=32, precision="pure bf16", checkpointing=True)

    assert calls == []
    assert not model.training
    assert all(one.grad is None for one in model.parameters())
    assert [one.data_ptr() for one in model.parameters()] == places
    assert all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())
    assert not any(getattr(one, "gradient_checkpointing", False) for one in model.modules())


def test_a_copy_holds_no_memory_of_its_own() -> None:
    """Weights, buffers and other tensors of objects are all on meta; ties stay tied."""
    model = built(gpt2())
    model.remembered = {
        "activations": torch.ones(3),
        "of": [torch.zeros(2, requires_grad=True) * 2],
    }
    copied = copy_of(model)

    assert all(one.is_meta for one in (*copied.parameters(), *copied.buffers()))
    assert copied.remembered["activations"].is_meta
    assert copied.remembered["of"][0].is_meta
    assert copied.lm_head.weight is copied.transformer.wte.weight


def test_an_impossible_configuration_is_an_error_with_its_reason() -> None:
    """The error has transformers' own words."""
    config = llama()
    config.hidden_act = "nothing"
    with pytest.raises(OptionError, match=r"cannot build LlamaForCausalLM.*nothing"):
        from_config(config, torch.float32, for_training=True)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"optimizer": "adam"}, r"do not support the optimizer 'adam'; they support adamw_torch"),
        ({"precision": "int4"}, "precision must be one of fp32, bf16, fp16, pure-bf16, pure-fp16"),
        ({"length": 257}, r"has 256 positions, so a length of 257 is too long; give at most 256"),
        ({"quantized": "int3", "lora": 4}, "quantized must be one of int8, nf4, nf4-double"),
        ({"quantized": "nf4"}, "add LoRA adapters"),
        ({"lora": (4, ["no_such_layer"])}, "peft cannot add LoRA to LlamaForCausalLM"),
        ({"lora": 0}, "LoRA rank must be 1"),
        ({"device": "tpu"}, "device must be cuda or cpu"),
        ({"kv": "int8"}, "is for inference"),
        *(
            ({"shards": way}, "zero1, zero2, zero3, fsdp, tp")
            for way in ("zero4:2", "zero3", "fsdp:0", "tp:many")
        ),
    ],
)
def test_unknown_choices_are_errors(choice: dict[str, Any], message: str) -> None:
    """Each error says what is allowed."""
    with pytest.raises(OptionError, match=message):
        predict(llama(), **{"length": 32, **choice})


class Counts(torch.nn.Module):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """A model whose results depend on the values of its weights."""

    main_input_name = "input_ids"
    config = bert()

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(torch.tensor(self.embedding(input_ids).tolist()))


def test_a_model_without_a_dry_run_is_an_error() -> None:
    """Code that needs the values of weights gets a reason, not a wrong figure."""
    with pytest.raises(OptionError, match="Counts cannot run on PyTorch's meta device"):
        predict(Counts(), length=8)


def test_a_model_without_a_dry_run_has_a_partial_forecast() -> None:
    """Weights and gradients depend on no value; a note says that more is needed."""
    fitted = fit(Counts(), length=8).forecast

    assert fitted.bound == "lower"
    assert fitted.bytes("weights") >= 4 * fitted.parameters
    assert fitted.bytes("gradients") == fitted.bytes("weights")
    assert any("activations are unknown" in note for note in fitted.notes)


def test_a_live_model_has_the_forecast_of_its_configuration() -> None:
    """The forecast is for the shape of the model's steps."""
    config = llama()
    model = built(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ran = Setting(batch=2, length=64, precision="fp32", optimizer="AdamW", device="cpu")
    forecast = predict(config, batch=2, length=64, optimizer="adamw_torch", device="cpu")

    assert changed_forecast(model, ran, optimizer).peaks == forecast.peaks


IDS = torch.tensor([[5, 9, 9, 9, 2], [5, 9, 9, 9, 2]])

SAME: dict[str, Callable[[Any], Any]] = {
    "a mask as an index": lambda ids: torch.empty(2, 5, 8, device=ids.device)[ids == 9].shape,
    "where": lambda ids: torch.where(ids == 9)[0].shape,
    "nonzero": lambda ids: (ids == 9).nonzero().shape,
    "masked_select": lambda ids: (
        torch.masked_select(torch.empty(2, 5, 8, device=ids.device), (ids == 9)[..., None]).shape
    ),
    "repeat_interleave": lambda ids: torch.repeat_interleave(ids[0], ids[0]).shape,
    "unique": lambda ids: torch.unique_consecutive(ids[0]).shape,
    "split by values": lambda ids: [one.shape for one in ids.new_zeros(34).split(ids[0].tolist())],
    "item": lambda ids: ids.sum().item(),
    "list": lambda ids: (ids * 2).tolist(),
    "numbers": lambda ids: torch.tensor([3, 4], device=ids.device).cumsum(0).tolist(),
    "a range": lambda ids: torch.arange(6, device=ids.device).view(2, 3)[1].tolist(),
    "set in place": lambda ids: ids.clone().fill_(3).tolist(),
    "set through a view": lambda ids: _set_first(ids.clone()).tolist(),
    "a name": lambda ids: f"expert_{ids[0, 0]}",
    "NumPy": lambda ids: ids.numpy().tolist(),
    "any": lambda ids: bool((ids == 9).any()),
    "to the host": lambda ids: (ids == 9).cpu().tolist(),
}
"""What code asks of a batch's values."""


def _set_first(ids: Any) -> Any:
    ids[0][1:] = 0
    return ids


@pytest.mark.parametrize("ask", SAME.values(), ids=SAME.keys())
def test_values_that_follow_from_the_batch_are_as_on_the_host(ask: Callable[[Any], Any]) -> None:
    """Shapes that depend on such values are the same too."""
    with LiveBytes(), AsOnDevice("cpu"):
        values = ask(meta_copy(IDS))

    assert values == ask(IDS)


def test_tokens_are_spread_evenly_over_experts() -> None:
    """If weights choose, each expert gets the same number of tokens, and the assumption is marked."""
    live = LiveBytes()
    with live:
        chosen = torch.empty(12, 4, device="meta").topk(2, -1).indices
        assert not live.known.assumed
        counts = [torch.where(chosen == expert)[0].numel() for expert in range(4)]

    assert counts == [6] * 4
    assert live.known.assumed


def test_values_overwritten_with_unknown_ones_are_forgotten() -> None:
    """A number that follows from weights does not keep its former value."""
    with LiveBytes():
        ids = meta_copy(IDS)
        ids.copy_(torch.empty(2, 5, device="meta").mul(2).long())

    assert values_of(ids) is None


def test_values_of_large_tensors_are_not_kept() -> None:
    """A dry run needs no memory for the values of tensors that fill a device."""
    with LiveBytes():
        large = torch.zeros(MOST + 1, dtype=torch.int64, device="meta")

    assert values_of(large) is None


def test_stored_values_do_not_count() -> None:
    """They belong to the dry run, not to the model."""
    live = LiveBytes()
    with live:
        ids = meta_copy(IDS)
        places = ids.nonzero()

    assert live.peak == 8 * (ids.numel() + places.numel())
