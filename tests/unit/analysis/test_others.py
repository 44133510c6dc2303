"""What the card leads with where other processes filled the devices, and this one used none."""

import math

import pytest

from hfmem_widget.analysis.others import Moved, Movement, movement
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.scene import build_scene
from hfmem_widget.view.chart.svg import sparkline
from hfmem_widget.view.line import compact_bundle, line
from tests.scenes.stage import Stage

RISE = 15.5 * GIB


def others_fill(devices: int, rise: float = RISE, *, own: float = 0.0) -> tuple[Session, Span]:
    """Return a cell whose children fill devices."""
    stage = Stage("launch", gpus=devices)
    with stage.span("cell", "launch") as cell:
        stage.hold({"cpu": 0.3 * GIB}, 0.5)
        target = {f"cuda:{at}": rise + 0.03 * GIB for at in range(devices)}
        stage.hold_elsewhere(target, 1.0)
        if own:
            stage.hold({"cuda:0": own}, 0.5)
        stage.hold_elsewhere(dict.fromkeys(target, 0.03 * GIB), 0.5)
    session = stage.finish()
    return session, session.span(cell.id)


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_line_card_and_picture_lead_with_what_others_filled(devices: int) -> None:
    """How many devices rose, by how much and how high, and that it was not this process, come first."""
    session, span = others_fill(devices)
    rise = f"{devices} devices rose by 15.5 GiB each, highest 16.1 GiB"
    if devices == 1:
        rise = "cuda:0 rose by 15.5 GiB to 16.1 GiB"
    why = "by other processes; this one used no GPU"
    first, *others = line(session, span).splitlines()
    assert rise in first
    assert first.endswith(why)
    assert others[0].strip().startswith("cpu \u00b7 peak")
    assert "private memory" in others[0]

    html = card_bundle(session, span, with_chart=False)["text/html"].replace("\xa0", " ")
    words = (rise, why, "<svg", "this process itself", "private memory")
    order = [html.index(word) for word in words]
    assert order == sorted(order)
    assert ("cuda:0 NVIDIA H200" if devices == 1 else f"{devices} \u00d7 NVIDIA H200") in html
    assert rise.partition(", ")[0] in compact_bundle(session, span)["text/html"]

    scene = build_scene(session, span, columns=100)
    assert scene is not None
    assert [one.metric for one in scene.lines] == ["device_used"] * devices
    assert scene.peak is not None
    assert scene.peak.peak.value == pytest.approx(RISE + 0.03 * GIB + 620 * MIB)
    assert "peak 16.1 GiB" in sparkline(session, span)


def test_nothing_changes_where_this_process_used_a_gpu() -> None:
    """The card is about the process' own allocations, whatever others did meanwhile."""
    session, span = others_fill(4, own=GIB)
    assert movement(session, span).devices == ()
    text = line(session, span)
    assert "rose" not in text
    assert "cuda:0 \u00b7 peak" in text


@pytest.mark.parametrize("rise", [0.0, 200 * MIB])
def test_nothing_changes_where_little_moved(rise: float) -> None:
    """A few hundred MiB of somebody else's are not what a cell is about."""
    session, span = others_fill(4, rise)
    assert "rose" not in line(session, span)
    assert "this process itself" not in card_bundle(session, span, with_chart=False)["text/html"]
    scene = build_scene(session, span, columns=100)
    assert scene is not None
    assert scene.device.key == "cpu"


def test_what_was_there_before_has_not_risen() -> None:
    """A device that others filled before the cell has not risen in it."""
    stage = Stage("cell", gpus=2)
    stage.hold({}, 0.5)
    stage.hold_elsewhere({"cuda:0": 60 * GIB}, 0.5)
    with stage.span("cell", "x") as cell:
        stage.hold({"cpu": GIB}, 1.0)
    session = stage.finish()
    assert movement(session, session.span(cell.id)).devices == ()
    # Over the whole session it has.
    assert [one.device.key for one in movement(session).devices] == ["cuda:0"]


def children_fill(
    *, own: float = 0.0, foreign: float = 0.0, before: float = 0.0, is_quick: bool = False
) -> tuple[Session, Span]:
    """Return a cell whose four children fill four devices, and have ended when it does."""
    stage = Stage("launch", gpus=5)
    used = [f"cuda:{at}" for at in range(4)]
    stage.hold_in_children(dict.fromkeys(used, before), 0.2, 4 if before else 0)
    with stage.span("cell", "launch") as cell:
        if own:
            stage.hold({"cuda:0": own}, 0.5)
        if foreign:
            stage.hold_elsewhere({"cuda:4": foreign}, 0.1)
        stage.hold_in_children(dict.fromkeys(used, before + RISE), 0.3 if is_quick else 1.0, 4)
        stage.hold_in_children(dict.fromkeys(used, 0.0), 0.1, 0)
    session = stage.finish()
    return session, session.span(cell.id)


@pytest.mark.parametrize("is_quick", [False, True])
def test_child_processes_are_named(is_quick: bool) -> None:
    """Line, card and compact line have the number of children and what each device rose by."""
    session, span = children_fill(is_quick=is_quick)
    rise, why = "4 devices rose by 15.5 GiB each", "by 4 child processes; this process used no GPU"

    first = line(session, span).splitlines()[0]
    assert rise in first
    assert first.endswith(why)
    html = card_bundle(session, span, with_chart=False)["text/html"].replace("\xa0", " ")
    assert html.index(rise) < html.index(why) < html.index("this process itself")
    assert html.count("+15.5 GiB") == 2 * 4
    for bundle in compact_bundle(session, span).values():
        assert rise in bundle
        assert why in bundle


def test_a_job_of_somebody_else_is_no_child() -> None:
    """The sentence and the table of devices distinguish it from children."""
    session, span = children_fill(foreign=30 * GIB)
    moved = movement(session, span)

    assert "by 4 child processes and other processes" in moved.lead
    assert [device.has_children for device in moved.devices] == [True] * 4 + [False]


def test_children_that_were_there_before_count_by_what_they_took_since() -> None:
    """Engines of ipyparallel stay from cell to cell."""
    session, span = children_fill(before=10 * GIB)

    assert "4 devices rose by 15.5 GiB each" in movement(session, span).lead


def test_beside_a_process_that_used_a_gpu_its_children_come_second() -> None:
    """The process' exact figures lead; the children's memory is one sentence more."""
    session, span = children_fill(own=3 * GIB, foreign=30 * GIB)
    sentence = "4 child processes used 15.5 GiB more on each of 4 devices"

    assert movement(session, span).lead == ""
    first, *others = line(session, span).splitlines()
    assert "rose" not in first
    assert others[-1].strip() == sentence
    html = card_bundle(session, span, with_chart=False)["text/html"].replace("\xa0", " ")
    assert html.index("allocated") < html.index(sentence)
    assert sentence in compact_bundle(session, span)["text/html"]
    scene = build_scene(session, span, columns=100)
    assert scene is not None
    assert scene.lines[0].metric != "device_used" or len(scene.lines) > 1


NAN = math.nan


GPU = Device("cuda:0", "NVIDIA H200", total=100 * GIB)


@pytest.mark.parametrize(
    ("own", "ending"),
    [
        ((256 * MIB,), "by this process, but outside PyTorch"),
        ((256 * MIB - 1,), "by other processes; this one used no GPU"),
        ((0.0, 300 * MIB), "by this process, but outside PyTorch"),
        ((0.0, NAN), "by other processes or by this one outside PyTorch"),
        ((NAN, 300 * MIB), "by this process, but outside PyTorch"),
    ],
)
def test_the_process_behind_a_rise_is_named_if_known(own: tuple[float, ...], ending: str) -> None:
    """What any device says of this process decides."""
    devices = tuple(Moved(GPU, 0.0, GIB, GIB, one) for one in own)

    assert Movement(devices, leads=True).lead.endswith(ending)


@pytest.mark.parametrize(
    ("rises", "start"),
    [
        ((2.0,), "cuda:0 rose by 2.00 GiB to 2.00 GiB"),
        ((1.0, 1.0), "2 devices rose by 1.00 GiB each, highest 1.00 GiB on cuda:0"),
        ((98.0, 100.0), "2 devices rose by 100.0 GiB each, highest 100.0 GiB on cuda:0"),
        ((97.0, 100.0), "2 devices rose by 97.0 GiB to 100.0 GiB, highest 100.0 GiB on cuda:0"),
    ],
)
def test_devices_that_rose_alike_are_told_together(rises: tuple[float, ...], start: str) -> None:
    """Devices within a fiftieth of each other share a figure; others have a range."""
    moved = tuple(Moved(GPU, 0.0, one * GIB, one * GIB, 0.0) for one in rises)

    assert Movement(moved, leads=True).lead.startswith(f"{start}, by other")
