"""`on_finding` is called once for each finding, and does not delay the cell."""

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.alerts import companion
from hfmem_widget.features.alerts.companion import Alerts
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding
from tests.scenes.stage import NO_MONITOR, Stage


class Watched:
    """A stage whose findings go to a function, by default to a list; a test makes each look itself."""

    def __init__(
        self, function: Callable[[Finding], object] | None = None, earlier: Sequence[Finding] = ()
    ) -> None:
        self.reported: list[Finding] = []
        self.stage = Stage("run", gpus=1)
        self.session = self.stage.session
        self.session.findings.extend(earlier)
        self.alerts = Alerts(WatchOptions(on_finding=function or self.reported.append))
        self.alerts._ticker.start = lambda: None  # type: ignore[method-assign]  # looks come by hand
        self._cell = self.stage.span("cell", "run")
        self.span = self._cell.__enter__()
        self.alerts.begin(NO_MONITOR, self.stage.recorder, self.span)

    def find(
        self, kind: str = "leak", device: str = "cuda:0", title: str = "It grows.", **more: int
    ) -> None:
        evidence: dict[str, Any] = {"device": device, **more}
        self.session.findings.append(Finding(kind, "warn", title, evidence, span_id=self.span.id))

    def end(self) -> None:
        self.alerts.end(self.stage.recorder, self.span, None)
        self._cell.__exit__(None, None, None)
        self.alerts.conclude(self.session, self.span)


def test_each_finding_is_told_once() -> None:
    """While the code runs and at its end; a finding with a new title at the end is the same one."""
    watched = Watched()
    watched.find("budget", title="It exceeded its budget.")
    watched.alerts.report_new()
    watched.alerts.report_new()
    assert [finding.kind for finding in watched.reported] == ["budget"]

    watched.session.findings.clear()
    watched.find("budget", title="It exceeded its budget, by 2 GiB at its peak.")
    watched.find("leak")
    watched.find("leak", "cuda:1")
    watched.end()

    assert [(finding.kind, finding.evidence["device"]) for finding in watched.reported] == [
        ("budget", "cuda:0"),
        ("leak", "cuda:0"),
        ("leak", "cuda:1"),
    ]


def test_findings_of_earlier_cells_are_not_told_again() -> None:
    """All cells after `%memwatch on` are in one session; a finding as the cell begins is its own."""
    watched = Watched(earlier=[Finding("leak", "warn", "An earlier cell's.", span_id=99)])
    watched.find("budget", title="It begins above it.")
    watched.alerts.begin(NO_MONITOR, watched.stage.recorder, watched.span)
    watched.find("leak")
    watched.end()

    assert [finding.title for finding in watched.reported] == ["It begins above it.", "It grows."]


@pytest.mark.parametrize("error", [ValueError("/home/me/secret"), SystemExit(1)])
def test_an_error_of_the_function_is_noted_once(error: BaseException) -> None:
    """It is called for the next finding too; the note leaves out the error's text, which may have a path."""
    kinds: list[str] = []

    def fails(finding: Finding) -> None:
        kinds.append(finding.kind)
        raise error

    watched = Watched(fails)
    for kind in ("leak", "budget", "oom"):
        watched.find(kind)
    watched.end()

    assert kinds == ["leak", "budget", "oom"]
    assert watched.session.notes == [
        f"on_finding raised {type(error).__name__}; everything else went on."
    ]


def test_the_function_runs_on_a_thread_of_its_own_with_the_codes_context() -> None:
    """It sees the cell's context variables, such as the current run of an experiment tracker."""
    tracker: ContextVar[str] = ContextVar("tracker", default="none")
    calls: list[tuple[str, bool]] = []
    here = threading.get_ident()
    watched = Watched(lambda _: calls.append((tracker.get(), threading.get_ident() == here)))
    watched.find()
    tracker.set("begun in the cell")
    watched.end()

    assert calls == [("begun in the cell", False)]


def test_a_function_that_hangs_does_not_keep_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note says why it did not get the rest."""
    monkeypatch.setattr(companion, "PATIENCE", 0.01)
    may_go_on = threading.Event()
    watched = Watched(lambda _: may_go_on.wait())
    watched.find()
    watched.end()
    may_go_on.set()

    assert watched.session.notes == ["on_finding was still busy after 0 s."]


async def coroutine(_finding: Finding) -> None: ...


@pytest.mark.parametrize("value", [5, "alert", coroutine])
def test_an_object_that_cannot_be_called_is_refused(value: object) -> None:
    """The error comes before anything is watched."""
    with pytest.raises(OptionError, match="on_finding must be a function that takes a finding"):
        hfmem_widget.watch(on_finding=value)  # type: ignore[arg-type]


def test_a_cell_names_a_function_of_the_notebook(shell: InteractiveShell) -> None:
    """It may be a method of an object; with an unknown name the cell does not run."""
    received: list[str] = []
    shell.user_ns["received"] = received
    shell.user_ns["keep"] = partial(lambda finding: received.append(finding.kind))
    budget = "%%memwatch --quiet --budget 1MiB --on-finding"
    shell.run_cell(f"{budget} keep\nx = 1")
    shell.run_cell(f"{budget} received.append\ny = 1")

    assert received[0] == "budget"
    assert isinstance(received[1], Finding)
    assert shell.run_cell(f"{budget} print\nx = 1").success
    for wrong in ("missing", "received.missing", "x"):
        result = shell.run_cell(f"{budget} {wrong}\nz = 1")
        assert isinstance(result.error_in_exec, UsageError)
    assert "z" not in shell.user_ns


def nested(
    function: Callable[[Finding], object], outer_function: Callable[[Finding], object], kind: str
) -> None:
    """Watch within a watch, and find the same in both: in the inner one first, as watches end."""
    around, within = Watched(outer_function), Watched(function)
    within.alerts._ticker.stop(0.0)
    for watched in (within, around):
        watched.find(kind)
        watched.end()


def test_one_error_about_memory_is_told_once_by_nested_watches() -> None:
    """Both watches find the error, and both may have the same function; equal methods are the same."""
    received: list[Finding] = []
    nested(received.append, received.append, "oom")
    assert len(received) == 1

    others: list[Finding] = []
    nested(received.append, others.append, "oom")
    assert (len(received), len(others)) == (2, 1)

    nested(received.append, received.append, "leak")
    assert len(received) == 4


def test_a_second_error_after_a_nested_watch_is_told() -> None:
    """The outer watch alone found it: its request had another size."""
    around = Watched()
    within = Watched(around.reported.append)
    within.find("oom")
    within.end()
    around.find("oom", title="Later.", asked=5)
    around.end()

    assert len(around.reported) == 2
