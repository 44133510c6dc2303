"""Training loops without spans, as functions that return their losses, and their expected spans."""

import itertools
from collections.abc import Callable
from typing import Any

from hfmem_widget.session import Session

STEP = "step(forward backward optimizer)"


def outlined(session: Session, parent: int | None = 1) -> str:
    """Return the kinds of the spans below a span, nested ones in brackets."""
    inner = [span for span in session.spans if span.parent == parent]
    return " ".join(
        span.kind + (f"({within})" if (within := outlined(session, span.id)) else "")
        for span in inner
    )


def batches(count: int = 2) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 8, generator=generator) for _ in range(count)]


def model_of(*sizes: int) -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(before, after) for before, after in itertools.pairwise(sizes)]
    return torch.nn.Sequential(*layers)


def adam(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.01)


def with_adam(*sizes: int) -> tuple[Any, Any]:
    model = model_of(*sizes)
    return model, adam(model)


def loss_of(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


def usual(
    model: Any,
    step: Callable[[], object],
    clear: Callable[[], object] = lambda: None,
    *,
    count: int = 2,
    loss_of_batch: Callable[[Any], Any] | None = None,
) -> list[float]:
    losses = []
    for batch in batches(count):
        loss = loss_of(model, batch) if loss_of_batch is None else loss_of_batch(batch)
        loss.backward()
        step()
        clear()
        losses.append(loss.item())
    return losses


def cleared_last() -> list[float]:
    model, optimizer = with_adam(8, 8, 1)
    return usual(model, optimizer.step, optimizer.zero_grad)


def cleared_first() -> list[float]:
    model, optimizer = with_adam(8, 8, 1)

    def loss_of_batch(batch: Any) -> Any:
        model.zero_grad()
        return loss_of(model, batch)

    return usual(model, optimizer.step, loss_of_batch=loss_of_batch)


def accumulated() -> list[float]:
    model, losses = model_of(8, 8, 1), []
    optimizer = adam(model)
    for at, batch in enumerate(batches(6), 1):
        loss = loss_of(model, batch)
        (loss / 3).backward()
        if at % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluated_between() -> list[float]:
    import torch

    model, losses = model_of(8, 8, 1), []
    optimizer = adam(model)
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            losses += [loss_of(model, other).item() for other in batches(3)]
    return losses


def with_a_closure() -> list[float]:
    import torch

    model = model_of(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, batches(1)[0])
        loss.backward()
        return loss

    return [float(optimizer.step(closure).detach()) for _ in range(2)]


def with_an_empty_closure() -> list[float]:
    model, optimizer = with_adam(8, 8, 1)
    return usual(model, lambda: optimizer.step(lambda: None), optimizer.zero_grad, count=3)


def of_two_optimizers() -> list[float]:
    import torch

    model = model_of(8, 8, 1)
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]

    def step() -> None:
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()

    return usual(model, step, count=3)


def of_two_players() -> list[float]:
    makes, judges = model_of(8, 8), model_of(8, 1)
    first, second = adam(makes), adam(judges)
    losses = []
    for batch in batches():
        second.zero_grad()
        loss = judges(batch).mean() - judges(makes(batch).detach()).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = judges(makes(batch)).mean()
        other.backward()
        first.step()
        losses += [loss.item(), other.item()]
    return losses


def of_two_heads() -> list[float]:
    body, losses = model_of(8, 8), []
    heads = [with_adam(8, 1) for _ in range(2)]
    for batch in batches():
        features = body(batch).detach()
        both = [loss_of(head, features) for head, _ in heads]
        for loss, (_, optimizer) in zip(both, heads, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses += [loss.item() for loss in both]
    return losses


def scheduled() -> list[float]:
    import torch

    model, optimizer = with_adam(8, 8, 1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()

    return usual(model, step, lambda: optimizer.zero_grad(set_to_none=False))


def scaled() -> list[float]:
    import torch

    model, losses = model_of(8, 8, 1), []
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu")
    for batch in batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Lookahead:
    """An optimizer that wraps another, and is not a subclass of torch's, like many."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.slow, self.steps = inner, None, 0

    def step(self) -> None:
        """Step, and go half of the way back at every second step."""
        import torch

        self.inner.step()
        self.steps += 1
        parameters = [one for group in self.inner.param_groups for one in group["params"]]
        if self.steps % 2 == 0:
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(0.5)


def wrapped() -> list[float]:
    model = model_of(8, 8, 1)
    inner = adam(model)
    return usual(model, Lookahead(inner).step, inner.zero_grad)


def within_another() -> list[float]:
    import torch

    class Outer(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    model = model_of(8, 8, 1)
    optimizer = Outer(adam(model))
    return usual(model, optimizer.step, optimizer.zero_grad)


def in_the_backward_pass() -> list[float]:
    import torch

    model = model_of(8, 8, 1)
    own = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}

    def step(parameter: Any) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    hooks = [one.register_post_accumulate_grad_hook(step) for one in model.parameters()]
    losses = usual(model, lambda: None)
    for hook in hooks:  # else torch keeps the parameters
        hook.remove()
    return losses


def checkpointed() -> list[float]:
    from torch.utils.checkpoint import checkpoint

    model, optimizer = with_adam(8, 8, 1)

    def loss_of_batch(batch: Any) -> Any:
        return checkpoint(model[1], model[0](batch), use_reentrant=True).square().mean()

    return usual(model, optimizer.step, optimizer.zero_grad, loss_of_batch=loss_of_batch)


def only_inference() -> list[float]:
    model = model_of(8, 8, 1)
    adam(model)
    return [loss_of(model, batch).item() for batch in batches(12)]


def only_gradients() -> list[float]:
    model = model_of(8, 8, 1)
    loss = loss_of(model, batches(1)[0])
    loss.backward()
    return [loss.item()]


LOOPS: dict[Callable[[], list[float]], str] = {
    cleared_last: f"{STEP} {STEP}",
    cleared_first: f"{STEP} {STEP}",
    accumulated: "step(forward backward forward backward forward backward optimizer) "
    "step(substep(forward backward) substep(forward backward) substep(forward backward) optimizer)",
    evaluated_between: f"{STEP} {STEP}",
    with_a_closure: "step(forward backward optimizer forward backward optimizer) " * 2,
    with_an_empty_closure: f"step(forward backward) {STEP} {STEP}",
    of_two_optimizers: f"{STEP} " + "step(forward backward optimizer optimizer) " * 2,
    of_two_players: f"{STEP} {STEP} {STEP} {STEP}",
    of_two_heads: f"{STEP} step(backward optimizer) {STEP} step(backward optimizer)",
    scheduled: f"{STEP} {STEP}",
    scaled: f"{STEP} {STEP}",
    wrapped: f"{STEP} {STEP}",
    within_another: f"{STEP} {STEP}",
    in_the_backward_pass: "step(forward backward) step(forward backward)",
    checkpointed: f"{STEP} {STEP}",
    only_inference: "block(forward)",
    only_gradients: "",
}
