"""The card of an out-of-memory error: no script, everything escaped, the same in plain text."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

import pytest

from hfmem_widget.features.oom.advice import MEASURED_ON, advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.html import (
    advice_list,
    bar_html,
    drawn_parts,
    figures_of,
    foot,
    out_of_memory_bundle,
)
from hfmem_widget.features.oom.model import Advice, Incident, LiveBlocks
from hfmem_widget.session import Device
from hfmem_widget.text import GIB, size_text
from hfmem_widget.view import palette
from tests.data.oom_incidents import CASES, Case, blocks, incident
from tests.data.svg import Drawing
from tests.unit.view.test_hostile_text import Strict

HOSTILE = "<script>alert(1)</script>\u202e$\\href{x}$"


def bundle(incident: Incident, earlier: int = 0) -> dict[str, str]:
    diagnosis = diagnose(incident)
    return out_of_memory_bundle(incident, diagnosis, advise(incident, diagnosis), earlier=earlier)


def case(words: str) -> Incident:
    return next(one.incident for one in CASES if words in one.name)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_every_card_is_whole(one: Case) -> None:
    """Each element is closed, there is no script, and nothing unknown is told."""
    told = bundle(one.incident)
    assert "a" not in Strict(told["text/html"]).tags
    for text in told.values():
        assert not re.search(r"\bn/a\b|\bnan\b|\binf\b", text)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_both_forms_say_the_same(one: Case) -> None:
    """The diagnosis and each thing to change stand in the HTML and in the plain text."""
    told = bundle(one.incident)
    diagnosis = diagnose(one.incident)
    plain = told["text/plain"]
    assert diagnosis.sentence in plain
    for at, advice in enumerate(advise(one.incident, diagnosis), start=1):
        assert f"\n{at}. {advice.sentence()}" in plain
        assert escape(advice.action) in told["text/html"]


def test_text_from_outside_is_text() -> None:
    """Labels of spans, names of devices and lines of code reach the card escaped."""
    incident = case("float32 on a card that has")
    blocks = incident.blocks
    assert blocks is not None
    incident = replace(
        incident,
        device=Device("cuda:0", HOSTILE),
        path=(*incident.path[:-1], replace(incident.path[-1], label=HOSTILE)),
        blocks=replace(blocks, biggest=(LiveBlocks(GIB, 1, HOSTILE),)),
    )
    told = bundle(incident)
    assert "<script" not in told["text/html"]
    assert "\u202e" not in told["text/html"] + told["text/plain"]


def test_the_request_is_drawn_beyond_the_end() -> None:
    """Where it does not fit, the bar shows the request past the device's capacity."""
    drawn = bar_html(case("another process has most"))
    assert "stroke-dasharray" in drawn
    assert "past the end" in drawn


def test_a_request_of_many_devices_is_not_drawn() -> None:
    """It would leave no room for anything else."""
    assert "stroke-dasharray" not in bar_html(case("more than the device has"))


def test_a_limit_is_the_end_of_the_bar() -> None:
    """Where this process may use a part of the device only, the bar is that part."""
    drawn = bar_html(case("a limit on this process"))
    assert "limit of this process: 8.00 GiB" in drawn


def test_a_limit_on_the_machines_memory_is_the_end_of_the_bar() -> None:
    """Where `ulimit` was met it is the whole, of what this process has mapped, and not the machine."""
    met = case("CPU: a limit of the shell's")
    assert met.met_a_limit
    drawn = bar_html(met)
    assert f"limit of this process: {size_text(met.host.limit)}" in drawn
    told = bundle(met)
    assert f"allowed {size_text(met.host.limit)}" in told["text/plain"]
    assert "rest of the machine" not in told["text/html"]
    widths = [
        float(one) for one in re.findall(r'<rect x="[\d.]+%" width="([\d.]+)%" height', drawn)
    ]
    assert sum(widths) <= 100.5


def test_a_capacity_is_the_one_that_stands_everywhere() -> None:
    """It is what NVML tells, as on the card; CUDA's is less by what the driver keeps."""
    own = case("full of 16-bit weights")
    device = replace(own.device, total=own.total + 0.6 * GIB)
    told = bundle(replace(own, device=device))["text/plain"]
    assert size_text(device.total) in told
    assert size_text(own.total) not in told


def test_blocks_without_stacks_are_one_line() -> None:
    """Without a recording only the sizes are known."""
    incident = case("float32 on a card that has")
    blocks = incident.blocks
    assert blocks is not None
    bare = replace(blocks, biggest=(LiveBlocks(GIB, 3), LiveBlocks(GIB / 2, 1)))
    told = bundle(replace(incident, blocks=bare))
    assert 'inline-block">3 \u00d7 1.00 GiB' in told["text/html"]
    assert "<table" not in told["text/html"]


def test_earlier_errors_are_counted() -> None:
    """What the code caught before is said at the foot."""
    incident = case("float32 on a card that has")
    assert "2 earlier out-of-memory errors" in bundle(incident, 2)["text/html"]
    assert "benchmark: bert-large" in bundle(incident, 2)["text/html"]
    assert "1 earlier out-of-memory error" in bundle(incident, 1)["text/plain"]
    assert "earlier" not in bundle(incident)["text/plain"]


def test_the_lines_of_the_biggest_blocks_stand_beside_their_sizes() -> None:
    """Each has the line of code that made it; one from before the recording says that instead."""
    incident = case("float32 on a card that has")
    blocks = incident.blocks
    assert blocks is not None
    biggest = (LiveBlocks(GIB, 3, "model.py:12 forward"), LiveBlocks(GIB / 2, 1))
    html = bundle(replace(incident, blocks=replace(blocks, biggest=biggest)))["text/html"]
    rows = re.findall(r"<tr.*?</tr>", html.rpartition("<table")[2])
    told = [re.sub(r"<[^>]+>", " ", row).replace("\u00a0", " ").split() for row in rows]

    assert [" ".join(words) for words in told] == [
        "3 \u00d7 1.00 GiB model.py:12 forward",
        "512.0 MiB allocated before stacks were recorded",
    ]


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_bar_has_each_part_where_the_one_before_ends(one: Case) -> None:
    """As long as its share of all there is, or of the request too where that goes beyond it."""
    html = bar_html(one.incident)
    parts = drawn_parts(one.incident)
    if not html:
        assert not parts or not one.incident.total > 0
        return
    drawing = Drawing(html)
    boxes = list(zip(drawing.svg.iter("rect"), drawing.boxes(), strict=True))
    bars = [box for box in boxes if box[0].get("stroke-dasharray") is None]
    asked = [box for box in boxes if box[0].get("stroke-dasharray") is not None]
    (end,) = [float((line.get("x1") or "")[:-1]) for line in drawing.svg.iter("line")]
    anatomy = one.incident.anatomy
    assert anatomy is not None
    whole = max(one.incident.total, sum(part.bytes for part in anatomy.parts))
    limit = one.incident.host.limit if one.incident.met_a_limit else one.incident.allowed
    there_is = limit if limit > 0 else whole
    taken = sum(part.bytes for part in parts)
    assert not one.incident.met_a_limit or taken == one.incident.host.used
    full = max(there_is, taken + (one.incident.asked if asked else 0.0))

    assert [box.get("fill") for box, _ in bars] == [palette.PARTS[part.name] for part in parts]
    at = 0.0
    for part, (box, (left, top, width, height)) in zip(parts, bars, strict=True):
        assert left == pytest.approx(1000 * at / full, abs=0.1)
        assert width == pytest.approx(1000 * part.bytes / full, abs=0.1)
        assert (top, height) == (0.0, drawing.height)
        assert (box.findtext("title") or "").startswith(part.label)
        at += part.bytes
    for _, (left, top, width, height) in asked:
        assert left == pytest.approx(1000 * taken / full, abs=0.1)
        assert width == pytest.approx(1000 * one.incident.asked / full, abs=0.1)
        assert top > 0
        assert top * 2 + height == drawing.height
    assert end == pytest.approx(100 * there_is / full, abs=0.01)
    assert ("past the end" in html) is (full > there_is)
    assert size_text(taken) in drawing.label
    assert size_text(there_is) in drawing.label


def test_the_biggest_five_of_other_processes_are_named() -> None:
    """The biggest first, each with its number and its size."""
    processes = tuple((number, number * GIB) for number in (3, 1, 7, 2, 6, 5))
    told = bundle(replace(case("another process has most"), processes=processes))
    named = [f"process {number}: {number}.00\u00a0GiB" for number in (7, 6, 5, 3, 2)]

    assert set(told) == {"text/html", "text/plain"}
    for text in told.values():
        assert (
            " \u00b7 ".join(named) in text or " \u00b7 ".join(named).replace("\u00a0", " ") in text
        )
        assert "process 1:" not in text


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_each_advice_has_its_reason_and_what_it_saves(one: Case) -> None:
    """In the HTML as in the plain text; what saves nothing that is known says nothing of it."""
    told = advise(one.incident, diagnose(one.incident))
    items = re.findall(r"<li.*?</li>", bundle(one.incident)["text/html"])

    assert len(items) == len(told)
    for advice, item in zip(told, items, strict=True):
        words = re.sub(r"<[^>]+>", " ", item)
        assert escape(advice.reason[1:]) in words
        assert (escape(advice.saving) in words) is True
        assert ("could save" in item.rpartition("</div><div")[2]) is bool(advice.saving)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_parts_are_what_is_taken(one: Case) -> None:
    """Each by its name and its size; what is free is no part of it."""
    anatomy = one.incident.anatomy
    line = [text for text in bundle(one.incident)["text/plain"].splitlines() if "parts: " in text]
    parts = () if anatomy is None else [part for part in anatomy.parts if part.name != "free"]

    assert bool(line) is bool(parts)
    for part in parts:
        # What malloc keeps is in what is mapped, not private memory, where the whole is a limit of that.
        if part.name != "cache" or "mapped, not private memory" not in line[0]:
            assert f"{part.label} {size_text(part.bytes)}" in line[0]
    assert not any("free" in text.rpartition("parts: ")[2].split() for text in line)


PARTS = {"weights": 20.0, "activations": 10.0, "cache": 5.0, "context": 1.0, "others": 4.0}


DO = Advice("Do this", "it is too much")


MEASURED = Advice("Do that", "it was tried", "about half", 1.0, is_measured=True)


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (0.0, ["weights", "activations", "cache", "context", "others"]),
        (40.0, ["weights", "activations", "cache"]),
    ],
)
def test_a_limit_is_met_by_what_this_process_has_reserved(allowed: float, names: list[str]) -> None:
    """The cache counts against it, the context and other processes do not; what is free is never drawn."""
    one = incident(asked=9.0, free=40.0, parts=PARTS, others=4.0, allowed=allowed)

    assert [part.name for part in drawn_parts(one)] == names


def test_without_parts_there_is_no_bar() -> None:
    """Nor is there an empty one."""
    assert bar_html(incident(asked=9.0, free=1.0)) == ""
    assert bar_html(incident(asked=9.0, free=1.0, parts=PARTS)) != ""


def test_an_advice_whose_saving_nobody_knows_says_nothing_of_it() -> None:
    """It has what to do and why, and one that was measured has what it saves."""
    html = advice_list((DO, MEASURED)).html
    first, second = html.split("<li ")[1:]

    assert "It is too much.</div></li>" in first
    assert "could save about half</div></li>" in second
    assert not advice_list(())


@pytest.mark.parametrize(
    ("advice", "earlier", "told"),
    [
        ((), 0, []),
        ((DO,), 0, []),
        ((DO,), 1, ["1 earlier out-of-memory error"]),
        ((DO,), 2, ["2 earlier out-of-memory errors"]),
    ],
)
def test_the_foot_tells_of_errors_before(
    advice: tuple[Advice, ...], earlier: int, told: list[str]
) -> None:
    """One is not told as several."""
    assert [one.split(" did not")[0] for one in foot(advice, earlier)] == told


def test_the_foot_says_where_it_was_measured() -> None:
    """Where anything was; after what was caught before."""
    first, second = foot((DO, MEASURED), 1)

    assert "1 earlier" in first
    assert MEASURED_ON in second


@pytest.mark.parametrize(("cache", "named"), [(0.0, False), (4.0, True)])
def test_the_cache_is_a_figure_with_its_largest_block(cache: float, *, named: bool) -> None:
    """Where there is one worth telling."""
    parts = PARTS | {"cache": cache}
    told = figures_of(incident(asked=9.0, free=1.0, parts=parts, blocks=blocks(3.0, 2.0)))
    names = [name for name, _, _ in told]

    assert ("cache" in names) is ("largest free block" in names) is named
    assert named is (("cache", "4.00 GiB", "free, but reserved") in told)
    assert named is (("largest free block", "2.00 GiB", "in the cache") in told)
