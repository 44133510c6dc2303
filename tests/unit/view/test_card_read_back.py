"""The card read back: what is said of devices, of their budgets, of polling, and of why memory ran out."""

from __future__ import annotations

import math
import re
from typing import Literal

import pytest

from hfmem_widget.analysis.facts import Facts, active_devices, facts_of, uses_a_gpu
from hfmem_widget.session import (
    Device,
    Finding,
    Guide,
    Peak,
    Polling,
    Recorder,
    Sample,
    Series,
)
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.card import (
    _budgets,
    _columns,
    _devices,
    _polling,
    _use,
    card_bundle,
)
from hfmem_widget.view.one_line import outcome_colour
from tests.scenes import scripted_run

NAN = math.nan


def facts(**given: float) -> Facts:
    values = {
        "before": 1.0,
        "after": 3.0,
        "reserved": 6.0,
        "reserved_peak": 7.0,
        "used": 10.0,
        "process": 8.0,
        "others": 2.0,
        "headroom": 70.0,
    }
    told = {name: value * GIB for name, value in (values | given).items() if name != "total"}
    device = Device("cuda:0", "NVIDIA H200", total=given.get("total", 80.0) * GIB)
    peak = Peak(told.pop("peak", 5 * GIB), "exact")
    return Facts(
        device=device,
        allocated_label="allocated",
        reserved_label="reserved",
        used_label="device in use",
        peak=peak,
        **told,
    )


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], []),
        (["H200"], ["cuda:0 H200"]),
        (["H200", "H200"], ["2 \u00d7 H200"]),
        (["H200", "A100"], ["2 devices"]),
        (["H200"] * 8, ["8 \u00d7 H200"]),
    ],
)
def test_devices_that_are_alike_are_counted(names: list[str], told: list[str]) -> None:
    """One is named with its key; those of several kinds are only counted."""
    assert _devices([Device(f"cuda:{at}", name) for at, name in enumerate(names)]) == told


def test_a_budget_is_named_in_the_head() -> None:
    """Once, the first of those of devices that are shown; a trend is none."""
    session = scripted_run("training")
    shown = facts_of(session, session.spans[0])
    kinds = [
        ("cuda:7", "budget", "another's"),
        ("cuda:0", "trend", "+1"),
        ("cuda:0", "budget", "one"),
        ("cuda:0", "budget", "one"),
        ("cuda:0", "budget", "two"),
    ]
    session.guides += tuple(
        Guide(key, kind, label, 0.0, 1.0, 2.0, 2.0)  # type: ignore[arg-type]  # of a table
        for key, kind, label in kinds
    )

    assert _budgets(session, shown) == ["one"]


@pytest.mark.parametrize(
    ("outcome", "colour"),
    [
        ("", palette.ALLOCATED),
        ("done", palette.GOOD),
        ("interrupted", palette.STOPPED),
        ("failed", palette.BAD),
        ("ValueError", palette.BAD),
    ],
)
def test_the_outcome_has_a_colour(outcome: str, colour: str) -> None:
    """That of the lines while it runs."""
    recorder = Recorder("run")
    session = recorder.session
    span = recorder.open_span("cell", "a", session.last_sample)
    if outcome:
        span = recorder.close_span(span.id, session.last_sample, {}, outcome)

    assert outcome_colour(span) == colour


@pytest.mark.parametrize(
    ("ticks", "missed", "gap", "interval", "told"),
    [
        (0, 0, 0.0, 0.1, ""),
        (95, 5, 0.0, 0.1, ""),
        (94, 6, 0.0, 0.1, "6 of 100 samples were missed."),
        (0, 3, 0.0, 0.1, "3 of 3 samples were missed."),
        (100, 0, 1.0, 0.1, ""),
        (100, 0, 1.1, 0.1, "There were no samples for up to 1.1 s."),
        (100, 0, 5.0, 1.0, ""),
        (100, 0, 5.1, 1.0, "There were no samples for up to 5.1 s."),
        (
            94,
            6,
            1.1,
            0.1,
            "6 of 100 samples were missed. There were no samples for up to 1.1 s.",
        ),
    ],
)
def test_samples_that_came_badly_are_told(
    ticks: int, missed: int, gap: float, interval: float, told: str
) -> None:
    """More than one in twenty missed, or a pause of more than a second and of five intervals."""
    polling = Polling(interval=interval)
    polling.ticks, polling.missed, polling.longest_gap = ticks, missed, gap

    assert _polling(polling) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "device in use 10.0 of 80.0 GiB · this process 8.0 · other processes 2.0"),
        ({"others": NAN}, "device in use 10.0 of 80.0 GiB · this process 8.0"),
        ({"process": NAN}, "device in use 10.0 of 80.0 GiB · other processes 2.0"),
        ({"used": NAN}, ""),
        (
            {"used": 0.5, "total": 80.0, "others": 0.0, "process": 0.5},
            "device in use 0.50 of 80.0 GiB · this process 0.50 · other processes 0.00",
        ),
    ],
)
def test_who_uses_the_device_is_told_in_its_unit(given: dict[str, float], told: str) -> None:
    """As far as it is known."""
    found = _use(facts(**given)).text
    plainer = re.sub(r"(\d)\.(\d)0\b", r"\1.\2", found)

    assert plainer == re.sub(r"(\d)\.(\d)0\b", r"\1.\2", told)


@pytest.mark.parametrize(
    ("given", "below"),
    [
        ({}, ["", "", "+4.00 GiB above start", "7.00 GiB at its peak", "of 80.0 GiB"]),
        ({"before": NAN}, ["", "", "", "7.00 GiB at its peak", "of 80.0 GiB"]),
        ({"reserved_peak": NAN}, ["", "", "+4.00 GiB above start", "", "of 80.0 GiB"]),
        ({"total": NAN}, ["", "", "+4.00 GiB above start", "7.00 GiB at its peak", ""]),
    ],
)
def test_what_is_not_known_has_nothing_small_below_it(
    given: dict[str, float], below: list[str]
) -> None:
    """Each figure has its own."""
    assert [one for _, _, one in _columns(facts(**given))] == below


def test_why_memory_ran_out_is_said_once() -> None:
    """Where it stands above the card the findings leave it out; a warning of the same kind stays."""
    session = scripted_run("training")
    span = session.spans[0]
    severities: tuple[tuple[str, Literal["warn", "critical"]], ...] = (
        ("oom", "critical"),
        ("oom", "warn"),
        ("leak", "critical"),
    )
    session.findings += tuple(
        Finding(kind, severity, f"{kind} {severity}.", {}, span_id=span.id)
        for kind, severity in severities
    )
    lead = {"text/html": "<div>because</div>", "text/plain": "because"}
    alone = card_bundle(session, span, with_chart=True)
    below = card_bundle(session, span, with_chart=True, lead=lead)

    for form in ("text/html", "text/plain"):
        assert "oom critical." in alone[form]
        assert "because" not in alone[form]
        assert "oom critical." not in below[form]
        assert below[form].startswith(lead[form])
        assert all(one in below[form] for one in ("oom warn.", "leak critical."))


def test_a_device_that_nothing_is_read_of_is_not_shown() -> None:
    """As a GPU before CUDA is up, whose allocator has no figures yet."""
    recorder = Recorder("run")
    session = recorder.session
    devices = [Device("cuda:0", "H200"), Device("cuda:1", "H200"), Device("cpu", "EPYC")]
    recorder.adopt(devices, [Series("cuda:0", "allocated"), Series("cpu", "allocated")])
    span = recorder.open_span("cell", "a", recorder.append(Sample(0.0, (0.0, 1.0))))
    recorder.append(Sample(1.0, (5.0, 1.0)))
    closed = recorder.close_span(span.id, session.last_sample, {})

    assert [one.key for one in active_devices(session, closed)] == ["cuda:0"]
    assert uses_a_gpu(session, closed)
