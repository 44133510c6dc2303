"""Findings on a cell that leaves more memory with each of its runs."""

from dataclasses import replace

import pytest

from hfmem_widget.analysis.record import record_of
from hfmem_widget.features.leaks.reruns import reruns, with_names
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.text import MIB
from tests.scenes.stage import Stage

GPU = "cuda:0"

Edges = list[tuple[float, float]]


def ran(before: float, after: float, device: str = GPU) -> tuple[Session, Span]:
    """Return a run of a cell that began with some MiB and left others."""
    stage = Stage("cell", gpus=1 if device == GPU else 0)
    stage.hold({device: before * MIB}, 0.1)
    with stage.span("cell", "cell"):
        stage.hold({device: after * MIB}, 0.1)
    session = stage.finish()
    return session, session.spans[0]


def findings_of(edges: Edges, device: str = GPU) -> tuple[Finding, ...]:
    *earlier, last = edges
    records = [record_of(*ran(*one, device)) for one in earlier]
    return reruns(*ran(*last, device), records)


def test_each_of_many_runs_left_as_much_more() -> None:
    """The title has the number of runs, the memory of each, and the sum."""
    (finding,) = findings_of([(0, 900), (900, 1020), (1020, 1140), (1140, 1260), (1260, 1380)])

    expected = ("5 times", "last 4", "120.0 MiB more on cuda:0", "480.0 MiB in total")
    assert [words for words in expected if words not in finding.title] == []
    assert (finding.kind, finding.severity, finding.span_id) == ("rerun", "warn", 1)
    assert finding.evidence["each"] == 120 * MIB


def test_memory_of_cells_in_between_is_not_its_own() -> None:
    """Only what this cell left counts in each rise."""
    (finding,) = findings_of([(0, 20), (1020, 1040), (2040, 2060), (3060, 3080), (4080, 4100)])

    assert "20.0 MiB more on cuda:0: 80.0 MiB in total" in finding.title


HEALTHY: dict[str, Edges] = {
    "three runs": [(0, 120), (120, 240), (240, 360)],
    "the first leaves what stays": [(0, 900), (900, 900), (900, 900), (900, 900), (900, 900)],
    "what it left goes in between": [(0, 120), (0, 120), (0, 120), (0, 120), (0, 120)],
    "each takes the place of the one before": [(0, 120), (120, 120), (120, 120), (120, 120)],
    "less than a MiB": [(0, 0.4), (0.4, 0.8), (0.8, 1.2), (1.2, 1.6), (1.6, 2.0)],
    "one run left nothing": [(0, 120), (120, 240), (240, 360), (360, 360), (360, 480)],
    "runs of different sizes": [(0, 10), (10, 20), (20, 520), (520, 530), (530, 540)],
    "unknown": [(0, 120), (120, 240), (240, float("nan")), (float("nan"), 480), (480, 600)],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_memory_that_does_not_add_up_run_by_run_is_ignored(name: str) -> None:
    """It must be similar in each run, on top of the run before."""
    assert findings_of(HEALTHY[name]) == ()


def test_the_host_needs_more() -> None:
    """The host's heap has to grow by 16 MiB a run."""
    small = [(500.0 + 10 * run, 510.0 + 10 * run) for run in range(6)]
    large = [(500.0 + 40 * run, 540.0 + 40 * run) for run in range(6)]

    assert findings_of(small, "cpu") == ()
    assert len(findings_of(small)) == 1
    assert len(findings_of(large, "cpu")) == 1


def test_a_run_on_another_device_does_not_count() -> None:
    """A record that does not know the device is passed over."""
    other = record_of(*ran(0, 120))
    elsewhere = replace(other, devices=(replace(other.devices[0], key="cuda:7"),))

    assert reruns(*ran(360, 480), [elsewhere] * 5) == ()


FIVE_RUNS: Edges = [(120 * run, 120 * run + 120) for run in range(6)]


def advised(mib: float, *, device: str = GPU, bound: str = "") -> str:
    """Return the advice if names lead to some of the 600 MiB that five runs left."""
    (finding,) = findings_of(FIVE_RUNS)
    row = Holder("net", "weights", device, int(mib * MIB), 1, (1,), "float32")
    return " ".join(with_names(finding, Holders((row,), bound=bound)).advice)


def test_memory_without_a_name_is_noted() -> None:
    """If models are in cycles, the variable has the newest one, and no name the four before."""
    assert advised(120).startswith(
        "No name leads to at least 480.0 MiB of it: %memholders --free garbage frees what waits for Python's "
        "garbage collector, which may be all of that."
    )
    assert "No name leads to at least 600.0 MiB" in advised(900, device="cpu")


@pytest.mark.parametrize(("mib", "bound"), [(600, ""), (5000, ""), (120, "out of time")])
def test_without_a_certain_name_no_cause_is_given(mib: float, bound: str) -> None:
    """A search that ended early has no certain name either; the advice says where to look."""
    advice = advised(mib, bound=bound)

    assert advice.startswith("%memholders lists what holds it")
    assert "refer" not in advice


@pytest.mark.parametrize(
    ("mib", "expected"),
    [
        ([700], "; it may be kept[0] (700.0 MiB)."),
        ([500, 100], " in total."),
        ([600] * 3, " in total."),
    ],
)
def test_names_that_hold_as_much_are_given(mib: list[int], expected: str) -> None:
    """One or two are given as possible names, larger groups are not."""
    (finding,) = findings_of(FIVE_RUNS)
    rows = tuple(
        Holder(f"kept[{number}]", "tensors", GPU, int(size * MIB), 1, (1,), "float32")
        for number, size in enumerate(mib)
    )
    assert with_names(finding, Holders(rows)).title.endswith(expected)


def test_a_run_that_goes_on_has_no_finding() -> None:
    """Its earlier runs do not matter."""
    *earlier, (session, span) = [ran(at * 500, (at + 1) * 500) for at in range(5)]
    records = [record_of(*one) for one in earlier]

    assert len(reruns(session, span, records)) == 1
    assert reruns(session, replace(span, after=None), records) == ()
