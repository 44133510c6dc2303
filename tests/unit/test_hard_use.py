"""What a hard day's use has shown: the user's code goes on as it would unwatched."""

import asyncio
import copy
import gc
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import hfmem_widget
from hfmem_widget.drivers.span import NO_NUMBER_NOTE
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Session
from tests.data.threads import on_threads


class Raises:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Odd(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("get")


class Shapeless:
    @property
    def shape(self) -> Any:
        raise RuntimeError("shape")


class Takes(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    def forward(self, *_: Any, attention_mask: Any = None, **__: Any) -> Any:
        return torch.zeros(1) if attention_mask is None else attention_mask + 1


def nested() -> Any:
    layer = torch.nn.Linear(4, 4)
    return layer, lambda: layer(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))


def called_with(*args: Any, **kwargs: Any) -> Any:
    module = Takes()
    return module, lambda: module(*args, **kwargs)


def under_vmap() -> Any:
    module = Takes()
    ids, mask = torch.ones(3, 2, 4, dtype=torch.int64), torch.ones(3, 2, 4, dtype=torch.int64)
    return module, lambda: torch.vmap(lambda i, m: module(input_ids=i, attention_mask=m))(ids, mask)


def under_fake_tensors() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = Takes()

    def call() -> Any:
        with FakeTensorMode():
            return module(input_ids=torch.ones(2, 3).long(), attention_mask=torch.ones(2, 3))

    return module, call


def under_a_function_mode() -> Any:
    class Refuses(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") in {"sum", "__get__"}:
                raise RuntimeError("only what the model does")
            return func(*args, **(kwargs or {}))

    module = Takes()
    ids = torch.ones(2, 3, dtype=torch.int64)

    def call() -> Any:
        with Refuses():
            return module(input_ids=ids, attention_mask=ids)

    return module, call


FORWARDS: dict[str, Callable[[], Any]] = {
    "nested tensors": nested,
    "a shape that raises": lambda: called_with(Shapeless()),
    "a mapping whose get raises": lambda: called_with(Odd(input_ids=torch.ones(2, 3))),
    "vmap": under_vmap,
    "fake tensors": under_fake_tensors,
    "a function mode": under_a_function_mode,
    "an object that raises": lambda: called_with(Raises()),
}


NO_NUMBERS: dict[str, Any] = {
    "an array": np.array([1, 2]),
    "text": "x",
    "a list": [1],
    "too large for a float": 10**400,
    "a tensor of one": torch.tensor([5]),
    "a tensor of two": torch.tensor([5, 6]),
    "a tensor elsewhere": torch.tensor(5, device="meta"),
    "nothing": None,
    "digits": "12",
    "not a number": float("nan"),
    "without end": float("inf"),
    "what raises": Raises(),
}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_count_without_a_number_is_left(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence says so; the span, its other counts and every later watch are as they would be."""
    with hfmem_widget.watch(quiet=True) as session:
        for _ in range(3):
            with hfmem_widget.span("step", tokens=value, samples=2) as step:
                step.count(longest=value)
    with hfmem_widget.watch(quiet=True) as healthy:
        pass

    counts = [{"samples": 2.0, "step": float(number)} for number in (1, 2, 3)]
    assert [span.counts for span in session.spans[1:]] == counts
    (note,) = [one for one in session.notes if one.startswith(NO_NUMBER_NOTE.partition("{")[0])]
    assert "tokens" in note
    assert not healthy.running
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", [3, 3.0, True, np.int64(3), np.float32(3), torch.tensor(3)])
def test_a_number_is_a_number_whoever_made_it(value: Any) -> None:
    """Numbers of numpy and torch on the host count as Python's do."""
    with hfmem_widget.watch(quiet=True) as session, hfmem_widget.span("x", tokens=value):
        pass

    assert session.spans[1].counts == {"tokens": float(value)}


class Counting(TorchDispatchMode):  # type: ignore[misc]  # torch is not checked here
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("make", FORWARDS.values(), ids=FORWARDS)
def test_a_forward_pass_works(make: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the batch, the mode or the transform is, the pass works as unwatched, and is a span."""
    module, call = make()
    call()
    with hfmem_widget.watch(module, quiet=True) as session:
        call()

    assert [span.kind for span in session.spans[1:]] == ["forward"]
    assert capsys.readouterr().err == ""


def test_counting_tokens_is_no_operation_of_torch() -> None:
    """A dispatch mode of the user's sees the model's operations only."""
    module = Takes()
    ids = torch.ones(2, 3, dtype=torch.int64)
    with hfmem_widget.watch(module, quiet=True) as session, Counting() as counting:
        module(input_ids=ids, attention_mask=ids)

    assert counting.seen == ["aten.add.Tensor"]
    assert session.spans[1].counts["content_tokens"] == 6.0


def test_a_huge_mask_is_not_summed() -> None:
    """Its sum would take as long as a layer; the tokens with padding are known from its shape."""
    module, mask = Takes(), torch.ones(1025, 1024, dtype=torch.int8)
    with hfmem_widget.watch(module, quiet=True) as session:
        module(input_ids=mask.to(torch.int64), attention_mask=mask)

    assert session.spans[1].counts == {"samples": 1025, "longest": 1024, "tokens": 1025 * 1024}


def labels(session: Session) -> list[str]:
    return [span.label for span in session.spans]


Sessions = dict[str, Session]


def on_two_threads(sessions: Sessions) -> None:
    both = threading.Barrier(2)

    def work(name: str) -> None:
        with hfmem_widget.watch(name, quiet=True) as sessions[name]:
            both.wait(10)
            with hfmem_widget.span(f"of {name}"):
                both.wait(10)

    on_threads(partial(work, "a"), partial(work, "b"))


def in_two_tasks(sessions: Sessions) -> None:
    async def work(name: str) -> None:
        with hfmem_widget.watch(name, quiet=True) as sessions[name]:
            await asyncio.sleep(0)
            with hfmem_widget.span(f"of {name}"):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())


@pytest.mark.parametrize("watch", [on_two_threads, in_two_tasks])
def test_spans_belong_to_their_thread_or_task(watch: Callable[[Sessions], None]) -> None:
    """Spans of two watches at once are in two sessions, whichever watch began last."""
    sessions: Sessions = {}
    watch(sessions)

    assert labels(sessions["a"]) == ["a", "of a"]
    assert labels(sessions["b"]) == ["b", "of b"]


def test_a_thread_without_a_watch_belongs_to_the_main_threads() -> None:
    """A pool's or autograd's thread works for the cell, also while another thread watches."""
    both = threading.Barrier(2)

    def other() -> None:
        with hfmem_widget.watch("other", quiet=True):
            both.wait(10)
            both.wait(10)

    def worker() -> None:
        with hfmem_widget.span("of the pool"):
            pass

    with hfmem_widget.watch("main", quiet=True) as session:
        thread = threading.Thread(target=other)
        thread.start()
        both.wait(10)
        on_threads(worker)
        both.wait(10)
        thread.join()

    assert labels(session) == ["main", "of the pool"]


def test_a_scope_may_be_entered_within_itself() -> None:
    """Each entry of a scope is a span of its own, and each ends."""
    scope = hfmem_widget.span("x")
    with hfmem_widget.watch(quiet=True) as session:
        with scope, scope:
            pass
        with hfmem_widget.span("after"):
            pass

    parents = [(span.label, span.parent) for span in session.spans[1:]]
    assert parents == [("x", 1), ("x", 2), ("after", 1)]


class Collected:
    """Uses a span as it is finalized, in a cycle of its own."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        with hfmem_widget.span("finalized"):
            pass


def test_a_finalizer_on_the_pollers_thread_opens_nothing() -> None:
    """A finalizer that the collector runs there, at any allocation and with our locks held, opens no span."""

    def collect(_session: Session, _samples: object) -> None:
        Collected()
        gc.collect()
        collected.set()

    collected = threading.Event()
    with hfmem_widget.watch(quiet=True, interval=0.01) as session:
        recorder = shared_monitor().recorder(session)
        recorder.subscribe(collect)
        assert collected.wait(10)
        recorder.unsubscribe(collect)

    assert "finalized" not in labels(session)


class AnyError(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """A module that raises for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        raise RuntimeError(name)

    def forward(self, x: Any) -> Any:
        return x


def test_a_module_is_watched_whatever_its_getattr_raises() -> None:
    """A module is recognised by its type, before anything is asked of it."""
    module = AnyError()
    with hfmem_widget.watch(module, quiet=True) as session:
        module(1)

    assert [span.kind for span in session.spans[1:]] == ["forward"]


class OddError(Exception):
    """An error that cannot say what it is."""

    @property  # type: ignore[misc]  # as such errors do
    def __class__(self) -> Any:
        raise RuntimeError("no class")


def test_the_users_error_is_the_users_whatever_it_is() -> None:
    """Only the type of an error is looked at."""
    error = OddError("the user's")
    caught: BaseException | None = None

    def work() -> None:
        with hfmem_widget.watch(quiet=True), hfmem_widget.span("x"):
            raise error

    try:
        work()
    except BaseException as raised:  # noqa: BLE001  (`pytest.raises` asks what class it is)
        caught = raised

    assert caught is error


def test_a_session_is_data_and_a_watch_belongs_to_a_process() -> None:
    """A session can be sent to another process, also while it is watched; a watch cannot."""
    watch = hfmem_widget.watch("w", quiet=True)
    with watch as session:
        copied = pickle.loads(pickle.dumps(session))

    assert [span.id for span in copied.spans] == [span.id for span in session.spans]
    assert copied != session
    assert copy.deepcopy(session) == session
    with pytest.raises(TypeError, match="process"):
        pickle.dumps(watch)


@pytest.fixture
def tracing_that_raises() -> Iterator[None]:
    threading.settrace(Mock(side_effect=ValueError("tracing")))
    yield
    threading.settrace(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_poller_that_dies_at_once_is_noted(tracing_that_raises: None) -> None:
    """`threading.settrace` may end the thread before its first line, which the session says."""
    with hfmem_widget.watch(quiet=True) as session:
        pass

    assert session.polling.stopped
    assert not session.running


def test_threads_that_watch_first_at_once_have_one_monitor() -> None:
    """They share one monitor: of two, each would know of half the watches."""
    monitors: list[object] = []
    together = threading.Barrier(8)

    def work() -> None:
        together.wait(10)
        monitors.append(shared_monitor())

    on_threads(*[work] * 8)
    assert len(monitors) == 8
    assert len(set(map(id, monitors))) == 1


HIDE_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
WITHOUT_PROC = """
import hfmem_widget
for _ in range(2):
    with hfmem_widget.watch():
        print(6 * 7)
"""


def can_hide_proc() -> bool:
    """Whether this user may: it needs Linux, unshare and its rights."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*HIDE_PROC, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_hide_proc(), reason="no rights to hide /proc")
def test_without_proc_the_block_runs_and_a_line_says_so() -> None:
    """In a bare chroot nothing is watched: one line on stderr for each watch, and no error for the user."""
    command = [*HIDE_PROC, sys.executable, "-c", WITHOUT_PROC]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["42", "42"]
    assert [line[:9] for line in done.stderr.splitlines()] == ["memwatch:"] * 2
