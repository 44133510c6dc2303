"""Evaluations and batch inference with models of one's own: each pass, with no word from the user."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers.training import forwards
from hfmem_widget.drivers.training import loop as following
from hfmem_widget.drivers.training.model_hooks import Hooked
from hfmem_widget.monitor import grouping
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import Session, Span
from hfmem_widget.view.phases import phase_rows
from tests.data.loops import STEP, adam, batches, model_of, outlined, usual
from tests.data.threads import on_threads


@pytest.fixture(autouse=True)
def nothing_left(one_by_one: None) -> Iterator[None]:
    """Leave no pass open and no hook on a model."""
    yield
    assert not process_state(forwards.ActivePasses)
    assert not process_state(Hooked).hooks, "hooks were left on a model"


class Cnn(torch.nn.Module):  # type: ignore[misc]
    """As one of torchvision: blocks within it are modules, too."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )
        self.features = torch.nn.Sequential(block, torch.nn.AdaptiveAvgPool2d(1))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, images: Any) -> Any:
        return self.head(self.features(images).flatten(1))


class Tree(torch.nn.Module):  # type: ignore[misc]
    """One that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.join = torch.nn.Linear(8, 4)

    def forward(self, values: Any, depth: int = 2) -> Any:
        if not depth:
            return values[:, :4]
        return self.join(torch.cat([self(values, depth - 1), self(values, depth - 1)], 1))


def with_no_gradients(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        return model(batch)


def images() -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 16, 16) for _ in range(3)]


def evaluated(make: Callable[[], Any]) -> list[Any]:
    torch.manual_seed(0)
    model = make().eval()
    return [with_no_gradients(model, batch) for batch in images()]


def predicted() -> list[Any]:
    torch.manual_seed(0)
    model = Cnn().eval()

    decorated = torch.inference_mode()(lambda batch: model(batch).softmax(-1))
    return [decorated(batch) for batch in images()]


def trained_and_evaluated() -> list[Any]:
    model, scores = model_of(8, 8, 1), []
    optimizer = adam(model)
    for _ in range(2):
        usual(model.train(), optimizer.step, optimizer.zero_grad, count=1)
        model.eval()
        with torch.no_grad():
            scores += [model(batch) for batch in batches(2)]
    return scores


def distilled() -> list[Any]:
    """Ask a teacher without gradients beside the steps of a student."""
    teacher, student = model_of(8, 1).eval(), model_of(8, 8, 1)
    optimizer = adam(student)

    def loss_of_batch(batch: Any) -> Any:
        wanted = with_no_gradients(teacher, batch)
        return (student(batch) - wanted).square().mean()

    losses = usual(student, optimizer.step, optimizer.zero_grad, loss_of_batch=loss_of_batch)
    return [torch.tensor(loss) for loss in losses]


def ensemble() -> list[Any]:
    """Two models that take turns; a part of one is evaluated by itself, and called within it."""
    torch.manual_seed(0)
    first, second = Cnn(), torch.nn.Sequential(Cnn())
    for module in (first, first.features, second):
        module.eval()
    with torch.no_grad():
        return [(first(batch) + second(batch)) / 2 for batch in images()]


LOOPS: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "CNN": (lambda: evaluated(Cnn), "Cnn Cnn Cnn"),
    "Sequential": (
        lambda: evaluated(lambda: torch.nn.Sequential(Cnn(), torch.nn.Softmax(-1))),
        "Sequential Sequential Sequential",
    ),
    "one that calls itself": (
        lambda: (
            [Tree().eval()(batch).detach() * 0 for batch in batches(2)]
            + [with_no_gradients(Tree().eval(), batch) * 0 for batch in batches(2)]
        ),
        "Tree Tree",
    ),
    "in a function": (predicted, "Cnn Cnn Cnn"),
    "training and evaluating": (
        trained_and_evaluated,
        f"{STEP} Sequential Sequential {STEP} Sequential Sequential",
    ),
    "distilling": (distilled, f"Sequential {STEP} Sequential {STEP}"),
    "two models": (ensemble, "Cnn Sequential Cnn Sequential Cnn Sequential"),
}


def passes_of(session: Session) -> list[Span]:
    return [span for span in session.spans if span.kind == "forward" and span.name]


def named(session: Session) -> str:
    """Return the kinds of the spans below the outermost, and the names of those that have one."""
    shown = [
        span.name or f"{span.kind}({outlined(session, span.id)})"
        for span in session.spans
        if span.parent == 1
    ]
    return " ".join(shown)


@pytest.mark.parametrize("name", LOOPS)
def test_a_pass_without_gradients_has_a_span_named_by_its_model(name: str) -> None:
    """A pass has the name of its outermost module and a peak, and computes the same bits."""
    loop, expected = LOOPS[name]
    bare = loop()
    with hfmem_widget.watch(quiet=True) as session:
        watched = loop()

    assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))
    assert named(session) == expected
    assert all(span.peaks["cpu/allocated"].value > 0 for span in passes_of(session))


def test_the_model_is_a_part_and_a_pass_has_temporaries() -> None:
    """A model that no variable of the notebook holds counts as weights."""
    with hfmem_widget.watch(quiet=True) as session:
        model = Cnn().eval()
        with_no_gradients(model, images()[0])

    assert session.latest("cpu/weights") == sum(one.nbytes for one in model.parameters())
    assert session.index("cpu/unattributed") is not None


def test_a_model_evaluated_before_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model from an earlier cell is found by its variable."""
    import __main__

    model = Cnn().eval()
    monkeypatch.setattr(__main__, "model", model, raising=False)
    with hfmem_widget.watch(quiet=True) as session, torch.no_grad():
        model(images()[0])

    assert named(session) == "Cnn"
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_a_row_of_the_card_has_the_passes_of_a_model() -> None:
    """A row of the card has the model's name, its number of passes and their highest peak."""
    with hfmem_widget.watch(quiet=True) as session:
        evaluated(Cnn)
    row = next(row for row in phase_rows(session, session.spans[0]) if row.name == "Cnn")

    assert (row.count, row.is_part, row.note) == (3, False, "")
    assert row.peak.value > 0
    assert [span.counts["samples"] for span in passes_of(session)] == [2, 2, 2]


def test_very_short_passes_are_counted_and_some_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very short passes are counted, and the row says how many were measured."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 0.0)
    monkeypatch.setattr(grouping, "SHARE", 1e-12)
    monkeypatch.setattr(forwards, "MOST_GROUP", 1.0)
    now = [0.0]
    monitor_of = forwards.Passes.__init__
    monkeypatch.setattr(
        forwards.Passes,
        "__init__",
        lambda self, monitor, session: monitor_of(self, monitor, session, clock=lambda: now[0]),
    )
    with hfmem_widget.watch(quiet=True) as session:
        model = model_of(8, 1).eval()
        with torch.no_grad():
            for _ in range(10):
                now[0] += 0.25
                model(next(iter(batches(1))))
    row = next(row for row in phase_rows(session, session.spans[0]) if row.name == "Sequential")

    assert row.count == 9
    assert row.note == "3 measured"


def test_a_pass_that_fails_says_so_and_the_next_is_told() -> None:
    """A pass that fails has its error as outcome, and the next has a span."""
    with hfmem_widget.watch(quiet=True) as session:
        model = Cnn().eval()
        with torch.no_grad():
            with pytest.raises(RuntimeError, match="channels"):
                model(torch.randn(2, 4, 16, 16))
            model(images()[0])
    assert [span.outcome for span in passes_of(session)] == ["raised RuntimeError", "done"]


def test_passes_on_other_threads_and_with_gradients_are_left_alone() -> None:
    """Passes on other threads, as of a server, and passes with gradients have no span."""
    with hfmem_widget.watch(quiet=True) as session:
        model = Cnn().eval()
        model(images()[0])
        on_threads(lambda: with_no_gradients(model, images()[0]))

    assert named(session) == ""


def test_a_pass_within_a_span_of_a_step_is_a_part_of_it() -> None:
    """A pass within the user's evaluation has no span; in another block it has one."""
    with hfmem_widget.watch(quiet=True) as session:
        model = Cnn().eval()
        with torch.no_grad(), hfmem_widget.span("evaluate"):
            model(images()[0])
        with torch.no_grad(), hfmem_widget.span("score"):
            model(images()[0])
    kinds = Counter(span.kind for span in session.spans)

    assert kinds == {"block": 2, "evaluate": 1, "forward": 1}


@pytest.mark.filterwarnings("ignore")
def test_a_model_is_copied_and_traced_as_ever() -> None:
    """Neither a copy nor a traced model, which takes no hooks, has any of ours."""
    with hfmem_widget.watch(quiet=True):
        model = Cnn().eval()
        twin = copy.deepcopy(model)
        traced = torch.jit.trace(model, images()[0]).eval()
        same = torch.allclose(*(with_no_gradients(one, images()[0]) for one in (traced, model)))

    assert same
    assert not twin._forward_hooks


def test_models_that_come_and_go_leave_nothing() -> None:
    """Many models count, one after another, also in the same place in memory."""
    with hfmem_widget.watch("many", quiet=True) as session, torch.no_grad():
        for _ in range(following.MOST_HOOKED + 6):
            torch.nn.Linear(4, 4).eval()(torch.ones(1, 4))
    (linear,) = (phase for phase in session.phases(1) if phase.label == "Linear")

    assert linear.count == following.MOST_HOOKED + 6


def test_a_hook_that_is_only_half_on_does_nothing() -> None:
    """A hook that another thread is just putting on does nothing."""
    model = torch.nn.Linear(4, 4)
    with hfmem_widget.watch("half", quiet=True), torch.no_grad():
        model.eval()
        model._forward_pre_hooks_with_kwargs.clear()
        result = model(torch.ones(1, 4))

    assert result.shape == (1, 4)
