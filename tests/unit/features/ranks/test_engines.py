"""The engines of ipyparallel as ranks, with a client that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.features.ranks import companion as engines
from hfmem_widget.magics.open import take_engines

Call = tuple[int, str, tuple[Any, ...]]


class Answer:
    """What an engine is asked for; it comes, or the engine says why not."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def get(self, timeout: float) -> None:
        """Wait for it."""
        assert timeout > 0
        if self._error is not None:
            raise self._error


class Client:
    """A client of ipyparallel that notes what each engine is asked for."""

    def __init__(self, *ids: int, error: Exception | None = None) -> None:
        self.ids = list(ids)
        self.asked: list[Call] = []
        self._error = error

    def direct_view(self) -> None:
        """Only clients have it."""

    def __getitem__(self, engine: int) -> Client:
        self._engine = engine
        return self

    def apply_async(self, function: Callable[..., None], *arguments: object) -> Answer:
        """Note a call."""
        self.asked.append((self._engine, function.__name__, arguments))
        return Answer(self._error)


@pytest.fixture(autouse=True)
def none_taken() -> Iterator[None]:
    """Leave no engines to the next test."""
    yield
    engines.take(None)


def test_each_engine_is_a_rank_for_as_long_as_asked() -> None:
    """By its place among the engines, whatever its number."""
    client = Client(0, 3)
    taken = engines.Engines(client)

    assert taken.follow(Path("/runs/a")) == ""
    assert taken.leave() == ""
    assert client.asked == [
        (0, "join", ("/runs/a", 0, 2)),
        (3, "join", ("/runs/a", 1, 2)),
        (0, "leave", ()),
        (3, "leave", ()),
    ]


def test_engines_that_do_not_answer_cost_a_sentence() -> None:
    """They may be busy, or gone; the cell goes on."""
    client = Client(0, error=TimeoutError("busy"))

    assert engines.Engines(client).follow(Path("/runs/a")) == "TimeoutError: busy"


@pytest.mark.parametrize(
    ("client", "said"), [(5, "not int"), (Client(), "no engines yet")], ids=["number", "empty"]
)
def test_what_is_no_cluster_is_refused(client: object, said: str) -> None:
    """In a sentence that says what is taken."""
    with pytest.raises(OptionError, match=said):
        engines.take(client)
    assert engines.engines_in_use() is None


def test_the_magic_takes_a_variable_and_lets_it_go() -> None:
    """`%memwatch ranks rc`, and `off`."""
    client = Client(0, 1)

    assert "2 engines" in take_engines(["rc"], {"rc": client})
    assert engines.engines_in_use() is not None
    assert "no longer shown" in take_engines(["off"], {})
    assert engines.engines_in_use() is None


def test_an_engine_joins_by_what_drivers_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins as that rank of ipyparallel, and ends when told."""
    told: list[Any] = []
    monkeypatch.setattr(
        "hfmem_widget.drivers.follow.begin", lambda run, who: told.append((run, who))
    )
    monkeypatch.setattr("hfmem_widget.drivers.follow.end", lambda: told.append("end"))
    engines.join("/runs/a", 1, 2)
    engines.leave()

    (run, who), end = told
    assert (run, who.rank, who.world, who.engine, end) == ("/runs/a", 1, 2, "ipyparallel", "end")
