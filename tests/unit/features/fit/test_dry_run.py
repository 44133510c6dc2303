"""A dry run against a real step of the same model, and the backward pass without autograd's engine."""

import threading
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from hfmem_widget.features.fit.backward import run_backward
from hfmem_widget.features.fit.dry_run import Step as DryStep
from hfmem_widget.features.fit.dry_run import inference, training_step, undisturbed
from hfmem_widget.features.fit.inputs import batch_for
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting
from tests.data.fit_models import BATCH, CONFIGS, LENGTH, Step, batch, bert, built, gpt2, llama

LOSS = 8
"""Bytes of a scalar or two, which the engine lets go of at another moment."""


def dry(config: Any, **more: Any) -> DryStep:
    model = from_config(config, torch.float32, for_training=True)
    inputs = batch_for(model, BATCH, LENGTH, with_labels=True)
    return training_step(model, inputs, device="cpu", **more)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_step_is_forecast_to_the_byte(config: Any, *, half: bool) -> None:
    """The live bytes after the forward pass and the peak of the backward pass equal a real run's.

    Gradients come and activations go in the engine's order, without the engine; casts, their cache, and
    outputs in float32 are as accelerate has them.
    """
    forecast = dry(config, autocast=torch.bfloat16 if half else None)
    real = Step(built(config), config, bf16=half)

    assert forecast.kept == real.kept
    assert forecast.forward.bytes == real.forward
    assert abs(forecast.backward.bytes - real.backward) <= LOSS


@pytest.mark.parametrize("config", [llama(), gpt2(0.1), bert()], ids=["Llama", "GPT-2", "BERT"])
def test_checkpointing_is_forecast(config: Any) -> None:
    """Kept bytes are exact; the backward pass is within two percent, since PyTorch's stops a layer early."""
    model = built(config)
    # Renamed in transformers 5.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    forecast, real = dry(config, checkpointing=True), Step(model, config)

    assert forecast.kept == real.kept
    assert forecast.forward.bytes == real.forward
    assert forecast.backward.bytes == pytest.approx(real.backward, rel=0.02)


def test_kept_bytes_are_those_that_autograd_saves() -> None:
    """By autograd's own hooks: all kept bytes except the loss were saved for backward."""
    config = llama()
    model = built(config)
    held = {one.untyped_storage()._cdata for one in [*model.parameters(), *model.buffers()]}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in held:
            saved[storage._cdata] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**batch(config))

    assert abs(dry(config).kept - sum(one.nbytes() for one in saved.values())) <= LOSS


def test_a_batch_stays_until_the_step_is_over() -> None:
    """Under autocast the model uses a copy of its images, but the loop still has the originals."""
    config = small(transformers.ViTConfig, "ViTForImageClassification", image_size=64)
    ghost = from_config(config, torch.float32, for_training=True)
    forecast = training_step(
        ghost, batch_for(ghost, 8, 1, with_labels=True), device="cpu", autocast=torch.bfloat16
    )
    inputs = {"pixel_values": torch.zeros(8, 3, 64, 64), "labels": torch.zeros(8).long()}
    real = Step(built(config), config, bf16=True, given=inputs)

    assert forecast.batches == sum(tensor.nbytes for tensor in inputs.values())
    assert abs(forecast.backward.bytes - real.backward) <= LOSS


def test_a_trainer_has_all_batches_of_a_step_at_once() -> None:
    """All of them count at every moment, though they are used one after the other."""
    one, four = dry(bert(), accumulating=True), dry(bert(), accumulating=True, at_once=4)

    assert four.batches == 4 * one.batches > 0
    assert four.forward.bytes - one.forward.bytes == 3 * one.batches
    assert four.backward.bytes - one.backward.bytes == 3 * one.batches


def test_gradients_of_an_earlier_batch_count_from_the_beginning() -> None:
    """With accumulation, all gradients are complete at every moment."""
    forecast = dry(gpt2(), accumulating=True)

    assert forecast.forward.marked == forecast.backward.marked == forecast.gradients


def test_a_gpu_keeps_dropout_as_bytes_and_no_scores() -> None:
    """Forecasts for a GPU are lower than for the CPU, since its kernels keep less."""
    model = from_config(gpt2(0.1), torch.float32, for_training=True)
    inputs = batch_for(model, BATCH, LENGTH, with_labels=True)

    assert training_step(model, inputs, device="cuda").kept < dry(gpt2(0.1)).kept


@pytest.mark.parametrize("config", [llama(), gpt2()], ids=["Llama", "GPT-2"])
def test_the_cache_of_keys_and_values_is_forecast_to_the_byte(config: Any) -> None:
    """The peak of a prefill and its cache equal those of a real one."""
    model = from_config(config, torch.float32, for_training=False)
    forecast = inference(model, batch_for(model, BATCH, LENGTH, with_labels=False), device="cpu")
    real = built(config).eval()
    inputs = batch(config)
    live = LiveBytes(device="cpu")
    live.leave_out([*real.parameters(), *real.buffers()])
    with torch.no_grad(), live:
        ids, mask = inputs["input_ids"].clone(), inputs["attention_mask"].clone()
        outputs = real(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
    cache = sum(layer.keys.nbytes + layer.values.nbytes for layer in outputs.past_key_values.layers)

    assert (forecast.peak, forecast.kv_cache) == (live.peak, cache)


def test_autocast_of_the_meta_device_does_nothing() -> None:
    """PyTorch refuses it, and transformers 4 requests it; other devices keep theirs."""
    autocast = torch.autocast
    with undisturbed():
        with torch.autocast("meta", enabled=False):
            pass
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cpu")

    assert torch.autocast is autocast


def test_of_two_dry_runs_one_waits() -> None:
    """After both, PyTorch has its own functions again."""
    autocast, is_capturing = torch.autocast, torch.cuda.is_current_stream_capturing
    order: list[str] = []

    def second() -> None:
        with undisturbed():
            order.append("second")

    other = threading.Thread(target=second)
    with undisturbed():
        other.start()
        other.join(0.05)
        order.append("first")
    other.join()

    assert order == ["first", "second"]
    assert torch.autocast is autocast
    assert torch.cuda.is_current_stream_capturing is is_capturing


class Dropping(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """Does nothing but drop out."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.drop(hidden)


def test_inference_has_no_dropout() -> None:
    """A forward pass is forecast without the masks of training."""
    size = 4 << 20
    forecast = inference(
        Dropping().train(), lambda: {"hidden": torch.empty(size, device="meta")}, device="cpu"
    )

    assert forecast.peak == 4 * size


def test_weights_that_the_loss_does_not_reach_get_no_states() -> None:
    """Optimizers make no states without a gradient: in LED, global attention needs special tokens."""
    config = led()
    forecast = predict(config, Setting(batch=1, length=32, device="cpu"))
    model = transformers.LEDForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.full((1, 32), 5)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()

    states = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    assert forecast.bytes("optimizer") == sum(one.nbytes for one in states)
    assert any(one.grad is None for one in model.parameters())


def test_without_a_loss_of_its_own_all_weights_get_states() -> None:
    """The user's loss may reach weights that the first result does not, such as a pooling head."""
    config = small(transformers.SiglipVisionConfig, "SiglipVisionModel", image_size=32)
    forecast = predict(config, Setting(batch=1, device="cpu"))

    assert forecast.bytes("optimizer") == 2 * forecast.bytes("weights")


def test_no_layer_is_left_out_by_chance() -> None:
    """The forecast is of a step with all layers, though the model skips some in most steps."""
    setting = Setting(batch=1, length=16, device="cpu")
    totals = [predict(led(encoder_layerdrop=share), setting).total for share in (0.0, 0.9)]

    assert totals[0] == totals[1]


@pytest.mark.parametrize("kind", ["phi3", "gpt2"])
def test_a_step_is_forecast_with_or_without_a_cache_whichever_is_larger(kind: str) -> None:
    """A Trainer turns use_cache off, a loop does not: Phi-3 is larger without, GPT-2 with it."""
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    if kind == "phi3":
        size |= {"intermediate_size": 64, "num_key_value_heads": 2, "pad_token_id": 0}
    setting = Setting(batch=2, length=64, device="cpu")
    with_cache, without_cache = (
        predict(transformers.CONFIG_MAPPING[kind](**size, use_cache=uses), setting)
        for uses in (True, False)
    )

    assert with_cache.total >= without_cache.total
    assert any("use_cache=False, as in a Trainer" in note for note in with_cache.notes) == (
        kind == "phi3"
    )


def test_outputs_are_not_read_by_their_former_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each causes a warning of transformers once in a process, which is for the user."""
    from transformers.utils import generic

    warnings: list[Any] = []
    monkeypatch.setattr(generic.logger, "warning_once", warnings.append)
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    forecast = predict(config, Setting(batch=1, length=8, training=False, device="cpu"))

    assert forecast.bytes("kv_cache") == 2 * 8 * 32 * 4
    assert warnings == []


def small(kind: Any, name: str, **more: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = kind(**sizes, num_hidden_layers=1, **more)
    config.architectures = [name]
    return config


def led(**more: Any) -> Any:
    layers = {"encoder_layers": 2, "decoder_layers": 1, "attention_window": 8, "vocab_size": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 32}
    wide = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0}
    config = transformers.LEDConfig(**layers, **heads, **wide, **more)
    config.architectures = ["LEDForConditionalGeneration"]
    return config


Roots = list[tuple[torch.Tensor, torch.Tensor | None]]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_gradients_are_the_engines_bit_for_bit(config: Any) -> None:
    """Real tensors show that every node is called once, after all nodes for which it waits."""
    torch.manual_seed(0)
    model, inputs = built(config), batch(config)
    state = torch.get_rng_state()
    model(**inputs).loss.backward()
    wanted = {name: one.grad for name, one in model.named_parameters()}
    model.zero_grad()
    torch.set_rng_state(state)
    run_backward([(model(**inputs).loss, None)])

    assert wanted
    for name, parameter in model.named_parameters():
        expected = wanted[name]
        assert (parameter.grad is None) == (expected is None), name
        assert expected is None or torch.equal(parameter.grad, expected), name


def run_engine(roots: Roots) -> None:
    torch.autograd.backward([output for output, _ in roots])


def allocations(make: Callable[[], torch.Tensor], run: Callable[[Roots], None]) -> list[int]:
    """Return the bytes of what a forward and a backward pass allocate, and below 0 of what they free.

    What is freed at one time, in whatever order, comes smallest first; the loss, which its caller may hold,
    is left out.
    """
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        roots: Roots = [(make(), None)]
        run(roots)
        roots.clear()
    memory = sorted(
        (event.start_ns(), event.nbytes())
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    sizes = [size for _, size in memory if abs(size) > 4]
    return [
        size
        for is_made, some in groupby(sizes, lambda size: size > 0)
        for size in (some if is_made else sorted(some))
    ]


class Swish(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """A function written in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        share = x.sigmoid()
        return grad * (share + x * share * (1 - share))


HALF, CHANNELS = torch.bfloat16, torch.rand(512, requires_grad=True)
KERNEL = torch.rand(32, 4, 3, 3)


def response_norm(x: torch.Tensor) -> torch.Tensor:
    """Scale by a norm in float32, as ConvNeXt V2 does."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
    return CHANNELS * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + CHANNELS + x


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a norm in float32": response_norm,
    "a convolution": lambda x: functional.conv2d(x.view(2, 4, 16, 128), KERNEL, stride=2).relu(),
    "pooled and enlarged": lambda x: functional.interpolate(
        functional.avg_pool2d(x.view(2, 4, 16, 128), 2), scale_factor=2.0
    ),
    "a function in Python": lambda x: Swish.apply(x) + x,
    "used three times": lambda x: (x * 2).relu() + (x * 2).tanh() + x.exp(),
    "in place": lambda x: (x * 1).add_(2).relu_() + x,
    "chosen": lambda x: torch.where(x > 0, x * 2, x * 3),
    "parts": lambda x: (x * 1)[:, :8].sum(1) + (x * 1)[:, ::2].mean(1),
    "rows for experts": lambda x: torch.zeros(32, 512, dtype=x.dtype).index_add(
        0, torch.arange(20), x.view(32, 512)[:20] * 2
    ),
    "stacked": lambda x: torch.stack([x * at for at in range(4)]).mean(0),
    "broadcast": lambda x: (x[:, :1].expand(2, 16, 512) * x).relu(),
    "in two types": lambda x: (x.float() * 2).to(HALF) + x,
    "log of a sum": lambda x: x.logsumexp(-1) + x.max(-1).values,
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_memory_comes_and_goes_as_with_the_engine(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """Inputs, outputs, saved tensors and sums, to the byte and in the engine's order."""
    leaves = x, _ = torch.randn(2, 16, 512).to(dtype).requires_grad_(True), CHANNELS

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=dtype == HALF):
            return function(x).float().pow(2).mean()

    sizes = []
    for run in (run_engine, run_backward):
        sizes.append(allocations(loss, run))
        for leaf in leaves:
            leaf.grad = None
    by_engine, by_us = sizes

    assert by_us == by_engine


def test_a_second_pass_adds() -> None:
    """It adds to existing gradients, and reports each leaf."""
    leaf = torch.ones(2, requires_grad=True)
    reported: list[torch.Tensor] = []
    for _ in range(2):
        run_backward([((leaf * 5).sum(), None)], reported.append)

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [10.0, 10.0]
    assert len(reported) == 2


@pytest.mark.parametrize(
    "select",
    [
        lambda scores, places: scores.gather(1, places),
        lambda scores, places: scores[places[0]],
        lambda scores, _: scores.max(1).values,
    ],
    ids=["gather", "index", "max"],
)
def test_zeros_for_a_gradient_are_made_once(select: Any) -> None:
    """On a device autograd writes into them in place; for meta tensors it would make new ones."""
    leaf = torch.empty(64, 64, device="meta", requires_grad=True)
    places = torch.zeros(64, 1, dtype=torch.long, device="meta")
    live = LiveBytes()
    live.leave_out([leaf, places])
    with live:
        loss = select(leaf, places).sum()
        kept = live.now
        live.in_backward = True
        run_backward([(loss, None)])

    assert live.peak - kept < 1.5 * leaf.untyped_storage().nbytes()
