"""The findings on sessions and real loops in which memory grows, and on those in which it does not."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfmem_widget.analysis.facts import findings_of
from hfmem_widget.features import judge
from hfmem_widget.features.leaks.findings import finding_of, growth, guide_of
from hfmem_widget.features.leaks.trends import ComparablePoints, Trend, trend_in, trends_of
from hfmem_widget.session import DeviceSteps, Finding, Series, Session, Span, StepGroup, outermost
from hfmem_widget.text import GIB, KIB, MIB
from tests.data.breadth import some_of
from tests.data.leak_cases import CASES, CRIES, Case
from tests.data.leak_noise import GROWING, STILL, readings
from tests.data.leak_played import played
from tests.data.leak_rows import FILE, SHAPES, of_shape
from tests.data.recorders import cell_of
from tests.scenes import SCRIPTED_RUNS, scripted_run, shared_run
from tests.scenes.groups import add_group
from tests.scenes.stage import Stage

GPU = "cuda:0"


def leaks(session: Session, span: Span) -> tuple[Finding, ...]:
    return tuple(growth(session, span))


def leak_of(session: Session) -> Finding:
    (finding,) = leaks(session, session.spans[0])
    return finding


def trained(
    after: Callable[[int], float],
    steps: int = 40,
    *,
    device: str = GPU,
    tokens: Callable[[int], float] | None = None,
    stage: Stage | None = None,
) -> Session:
    """Return a session of a training; `after` is what is allocated when a step has ended, in MiB."""
    stage = Stage("train", gpus=1) if stage is None else stage
    with stage.span("cell", "train"), stage.span("train", "train"):
        for step in range(1, steps + 1):
            with stage.span("step", f"step {step}") as span:
                counts = {"step": float(step)} | ({"tokens": tokens(step)} if tokens else {})
                stage.recorder.count(span.id, counts)
                stage.hold({device: 8 * GIB}, 0.1)
                stage.hold({device: after(step) * MIB}, 0.1)
    return stage.finish()


def leaking(step: int) -> float:
    """Return 500 MiB, states from the first step on, and 12.5 MiB more with each."""
    return 500 + 12.5 * step


def test_a_leak_is_one_sentence_with_its_figures() -> None:
    """It says how much grows a step, since when, and how much has grown so far."""
    finding = leak_of(trained(leaking))

    assert finding.title.startswith(
        "Allocated memory grows by 12.5 MiB a step since step 6: 425.0 MiB so far"
    )
    assert (finding.kind, finding.severity, finding.span_id) == ("leak", "warn", 1)
    figures = {"slope": 12.5 * MIB, "grown": 425 * MIB, "device": GPU, "what": "a step"}
    assert finding.evidence.items() >= figures.items()


@pytest.mark.parametrize(
    ("after", "options", "begins", "ends"),
    [
        (leaking, {"gpus": 2, "device": "cuda:1"}, "Allocated memory on cuda:1 grows by", "."),
        (leaking, {"gpus": 0, "device": "cpu"}, "Private memory grows by 12.5 MiB a step", "."),
        (lambda step: 1000 + 3000 * step, {}, "Allocated", " so far, full in about 7 steps."),
        (lambda step: 500 + 1.0 * step, {}, "Allocated", "so far."),
    ],
    ids=["of several GPUs", "of the host", "soon full", "full in the far future"],
)
def test_the_sentence_names_the_device_and_when_it_is_full(
    after: Callable[[int], float], options: dict[str, Any], begins: str, ends: str
) -> None:
    """Growth that soon fills the device is critical."""
    stage = Stage("train", gpus=options.pop("gpus", 1))
    finding = leak_of(trained(after, stage=stage, **options))

    assert finding.title.startswith(begins)
    assert finding.title.endswith(ends)
    assert finding.severity == ("critical" if "full in" in finding.title else "warn")


def test_all_growth_of_very_many_blocks_is_counted() -> None:
    """Each of 1,200 requests leaves a MiB; every third is read."""
    stage = Stage("server", gpus=1)
    with stage.span("cell", "serve"):
        for request in range(1, 1201):
            with stage.span("block", "request"):
                stage.hold({GPU: GIB + request * MIB}, 0.1)
    finding = leak_of(stage.finish())

    assert finding.evidence["slope"] == MIB
    assert int(str(finding.evidence["grown"])) > 1100 * MIB


def test_the_bounds_are_given_if_they_differ() -> None:
    """With noise, the slope has bounds at 95 %."""
    rng = np.random.default_rng(3)
    finding = leak_of(trained(lambda step: 500 + 12.5 * step + float(rng.normal(0, 10)), 80))

    assert " a step (95 %: 12." in finding.title
    low, high = (int(str(finding.evidence[name])) for name in ("low", "high"))
    assert low < 12.5 * MIB < high


def test_a_device_is_full_when_the_peak_of_a_step_no_longer_fits() -> None:
    """What is allocated after the step would fit much longer."""
    stage, needed = Stage("train", gpus=1), 40 * GIB
    with stage.span("cell", "train"), stage.span("train", "train"):
        for step in range(1, 41):
            with stage.span("step", f"step {step}"):
                stage.hold({GPU: step * GIB + needed}, 0.1)
                stage.hold({GPU: step * GIB}, 0.1)

    assert leak_of(stage.finish()).title.endswith("full in about 60 steps.")


def test_a_leak_is_among_the_findings_of_the_outermost_span_alone() -> None:
    """A finding that names its holder is not replaced."""
    session = trained(leaking)

    assert [one.kind for one in findings_of(session, session.spans[0])] == ["leak"]
    assert leaks(session, session.spans[1]) == ()
    session.findings[:] = [Finding("leak", "warn", "known", {"device": GPU}, span_id=1)]
    judge(session)
    assert [one.title for one in findings_of(session, session.spans[0])] == ["known"]


def test_the_trend_is_a_line_over_the_chart() -> None:
    """It goes from the start of the growth to the newest step, with a band between its bounds."""
    session = trained(leaking)
    (line,) = session.guides

    assert (line.device, line.kind, line.label) == (GPU, "trend", "+12.5 MiB a step")
    assert (line.first, line.last) == (575 * MIB, 1000 * MIB)
    assert line.start == session.spans[7].stop
    assert line.stop == session.spans[-1].stop
    assert line.band == (0.0, 0.0)


def slowly(step: int) -> float:
    """Return 500 MiB, and a quarter of one more with each step."""
    return 500 + 0.25 * step


def tokens(step: int) -> float:
    """Return a batch that gets longer every ten steps."""
    return 1024.0 * (1 + step // 10)


def with_tokens(step: int) -> float:
    """Return memory that grows with the batch's tokens."""
    return 500 + tokens(step) / 50


@pytest.mark.parametrize(
    ("after", "options", "slopes"),
    [
        (leaking, {"steps": 11}, []),
        (leaking, {"steps": 12}, [12.5]),
        (lambda step: 500 + 5.0 * min(step, 30), {"steps": 45}, []),
        (slowly, {}, [0.25]),
        (slowly, {"device": "cpu"}, []),
        (with_tokens, {"steps": 80, "tokens": tokens}, []),
        (lambda step: with_tokens(step) + step, {"steps": 80, "tokens": tokens}, [1]),
    ],
    ids=["too few steps", "enough", "stopped", "10 MiB of a GPU", "10 MiB of the heap", "longer batches",
         "longer batches and a leak"],
)  # fmt: skip
def test_growth_that_lasts_and_that_nothing_explains_has_a_trend(
    after: Callable[[int], float], options: dict[str, Any], slopes: list[float]
) -> None:
    """It takes twelve steps; plateaus, little growth, and growth that goes with tokens have none."""
    session = trained(after, **options)
    trends = trends_of(session, session.spans[0])
    assert [trend.slope / MIB for trend in trends] == pytest.approx(slopes)


def test_growth_since_the_middle_begins_there() -> None:
    """The flat part before is left out."""
    session = trained(lambda step: 500 + 5.0 * max(0, step - 30), 80)
    (trend,) = trends_of(session, session.spans[0])

    assert trend.first == pytest.approx(30, abs=2)
    assert trend.slope == 5 * MIB


def evaluations(stage: Stage) -> None:
    """Keep 40 MiB of each evaluation, which is seen at the steps too."""
    kept = 500.0
    with stage.span("train", "train"):
        for step in range(1, 81):
            with stage.span("step", f"step {step}"):
                stage.hold({GPU: kept * MIB}, 0.1)
            if step % 8 == 0:
                with stage.span("evaluate", "evaluate"):
                    kept += 40
                    stage.hold({GPU: kept * MIB}, 0.1)


def blocks(stage: Stage) -> None:
    """Keep 64 MiB of each block of one label."""
    for request in range(12):
        with stage.span("block", "answer"):
            stage.hold({GPU: (500 + 64 * request) * MIB}, 0.1)


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (evaluations, "grows by 40.0 MiB an evaluation since the 2nd"),
        (blocks, "grows by 64.0 MiB per “answer” since the 3rd: 576.0 MiB so far"),
    ],
)
def test_growth_is_given_per_span_that_causes_it(play: Callable[[Stage], None], words: str) -> None:
    """The unit is an evaluation, or a block of one label."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"):
        play(stage)

    assert words in leak_of(stage.finish()).title


def test_a_loop_without_spans_is_judged_by_its_optimizers_steps() -> None:
    """The unexplained memory after each step counts; memory that comes with gradients does not."""
    stage = Stage("loop", gpus=1)
    with stage.span("cell", "loop"):
        for step in range(40):
            parts = {"weights": 100.0 * MIB, "unattributed": (20 + 5 * step) * MIB}
            stage.hold({GPU: 900 * MIB}, 0.1, {"gradients": 100.0 * MIB})
            stage.find([GPU], parts)
            stage.hold({GPU: (120 + 5 * step) * MIB}, 0.1)
    finding = leak_of(stage.finish())

    assert "a second" in finding.title
    assert finding.evidence["slope"] == pytest.approx(25 * MIB, rel=0.05)


def test_a_cell_without_a_loop_is_not_judged() -> None:
    """A cell that loads a model is supposed to grow."""
    stage = Stage("load", gpus=1)
    with stage.span("cell", "load"):
        for shard in range(40):
            stage.hold({GPU: (500 + 100 * shard) * MIB}, 0.1)
    session = stage.finish()
    assert trends_of(session, session.spans[0]) == ()


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_a_scripted_run_without_a_leak_has_no_trend(name: str) -> None:
    """Runs with a leak have it in their name."""
    session = shared_run(name)
    trends = [trend for root in outermost(session.spans) for trend in trends_of(session, root)]
    assert "leak" in name or not trends


def test_a_run_of_any_length_is_judged() -> None:
    """Groups of steps have the allocated bytes after their last step."""
    session = scripted_run("short")
    for step in range(1, 20_001):
        allocated = (500 + 0.01 * step) * MIB
        device = DeviceSteps(9 * GIB, "exact", 9 * GIB, step, 8.0, allocated, {})
        add_group(
            session.steps,
            StepGroup(1, step, step, step - 0.5, float(step), 8, 8, 8, 8, {GPU: device}),
        )
    (trend,) = trends_of(session, replace(session.spans[0], stop=20_000.0))

    assert trend.slope == pytest.approx(0.01 * MIB, rel=0.01)
    assert trend.last == 20_000


def test_readings_that_are_missing_are_left_out() -> None:
    """A NaN is not a reading."""
    session = trained(leaking)
    session.steps.table[10:14, session.steps.columns.index(f"{GPU}/after")] = np.nan
    (trend,) = trends_of(session, session.spans[0])

    assert trend.slope == 12.5 * MIB
    assert trend.points == 31


def test_a_session_without_devices_has_no_trend() -> None:
    """It has no readings, so there is nothing to judge."""
    session, _ = cell_of((), (), keys=())
    assert judge(session).guides == []
    assert findings_of(session, session.spans[0]) == ()


ROWS = 120


@pytest.mark.parametrize("shape", STILL)
def test_random_rows_that_stay_are_seldom_suspected(shape: str) -> None:
    """Less than one in a hundred is; of random walks, which no rule can tell apart, one in ten."""
    rng = np.random.default_rng(11)
    suspected = sum(trend_in(readings(rng, shape)) is not None for _ in range(ROWS))

    assert suspected / ROWS <= (0.1 if shape == "a random walk" else 0.01)


@pytest.mark.parametrize("shape", GROWING)
def test_random_rows_that_grow_are_found(shape: str) -> None:
    """Nearly all are; if something else is freed meanwhile, most are."""
    rng = np.random.default_rng(11)
    growing = sum(trend_in(readings(rng, shape)) is not None for _ in range(ROWS))

    assert growing / ROWS >= (0.7 if "freed" in shape else 0.97)


def trend(slope: float, what: str = "a step") -> Trend:
    return Trend(
        device="cpu", what=what, first=6, last=5006, start=0.5, stop=9.0, slope=slope,
        low=0.96 * slope, high=1.04 * slope, intercept=0.0, grown=5000 * slope, spread=1.0, points=5000,
    )  # fmt: skip


def test_readings_of_one_instant_cause_no_warning() -> None:
    """A division by zero would make NumPy warn in the user's cell."""
    time = np.array([0.0] * 12 + [*np.arange(1.0, 19.0)])
    nothing = np.full(30, np.nan)
    allocated = np.maximum(np.arange(30.0) - 11, 0) * 64 * MIB
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trend_in(ComparablePoints("cuda:0", "a second", time, time, allocated, nothing, nothing))


def test_small_growth_is_given_in_small_units() -> None:
    """Growth of a KiB is not rounded to 0.00 MiB."""
    stage = Stage("run", gpus=0)
    with stage.span("cell", "run") as span:
        title = finding_of(stage.session, span, trend(1.25 * KIB)).title
    assert (
        "grows by 1.25 KiB a step (95 %: 1.20 to 1.30 KiB) since step 6: 6.10 MiB so far" in title
    )
    assert guide_of(trend(1.25 * KIB)).label == "+1.25 KiB a step"


BY_NAME = {one.name: one for one in CASES}
LEAKING = [name for name, one in BY_NAME.items() if one.leaks]
NOT_LEAKING = [name for name, one in BY_NAME.items() if not one.leaks]

ALWAYS = ("a hook registered anew at every step", "workspaces of cuBLAS")


def cries(case: Case) -> set[str]:
    """Return the rules of two numbers that call it a leak, as the table has them."""
    return {rule for rule, names in CRIES.items() if case.name in names}


def test_there_are_enough_of_both() -> None:
    """The cases are many enough to compare rules."""
    assert len(LEAKING) >= 13
    assert len(NOT_LEAKING) >= 13
    assert BY_NAME.keys() >= frozenset().union(*CRIES.values())


@pytest.mark.parametrize("name", some_of(BY_NAME, ALWAYS))
def test_a_loop_that_leaks_is_found_and_no_other(name: str) -> None:
    """As a GPU's allocator counts it, and on the heap; it is given by what makes it grow.

    The other rules say of it what the table has.
    """
    case = BY_NAME[name]
    result = played(case)

    assert [trend is not None for trend in (result.on_gpu, result.on_host)] == [case.leaks] * 2
    if result.on_gpu is not None:
        assert result.on_gpu.what == case.what
        assert result.on_gpu.low <= result.on_gpu.slope <= result.on_gpu.high
    assert result.cries == cries(case)


@pytest.mark.parametrize("rule", CRIES)
def test_more_than_a_megabyte_an_iteration_misses_leaks_and_cries_wolf(rule: str) -> None:
    """The rule fails with the mean as well as with each iteration."""
    missed = [one for one in LEAKING if one not in CRIES[rule]]
    false = [one for one in NOT_LEAKING if one in CRIES[rule]]

    assert len(missed) >= 5
    assert len(false) >= 2


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
KEPT = FILE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SHAPES)
def test_trends_are_those_that_are_kept(name: str) -> None:
    """After an intended change, ``python -m tests.data.leak_rows`` keeps those found now."""
    rows, stored = of_shape(name), [one for one in KEPT if one.startswith(f"{name}, ")]

    assert [NUMBER.sub("#", one) for one in rows] == [NUMBER.sub("#", one) for one in stored]
    for one, other in zip(rows, stored, strict=True):
        assert [*map(float, NUMBER.findall(one))] == pytest.approx(
            [*map(float, NUMBER.findall(other))], rel=1e-4, abs=1e-3
        ), other


def test_a_shells_limit_comes_before_the_machine_is_full() -> None:
    """With `ulimit -v`, the steps left are those until this process may map no more."""
    stage = Stage("train", gpus=0)
    limited = (*stage.session.series, Series("cpu", "mappable"))
    stage.recorder.adopt(stage.session.devices, limited)
    stage.find(["cpu"], {"mappable": 1250 * MIB})
    with stage.span("cell", "train"):
        for step in range(1, 41):
            with stage.span("step", f"step {step}"):
                stage.hold({"cpu": leaking(step) * MIB}, 0.2)

    assert leak_of(stage.finish()).title.endswith("so far, full in about 100 steps.")
