"""The findings on a DataLoader's workers: the memory that they hold, and its growth."""

from collections.abc import Callable

import pytest

from hfmem_widget.analysis.anatomy import anatomy
from hfmem_widget.analysis.others import OF_CHILDREN, children_text
from hfmem_widget.features.leaks.findings import growing_workers
from hfmem_widget.session import Series, Session, Span
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.scene import build_scene
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.wire.protocol import describe
from tests.scenes.stage import Stage

SECONDS = 60


def loaded(
    held: Callable[[int], float],
    *,
    workers: Callable[[int], int] = lambda _second: 4,
    others: int = 0,
    shared: float = 0.0,
    label: str = "child processes (PSS)",
) -> tuple[Session, Span]:
    """Return a cell of a minute whose workers hold so many bytes in each second."""
    stage = Stage("train", gpus=0)
    series = [
        Series("cpu", "children", label),
        *(Series("cpu", name, name) for name in OF_CHILDREN[1:]),
    ]
    stage._now |= dict.fromkeys((each.key for each in series), 0.0)
    stage.recorder.adopt(stage.session.devices, (*stage.session.series, *series))
    with stage.span("cell", "train") as cell:
        for second in range(SECONDS):
            count = workers(second)
            values = (held(second), count + others, count, shared)
            stage._set("cpu", dict(zip(OF_CHILDREN, values, strict=True)))
            stage.hold({}, 1.0)
    session = stage.finish()
    return session, session.span(cell.id)


def copying(second: int) -> float:
    """Copy-on-write: what was shared becomes each worker's own, piece by piece."""
    return 0.8 * GIB + 3.2 * GIB * second / SECONDS


def test_workers_that_copy_the_data_set_are_found() -> None:
    """The finding has their memory at the start and at the end, and advice."""
    session, span = loaded(copying)
    (finding,) = (each for each in session.findings if each.kind == "workers")

    assert finding.evidence["workers"] == 4
    assert finding.evidence["first"] == pytest.approx(1.3 * GIB, rel=0.1)
    assert finding.evidence["last"] == pytest.approx(3.6 * GIB, rel=0.1)
    assert finding.span_id == span.id
    assert "4 DataLoader workers" in finding.title
    assert any("num_workers" in advice for advice in finding.advice)


def test_epochs_that_begin_anew_are_judged_one_by_one() -> None:
    """Workers that are started again have given their copies back."""
    session, span = loaded(
        lambda second: copying(second % 20 * 3), workers=lambda second: 4 if second % 20 else 0
    )
    (finding,) = growing_workers(session, span)
    seconds = finding.evidence["seconds"]

    assert isinstance(seconds, float)
    assert seconds < 20


@pytest.mark.parametrize(
    ("held", "workers"),
    [
        pytest.param(lambda _: 3 * GIB, lambda _: 4, id="level"),
        pytest.param(lambda second: min(second, 8) * 0.4 * GIB, lambda _: 4, id="warming up"),
        pytest.param(lambda second: GIB + second * 4 * MIB, lambda _: 4, id="a little"),
        pytest.param(lambda second: (1 + second % 20 / 10) * GIB, lambda _: 4, id="teeth"),
        pytest.param(copying, lambda _: 0, id="no workers"),
        pytest.param(copying, lambda second: second % 9, id="another number all the time"),
    ],
)
def test_healthy_workers_are_not_found(
    held: Callable[[int], float], workers: Callable[[int], int]
) -> None:
    """Memory that stays, comes at the start, or is given back, does not grow; other children do not count."""
    session, span = loaded(held, workers=workers)

    assert not list(growing_workers(session, span))


@pytest.mark.parametrize(
    ("workers", "others", "shared", "text"),
    [
        (1, 0, 0.0, "1 DataLoader worker held up to 2.00 GiB (PSS)."),
        (4, 1, 0.0, "4 DataLoader workers and 1 other process held up to 2.00 GiB (PSS)."),
        (0, 2, 0.0, "2 child processes held up to 2.00 GiB (PSS)."),
        (
            2,
            0,
            GIB,
            "2 DataLoader workers held up to 2.00 GiB (PSS), 1.00 GiB of it shared memory.",
        ),
    ],
)
def test_the_card_has_childrens_memory(workers: int, others: int, shared: float, text: str) -> None:
    """It has their number and kind, the way of counting, and the shared memory."""
    session, span = loaded(
        lambda _: 2 * GIB, workers=lambda _: workers, others=others, shared=shared
    )
    card = card_bundle(session, span, with_chart=True)

    assert children_text(session, span) == text
    assert text in card["text/plain"].splitlines()
    assert text in card["text/html"]


def test_a_session_without_children_has_no_figures_of_them() -> None:
    """A shell command with little memory has none either."""
    assert not children_text(*loaded(lambda _: 8 * MIB, workers=lambda _: 0, others=1))
    stage = Stage("quiet", gpus=0)
    with stage.span("cell", "quiet") as cell:
        stage.hold({"cpu": GIB}, 1.0)
    session = stage.finish()

    assert not children_text(session, session.span(cell.id))
    assert not list(growing_workers(session, session.span(cell.id)))


def test_the_anatomy_has_children_as_a_part() -> None:
    """Its note says which children they are; their memory is not the rest of the machine's."""
    session, _ = loaded(lambda _: 2 * GIB, label="child processes (resident, less what is shared)")
    parts = anatomy(session)
    part = next(part for part in parts.parts if part.name == "children")

    assert part.bytes == 2 * GIB
    assert part.note == "4 DataLoader workers (resident, less what is shared)"
    used = session.latest("cpu/device_used") - parts.reserved
    assert parts.bytes("others") == pytest.approx(used - 2 * GIB)


def test_the_anatomy_has_page_cache_and_swap_in_notes() -> None:
    """Free memory is what can be had, page cache included; swap is in no part."""
    stage = Stage("quiet", gpus=0)
    sizes = {"page_cache": 6, "swap": 1, "machine_swap": 3, "shared_memory": 2}
    stage._set("cpu", {name: gib * GIB for name, gib in sizes.items()})
    series = [Series("cpu", metric, metric) for metric in sizes]
    stage.recorder.adopt(stage.session.devices, (*stage.session.series, *series))
    stage.hold({}, 1.0)
    session = stage.finish()
    parts = anatomy(session)
    used = session.latest("cpu/device_used")

    assert parts.bytes("free") == parts.device.total - used
    assert parts.bytes("shared_memory") == 2 * GIB
    assert parts.bytes("others") == pytest.approx(used - parts.reserved - 2 * GIB)
    words = {"6.00 GiB": "page cache", "1.00": "this process", "3.00": "all processes"}
    for size, what in words.items():
        assert any(note.startswith(size) and what in note for note in parts.notes)


def lines_of(session: Session, span: Span) -> dict[str, float]:
    """Return the highest point of each line of the still chart, by its name there."""
    scene = build_scene(session, span, columns=100)
    assert scene is not None
    return {scene.name(line): max(high for _, high in line.points) for line in scene.lines}


def test_the_hosts_chart_has_a_line_for_children() -> None:
    """Its label has the way of counting, and the page gets the same column."""
    session, span = loaded(copying)

    assert lines_of(session, span)["child processes (PSS)"] == pytest.approx(copying(59))
    assert "child processes (PSS)" in chart_html(session, span)
    assert [each["metric"] for each in describe(session)["series"]].count("children") == 1
