"""`from_pretrained` in a watched cell of a real kernel: what is told live, and afterwards."""

from __future__ import annotations

import pytest

from tests.kernel.drive import Kernel, Message

WITH_TORCH = True
MODEL = """
import tempfile, time, torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, core_model_loading
from transformers import modeling_utils
from transformers.utils import logging
logging.disable_progress_bar()
shape = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
made = LlamaForCausalLM(LlamaConfig(**shape))
folder = tempfile.mkdtemp()
made.save_pretrained(folder, max_shard_size="60KB")
"""
SLOWLY = """
import os
set_param = core_model_loading.set_param_for_module
def slow(*args, **kwargs):
    while kept.open_spans[-1].label == "shard 2 of 4" and not os.path.exists("seen"):
        time.sleep(0.02)
    return set_param(*args, **kwargs)
core_model_loading.set_param_for_module = slow
"""
"""Stays at the second shard until that was seen."""
LOAD = "%%memwatch -o kept -l load\nmodel = AutoModelForCausalLM.from_pretrained(folder)"
TOLD = "print(*(f'{one.kind}: {one.label}: {one.outcome}' for one in kept.spans[1:]), sep='\\n')"
SHARDS = [f"shard: shard {number} of 4: done" for number in (1, 2, 3, 4)]


def path_of(message: Message) -> list[str]:
    """Return the open spans that a message to a widget tells."""
    told = message.content.get("data", {}) if message.kind == "comm_msg" else {}
    return list(told.get("content", {}).get("status", {}).get("path", []))


@pytest.fixture
def loaded(reloaded: Kernel) -> Kernel:
    """Return the file's kernel with a new checkpoint of four shards."""
    assert reloaded.run(MODEL).status == "ok"
    return reloaded


def test_which_shard_is_loaded_is_told_live(loaded: Kernel) -> None:
    """Whoever looks at the chart meanwhile reads it in its status."""
    loaded.run(SLOWLY)
    running = loaded.send(LOAD)
    loaded.wait_for(lambda one: path_of(one) == ["load", "load LlamaForCausalLM", "shard 2 of 4"])
    (loaded.folder / "seen").touch()
    assert loaded.collect(running).status == "ok"
    loaded.run("core_model_loading.set_param_for_module = set_param")


def test_reloading_the_extension_leaves_one_of_each(loaded: Kernel) -> None:
    """After ten times a load is told once, and unloading puts the library's own methods back."""
    loaded.run(
        "for _ in range(10):\n    get_ipython().run_line_magic('reload_ext', 'hfmem_widget')\n"
    )
    loaded.run(LOAD)
    told = loaded.run(TOLD).text().splitlines()
    left = loaded.run(
        "%unload_ext hfmem_widget\n"
        "owner = modeling_utils.PreTrainedModel\n"
        "print([hasattr(vars(owner)[one].__func__, '__wrapped__') and\n"
        "       vars(owner)[one].__func__.__code__.co_filename.endswith('surrounding.py')\n"
        "       for one in ('from_pretrained', '_load_pretrained_model')])"
    )

    assert told == ["load: load LlamaForCausalLM: done", *SHARDS]
    assert left.text().splitlines()[-1] == "[False, False]"
