"""Real steps of one of several ranks by itself: they take what the ranks take that train together."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.trial import tried_step
from tests.ranks.launch import SCRIPTS, TORCHRUN, free_port, python

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128}
SHAPE |= {"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
SHAPE |= {"tie_word_embeddings": True, "use_cache": False}


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_rank_by_itself_takes_what_a_rank_of_two_takes(way: str, tmp_path: Path) -> None:
    """Within a percent of its tensors' peak, embeddings that the head shares included."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE), encoding="utf-8")
    python(*TORCHRUN, free_port(), SCRIPTS / "one_rank.py", path, way)
    options: Any = {"batch": 2, "length": 64, "optimizer": "adamw_torch", "device": "cpu"}
    tried = tried_step(Qwen2Config(**SHAPE), Setting(**options, shards=f"{way}:2"))

    assert tried.peak == pytest.approx(int(path.with_suffix(".peak").read_text()), rel=0.01)
