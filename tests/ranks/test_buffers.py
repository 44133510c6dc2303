"""Buffers of DDP and FSDP on two real ranks: what is told of them is what their owners have."""

import json
from typing import Any

import pytest

from tests.ranks.launch import SCRIPTS, free_port, python

pytestmark = pytest.mark.slow

HEAP = 9 * 2**20
"""Bytes that Python and gloo may take or give back between two steps: a quarter of the buckets."""


WAYS = ("ddp", "ddp-views", "ddp-hidden", "ddp-views-held", "fsdp2")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the first of two ranks says of each way to wrap a model."""
    folder = tmp_path_factory.mktemp("buffers")
    python(SCRIPTS / "buffers.py", folder, free_port(), *WAYS)
    told: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return told


def has_buckets_uncounted(here: dict[str, Any]) -> bool:
    """Return whether as much as the buckets is new and not attributed."""
    first, second = (step["unattributed"] for step in here["steps"][1:3])
    return bool(abs(second - first - here["buckets"]) <= HEAP)


@pytest.mark.parametrize("how", ["ddp", "ddp-views", "ddp-hidden"])
def test_ddps_buckets_are_told_to_the_byte(told: dict[str, Any], how: str) -> None:
    """Buckets are those of the reducer, also with gradients that are views and a wrapper without a name."""
    here = told[how]

    assert here["buckets"] == here["parameters"] > 0
    assert [step["libraries"] for step in here["steps"]][1:] == [here["buckets"]] * 3
    assert [step["gradients"] for step in here["steps"]] == [0] * 4
    assert list(here["owners"].values()) == [here["buckets"]]
    assert "DDP gradient buckets" in next(iter(here["owners"]))
    assert not has_buckets_uncounted(here)


def test_buckets_of_the_first_step_are_told_until_they_are_freed(told: dict[str, Any]) -> None:
    """DDP has made others, but something that nobody can ask, as NCCL's process group, keeps them."""
    here = told["ddp-views-held"]

    once, twice = here["buckets"], 2 * here["buckets"]
    assert [step["libraries"] for step in here["steps"]][1:] == [once, twice, once]
    assert not has_buckets_uncounted(here)


def test_the_buckets_of_a_model_that_a_trainer_has_wrapped_are_told(told: dict[str, Any]) -> None:
    """The hooks are on the wrapper: no forward pass of its is under way at an edge; a forecast has them."""
    here = told["trainer"]

    assert here["libraries"] == [here["parameters"]] * 3
    assert here["models"] == ["WithLoss", "DistributedDataParallel"]
    assert here["forecast"] == ["ddp:2", here["parameters"]]
    assert here["recorded"] == "WithLoss is not a class of transformers"


def test_what_fsdp_has_gathered_is_no_weights(told: dict[str, Any]) -> None:
    """Its shards are the weights throughout, and the whole parameters are a buffer while they are there."""
    here = told["fsdp2"]

    shards = here["sharded"]["weights"]
    assert 2 * shards == here["parameters"]
    assert here["gathered"]["weights"] == shards
    assert here["gathered"]["libraries"] == here["parameters"]
    assert here["owners"] == {"FSDP gathered parameters": here["parameters"]}
    assert here["sharded"]["libraries"] == 0
