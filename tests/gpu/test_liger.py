"""Liger's kernels on a real GPU: forecasts, and the change that a training out of memory is advised."""

from importlib.util import find_spec

import pytest

from tests.gpu.conftest import Run

pytestmark = pytest.mark.skipif(find_spec("liger_kernel") is None, reason="needs liger-kernel")

MODELS = """
import gc, json, torch, hfmem_widget, transformers
transformers.logging.set_verbosity_error()
from hfmem_widget.features.fit import trial
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting
torch.cuda.init()
trial._answer = lambda text, seconds: trial.tried(json.loads(text))  # in this process, which is quicker
SIZE = dict(num_hidden_layers=4, hidden_size=1024, intermediate_size=4096, pad_token_id=0)
HEADS = dict(num_attention_heads=8, num_key_value_heads=4)
CONFIGS = {
    "llama": transformers.LlamaConfig(vocab_size=128256, num_attention_heads=16, **SIZE),
    "qwen2": transformers.Qwen2Config(vocab_size=151936, **HEADS, **SIZE),
    "qwen3": transformers.Qwen3Config(**SIZE),
    "gemma2": transformers.Gemma2Config(head_dim=128, **HEADS, **SIZE),
    "gemma3": transformers.Gemma3TextConfig(head_dim=128, **HEADS, **SIZE),
    "mistral": transformers.MistralConfig(**HEADS, **SIZE),
    "olmo2": transformers.Olmo2Config(**SIZE),
    "granite": transformers.GraniteConfig(**SIZE),
    "smollm3": transformers.SmolLM3Config(vocab_size=128256, **HEADS, **SIZE),
    "glm4": transformers.Glm4Config(**SIZE),
}
WAYS = {
    "pure bf16": {"precision": "pure bf16"},
    "bf16": {"precision": "bf16"},
    "fp32": {"precision": "fp32"},
    "bf16 checkpointing": {"precision": "bf16", "checkpointing": True},
}
ratios = {}
for model, config in CONFIGS.items():
    for way, options in WAYS.items():
        setting = Setting(batch=8, length=512, device="cuda", liger=True, **options)
        forecast = predict(config, setting)
        real = trial.tried_step(config, forecast.setting).peak
        ratios[f"{model} {way}"] = forecast.total / real
        gc.collect()
        torch.cuda.empty_cache()
report(ratios)
"""


def test_forecasts_with_liger_are_within_a_hundredth(run_python: Run) -> None:
    """Ten architectures, four ways to train them, against real steps with the kernels."""
    ratios = run_python(MODELS)

    assert {name: ratio for name, ratio in ratios.items() if not 0.99 <= ratio <= 1.01} == {}


TRAINED = """
import gc, tempfile, torch, hfmem_widget, transformers
transformers.logging.set_verbosity_error()
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=128256, hidden_size=512, intermediate_size=2048, num_hidden_layers=4,
                     num_attention_heads=8, pad_token_id=0)
torch.manual_seed(1)
rows = [dict(input_ids=ids, labels=ids) for ids in torch.randint(1, 128256, (32, 512))]

def run(fitted=True, **options):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=3, logging_steps=1, seed=0,
        report_to="none", disable_tqdm=True, save_strategy="no", dataloader_pin_memory=False, **options)
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows,
                      data_collator=torch.utils.data.default_collate)
    error, fit = None, None
    try:
        with hfmem_widget.watch("fit", quiet=True) as session:
            trainer.train()
        fit = hfmem_widget.fit(session) if fitted else None
    except torch.OutOfMemoryError as raised:
        error = "out of memory"
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return session, error, fit, losses

whole, _, _, expected = run(fitted=False, bf16=True)
free = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(0.8 * whole.peak("cuda:0/allocated") / free)
_, error, _, _ = run(bf16=True)
import liger_kernel.transformers  # as in a notebook whose user has it in use
torch.cuda.set_per_process_memory_fraction(1.0)
_, _, fit, _ = run(bf16=True)
[move] = [move for move in fit.moves if move.name == "Liger's kernels"]
again, failed, fit_again, losses = run(bf16=True, use_liger_kernel=True)
report([error, move.peak, float(again.peak("cuda:0/allocated")), failed, fit_again.forecast.total,
        "Liger's kernels" in str(fit_again), expected, losses])
"""


@pytest.mark.whole_card
def test_the_change_to_liger_saves_what_it_says(run_python: Run) -> None:
    """The peak is as forecast, before it is made and after; the losses stay."""
    error, forecast, real, failed, forecast_after, is_named, expected, losses = run_python(TRAINED)

    assert error == "out of memory"
    assert failed is None
    assert 0.98 * real <= forecast <= 1.02 * real
    assert 0.98 * real <= forecast_after <= 1.02 * real
    assert is_named
    assert losses == pytest.approx(expected, rel=1e-3)
