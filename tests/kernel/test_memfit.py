"""`%memfit` in a real kernel."""

import re

from tests.kernel.drive import Kernel

WITH_TORCH = True
CONFIG = """
from transformers import LlamaConfig
config = LlamaConfig(architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=128,
                     vocab_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
"""


def test_a_card_is_shown_that_needs_no_kernel(reloaded: Kernel) -> None:
    """HTML without script, and plain text; the forecast is stored on request."""
    reloaded.run(CONFIG)
    result = reloaded.run("%memfit config --batch 4 --length 64 --output fitted")
    bundle = result.shown

    assert "Largest batch" in bundle["text/plain"]
    assert "gradients" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert result.text("stderr") == ""
    assert reloaded.run("print(fitted.forecast.setting.batch)").text() == "4\n"


def test_an_attribute_of_a_variable_is_found(reloaded: Kernel) -> None:
    """`trainer.model` is an attribute; another text with a dot is the name of a model."""
    reloaded.run(CONFIG + "class trainer: model = config\n")

    assert reloaded.run("%memfit trainer.model --length 64").status == "ok"
    assert "'trainer.none' is neither" in reloaded.run("%memfit trainer.none").reply["evalue"]


def test_a_configuration_in_the_working_folder_is_found(reloaded: Kernel) -> None:
    """A folder, for inference: keys and values are a part of their own."""
    reloaded.run(CONFIG)
    reloaded.run("config.save_pretrained('tiny')")
    result = reloaded.run("%memfit ./tiny --inference --length 64 --precision bf16")

    assert "KV cache" in result.shown["text/plain"]


RUNS_OUT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2,
                                   bos_token_id=0, eos_token_id=0))
def fails(_module, given):
    if given[0].shape[0] >= 4:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)"
        )
handle = model.lm_head.register_forward_pre_hook(fails)
rows = [{"input_ids": torch.arange(1, 33), "labels": torch.arange(1, 33)}] * 8
"""
ARGUMENTS = """
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=4,  # all that fit last year
    max_steps=2,
    report_to="none",
    use_cpu=True,
)
"""
TRAINS = "%%memwatch --label tuned\ntrainer.train()"


def test_changes_are_listed_and_written_into_the_users_call(reloaded: Kernel) -> None:
    """The new cell has the user's lines with the change; run by the user, it fits."""
    for cell in (RUNS_OUT, ARGUMENTS, "trainer = Trainer(model, arguments, train_dataset=rows)"):
        assert reloaded.run(cell).status == "ok"
    failed = reloaded.run(TRAINS)
    text = reloaded.run("%memfit --output fitted").shown["text/plain"]
    [number] = re.findall(r"^(\d)\. 2 rows in a batch, 2 batches accumulated ", text, re.MULTILINE)
    write = reloaded.run(f"%memfit --write {number}")
    [written] = [one["text"] for one in write.reply["payload"] if one["source"] == "set_next_input"]

    assert failed.status == "error"
    assert write.text() == "The new cell below has: 2 rows in a batch, 2 batches accumulated.\n"
    assert "    per_device_train_batch_size=2,  # all that fit last year\n" in written
    assert "    gradient_accumulation_steps=2,\n" in written
    assert written.splitlines()[0] == "%%memwatch --label tuned"
    assert written.splitlines()[1] == "%memholders --free errors arguments trainer"
    assert written.endswith("trainer.train()")
    assert reloaded.run(written).status == "ok"
    assert "there is no change 9" in reloaded.run("%memfit --write 9").reply["evalue"]


def test_a_model_that_is_made_again_does_not_exist_twice(reloaded: Kernel) -> None:
    """The written cell frees the old model before it loads the new one, also without an error."""
    reloaded.run(RUNS_OUT.replace("if given[0].shape[0] >= 4", "if False"))
    reloaded.run(ARGUMENTS + "model.save_pretrained('saved')")
    reloaded.run("model = GPT2LMHeadModel.from_pretrained('saved')")
    reloaded.run("trainer = Trainer(model, arguments, train_dataset=rows)")
    assert reloaded.run(TRAINS).status == "ok"
    text = reloaded.run("%memfit last").shown["text/plain"]
    [number] = re.findall(r"^(\d)\. weights in bfloat16 ", text, re.MULTILINE)
    write = reloaded.run(f"%memfit --write {number}")
    [written] = [one["text"] for one in write.reply["payload"] if one["source"] == "set_next_input"]

    assert written.startswith("%%memwatch --label tuned\n%memholders --free model trainer\n")
    assert "from_pretrained('saved', dtype=\"bfloat16\")" in written
    assert reloaded.run(written).status == "ok"
