"""What review found wrong once, each as a fact that holds since."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._python_dispatch as dispatch
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.analysis.leaking.leaks import finding_of, guide_of
from hfmem_widget.analysis.leaking.moments import Moments
from hfmem_widget.analysis.leaking.trends import Trend, trend_in
from hfmem_widget.analysis.shortage.model import Diagnosis
from hfmem_widget.companions import ending
from hfmem_widget.companions import out_of_memory as oom
from hfmem_widget.companions.budget import Budget
from hfmem_widget.freeing.request import asked
from hfmem_widget.monitor import release_monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Session
from hfmem_widget.sources.dispatch_tracker import OperatorTracker, without_frames_of_ours
from hfmem_widget.testing.stage import Stage
from hfmem_widget.units import GIB, KIB, MIB, format_counted
from hfmem_widget.view.findings import findings_lines


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """Return an IPython with the extension loaded."""
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext hfmem_widget")
    yield shell
    shell.run_cell("%unload_ext hfmem_widget")
    InteractiveShell.clear_instance()
    release_monitor()


def modes() -> int:
    return len(dispatch._get_current_dispatch_mode_stack())


# %memfree


def shell_with(output: object, **variables: object) -> Any:
    hook = SimpleNamespace(_=output, __="", ___="")
    namespace = {"_oh": {3: output}, "_": output, "_3": output, "__": "", "___": "", **variables}
    namespace["Out"] = namespace["_oh"]
    return SimpleNamespace(user_ns=namespace, user_ns_hidden={"_": output}, displayhook=hook)


def test_a_variable_is_let_go_by_its_name_where_there_is_an_output() -> None:
    """And not the last output in its place."""
    shell = shell_with([1], model=[2])
    (slots,) = asked(["model"], shell=shell).items.values()
    assert [(slot.key, slot.value()) for slot in slots] == [("model", [2])]


def test_the_last_output_is_let_go_by_its_name() -> None:
    (slots,) = asked(["_"], shell=shell_with([1])).items.values()
    assert {slot.name for slot in slots} >= {"_", "Out[3]", "_3"}


# %memwatch on


def test_each_cell_has_stacks_of_its_own(shell: InteractiveShell) -> None:
    """All cells after `%memwatch on` are in one session, which has the stacks of the last."""
    shell.run_cell("%memwatch on --stacks --quiet -o session\nimport torch")
    shell.run_cell("one = torch.zeros(1000)")
    session: Session = shell.user_ns["session"]
    shell.run_cell("two = torch.zeros(5000)")
    assert session.stacks is not None
    assert [one.bytes for one in session.stacks.peaks] == [20_000]


def test_the_end_of_a_session_ends_the_cell_in_it(shell: InteractiveShell) -> None:
    """`%unload_ext` and `%memwatch off` in a cell that is watched leave nothing of ours behind."""
    before = len(sys.meta_path), modes(), len(oom._watching), len(ending._asked)
    for end in ("%reload_ext hfmem_widget", "x = 1\n%memwatch off"):
        shell.run_cell("%memwatch on --stacks --quiet --budget 1GiB --stop")
        shell.run_cell("import torch; torch.zeros(3)")
        shell.run_cell(end)
        assert (len(sys.meta_path), modes(), len(oom._watching), len(ending._asked)) == before


def a_cell(stage: Stage, budget: Budget, *levels: float, ask: bool = False) -> None:
    any_monitor: Any = None
    with stage.span("cell", "run") as span:
        budget.begin(any_monitor, stage.session, span)
        for level in levels:
            stage.hold({"cuda:0": level * GIB}, 0.1)
            stage.sample()
            for listener in stage.session.subscribers:
                listener(stage.session)
        if ask:
            assert ending.should_end(7, alone=True)
        budget.end(stage.session, span, None)
    budget.report(stage.session, stage.session.span(span.id))


def test_a_budget_that_stays_crossed_is_told_in_one_cell() -> None:
    """And again once it has been kept to meanwhile, or where it ends a training."""
    stage = Stage("run", gpus=1)
    options = WatchOptions(budget=20 * GIB, stop=True)
    findings = stage.session.findings
    a_cell(stage, Budget(options), 19.0, 21.0)
    assert len(findings) == 1
    a_cell(stage, Budget(options), 22.0)
    assert len(findings) == 1
    a_cell(stage, Budget(options), 22.0, ask=True)
    assert len(findings) == 2
    assert "the training was ended after step 7" in findings[1].title
    a_cell(stage, Budget(options), 10.0)
    a_cell(stage, Budget(options), 21.0)
    assert len(findings) == 3


# Stacks and the user's errors


def test_an_error_of_an_operator_reads_as_without_stacks() -> None:
    """Also where the user's own code prints it, within the cell."""
    tracker = OperatorTracker()
    tracker.begin()
    try:
        torch.ones(3) @ torch.ones(4)
    except RuntimeError as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    finally:
        tracker.end()
    assert frames == [__file__]


def test_frames_of_ours_are_taken_out_of_what_an_error_came_from() -> None:
    mode = sys.modules["hfmem_widget.sources.operator_mode"].__file__
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


def test_an_operator_deep_in_recursion_fails_of_itself_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is too deep for our frames is not seen, and neither told nor raised."""

    def at(depth: int) -> float:
        return (torch.ones(1) + 1).item() if depth == 0 else at(depth - 1)

    def deeper() -> None:
        for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
            at(depth)

    tracker = OperatorTracker()
    tracker.begin()
    try:
        with pytest.raises(RecursionError) as raised:
            deeper()
    finally:
        tracker.end()
    assert raised.value.__context__ is None
    assert "memwatch" not in capsys.readouterr().err


# Words


def trend(slope: float, what: str = "a step") -> Trend:
    return Trend(
        device="cpu", what=what, root=1, first=6, last=5006, start=0.5, stop=9.0, slope=slope,
        low=0.96 * slope, high=1.04 * slope, intercept=0.0, grown=5000 * slope, spread=1.0, moments=5000,
    )  # fmt: skip


def test_readings_of_one_instant_are_no_fault() -> None:
    """They would divide by nothing, and numpy would say so in the user's cell."""
    time = np.array([0.0] * 12 + [*np.arange(1.0, 19.0)])
    nothing = np.full(30, np.nan)
    allocated = np.maximum(np.arange(30.0) - 11, 0) * 64 * MIB
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trend_in(Moments("cuda:0", "a second", 1, time, time, allocated, nothing, nothing))


def test_growth_by_little_is_told_in_small_units() -> None:
    """Not as 0.00 MiB."""
    stage = Stage("run", gpus=0)
    with stage.span("cell", "run") as span:
        title = finding_of(stage.session, span, trend(1.25 * KIB)).title
    assert (
        "grows by 1.25 KiB a step (95 %: 1.20 to 1.30 KiB) since step 6: 6.10 MiB so far" in title
    )
    assert guide_of(trend(1.25 * KIB)).label == "+1.25 KiB a step"


def test_a_guess_at_why_memory_ran_out_says_so_in_its_name() -> None:
    assert Diagnosis("huge", "It may be.", is_sure=False).name == "one huge request, probably"


def test_counts_agree_with_their_nouns() -> None:
    assert format_counted(1, "object") == "1 object"
    assert format_counted(1024, "object") == "1,024 objects"


def test_plain_text_says_of_what_there_is_more() -> None:
    one = Finding("x", "info", "It is so")
    assert findings_lines([one, one], in_sight=1)[-1] == "  1 more finding"
