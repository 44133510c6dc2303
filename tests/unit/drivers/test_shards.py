"""Which files of a checkpoint are completed as their tensors go into a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hfmem_widget.drivers.loading import Shards


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return two shards: a and b of 400 and 40 bytes, and c of 2."""
    paths = [str(tmp_path / f"{number}.safetensors") for number in (1, 2)]
    save_file({"a": torch.zeros(100), "b": torch.zeros(10)}, paths[0], metadata={"format": "pt"})
    save_file({"c": torch.zeros(1, dtype=torch.float16)}, paths[1])
    return paths


def test_a_file_is_completed_with_the_last_of_its_tensors(files: list[str]) -> None:
    """Whatever the order; a tensor is in the model when the next one goes in."""
    shards = Shards(files)
    for name in "abc":
        shards.collect(name)
    steps = [list(shards.place(names)) for names in ("b", "c", "a", "")]

    assert steps == [[], [(40, False)], [(2, True)], [(400, True)]]


def test_tensors_that_go_in_together_are_there_together(files: list[str]) -> None:
    """As experts' weights do, which become one."""
    shards = Shards(files)
    for name in "abc":
        shards.collect(name)
    list(shards.place("abc"))

    assert list(shards.place(())) == [(400, False), (40, True), (2, True)]


def test_what_the_model_does_not_take_is_not_waited_for(files: list[str]) -> None:
    """A file is completed without it, and one with nothing else is not wanted at all."""
    shards = Shards(files)
    shards.collect("a")
    list(shards.place("a"))

    assert shards.wanted == 1
    assert list(shards.place(())) == [(400, True)]


def test_a_tensor_counts_once(files: list[str]) -> None:
    """Though it is put in twice, and a tensor of no file not at all."""
    shards = Shards(files)
    shards.collect("a")
    shards.collect("elsewhere")
    found = [*shards.place("a"), *shards.place(["a", "elsewhere"]), *shards.place(())]

    assert found == [(400, True)]


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"\xff" * 16, b"\x08" + bytes(7) + b"not json", b"\x02" + bytes(7) + b"[]"),
        *(b"\x0b" + bytes(7) + b'{"a": null}', b"\x07" + bytes(7) + b'{"a":1}'),
    ],
    ids=["missing", "empty", "endless", "no json", "a list", "null", "a number"],
)
def test_a_file_that_cannot_be_read_has_no_tensors(tmp_path: Path, content: bytes | None) -> None:
    """Whoever loads it says what is wrong."""
    path = tmp_path / "broken.safetensors"
    if content is not None:
        path.write_bytes(content)

    assert Shards([str(path)]).sizes == {str(path): {}}
