"""torch.compile compiles in a watch what it compiles without one, and what comes after finds it compiled."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import hfmem_widget
from tests.data.breadth import some_of

Compiled = Callable[[torch.Tensor], torch.Tensor]
Compiler = Callable[[Any], Compiled]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute:UserWarning"
)  # torch.compile's own

BATCH = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Leave nothing that was compiled."""
    yield
    torch._dynamo.reset()


def library_model() -> torch.nn.Module:
    """Return a model of torch's own class, whose call is traced with its hooks."""
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


class Own(torch.nn.Module):  # type: ignore[misc]  # torch is Any here
    """A model of the user's own, whose call is not traced but what it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = library_model()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def trained(call: Compiled, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        call(BATCH).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluated(call: Any) -> Compiled:
    """Return a compiled model after an evaluation with it."""
    with torch.no_grad():
        call(BATCH)
    return call  # type: ignore[no-any-return]


def evaluated_before(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    return evaluated(compiler(model.eval()))


def evaluated_after(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    call: Any = compiler(model)
    return evaluated(call.eval())


def trained_as_compiled(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    call = compiler(model)
    trained(call, optimizer_of(call))
    return call


def trained_by_its_parameters(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    optimizer = optimizer_of(model)
    call = compiler(model)
    trained(call, optimizer)
    return call


def trained_and_evaluated(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    call, optimizer = compiler(model), optimizer_of(model)
    for _ in range(2):
        model.train()
        trained(call, optimizer)
        model.eval()
        evaluated(call)
    return call


def compiled_step(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    call = compiler(lambda batch: model(batch).sum())
    trained(call, optimizer_of(model))
    return call


def compiled_method(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    class Task:
        def step(self, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).sum()

    call = compiler(Task().step)
    trained(call, optimizer_of(model))
    return call


def compiled_loss(model: torch.nn.Module, compiler: Compiler) -> Compiled:
    loss = compiler(torch.sum)
    trained(lambda batch: loss(model(batch)), optimizer_of(model))
    return loss


SHAPES = (
    evaluated_before,
    evaluated_after,
    trained_as_compiled,
    trained_by_its_parameters,
    trained_and_evaluated,
    compiled_step,
    compiled_method,
    compiled_loss,
)


def graphs(
    shape: Callable[[torch.nn.Module, Compiler], Compiled], model: torch.nn.Module, watch: Any
) -> tuple[int, int]:
    """Return how many graphs are compiled in a cell, and more in the next one."""
    made: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _inputs: object) -> Compiled:
        made.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    torch._dynamo.reset()
    with watch:
        call = shape(model, lambda function: torch.compile(function, backend=count))
    within = len(made)
    evaluated(call)
    return within, len(made) - within


Case = tuple[Callable[[torch.nn.Module, Compiler], Compiled], Callable[[], torch.nn.Module]]
CASES: list[Case] = [(shape, make) for make in (library_model, Own) for shape in SHAPES]
USUAL = [*CASES[: len(SHAPES)], (trained_and_evaluated, Own)]


@pytest.mark.parametrize(
    "case", some_of(CASES, USUAL), ids=lambda case: "-".join(one.__name__ for one in case)
)
def test_as_many_graphs_are_compiled_as_without_a_watch(case: Case) -> None:
    """As many graphs are compiled, in a watch of the model or not, and in the cell after it."""
    shape, make = case
    named = make()
    unwatched = graphs(shape, make(), nullcontext())

    assert unwatched[0] > 0
    assert graphs(shape, make(), hfmem_widget.watch(quiet=True)) == unwatched
    assert graphs(shape, named, hfmem_widget.watch(named, quiet=True)) == unwatched


def test_a_model_that_is_not_compiled_itself_has_steps() -> None:
    """A compiled loss takes no hooks off the model."""
    with hfmem_widget.watch(quiet=True) as session:
        graphs(compiled_loss, library_model(), nullcontext())

    assert [span.label for span in session.spans if span.kind == "forward"] == ["forward"] * 3
