"""Observations while an error is alive: the holders of memory, and the memory needed next."""

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
    """Observes the error that leaves it, like a watch, and keeps no variable of the caller."""

    seen: Seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        assert isinstance(error, torch.OutOfMemoryError)
        self.seen = seen_in(error, "cpu", ())
        return True


class Notebook(dict[str, Any]):
    """The variables of a notebook, whose cells are compiled and run by Python."""

    def __init__(self, **names: Any) -> None:
        super().__init__(__name__="__main__", torch=torch, fail=fail, **names)

    def see(self, cell: str) -> Seen:
        with Seeing() as seeing:
            exec(compile(cell, "<cell>", "exec"), self)
        return seeing.seen


Make = Callable[..., Notebook]


class Trainer:
    """Has a model to train, and a reference model."""

    def __init__(self, model: Any, reference: Any) -> None:
        self.model, self.parts = model, {"reference": [reference]}

    def train(self) -> None:
        fail(self.model)


def fail(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Make:
    # However much the tests before have left in it, nothing is left out for want of time.
    monkeypatch.setattr(module, "MOST_SECONDS", 60.0)

    def made(**names: Any) -> Notebook:
        variables = Notebook(**names)
        monkeypatch.setattr(module, "main_variables", lambda: variables)
        return variables

    return made


def a_model(**more: Any) -> Any:
    """Return a model with its optimizer after one step."""
    model = LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), **more)
    ids = torch.ones(1, 4, dtype=torch.long)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def bytes_of(model: Any) -> int:
    return sum(weight.nbytes for weight in model.parameters())


def test_memory_that_a_variable_also_holds_is_not_promised(notebook: Make) -> None:
    """`%memholders --free errors` frees only what the functions of the error hold alone."""
    seen = notebook(kept=[]).see(
        "def run():\n"
        "    alone = torch.zeros(1024, 1024)\n"
        "    kept.append(torch.zeros(2048, 1024))\n"
        "    fail()\n"
        "run()"
    )
    assert seen.freed == 4 * MIB


def test_memory_of_a_running_function_is_not_promised(notebook: Make) -> None:
    """The function may catch the error, and then keeps its variables."""
    notebook()

    def run(given: Any) -> None:
        own = given + 1
        fail(own)

    def caller() -> Seen:
        stays = torch.zeros(1024, 1024)
        with Seeing() as seeing:
            run(stays)
        return seeing.seen

    assert caller().freed == 4 * MIB  # of eight


def test_losses_kept_with_their_graphs_are_named(notebook: Make) -> None:
    """They have their number and bytes; freeing the error would free nothing."""
    seen = notebook(kept=[], model=torch.nn.Linear(64, 64)).see(
        "for _ in range(30):\n    kept.append(model(torch.randn(1000, 64)).relu().sum())\nfail()"
    )
    assert seen.kept is not None
    assert (seen.kept.path, seen.kept.graphs) == ("kept[0..29]", 30)
    assert seen.kept.bytes >= 30 * 1000 * 64 * 4
    assert seen.freed == 0


def test_losses_that_a_function_kept_are_named_by_it(notebook: Make) -> None:
    """The path leaves out the error, which will be freed; the next run would keep the losses again."""
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
def test_the_output_of_one_forward_pass_is_not_kept_graphs(notebook: Make, name: str) -> None:
    """The hidden states of all layers are several tensors with graphs, but of one step."""
    seen = notebook(model=torch.nn.Linear(64, 64), make=SimpleNamespace).see(
        f"x = model(torch.randn(1000, 64)); outputs = make({name}=(x, x.relu(), x.tanh()))\nfail()"
    )
    assert seen.kept is None


def test_a_model_of_an_earlier_run_is_named(notebook: Make) -> None:
    """It has the name that holds it, and the bytes with its optimizer; the running model is not named."""
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
def test_a_model_that_is_made_again_is_named_by_its_variable(notebook: Make, again: str) -> None:
    """The failed statement was to assign the variable, and nothing reads it, so it has the earlier model."""
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
def test_a_model_in_use_is_not_another_model(notebook: Make, cell: str) -> None:
    """Its teacher has the same class: the code names it, or an object with a running method has it."""
    student, teacher = LlamaForCausalLM(CONFIG), LlamaForCausalLM(CONFIG)
    names = {"student": student, "teacher": teacher, "made": student, "other": teacher}
    del teacher
    assert notebook(Trainer=Trainer, **names).see(cell).other is None


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
def test_states_to_come_are_known(notebook: Make, make: Callable[[Any], Any], states: int) -> None:
    """They follow from weights without gradients and the kind of optimizer; an unknown kind has none."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[0].requires_grad_(False)
    seen = notebook(model=model, optimizer=make(model[1].parameters())).see(
        "loss = model(torch.randn(8, 64)).sum()\nfail(loss)\nloss.backward()\noptimizer.step()"
    )
    trained = bytes_of(model[1])
    assert (seen.gradients, seen.states) == (trained, states * trained)


def test_existing_gradients_and_states_are_not_to_come(notebook: Make) -> None:
    """After a backward pass there are gradients, and after a step states."""
    model, optimizer = a_model()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    seen = notebook(model=model, optimizer=optimizer).see("optimizer.zero_grad\nfail(model)")
    assert (seen.gradients, seen.states, seen.optimizers) == (0, 0, ("AdamW",))


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("call", [1, 4])
def test_a_cache_is_known_at_the_requested_length(notebook: Make, beams: int, call: int) -> None:
    """Its size follows from its layers, heads, rows and type, also if a prefill fails in the sixth layer."""
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


def test_a_cache_without_a_length_is_not_forecast(notebook: Make) -> None:
    """A manual loop does not say how far it goes."""
    seen = notebook(past=DynamicCache()).see("def run(past):\n    fail(past)\nrun(past)")
    assert seen.cache is None
