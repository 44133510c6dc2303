"""Buffers of DDP and FSDP on two real ranks: what is told of them is what their owners have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.launch import SCRIPTS, TORCHRUN, free_port, python

pytestmark = pytest.mark.slow

HEAP = 2**18
"""Bytes that Python itself may take or give back between two steps."""


def said(folder: Path, *how: str, script: str = "buffers.py") -> dict[str, Any]:
    """Return what the first of two ranks says."""
    python(*TORCHRUN, free_port(), SCRIPTS / script, folder, *how)
    told: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return told


@pytest.mark.parametrize("how", ["ddp", "ddp-views", "ddp-hidden"])
def test_ddps_buckets_are_told_to_the_byte(tmp_path: Path, how: str) -> None:
    """As its reducer has them: with gradients that are views of them, and where nobody names the wrapper."""
    told = said(tmp_path, how)

    assert told["buckets"] == told["parameters"] > 0
    assert [step["libraries"] for step in told["steps"]][1:] == [told["buckets"]] * 3
    assert [step["gradients"] for step in told["steps"]] == [0] * 4
    assert list(told["owners"].values()) == [told["buckets"]]
    assert "DDP gradient buckets" in next(iter(told["owners"]))
    assert told["steps"][2]["unattributed"] < told["steps"][1]["unattributed"] + HEAP


def test_buckets_of_the_first_step_are_told_until_they_are_freed(tmp_path: Path) -> None:
    """DDP has made others, but something that nobody can ask, as NCCL's process group, keeps them."""
    told = said(tmp_path, "ddp-views-held")

    once, twice = told["buckets"], 2 * told["buckets"]
    assert [step["libraries"] for step in told["steps"]][1:] == [once, twice, once]
    assert told["steps"][2]["unattributed"] < told["steps"][1]["unattributed"] + HEAP


def test_the_buckets_of_a_model_that_a_trainer_has_wrapped_are_told(tmp_path: Path) -> None:
    """Its hooks are on the wrapper, so that no forward pass of the wrapper's is under way at an edge."""
    told = said(tmp_path, script="trainer_buffers.py")

    assert told["libraries"] == [told["parameters"]] * 3
    assert told["models"] == ["Net", "DistributedDataParallel"]


def test_what_fsdp_has_gathered_is_no_weights(tmp_path: Path) -> None:
    """Its shards are the weights throughout, and the whole parameters are a buffer while they are there."""
    told = said(tmp_path, "fsdp2")

    shards = told["sharded"]["weights"]
    assert 2 * shards == told["parameters"]
    assert told["gathered"]["weights"] == shards
    assert told["gathered"]["libraries"] == told["parameters"]
    assert told["owners"] == {"FSDP gathered parameters": told["parameters"]}
    assert told["sharded"]["libraries"] == 0
