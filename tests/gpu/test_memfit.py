"""Forecasts on a real GPU: what they leave alone, and how close they come."""

import pytest

from tests.gpu.conftest import Run

SHAPES = """
import logging; logging.getLogger("transformers").setLevel(logging.ERROR)
import torch, transformers
bert = transformers.BertConfig(architectures=["BertForSequenceClassification"], hidden_size=1024,
    num_hidden_layers=6, num_attention_heads=16, intermediate_size=4096)
llama = transformers.LlamaConfig(architectures=["LlamaForCausalLM"], hidden_size=1024, intermediate_size=4096,
    num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)
"""

STEPS = """
def peak(config, rows, length, dtype=torch.float32, autocast=False):
    kind = getattr(transformers, config.architectures[0])
    with torch.device("cuda"):
        before = torch.cuda.memory_allocated()
        model = kind._from_config(config, dtype=dtype).train()
        ids = torch.zeros(rows, length, dtype=torch.long)
        labels = torch.zeros(rows, dtype=torch.long) if "Classification" in kind.__name__ else ids
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
        if autocast:
            outputs["logits"] = outputs["logits"].float()
        loss = outputs.loss
        del outputs
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated() - before
"""


def test_a_forecast_leaves_cuda_alone_and_children_can_use_it(run_python: Run) -> None:
    """No context, no driver initialised, no thread of autograd's: a forked child computes and trains."""
    report = run_python.after(SHAPES)("""
import os, hfmem_widget
fitted = hfmem_widget.fit(llama, batch=2, length=256, checkpointing=True)
memory = hfmem_widget.max_memory()
live = hfmem_widget.fit(transformers.BertForSequenceClassification(bert), batch=2, length=128)
up = torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    (leaf * 2).sum().backward()
    os._exit(0 if float(leaf.grad.sum()) == 8 else 1)
report([up, os.waitpid(child, 0)[1], sorted(map(str, memory)), fitted.verdicts[0].room.device])
""")

    assert report[:2] == [False, 0]
    assert report[2][0] == "0"
    assert report[3] == "cuda:0"


def test_what_is_free_agrees_with_cuda(run_python: Run) -> None:
    """Free and cached, once CUDA is up, are what CUDA and the allocator say."""
    free, offered = run_python(
        """
import torch, hfmem_widget
block = torch.empty(2 << 30, dtype=torch.uint8, device="cuda"); del block
free = torch.cuda.mem_get_info(0)[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
report([free, hfmem_widget.max_memory(headroom=0.0)[0]])
"""
    )

    assert offered == pytest.approx(free, rel=0.005)


@pytest.mark.parametrize(
    ("call", "model", "choices"),
    [
        ("peak(bert, 8, 256)", "bert", "batch=8, length=256"),
        ("peak(bert, 8, 256, autocast=True)", "bert", "batch=8, length=256, precision='bf16'"),
        ("peak(llama, 4, 512, autocast=True)", "llama", "batch=4, length=512, precision='bf16'"),
        (
            "peak(llama, 4, 512, torch.bfloat16)",
            "llama",
            "batch=4, length=512, precision='pure bf16'",
        ),
        ("peak(llama, 2, 512)", "llama", "batch=2, length=512"),
    ],
)
def test_a_forecast_is_near_the_peak(run_python: Run, call: str, model: str, choices: str) -> None:
    """Told before loading, against the allocator's own peak of the third step."""
    real, forecast = run_python.after(SHAPES + STEPS)(f"""
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.predict import predict
forecast = predict({model}, Setting({choices})).total
report([{call}, forecast])
""")

    assert forecast == pytest.approx(real, rel=0.03)


MODELS = """
import transformers
text = dict(hidden_size=1024, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=16,
    num_key_value_heads=4, head_dim=64, vocab_size=32000, max_position_embeddings=4096, pad_token_id=0)
sight = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16,
    image_size=224, patch_size=16)
models = {
    "experts": transformers.MixtralConfig(**text, num_local_experts=8),
    "experts, Qwen": transformers.Qwen3MoeConfig(**text, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=1024),
    "images": transformers.LlavaConfig(text_config={"model_type": "llama", **text},
        vision_config={"model_type": "clip_vision_model", **sight}, image_token_index=31999),
    "images, tiled": transformers.Idefics3Config(text_config={"model_type": "llama", **text},
        vision_config=sight, image_token_id=31999),
    "text": transformers.LlamaConfig(**text),
}
"""


@pytest.mark.parametrize("choices", ["precision='bf16'", "precision='pure bf16'", "training=False"])
@pytest.mark.parametrize("name", ["experts", "experts, Qwen", "images", "images, tiled", "text"])
def test_a_real_step_confirms_the_forecast(run_python: Run, name: str, choices: str) -> None:
    """Within three percent, and never more than half a percent under; CUDA is left alone."""
    forecast, tried, seconds, device, up = run_python.after(MODELS)(f"""
import torch, hfmem_widget
fit = hfmem_widget.fit(models[{name!r}], batch=4, length=512, attempt=True, {choices})
tried = fit.tried
report([fit.forecast.total, tried.peak, tried.seconds, tried.device, torch.cuda.is_initialized()])
""")

    assert forecast == pytest.approx(tried, rel=0.03)
    assert forecast >= 0.995 * tried
    assert seconds > 0
    assert [device, up] == ["cuda:0", False]


@pytest.mark.parametrize(
    "choices",
    [
        "quantized='nf4', lora=16",
        "quantized='nf4-double', lora=16, checkpointing=True",
        "quantized='int8', training=False",
        "optimizer='adamw_8bit'",
        "optimizer='paged_lion_8bit'",
    ],
)
def test_a_real_step_is_made_with_bitsandbytes(run_python: Run, choices: str) -> None:
    """Whose figures are rules, so that only the order of magnitude is asked for."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    forecast, tried = run_python.after(MODELS)(f"""
import hfmem_widget
fit = hfmem_widget.fit(models["text"], batch=4, length=512, attempt=True, {choices})
report([fit.forecast.total, fit.tried.peak])
""")

    assert forecast == pytest.approx(tried, rel=0.2)


def test_a_real_step_that_does_not_fit_is_a_result(run_python: Run) -> None:
    """And the next one is made as if nothing had been."""
    shown, after = run_python.after(MODELS)("""
import hfmem_widget
models["text"].vocab_size = 1 << 32
shown = repr(hfmem_widget.fit(models["text"], batch=1, length=64, attempt=True))
models["text"].vocab_size = 32000
report([shown, hfmem_widget.fit(models["text"], batch=1, length=64, attempt=True).tried.peak])
""")

    assert "A real step ran out of memory" in shown
    assert after > 0


def test_a_real_step_leaves_random_numbers_alone(run_python: Run) -> None:
    """Those that come next are as without it, and no peak is forgotten."""
    before, after, same = run_python.after(MODELS)("""
import torch, hfmem_widget
block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda"); del block
before = torch.cuda.max_memory_allocated()
state = torch.cuda.get_rng_state()
hfmem_widget.fit(models["text"], batch=1, length=64, attempt=True)
same = bool((state == torch.cuda.get_rng_state()).all())
report([before, torch.cuda.max_memory_allocated(), same])
""")

    assert after >= before
    assert same
