"""Buffers of DDP and FSDP on two real ranks: what is reported of them is what their owners have."""

import json
from typing import Any

import pytest

from tests.ranks.launch import SCRIPTS, free_port, python

pytestmark = pytest.mark.slow

HEAP = 9 * 2**20
"""Bytes that Python and gloo may take or give back between two steps: a quarter of the buckets."""


WAYS = ("ddp", "ddp-views", "ddp-hidden", "ddp-views-held", "fsdp2")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the first of two ranks says of each way to wrap a model."""
    folder = tmp_path_factory.mktemp("buffers")
    python(SCRIPTS / "buffers.py", folder, free_port(), *WAYS)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def has_buckets_uncounted(ddp: dict[str, Any]) -> bool:
    """Return whether as much as the buckets is new and not attributed."""
    first, second = (step["unattributed"] for step in ddp["steps"][1:3])
    return bool(abs(second - first - ddp["buckets"]) <= HEAP)


@pytest.mark.parametrize("how", ["ddp", "ddp-views", "ddp-hidden"])
def test_ddps_buckets_are_exact_to_the_byte(report: dict[str, Any], how: str) -> None:
    """Buckets are those of the reducer, also with gradients that are views and a wrapper without a name."""
    ddp = report[how]

    assert ddp["buckets"] == ddp["parameters"] > 0
    assert [step["libraries"] for step in ddp["steps"]][1:] == [ddp["buckets"]] * 3
    assert [step["gradients"] for step in ddp["steps"]] == [0] * 4
    assert list(ddp["owners"].values()) == [ddp["buckets"]]
    assert "DDP gradient buckets" in next(iter(ddp["owners"]))
    assert not has_buckets_uncounted(ddp)


def test_buckets_of_the_first_step_count_until_they_are_freed(report: dict[str, Any]) -> None:
    """DDP has made others, but something that nobody can ask, as NCCL's process group, keeps them."""
    ddp = report["ddp-views-held"]

    once, twice = ddp["buckets"], 2 * ddp["buckets"]
    assert [step["libraries"] for step in ddp["steps"]][1:] == [once, twice, once]
    assert not has_buckets_uncounted(ddp)


def test_the_buckets_of_a_model_that_a_trainer_wrapped_count(report: dict[str, Any]) -> None:
    """The hooks are on the wrapper: no forward pass of its is under way at an edge; a forecast has them."""
    trainer = report["trainer"]

    assert trainer["libraries"] == [trainer["parameters"]] * 3
    assert trainer["models"] == ["WithLoss", "DistributedDataParallel"]
    assert trainer["forecast"] == ["ddp:2", trainer["parameters"]]
    assert trainer["recorded"] == "WithLoss is not a class of transformers"


def test_what_fsdp_has_gathered_is_no_weights(report: dict[str, Any]) -> None:
    """Its shards are the weights throughout, and the whole parameters are a buffer while they are there."""
    fsdp = report["fsdp2"]

    shards = fsdp["sharded"]["weights"]
    assert 2 * shards == fsdp["parameters"]
    assert fsdp["gathered"]["weights"] == shards
    assert fsdp["gathered"]["libraries"] == fsdp["parameters"]
    assert fsdp["owners"] == {"FSDP gathered parameters": fsdp["parameters"]}
    assert fsdp["sharded"]["libraries"] == 0
