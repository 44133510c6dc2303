"""`%memfit` in a real kernel."""

from __future__ import annotations

from tests.kernel.drive import Kernel

WITH_TORCH = True
CONFIG = """
from transformers import LlamaConfig
config = LlamaConfig(architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=128,
                     vocab_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
"""


def test_a_card_is_shown_that_needs_no_kernel(reloaded: Kernel) -> None:
    """HTML without script and plain text; the forecast is kept where that was asked for."""
    reloaded.run(CONFIG)
    result = reloaded.run("%memfit config --batch 4 --length 64 --output told")

    assert result.status == "ok"
    bundle = result.displays[0].content["data"]
    assert "Largest batch" in bundle["text/plain"]
    assert "gradients" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert result.text("stderr") == ""
    assert reloaded.run("print(told.forecast.setting.batch)").text() == "4\n"


def test_what_is_part_of_something_else_is_found(reloaded: Kernel) -> None:
    """Such as ``trainer.model``; what has a point in its name and is no variable's part is a name."""
    reloaded.run(CONFIG + "class trainer: model = config\n")

    assert reloaded.run("%memfit trainer.model --length 64").status == "ok"
    assert "'trainer.none' is neither" in reloaded.run("%memfit trainer.none").reply["evalue"]


def test_a_configuration_in_the_working_folder_is_found(reloaded: Kernel) -> None:
    """A folder, for inference: keys and values are a part of their own."""
    reloaded.run(CONFIG)
    reloaded.run("config.save_pretrained('tiny')")
    result = reloaded.run("%memfit ./tiny --inference --length 64 --precision bf16")

    assert "KV cache" in result.displays[0].content["data"]["text/plain"]
