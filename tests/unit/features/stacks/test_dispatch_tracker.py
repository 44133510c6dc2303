"""The tracker of operators: its counts, and that code runs under it as it does without it."""

import gc
import sys
import traceback
import weakref
from collections.abc import Iterator
from types import BuiltinMethodType
from typing import Any, Self

import pytest

from hfmem_widget.features.stacks.dispatch_tracker import (
    EventRing,
    OperatorTracker,
    Tracked,
    without_frames_of_ours,
)
from hfmem_widget.features.stacks.live_at_peak import Replay, replay
from tests.data.threads import on_threads
from tests.unit.features.stacks.test_live_at_peak import live

torch = pytest.importorskip("torch")
dispatch = pytest.importorskip("torch.utils._python_dispatch")

KIB = 1024


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert dispatch._get_current_dispatch_mode_stack() == []


class Following:
    """A followed block of code."""

    def __init__(self, **options: Any) -> None:
        self.tracker = OperatorTracker(**options)
        self.found: Tracked | None = None

    def __enter__(self) -> Self:
        gc.collect()
        assert self.tracker.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.found = self.tracker.end()

    @property
    def tracked(self) -> Tracked:
        assert self.found is not None
        return self.found

    @property
    def peak(self) -> Replay:
        return replay(self.tracked.snapshot, 0)


class UsersMode(dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]  # torch is not checked here
    """A mode of the user's own that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def floats(kib: int) -> Any:
    return torch.empty(kib * KIB // 4)


def sizes(peak: Replay) -> list[int]:
    return sorted(size for size, _ in live(peak))


def of_two_at_a_time() -> list[Any]:
    floats(12)
    kept = [floats(8)]
    return [*kept, floats(16)]


def of_views() -> list[Any]:
    kept = floats(8)
    return [kept[:10], kept.view(2, -1).t(), kept.expand(3, -1)]


def of_a_view_alone() -> list[Any]:
    view = floats(8)[:4]
    kept = floats(4)
    del view
    return [kept, floats(6)]


def of_one_that_grows() -> list[Any]:
    return [floats(4).resize_(16 * KIB // 4)]


@pytest.mark.parametrize(
    ("make", "kib"),
    [(of_two_at_a_time, 24), (of_views, 8), (of_a_view_alone, 12), (of_one_that_grows, 16)],
)
def test_the_peak_is_the_sum_of_the_storages_that_lived_together(make: Any, kib: int) -> None:
    """Each storage counts once, at its own size, until its last view is gone."""
    with Following() as following:
        kept = make()
    assert following.peak.bytes == kib * KIB
    del kept


def test_a_step_of_training_is_counted_to_the_byte() -> None:
    """Weights from before, activations and gradients count, each as large as its tensor."""
    layer = torch.nn.Linear(64, 32, bias=False)
    batch = torch.ones(16, 64)
    with Following() as following:
        out = layer(batch)
        loss = out.sum()
        loss.backward()
    weights, inputs, activations = 64 * 32 * 4, 16 * 64 * 4, 16 * 32 * 4
    expected = weights + inputs + activations + 4 + weights + 4
    assert following.peak.bytes == expected
    before = [size for size, frames in live(following.peak) if frames is None]
    assert sorted(before) == sorted([weights, inputs])


def test_the_backward_pass_is_followed() -> None:
    """On the CPU it runs on the thread that called it, where the mode is active."""
    weight = torch.ones(64, 64, requires_grad=True)
    with Following() as following:
        (weight * 2).sum().backward()
    assert "aten::mul" in {frames[0]["name"] for _, frames in live(following.peak) if frames}
    assert weight.grad is not None


def test_tensors_from_python_values_are_counted() -> None:
    """`torch.tensor` makes its storage outside of operators, and lifts it in."""
    with Following() as following:
        kept = torch.tensor([1.0, 2.0])
    ((size, frames),) = live(following.peak)
    assert frames
    assert frames[0]["name"] == "aten::lift_fresh"
    assert size == kept.untyped_storage().nbytes()


def test_the_stack_ends_in_the_code_that_ran() -> None:
    """The innermost frame is the operator, the next its calling function."""
    with Following() as following:
        kept = floats(4)
    ((_, frames),) = live(following.peak)
    assert frames
    assert [frame["name"] for frame in frames[:2]] == ["aten::empty", "floats"]
    assert frames[1]["filename"] == __file__
    del kept


def test_results_are_what_they_would_have_been() -> None:
    """Results and errors of operators are those without a tracker."""
    torch.manual_seed(0)
    plain = torch.nn.functional.dropout(torch.ones(100), 0.5)
    with Following():
        torch.manual_seed(0)
        followed = torch.nn.functional.dropout(torch.ones(100), 0.5)
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(3) + torch.ones(4)
    assert torch.equal(plain, followed)


def test_no_python_of_ours_runs_when_a_storage_is_freed() -> None:
    """An interrupt there would be lost: Python ignores exceptions in callbacks of weak references."""
    with Following():
        kept = floats(4)
        (reference,) = weakref.getweakrefs(kept.untyped_storage())
        assert isinstance(reference.__callback__, BuiltinMethodType)
    del kept


def test_the_users_own_mode_stays_where_it_is() -> None:
    """The user's mode stays if it is still active at the end; ours is removed."""
    mine = UsersMode()
    with Following() as following:
        mine.__enter__()
        kept = floats(4)
    assert dispatch._get_current_dispatch_mode_stack() == [mine]
    mine.__exit__(None, None, None)
    assert following.peak.bytes == 4 * KIB
    del kept


def test_nested_trackers_both_record() -> None:
    """Both watches have stacks, one within the other."""
    with Following() as outer, Following() as inner:
        kept = floats(4)
    assert outer.peak.bytes == inner.peak.bytes == 4 * KIB
    del kept


def test_another_threads_operators_are_not_seen() -> None:
    """A mode belongs to a thread; others run at full speed."""
    tensors: list[Any] = []
    with Following() as following:
        on_threads(lambda: tensors.append(floats(4)))
    assert following.peak.bytes == 0
    assert following.tracked.snapshot["device_traces"] == [[]]


def test_ended_on_another_thread_it_records_nothing_more() -> None:
    """The mode cannot be removed from there, but it only passes calls on."""
    following = Following()
    following.__enter__()
    (mode,) = dispatch._get_current_dispatch_mode_stack()
    on_threads(following.__exit__)
    assert float(torch.ones(2).sum()) == 2.0
    assert following.tracked.snapshot["device_traces"] == [[]]
    mode.__exit__(None, None, None)


def test_compiled_code_stays_compiled() -> None:
    """No code of ours is traced into a compiled function."""
    counters = pytest.importorskip("torch._dynamo.utils").counters

    def compiled(x: Any) -> Any:
        return (x.sin() * 2).cos()

    counters.clear()
    with Following():
        result = torch.compile(compiled, backend="aot_eager", fullgraph=True)(torch.ones(8))
    assert torch.equal(result, compiled(torch.ones(8)))
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["stats"]["calls_captured"] == 3


def test_the_oldest_events_are_dropped() -> None:
    """The newest are kept, and a flag says that there were more."""
    with Following(most=4) as following:
        for _ in range(10):
            floats(4)
        kept = floats(8)
    assert following.tracked.wrapped
    assert len(following.tracked.snapshot["device_traces"][0]) == 4
    assert following.peak.bytes == 8 * KIB
    del kept


def test_its_cost_is_measured() -> None:
    """The cost includes the share of each operator."""
    with Following() as following:
        for _ in range(200):
            torch.ones(1)
    assert following.tracked.seconds > 200 * 1e-6


def test_without_torch_nothing_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker does not import torch."""
    monkeypatch.delitem(sys.modules, "torch")
    tracker = OperatorTracker()
    assert not tracker.begin()
    assert tracker.end() is None


def test_sparse_tensors_pass() -> None:
    """A tensor without a storage of its own is not counted, and still works."""
    with Following():
        assert float((torch.eye(3).to_sparse() @ torch.ones(3, 1)).sum()) == 3.0


def test_the_viewer_of_torch_can_read_it() -> None:
    """The functions behind pytorch.org/memory_viz take the snapshot."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    with Following() as following:
        kept = floats(4)
    assert "4.0KiB" in viz.segsum(following.tracked.snapshot)
    assert "TOTAL MEM: 4.0KiB" in viz.trace(following.tracked.snapshot)
    del kept


def test_an_error_of_an_operator_reads_as_without_stacks() -> None:
    """The traceback has no frame of ours, also if the user's own code prints it within the cell."""
    with Following():
        try:
            torch.ones(3) @ torch.ones(4)
        except RuntimeError as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert frames == [__file__]


def test_frames_of_ours_are_removed_from_causes_of_errors() -> None:
    """Neither a cause nor a member of a group shows a frame of ours."""
    mode = sys.modules["hfmem_widget.features.stacks.dispatch_tracker"].__file__
    namespace: dict[str, Any] = {}
    exec(compile("def ours():\n    raise KeyError\n", str(mode), "exec"), namespace)
    try:
        try:
            namespace["ours"]()
        except KeyError as cause:
            raise ValueError from cause
    except ValueError as error:
        group = ExceptionGroup("several", [error])
    without_frames_of_ours(group)
    came_from = group.exceptions[0].__cause__
    assert came_from is not None
    assert [one.filename for one in traceback.extract_tb(came_from.__traceback__)] == [__file__]


def test_a_deep_recursion_fails_only_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """A call that leaves no room for our frames is not recorded, and causes no message and no error."""

    def at(depth: int) -> float:
        return (torch.ones(1) + 1).item() if depth == 0 else at(depth - 1)

    def deeper() -> None:
        for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
            at(depth)

    with Following(), pytest.raises(RecursionError) as raised:
        deeper()
    assert raised.value.__context__ is None
    assert "memwatch" not in capsys.readouterr().err


def profiled(profiler: Any) -> dict[str, int]:
    weight = torch.randn(8, 8, requires_grad=True)
    with profiler() as profile:
        (weight @ weight).relu().sum().backward()
    return {event.key: event.count for event in profile.key_averages()}


def of_today() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


@pytest.mark.parametrize("profiler", [of_today, torch.autograd.profiler.profile])
def test_the_users_profiler_counts_as_without_us(profiler: Any) -> None:
    """It counts each operator once and no mode of ours; tensors around it are recorded."""
    bare = profiled(profiler)
    with Following() as following:
        before = floats(8)
        counted = profiled(profiler)
        after = floats(16)
    assert counted == bare
    assert {8 * KIB, 16 * KIB} <= set(sizes(following.peak))
    assert following.tracked.aside > 0
    del before, after


def test_a_profiler_around_the_watch_is_left_alone() -> None:
    """Nothing is recorded until it ends, and its counts are as without us."""
    with of_today() as bare:
        floats(8)
    with of_today() as profile, Following() as following:
        floats(8)
    counts = [{one.key: one.count for one in each.key_averages()} for each in (bare, profile)]
    assert counts[0] == counts[1]
    assert following.tracked.snapshot["device_traces"] == [[]]


def test_a_profiler_on_another_thread_changes_nothing() -> None:
    """It counts that thread's operators, and ours are still recorded."""
    counts: dict[str, int] = {}
    with Following() as following:
        on_threads(lambda: counts.update(profiled(of_today)))
        kept = floats(8)
    assert counts["aten::mm"] == 3
    assert sizes(following.peak) == [8 * KIB]
    assert following.tracked.aside == 0
    del kept


def test_the_users_own_modes_stay_in_their_order_around_a_profiler() -> None:
    """Ours is removed from below theirs, and returns there, so that each mode removes itself."""
    theirs = UsersMode()
    with Following() as following:
        ours = dispatch._get_current_dispatch_mode_stack()[0]
        with theirs:
            with of_today():
                assert dispatch._get_current_dispatch_mode_stack() == [theirs]
            assert dispatch._get_current_dispatch_mode_stack() == [ours, theirs]
        kept = floats(8)
    assert sizes(following.peak) == [8 * KIB]
    del kept


def test_torchs_functions_are_its_own_again() -> None:
    """The wrappers that detect profilers exist only during a watch."""
    module = torch.autograd.profiler
    before = (module._run_on_profiler_start, module._run_on_profiler_stop)
    with Following(), Following():
        assert module._run_on_profiler_start is not before[0]
    assert (module._run_on_profiler_start, module._run_on_profiler_stop) == before


def test_a_fault_of_ours_ends_the_recording_and_is_reported_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's operators continue unrecorded; one line says why."""
    with Following() as following:
        kept = floats(8)
        with monkeypatch.context() as patched:
            patched.setattr(following.tracker, "_look", {}.__getitem__)
            results = [floats(4) + 1 for _ in range(3)]
        after = floats(16)

    assert all(torch.isfinite(one).shape == (KIB,) for one in results)
    assert sizes(following.peak) == [8 * KIB]
    assert capsys.readouterr().err.count("stacks are no longer recorded (TypeError") == 1
    del kept, after


@pytest.mark.parametrize("count", [0, 3, 4, 5, 8, 11])
def test_the_newest_are_kept_oldest_first(count: int) -> None:
    """The order is right however often the ring was filled."""
    ring = EventRing(4)
    for number in range(count):
        ring.add(0, number, 10 * number, float(number))
    kept = range(max(0, count - 4), count)
    (trace,) = ring.snapshot(())["device_traces"]
    assert [(one["addr"], one["size"], one["time_us"]) for one in trace] == [
        (number, 10 * number, number * 1_000_000) for number in kept
    ]
    assert (ring.seen, len(ring)) == (count, len(kept))


def test_equal_places_are_one() -> None:
    """A loop has only a few different places."""
    ring = EventRing(4)
    code = (test_equal_places_are_one.__code__, 1)
    first, again = ring.place("aten::mm", (code,)), ring.place("aten::mm", (code,))
    assert first == again
    ring.add(0, 1, 2, 3.0, first)
    ((event,),) = ring.snapshot(())["device_traces"]
    assert event["action"] == "alloc"
    assert [frame["name"] for frame in event["frames"]] == ["aten::mm", code[0].co_qualname]


def test_events_do_not_trigger_the_garbage_collector() -> None:
    """It would otherwise run far more often than without us."""
    ring = EventRing(100_000)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(10_000):
        ring.add(number % 3, number, number, 0.0)
    assert len(gc.get_objects()) - before < 100
