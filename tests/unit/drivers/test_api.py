"""What `hfmem_widget.watch` takes besides a label."""

import weakref
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers.watch import MOST_NESTED, TOO_DEEP, Watch, kept_from_ending
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.shared import read_once, running_monitor, shared_monitor
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.options import WatchOptions
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.screen import Screen
from tests.data.modules import run_alone
from tests.data.threads import on_threads


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(8, 8)


def test_every_forward_pass_of_a_watched_model_is_a_span(model: torch.nn.Module) -> None:
    """Each forward pass of the watched model, and of no other, is a span with its samples."""
    other = torch.nn.Linear(8, 8)
    with hfmem_widget.watch(model, quiet=True) as session:
        for samples in (2, 3):
            model(other(torch.zeros(samples, 8)))

    assert session.label == "Linear"
    assert [(span.kind, span.counts) for span in session.spans[1:]] == [
        ("forward", {"samples": 2.0}),
        ("forward", {"samples": 3.0}),
    ]


def test_the_model_is_let_go(model: torch.nn.Module) -> None:
    """After the block no hook is on the model, also after an error in a forward pass."""
    with pytest.raises(RuntimeError), hfmem_widget.watch(model, quiet=True) as session:
        model(torch.zeros(2, 3))

    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert session.spans[1].stop is not None


def test_a_watched_model_that_is_deleted_is_gone_at_once() -> None:
    """A model that is deleted within the block is freed at once, without the garbage collector."""
    model = torch.nn.Linear(8, 8)
    reference = weakref.ref(model)
    with hfmem_widget.watch(model, quiet=True):
        model(torch.zeros(2, 8))
        del model
        assert reference() is None


def test_a_watch_keeps_no_model_alive() -> None:
    """A watch keeps a model alive neither before nor after its block; entered again, it has no model."""
    model = torch.nn.Linear(8, 8)
    reference = weakref.ref(model)
    watch = hfmem_widget.watch(model, quiet=True)
    with watch:
        pass
    del model
    assert reference() is None

    with watch as session:
        pass

    assert [span.kind for span in session.spans] == ["block"]


def test_parameters_of_a_watched_model_may_be_swapped(model: torch.nn.Module) -> None:
    """No weak reference to a parameter keeps `Module.to` from swapping parameters."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        watch = hfmem_widget.watch(model, quiet=True)
        model.to(torch.float64)
        with watch as session:
            model.to(torch.float32)
            model(torch.zeros(2, 8))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)

    assert [span.kind for span in session.spans] == ["block", "forward"]


def test_a_label_may_be_given_either_way(model: torch.nn.Module) -> None:
    """A label may be the subject itself, or an option beside it."""
    labels = []
    for watch in (
        hfmem_widget.watch("one", quiet=True),
        hfmem_widget.watch(label="two", quiet=True),
        hfmem_widget.watch(model, label="three", quiet=True),
    ):
        with watch as session:
            labels.append(session.spans[0].label)

    assert labels == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (7, {}, "a label, a torch module or a Trainer, not int"),
        (len, {}, r"not builtin_function_or_method; as a decorator, write @watch\(\)"),
        ("a", {"label": "b"}, "given twice, as 'a' and as label='b'"),
        ("", {"budget": "20GB"}, r"budget must be a size .* not '20GB'; did you mean 20GiB\?"),
    ],
)
def test_an_error_says_what_is_allowed(subject: Any, options: dict[str, Any], message: str) -> None:
    """An error says what is allowed, or what was probably meant, before anything is watched."""
    with pytest.raises(OptionError, match=message):
        hfmem_widget.watch(subject, **options)


def test_everything_can_be_read_once() -> None:
    """A reading of now is a session that has ended, with its figures, and nothing goes on."""
    session = read_once()

    assert not session.running
    assert session.latest("cpu/allocated") > 0
    assert session.latest("cpu/reserved") > 0
    assert session.anatomy("now", "cpu").allocated == session.latest("cpu/allocated")
    assert running_monitor() is None


def test_a_model_and_its_optimizer_are_counted_from_the_start(model: torch.nn.Module) -> None:
    """`watch(model, optimizer)` has weights and states from its first reading on."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    with hfmem_widget.watch(model, optimizer, quiet=True) as session:
        before = session.spans[0].before

    states = sum(one.nbytes for state in optimizer.state.values() for one in state.values())
    assert session.value(before, "cpu/weights") >= sum(one.nbytes for one in model.parameters())
    assert session.value(before, "cpu/optimizer") >= states


def test_a_watch_counts_anew_however_soon_it_follows_another() -> None:
    """A model that was deleted since the last watch is not in the next one."""
    model = torch.nn.Bilinear(3, 3, 3)
    with hfmem_widget.watch(model, quiet=True) as before:
        pass
    del model
    with hfmem_widget.watch(quiet=True) as after:
        pass

    assert "Bilinear" in before.contents.modules
    assert "Bilinear" not in after.contents.modules


def test_models_may_be_trained_on_many_threads_while_one_is_watched() -> None:
    """Training on several threads under a watch raises nothing and prints nothing; all sessions end."""
    script = """
import sys, threading, time, torch, hfmem_widget
from hfmem_widget.monitor.shared import shared_monitor
sys.setswitchinterval(1e-5)
until = time.monotonic() + 1
def train():
    while time.monotonic() < until:
        model = torch.nn.Linear(20, 20)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            model(torch.ones(2, 20)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
threads = [threading.Thread(target=train) for _ in range(3)]
[one.start() for one in threads]
while time.monotonic() < until:
    with hfmem_widget.watch(quiet=True), hfmem_widget.watch(quiet=True, devices=["cpu"]):
        train_one = torch.nn.Linear(20, 20)
        optimizer = torch.optim.SGD(train_one.parameters())
        with hfmem_widget.span("step"):
            train_one(torch.ones(2, 20)).sum().backward()
            optimizer.step()
[one.join() for one in threads]
assert shared_monitor().current is None
"""
    ran = run_alone(script, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_watch_that_was_kept_from_ending_is_found_by_its_error() -> None:
    """An interrupt that comes as `__exit__` begins carries the watch in its traceback."""
    watch = hfmem_widget.watch(quiet=True)
    with watch:
        pass
    with pytest.raises(KeyboardInterrupt) as caught, mock.patch.object(Watch, "stop", _interrupt):
        watch.__exit__(None, None, None)

    assert list(kept_from_ending(caught.value)) == [watch]
    assert list(kept_from_ending(ValueError())) == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_watch_without_a_thread_reads_at_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread, as in a full container, a watch reads at its edges, and its card says so."""
    monkeypatch.setattr(
        Ticker, "start", mock.Mock(side_effect=RuntimeError("can't start new thread"))
    )
    with hfmem_widget.watch("starved", devices="cpu", quiet=True) as session:
        block = bytearray(50_000_000)
    span = session.spans[0]

    assert span.after is not None
    grown = session.value(span.after, "cpu/allocated") - session.value(span.before, "cpu/allocated")
    assert grown == pytest.approx(len(block), rel=0.05)
    assert "could not start its thread" in session.polling.stopped
    assert "could not start its thread" in card_bundle(session, span, with_chart=False)["text/html"]
    assert hfmem_widget.holders({"kept": torch.zeros(1000)}).rows != ()


def test_a_watch_within_a_watch_is_a_block_of_the_outer_one() -> None:
    """An inner watch is a block of the outer session, with its label and outcome."""
    with hfmem_widget.watch("outer", quiet=True) as outer:
        with hfmem_widget.watch("first", quiet=True) as first:
            open_now = [span.label for span in outer.open_spans]
        with suppress(ValueError), hfmem_widget.watch("second", quiet=True):
            raise ValueError

    whole, *blocks = outer.spans
    assert open_now == ["outer", "first"]
    assert [(one.label, one.kind, one.parent, one.outcome) for one in blocks] == [
        ("first", "block", whole.id, "done"),
        ("second", "block", whole.id, "raised ValueError"),
    ]
    assert [one.label for one in first.spans] == ["first"]


def test_a_watch_outlives_the_one_it_was_begun_in() -> None:
    """Of two watches that overlap, each has its own end."""
    outer, inner = hfmem_widget.watch("outer", quiet=True), hfmem_widget.watch("inner", quiet=True)
    outer_session, inner_session = outer.start(), inner.start()
    outer.stop()
    inner.stop()

    assert [one.outcome for one in outer_session.spans] == ["done", "done"]
    assert not inner_session.running
    assert [one.label for one in inner_session.spans] == ["inner"]


def test_of_two_reports_that_stand_above_both_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two reports that stand above the card, the second follows it."""

    class Says(Companion):
        stands_above = True

        def __init__(self, text: str) -> None:
            self._text = text

        def report(self, *_: object) -> dict[str, str]:
            return {"text/html": f"<p>{self._text}</p>", "text/plain": self._text}

    watch = Watch(
        WatchOptions(ranks=False),
        monitor=shared_monitor(),
        screen=Screen(),
        last=(Says("first"), Says("second")),
    )
    with watch:
        pass

    first, card, *_, second = capsys.readouterr().out.splitlines()
    assert (first, second) == ("first", "second")
    assert card.startswith("memwatch")


def test_a_watch_within_very_many_watches_nothing() -> None:
    """Very deep watches, as in a recursion, watch nothing, and the one around them says so once."""
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(hfmem_widget.watch(str(at), quiet=True))
            for at in range(MOST_NESTED + 3)
        ]
        around, *deeper = sessions[MOST_NESTED - 1 :]
        assert [each.running for each in (around, *deeper)] == [True, False, False, False]
        assert [each.notes for each in deeper] == [[TOO_DEEP]] * 3
    assert around.notes.count(TOO_DEEP) == 1
    with hfmem_widget.watch("later", quiet=True) as later:
        pass
    assert TOO_DEEP not in later.notes
    assert later.spans


def test_watches_side_by_side_are_not_within_each_other() -> None:
    """Watches of other threads do not count as outer ones."""
    with ExitStack() as stack:
        for at in range(MOST_NESTED):
            stack.enter_context(hfmem_widget.watch(str(at), quiet=True))
        others: list[bool] = []

        def watch_beside() -> None:
            with hfmem_widget.watch("beside", quiet=True) as session:
                others.append(session.running)

        on_threads(watch_beside)
    assert others == [True]
