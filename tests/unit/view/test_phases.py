"""The rows of a card on what a watched cell was made of, and what a token takes at the peak of a step."""

import re
from collections.abc import Callable

import pytest

from hfmem_widget.session import NO_STEP, Peak, Sample, Session, Span, SpanKind
from hfmem_widget.text import GIB, KIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.phases import MOST_IN_SIGHT, pace_text, phase_rows, phases_html, where_text
from hfmem_widget.view.tokens import MOST_DOTS, token_cost
from tests.data.recorders import recorder_of
from tests.scenes import scripted_run
from tests.scenes.stage import Stage


class Cell:
    """A cell on some GPUs, whose phases have the peaks that a test gives them."""

    def __init__(self, gpus: int = 1) -> None:
        self.recorder = recorder_of(keys=[f"cuda:{index}" for index in range(gpus)])
        self.session = self.recorder.session
        self._values = (GIB,) * gpus
        self._open = self.recorder.open_span("cell", "run", self.sample(0.0))

    def phase(self, kind: SpanKind, *peaks: Peak, label: str = "", **counts: float) -> None:
        start = self.session.last_sample.time
        span = self.recorder.open_span(kind, label or kind, self.sample(start))
        self.recorder.count(span.id, counts)
        by_key = {f"cuda:{index}/allocated": peak for index, peak in enumerate(peaks)}
        self.recorder.close_span(span.id, self.sample(start + 1.0), by_key)

    def close(self) -> Span:
        return self.recorder.close_span(
            self._open.id, self.sample(self.session.last_sample.time), {}
        )

    def sample(self, time: float) -> Sample:
        return self.recorder.append(Sample(time, self._values))


def exact(gibibytes: float) -> Peak:
    return Peak(gibibytes * GIB, "exact")


def test_each_kind_of_phase_is_a_row_in_the_order_of_a_training() -> None:
    """From the training through a step's phases to evaluating and saving; none is folded or a group."""
    session = scripted_run("steps")
    names = [row.name for row in phase_rows(session, session.spans[0])]
    html = phases_html(session, session.spans[0])
    assert names == ["train", "step", "forward", "backward", "optimizer", "evaluate", "save"]
    assert "<details" not in html
    assert "in groups" not in html


def test_a_row_has_its_count_its_time_and_its_highest_peak() -> None:
    """Three passes are one row, with their total time and the highest of their peaks."""
    cell = Cell()
    for peak in (2.0, 5.0, 3.0):
        cell.phase("forward", exact(peak))
    (row,) = phase_rows(cell.session, cell.close())
    assert (row.count, row.seconds, row.peak) == (3, 3.0, exact(5.0))


def without_a_step(*kinds: SpanKind) -> list[tuple[str, int]]:
    """Return names and counts of a cell of three passes that no optimizer followed."""
    cell = Cell()
    span = cell.recorder.open_span("step", "step", cell.sample(0.0))
    for kind in kinds:
        cell.phase(kind, exact(2.0))
    cell.recorder.close_span(span.id, cell.sample(9.0), {}, NO_STEP)
    return [(row.name, row.count) for row in phase_rows(cell.session, cell.close())]


def test_without_an_optimizers_step_there_are_no_phases_of_one() -> None:
    """Predictions in a loop are no part of a step; backward passes and what precedes them are counted."""
    assert without_a_step("forward") == []
    assert without_a_step("forward", "backward", "forward", "backward") == [
        ("forward", 2),
        ("backward", 2),
    ]


def test_the_worst_step_is_named_with_its_tokens() -> None:
    """The row of steps, and the plain line, name the step that rose highest and its tokens."""
    session = scripted_run("steps")
    rows = {row.name: row for row in phase_rows(session, session.spans[0])}
    assert rows["step"].worst == "step 37 (1,152 tokens)"
    assert "worst: step 37 (1,152 tokens)" in phases_html(session, session.spans[0])


@pytest.mark.parametrize(
    ("measured", "steps", "note"), [(26, 100, "on 26 of 100 steps"), (5, 5, ""), (4, 5, "")]
)
def test_phases_say_how_many_steps_were_measured(measured: int, steps: int, note: str) -> None:
    """Their time is not that of all steps; where only the last lacks them, it may have failed."""
    cell = Cell()
    for number in range(steps):
        step = cell.recorder.open_span("step", f"step {number}", cell.session.last_sample)
        if number < measured:
            cell.phase("forward", exact(2.0))
            cell.phase("backward", exact(3.0))
        cell.recorder.close_span(step.id, cell.session.last_sample, {})
    rows = phase_rows(cell.session, cell.close())

    assert [row.note for row in rows if row.is_part] == [note] * 2


def test_of_two_steps_none_is_the_worst() -> None:
    """Two steps are too few for one of them to be called the worst."""
    cell = Cell()
    cell.phase("step", exact(2.0), step=1, tokens=8)
    cell.phase("step", exact(3.0), step=2, tokens=9)
    assert [row.note for row in phase_rows(cell.session, cell.close())] == [""]


@pytest.mark.parametrize("kind", ["block", "cell"])
def test_what_is_watched_is_no_phase_of_itself(kind: SpanKind) -> None:
    """A block or a cell that is made of no phases has no table."""
    recorder = recorder_of(GIB)
    span = recorder.open_span(kind, "load", recorder.session.last_sample)
    span = recorder.close_span(span.id, recorder.append(Sample(1.0, (GIB,))), {})

    assert phase_rows(recorder.session, span) == []
    assert phases_html(recorder.session, span) == ""


def test_a_peak_that_is_a_lower_bound_says_so() -> None:
    """A phase's peak that is only bounded has a ≥."""
    cell = Cell()
    cell.phase("evaluate", Peak(4 * GIB, "at least"))
    assert "≥\u00a04.00\u00a0GiB" in phases_html(cell.session, cell.close())


@pytest.mark.parametrize("backward", [(6.0, 5.0), (5.0, 6.0)])
def test_of_several_devices_the_highest_is_named(backward: tuple[float, float]) -> None:
    """A row tells on which GPU its peak was, and the table names one that is the same in all rows nowhere."""
    cell = Cell(gpus=2)
    cell.phase("forward", exact(2.0), exact(3.0))
    cell.phase("backward", *map(exact, backward))
    span = cell.close()
    devices = [row.device for row in phase_rows(cell.session, span)]

    assert devices == ["cuda:1", "cuda:0" if backward[0] > backward[1] else "cuda:1"]
    assert ("cuda:1" in phases_html(cell.session, span)) is (len({*devices}) == 2)


def test_many_rows_are_folded_away() -> None:
    """More rows than fit in sight are one click away, and none is left out."""
    cell = Cell()
    for number in range(MOST_IN_SIGHT + 1):
        cell.phase("block", exact(2.0), label=f"block {number}")
    html = phases_html(cell.session, cell.close())
    assert "<details><summary" in html
    assert len(re.findall(r'<th scope="row"', html)) == MOST_IN_SIGHT + 1


def test_a_group_of_steps_counts_as_all_of_them() -> None:
    """Steps that were followed as one group count by their number, not as one step."""
    cell = Cell()
    cell.phase("step", exact(2.0), first=1, step=1)
    cell.phase("step", exact(2.0), first=2, step=101)
    (row,) = phase_rows(cell.session, cell.close())
    assert (row.count, row.seconds) == (101, 2.0)


def test_the_table_counts_steps_that_were_measured_in_groups() -> None:
    """The table says how many were measured one by one, and names no step of a group as the worst."""
    cell = Cell()
    for number in (1, 2):
        cell.phase("optimizer", exact(1.0))
        cell.phase("step", exact(2.0), first=number, step=number)
    cell.phase("step", exact(3.0), first=3, step=6000)
    span = cell.close()
    rows = {row.name: row for row in phase_rows(cell.session, span)}
    text = "5,998 measured in groups \u00b7 worst: in steps 3\u20136000"
    assert text in phases_html(cell.session, span)
    assert where_text([rows["step"]], "cuda:0", rows["step"].peak) == "in steps 3\u20136000"


def test_steps_say_how_many_samples_and_tokens_a_second() -> None:
    """Where batches are known, the card and its plain line have the throughput."""
    session = scripted_run("steps")
    pace = pace_text(session, session.spans[0])
    assert re.fullmatch(r"[\d.,]+ samples/s · [\d.,]+ tokens/s in steps", pace)
    card = card_bundle(session, session.spans[0], with_chart=False)
    assert all(pace in text for text in card.values())


def test_without_known_batches_there_is_no_throughput() -> None:
    """Steps of which nobody saw a batch have none, also where only some of them were seen."""
    cell = Cell()
    for number, samples in ((1, 8.0), (2, 8.0)):
        cell.phase("step", exact(2.0), step=number, samples=samples)
    cell.phase("step", exact(2.0), first=3, step=50)
    assert pace_text(cell.session, cell.close()) == ""


def test_a_rate_of_thousands_has_no_exponent() -> None:
    """Tokens made per second read as a number, however many there are."""
    cell = Cell()
    cell.phase("decode", exact(2.0), tokens=300, tokens_per_second=1234.5)
    assert [row.note for row in phase_rows(cell.session, cell.close())] == [
        "300 tokens, 1,234 a second"
    ]


LENGTHS = (512, 768, 1024, 640, 2048, 1536, 896, 1280)


def trained(peak: Callable[[int], float], lengths: tuple[int, ...] = LENGTHS) -> Session:
    """Return a training whose steps have so many tokens, and such peaks."""
    stage = Stage("fine-tune", gpus=1)
    with stage.span("cell", "fine-tune"):
        for number, tokens in enumerate(lengths, start=1):
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": number, "tokens": tokens})
                stage.hold({"cuda:0": peak(tokens)}, 0.5)
                stage.hold({"cuda:0": GIB}, 0.1)
    return stage.finish()


def text_of(session: Session) -> str:
    cost = token_cost(session, session.spans[0], session.devices[0])
    return "" if cost is None else cost.text(140.4 * GIB)


def test_the_card_has_the_cost_of_a_token() -> None:
    """The cost stands with the range it was seen in, and with what twice the longest would need."""
    session = trained(lambda tokens: 2 * GIB + tokens * 1024 * KIB)
    sentence = (
        "Each token adds 1.00 MiB to the peak of a step, from 512 to 2,048 tokens; if that goes on, 4,096 "
        "would need about 6.00 GiB, of 140.4 GiB."
    )

    assert text_of(session) == sentence
    assert sentence in card_bundle(session, session.spans[0], with_chart=True)["text/html"]


@pytest.mark.parametrize(
    ("peak", "lengths"),
    [
        pytest.param(lambda tokens: GIB + 500 * tokens**2, LENGTHS, id="no line"),
        pytest.param(lambda tokens: 8 * GIB + tokens * 100, LENGTHS, id="next to nothing"),
        pytest.param(lambda tokens: GIB + tokens * 1024 * KIB, LENGTHS[:5], id="few steps"),
        pytest.param(lambda tokens: GIB + tokens * 1024 * KIB, (512, 600) * 4, id="one length"),
        pytest.param(lambda tokens: 8 * GIB - tokens * 1024 * KIB, LENGTHS, id="falling"),
    ],
)
def test_a_tokens_cost_needs_a_line(peak: Callable[[int], float], lengths: tuple[int, ...]) -> None:
    """Where peaks follow no line, or too little was seen, nothing is said and nothing is drawn."""
    session = trained(peak, lengths)
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]

    assert text_of(session) == ""
    assert "over tokens" not in html


@pytest.mark.parametrize("rounds", [1, 20])
def test_the_steps_are_drawn_over_their_tokens(rounds: int) -> None:
    """They stand below the phases, few enough for a saved notebook; the longest is rightmost and highest."""
    session = trained(lambda tokens: 2 * GIB + tokens * 1024 * KIB, LENGTHS * rounds)
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    _, _, inside = html.partition("steps and phases")
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", inside)
    rights, tops = zip(*((float(x), float(y)) for x, y in dots), strict=True)

    assert len(LENGTHS) <= len(dots) <= MOST_DOTS
    assert (rights[0], rights[-1]) == (2.0, 98.0)
    assert tops[-1] == min(tops)
    assert "512 tokens" in inside
    assert "2,048 tokens" in inside
