"""Which models and optimizers are found, and that looking for them touches nothing."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hfmem_widget.monitor import subjects as module
from hfmem_widget.monitor.subjects import Subjects


def model() -> Any:
    return torch.nn.Linear(4, 4)


def test_variables_are_found() -> None:
    """A model and an optimizer among the notebook's variables are found, each once."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters())
    subjects = Subjects(lambda: {"model": one, "same": one, "opt": optimizer, "number": 3})

    assert subjects.all() == ([one], [optimizer])


def test_models_one_level_deep_are_found() -> None:
    """Models in a list, a dict, or the fields of an object such as a Trainer are found."""
    three = [model() for _ in range(3)]
    holder = types.SimpleNamespace(model=three[2], _models=[three[0]])
    subjects = Subjects(lambda: {"all": three[:1], "by_name": {"b": three[1]}, "trainer": holder})

    modules, _ = subjects.all()

    assert set(map(id, modules)) == set(map(id, three))


def test_anything_else_is_not_added() -> None:
    """Objects that are neither a model nor an optimizer are silently left out."""
    subjects = Subjects(dict)

    assert [subjects.add(one) for one in ("label", None, 3, object())] == [False] * 4


def test_added_again_is_not_new() -> None:
    """Naming a model twice counts it once."""
    subjects, one = Subjects(dict), model()

    assert (subjects.add(one), subjects.add(one)) == (True, False)
    assert subjects.all() == ([one], [])


def test_variables_that_change_meanwhile_do_no_harm() -> None:
    """Another thread may add variables while they are looked through."""
    variables: dict[str, object] = {str(number): number for number in range(100)}

    class Growing(dict[str, object]):
        def values(self) -> Any:
            variables["new"] = 1
            return super().values()

    assert Subjects(lambda: Growing(variables)).all() == ([], [])


@pytest.mark.parametrize("has_states", [True, False])
def test_a_wrapper_with_states_of_its_own_is_another_optimizer(*, has_states: bool) -> None:
    """Lookahead keeps slow weights beside the states within; a mere wrapper is the optimizer within."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    wrapper: Any = object.__new__(type("Lookahead", (torch.optim.SGD,), {}))
    wrapper.optimizer = optimizer
    if has_states:
        wrapper.state = {weight: {"slow": torch.ones(2)}}
    expected = [optimizer, wrapper] if has_states else [optimizer]

    assert Subjects(lambda: {"wrapper": wrapper, "inner": optimizer}).all() == ([], expected)


def test_no_code_of_a_variable_is_run() -> None:
    """No property, no `__getattr__`, no `__class__`, no iteration that loads, no fields of a proxy."""

    class Touchy:
        @property
        def model(self) -> Any:
            raise AssertionError

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property  # type: ignore[misc]  # a proxy that would load what it stands for
        def __class__(self) -> Any:
            raise AssertionError

    class Loads(list[object]):
        def __iter__(self) -> Iterator[object]:
            raise AssertionError

    class Proxy:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]  # as werkzeug's proxies
            raise RuntimeError

    one = model()
    subjects = Subjects(lambda: {"touchy": Touchy(), "list": Loads([one]), "proxy": Proxy()})

    assert subjects.all() == ([one], [])


@pytest.mark.parametrize("make", [list, lambda values: dict(enumerate(values))])
@pytest.mark.parametrize(("place", "is_found"), [(255, True), (256, False)])
def test_of_a_large_variable_the_first_elements_are_searched(
    make: Callable[[list[Any]], Any], place: int, *, is_found: bool
) -> None:
    """Of a large list or dict, such as tokenised texts, the first 256 elements are searched."""
    one, values = model(), [0] * 100_000
    values[place] = one

    assert Subjects(lambda: {"large": make(values)}).all() == ([one] * is_found, [])


def test_the_class_of_models_is_looked_up_once_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of a thousand variables looks the classes of models up once."""
    lookups: list[bool] = []
    kinds = module._kinds

    def counted() -> tuple[type, ...]:
        lookups.append(True)
        return kinds()

    monkeypatch.setattr(module, "_kinds", counted)
    assert Subjects(lambda: {f"v{number}": number for number in range(1000)}).all() == ([], [])
    assert len(lookups) == 1
