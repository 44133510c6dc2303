"""Tests beside a real Trainer on the CPU: tiny models with random weights, nothing fetched."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers.training.model_hooks import Hooked
from hfmem_widget.monitor import grouping
from hfmem_widget.monitor.process import process_state
from tests.data.searched import little_to_search

# Before anything of Hugging Face is imported, which reads them then. Fixtures alone import it, and torch:
# the process that hands out the tests needs neither.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let torch, transformers, PEFT and TRL warn one another: of what is old in one release or the next."""
    for item in items:
        if "tests/trainer" in item.path.as_posix():
            for kind in ("FutureWarning", "DeprecationWarning", "UserWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each step measured by itself, however busy the machine is."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 1e9)


@pytest.fixture(autouse=True)
def time_for_dry_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all dry runs after an error made, however busy the machine is."""
    if request.path.name in {"test_moves.py", "test_tried_moves.py", "test_recording.py"}:
        monkeypatch.setattr("hfmem_widget.features.fit.moves.SECONDS_AFTER_AN_ERROR", 600.0)


@pytest.fixture(autouse=True, scope="session")
def one_core() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def searched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have a process that searches are quick in."""
    with little_to_search(request.module):
        yield


@pytest.fixture(autouse=True)
def settings_of_its_own() -> Iterator[None]:
    """Undo what a Trainer leaves in the environment and in accelerate's state, such as `torch_compile`."""
    from accelerate.state import AcceleratorState

    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def attached() -> Iterator[None]:
    """Follow every Trainer, as after ``%load_ext``, and leave nothing behind."""
    attaching.attach()
    yield
    attaching.detach()
    assert not process_state(Hooked).hooks, "hooks were left on a model"


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    from tests.trainer.tiny import make_trainer

    return make_trainer(tmp_path)
