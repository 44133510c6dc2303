"""What is seen of memory while an error is alive: who holds it, and what the code would have needed next."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from hfmem_widget.features.oom import seen as module
from hfmem_widget.features.oom.model import Seen
from hfmem_widget.features.oom.seen import seen_in

MIB = 2**20
CONFIG = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=320,
)  # fmt: skip


class Seeing:
    """Looks at the error that leaves it, as a watch does: no variable of the caller's has it."""

    seen: Seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        assert isinstance(error, torch.OutOfMemoryError)
        self.seen = seen_in(error, "cpu", ())
        return True


class Notebook(dict[str, Any]):
    """The variables of a notebook, whose cells are run as Python compiles them."""

    def __init__(self, **names: Any) -> None:
        super().__init__(__name__="__main__", torch=torch, fail=fail, **names)

    def see(self, cell: str) -> Seen:
        """Return what is seen of the error that a cell raises."""
        with Seeing() as looked:
            exec(compile(cell, "<cell>", "exec"), self)
        return looked.seen


class Trainer:
    """Has a model to train, and one that it compares that with."""

    def __init__(self, model: Any, reference: Any) -> None:
        self.model, self.parts = model, {"reference": [reference]}

    def train(self) -> None:
        """Run out of memory."""
        fail(self.model)


def fail(*_: object, **__: object) -> None:
    """Run out of memory."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Notebook]:
    """Return what makes the notebook of this process."""
    # However much the tests before have left in it, nothing is left out for want of time.
    monkeypatch.setattr(module, "MOST_SECONDS", 60.0)

    def made(**names: Any) -> Notebook:
        variables = Notebook(**names)
        monkeypatch.setattr(module, "main_variables", lambda: variables)
        return variables

    return made


def a_model(**more: Any) -> Any:
    """Return a model with its optimizer, of which a step has been made."""
    model = LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), **more)
    model(
        torch.ones(1, 4, dtype=torch.long), labels=torch.ones(1, 4, dtype=torch.long)
    ).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def bytes_of(model: Any) -> int:
    """Return the bytes of a model's weights."""
    return sum(weight.nbytes for weight in model.parameters())


def test_what_a_variable_holds_too_is_not_promised(notebook: Callable[..., Notebook]) -> None:
    """`%memholders --free errors` frees what the error's functions hold alone."""
    seen = notebook(kept=[]).see(
        "def run():\n"
        "    alone = torch.zeros(1024, 1024)\n"
        "    kept.append(torch.zeros(2048, 1024))\n"
        "    fail()\n"
        "run()"
    )
    assert seen.freed == 4 * MIB


def test_what_a_function_that_still_runs_holds_is_not_promised(
    notebook: Callable[..., Notebook],
) -> None:
    """It may catch the error, and then has its variables."""
    notebook()

    def run(given: Any) -> None:
        own = given + 1
        fail(own)

    def caller() -> Seen:
        stays = torch.zeros(1024, 1024)
        with Seeing() as looked:
            run(stays)
        return looked.seen

    assert caller().freed == 4 * MIB  # of eight


def test_losses_kept_with_their_graphs_are_named(notebook: Callable[..., Notebook]) -> None:
    """With how many they are, and what they hold; nothing is promised of the error."""
    seen = notebook(kept=[], model=torch.nn.Linear(64, 64)).see(
        "for _ in range(30):\n    kept.append(model(torch.randn(1000, 64)).relu().sum())\nfail()"
    )
    assert seen.kept is not None
    assert (seen.kept.path, seen.kept.graphs) == ("kept[0..29]", 30)
    assert seen.kept.bytes >= 30 * 1000 * 64 * 4
    assert seen.freed == 0


def test_losses_that_a_function_kept_are_named_by_it(notebook: Callable[..., Notebook]) -> None:
    """Without the error before it: that is freed, and the next run keeps them again."""
    seen = notebook(model=torch.nn.Linear(64, 64)).see(
        "def run():\n"
        "    losses = []\n"
        "    for _ in range(30):\n"
        "        losses.append(model(torch.randn(1000, 64)).relu().sum())\n"
        "    fail()\n"
        "run()"
    )
    assert seen.kept is not None
    assert seen.kept.path.endswith("run() \u2192 losses[0..29]")
    assert seen.freed >= seen.kept.bytes


@pytest.mark.parametrize("name", ["hidden_states", "attentions"])
def test_what_one_forward_pass_returned_is_not_kept(
    notebook: Callable[..., Notebook], name: str
) -> None:
    """The states of all layers are several tensors with graphs, and those of one step."""
    seen = notebook(model=torch.nn.Linear(64, 64), make=SimpleNamespace).see(
        f"x = model(torch.randn(1000, 64)); outputs = make({name}=(x, x.relu(), x.tanh()))\nfail()"
    )
    assert seen.kept is None


def test_a_model_of_an_earlier_run_is_named(notebook: Callable[..., Notebook]) -> None:
    """By what holds it and its optimizer together, with all that both hold; what runs is not it."""
    seen = notebook(make=a_model, runs=[a_model()]).see(
        "def again():\n"
        "    model, optimizer = make()\n"
        "    optimizer.step = fail\n"
        "    optimizer.step()\n"
        "for _ in range(3):\n"
        "    runs.append(again())"
    )
    assert seen.other is not None
    assert seen.other.what == "Another LlamaForCausalLM of 336,960 parameters with its optimizer"
    assert seen.other.at == "runs[0]"
    weights = bytes_of(LlamaForCausalLM(CONFIG))
    assert 3 * weights <= seen.other.bytes <= 3 * weights + 4096


@pytest.mark.parametrize(
    "again", ["model = load()", "def main():\n    global model\n    model = load()\nmain()"]
)
def test_a_model_that_is_made_anew_is_named_by_its_variable(
    notebook: Callable[..., Notebook], again: str
) -> None:
    """The statement that failed was to assign it, and nothing reads it: what it holds is of before."""
    seen = notebook(make=LlamaForCausalLM, config=CONFIG).see(
        "model = make(config)\n"
        f"def load():\n    new = make(config)\n    fail()\n    return new\n{again}"
    )
    assert seen.other is not None
    assert seen.other.what == "Another LlamaForCausalLM of 336,960 parameters"
    assert seen.other.at == "model"


@pytest.mark.parametrize(
    "cell",
    [
        "def step(model):\n    fail()\nfor _ in range(2):\n    teacher\n    step(student)",
        "student = made\nteacher = other\ndef step(model):\n    fail()\nstep(student); teacher",
        "def step(student):\n    teacher\n    fail()\nstep(student)",
        "trainer = Trainer(student, teacher)\ndel teacher, other\ntrainer.train()",
        "def loss():\n    teacher\ndef step(model):\n    fail()\n    loss()\nstep(student)",
        "class Loss:\n    def of(self):\n        teacher\nloss = Loss()\nfail(student, loss)",
        "for _ in range(2):\n    teacher\n    (lambda model: fail())(student)\n    teacher = None",
    ],
)
def test_a_model_that_the_code_uses_is_no_other(
    notebook: Callable[..., Notebook], cell: str
) -> None:
    """Its teacher is of the same class: the code names it, or an object has it whose method runs."""
    student, teacher = LlamaForCausalLM(CONFIG), LlamaForCausalLM(CONFIG)
    names = {"student": student, "teacher": teacher, "made": student, "other": teacher}
    del teacher
    seen = notebook(Trainer=Trainer, **names).see(cell)
    assert seen.other is None


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (torch.optim.AdamW, 2),
        (lambda weights: torch.optim.Adam(weights, amsgrad=True), 3),
        (lambda weights: torch.optim.SGD(weights, lr=0.1), 0),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), 1),
        (torch.optim.RMSprop, 1),
        (type("Unheard", (torch.optim.AdamW,), {}), 0),
    ],
)
def test_gradients_and_states_to_come_are_known_before_they_are_made(
    notebook: Callable[..., Notebook], make: Callable[[Any], Any], states: int
) -> None:
    """By the weights without a gradient, and the optimizer's kind; of a kind not known nothing is said."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[0].requires_grad_(False)
    seen = notebook(model=model, optimizer=make(model[1].parameters())).see(
        "loss = model(torch.randn(8, 64)).sum()\nfail(loss)\nloss.backward()\noptimizer.step()"
    )
    trained = bytes_of(model[1])
    assert (seen.gradients, seen.states) == (trained, states * trained)


def test_what_is_made_already_is_not_to_come(notebook: Callable[..., Notebook]) -> None:
    """After a step there are states, and after a backward pass gradients."""
    model, optimizer = a_model()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    seen = notebook(model=model, optimizer=optimizer).see("optimizer.zero_grad\nfail(model)")
    assert (seen.gradients, seen.states, seen.optimizers) == (0, 0, ("AdamW",))


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("call", [1, 4])
def test_a_cache_is_known_at_the_length_that_was_asked_for(
    notebook: Callable[..., Notebook], beams: int, call: int
) -> None:
    """Layers, heads, rows and type are the cache's own, also in a prefill that ends in the sixth."""
    model = LlamaForCausalLM(CONFIG).to(torch.bfloat16).eval()
    layer = model.model.layers[5].mlp
    forward, calls = layer.forward, iter(range(1, 100))
    layer.forward = lambda x: fail() if next(calls) == call else forward(x)
    seen = notebook(model=model).see(
        "model.generate(torch.full((4, 16), 7), max_new_tokens=200, do_sample=False, pad_token_id=0, "
        f"num_beams={beams}, eos_token_id=None)"
    )
    assert seen.cache is not None
    assert (seen.cache.rows, seen.cache.length) == (4 * beams, 216)
    assert seen.cache.layers == (6 if call == 1 else 8)
    assert seen.cache.whole == pytest.approx(8 * 2 * 2 * 16 * 2 * 4 * beams * 216, rel=0.05)


def test_a_cache_without_a_length_is_not_foretold(notebook: Callable[..., Notebook]) -> None:
    """A loop by hand does not say how far it goes."""
    seen = notebook(past=DynamicCache()).see("def run(past):\n    fail(past)\nrun(past)")
    assert seen.cache is None
