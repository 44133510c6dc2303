"""The card: its facts, in their order, in any front end."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from hfmem_widget.analysis.facts import active_devices, facts_of, uses_a_gpu
from hfmem_widget.analysis.kept import kept_since
from hfmem_widget.session import Device, Finding, Peak, Session
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.headline import headline
from hfmem_widget.view.line import compact_bundle, peak_text, running_bundle
from tests.data.parted import Script, training
from tests.data.recorders import cell_of
from tests.data.texts import seen
from tests.scenes import scripted_run, shared_run
from tests.scenes.stage import Stage


def card(name: str, *, with_chart: bool = True) -> str:
    session = shared_run(name)
    return card_bundle(session, session.spans[0], with_chart=with_chart)["text/html"]


def test_what_is_measured_of_steps_stands_on_cards_with_steps() -> None:
    """Cards of cells without steps say nothing of how steps are measured."""
    texts = []
    for name in ("training", "short"):
        session = scripted_run(name)
        session.polling.steps, session.polling.steps_with_phases = 100, 40
        texts.append(seen(card_bundle(session, session.spans[0], with_chart=True)["text/html"]))

    assert "Phases on 40 of 100 steps, to stay below 1 %." in texts[0]
    assert "hases on" not in texts[1]


def test_the_facts_read_in_order_without_any_markup() -> None:
    """A card without its tags still reads as a text, from the sentence down to the device."""
    assert seen(card("training")) == (
        "Peak 6.99 of 140.4 GiB , exact, in step 21. "
        "3.75 GiB stay : optimizer states 2.48, weights 1.24. "
        "fine-tune 11.6 s · cuda:0 NVIDIA H200 ● done "
        "weights 1.24 GiB optimizer states 2.48 GiB "
        "activations and temporaries 3.24 GiB allocator cache 429.5 MiB "
        "CUDA context and libraries 620.0 MiB driver's reserve 615.0 MiB other processes 30.7 MiB "
        "■ weights 1.24 GiB ■ optimizer states 2.48 GiB ■ activations and temporaries 3.24 GiB "
        "■ allocator cache 429.5 MiB ■ CUDA context and libraries 620.0 MiB "
        "■ driver's reserve 615.0 MiB in all 8.65 of 140.4 GiB free 131.8 GiB "
        "steps and phases phase count time highest peak train 1 10.4 s 6.99 GiB exact "
        "step 31 9.0 s 6.99 GiB exact worst: step 21 evaluate 1 1.4 s 4.20 GiB exact "
        "all figures, 1 note allocated, start → end 0.00 → 3.75 GiB left behind +3.75 GiB "
        "peak (exact) 6.99 GiB +6.99 GiB above start reserved 7.41 GiB 7.41 GiB at its peak "
        "headroom at the peak 131.8 GiB of 140.4 GiB "
        "device in use 8.04 of 140.4 GiB · this process 8.01 · other processes 0.03"
    )


def headline_of(session: Session) -> str:
    return headline(session, session.spans[0], facts_of(session, session.spans[0])).text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("training", "Peak 6.99 of 140.4 GiB, exact, in step 21. 3.75 GiB stay: optimizer states"),
        ("at least", "Peak at least 6.99 of 140.4 GiB, in step 21. 3.75 GiB stay"),
        ("steps", "Peak 7.01 of 140.4 GiB, exact, in step 37 (1,152 tokens)."),
        ("cpu", "Peak 918.4 MiB of 15.6 GiB, sampled, in step 6. 279.9 MiB stay"),
        ("short", "Peak 212.0 MiB of 140.4 GiB, exact. 3.50 MiB stay."),
        ("two gpus", "Peak 18.2 of 140.4 GiB on cuda:0, exact, in step 10. Peak of the other one"),
        ("eight gpus", "Peak 121.4 of 140.4 GiB on cuda:0, exact, in step 19. Peak of the other 7"),
    ],
)
def test_a_card_begins_with_a_sentence(name: str, sentence: str) -> None:
    """The sentence has the peak of the capacity, how it is known, where it was, and what stays."""
    assert headline_of(shared_run(name)).startswith(sentence)


def test_the_sentence_names_the_parts_that_have_grown() -> None:
    """The sentence names gradients that a step left behind, and no weights that were there before."""
    script = Script()
    script.read(allocated=2 * GIB, reserved=9 * GIB, weights=2 * GIB, gradients=0.0)
    with script.span("cell", gradients=GIB, allocated=3 * GIB):
        script.read(unattributed=0.0)
        with script.span("backward", peak=9 * GIB, gradients=GIB):
            pass
    assert headline_of(script.session).endswith("GiB stay: gradients.")


@pytest.mark.parametrize(
    ("after", "end"),
    [(2 * GIB, "Nothing stays."), (GIB, "1.00 GiB were freed."), (2 * GIB + 9, "nothing stays.")],
)
def test_a_cell_that_leaves_nothing_behind_says_so(after: float, end: str) -> None:
    """A cell that freed earlier memory says so, too, and one that left a few bytes."""
    script = Script()
    script.read(allocated=2 * GIB, reserved=9 * GIB)
    with script.span("cell", allocated=after, peak=9 * GIB):
        pass
    assert headline_of(script.session).endswith(end)


@pytest.mark.parametrize("name", ["two gpus", "short", "idle gpu"])
def test_the_sentence_names_no_parts_where_no_model_was_found(name: str) -> None:
    """Nobody knows then what the memory is for."""
    assert re.search(r"stay( on cuda:0)?\.$", headline_of(shared_run(name)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", ("private memory, start → end", "resident 1.00 GiB", "machine in use 9.40 of 15.6 GiB")),
        ("cpu", ("peak (sampled) 918.4 MiB",)),
        ("at least", ("peak (at least) ≥ 6.99 GiB",)),
        ("training", ("● done",)),
        ("idle gpu", ("● interrupted",)),
        ("failed", ("● raised OutOfMemoryError",)),
    ],
)  # fmt: skip
def test_a_card_names_devices_certainty_and_outcome(name: str, words: tuple[str, ...]) -> None:
    """A card names private memory and machine on the CPU, the certainty of a peak, and how the cell ended."""
    assert [one for one in words if one not in seen(card(name))] == []


def test_several_devices_are_rows_of_one_table() -> None:
    """Eight GPUs are eight rows under common headings, in place of the five large figures."""
    html = card("eight gpus").partition("all figures")[2]
    assert len(re.findall(r'<th scope="row"', html)) == 8
    assert len(re.findall(r'<th scope="col"', html)) == 6
    assert "left behind</div>" not in html


def test_without_a_chart_of_its_own_the_card_has_a_picture() -> None:
    """The card draws a small chart only where no chart stands below it."""
    pictures = [card("training", with_chart=shown).count("<svg") for shown in (False, True)]
    assert pictures[0] > pictures[1]


def test_a_cell_too_short_to_chart_says_so() -> None:
    """A cell too short to chart has a sentence, and no line through two points."""
    html = card("short", with_chart=False)
    assert "Too short to chart: 2 samples in 10 ms." in html
    assert "polyline" not in html


def test_at_most_three_notes_are_shown() -> None:
    """Of many notes the first three are on the card."""
    session = scripted_run("training")
    session.notes += [f"note {number}" for number in range(5)]
    text = seen(card_bundle(session, session.spans[0], with_chart=True)["text/html"])
    assert re.findall(r"note \d", text) == ["note 0", "note 1", "note 2"]


def test_the_plain_line_names_the_worst_step_where_it_fits() -> None:
    """The worst step is left out where it would make the line too long."""
    session = scripted_run("steps")
    cell = session.spans[0]
    text, *_ = card_bundle(session, cell, with_chart=True)["text/plain"].splitlines()
    assert " · worst step 37 (1,152 tokens) · " in text
    longer = card_bundle(session, replace(cell, label="x" * 100), with_chart=True)["text/plain"]
    assert "worst" not in longer


def test_a_running_cell_has_one_calm_line() -> None:
    """The line says who is watched and since when, also in a notebook that was saved meanwhile."""
    began = datetime(2026, 11, 26, 12, 41, tzinfo=UTC).timestamp()
    bundle = running_bundle("fine-tune", began)
    since = datetime.fromtimestamp(began).astimezone().strftime("%H:%M %Z, %d %b %Y")
    assert seen(bundle["text/html"]) == (
        f"● fine-tune · watching since {since}; a card replaces this line when it ends"
    )
    assert bundle["text/plain"] == f'memwatch "fine-tune" running since {since}'


def test_the_compact_form_has_the_same_facts() -> None:
    """The line of a quick cell says in HTML what it says in plain text."""
    session = scripted_run("training")
    bundle = compact_bundle(session, session.spans[0])
    assert seen(bundle["text/html"]) == "● " + bundle["text/plain"].replace(
        'memwatch "fine-tune" ·', "fine-tune"
    )


def test_a_session_without_devices_still_has_a_card() -> None:
    """Where nothing could be read, the card has the cell's name and its time."""
    bundle = card_bundle(*cell_of((), keys=()), with_chart=False)
    assert "run" in bundle["text/html"]
    assert bundle["text/plain"] == 'memwatch "run" · 0.0 ms'


def test_the_reason_why_memory_ran_out_is_on_a_card_once() -> None:
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
    """A GPU whose allocator has no figures before CUDA is up is not shown."""
    session, span = cell_of((0.0, 1.0), (5.0, 1.0), keys=("cuda:0", "cpu"))
    session.devices = (*session.devices, Device("cuda:1", "H200"))

    assert [one.key for one in active_devices(session, span)] == ["cuda:0"]
    assert uses_a_gpu(session, span)


@pytest.mark.parametrize(
    ("polling", "sentence"),
    [
        ({"missed": 5, "longest_gap": 0.9}, ""),
        ({"missed": 10}, "10 of 110 samples were missed."),
        ({"longest_gap": 2.5}, "There were no samples for up to 2.5 s."),
        ({"longest_gap": 2.5, "interval": 1.0}, ""),
        ({"stopped": "it failed"}, "Sampling stopped early: it failed."),
    ],
)
def test_the_card_reports_bad_sampling(polling: dict[str, Any], sentence: str) -> None:
    """A card names more than 5 % missed samples, a pause over a second and five intervals, an early end."""
    session = scripted_run("training")
    for name, value in ({"ticks": 100} | polling).items():
        setattr(session.polling, name, value)
    text = seen(card_bundle(session, session.spans[0], with_chart=True)["text/html"])

    assert sentence in text
    assert bool(sentence) is ("ampl" in text)


def test_unknown_figures_are_left_out() -> None:
    """Without the driver the card has no figures of other processes."""
    session = training(nvml=False)
    text = seen(card_bundle(session, session.spans[0], with_chart=True)["text/html"])

    assert "nan" not in text
    assert "in use" not in text
    assert "other processes" not in text


def test_an_unknown_peak_has_no_certainty() -> None:
    """An unknown peak is shown like any missing figure."""
    assert peak_text(Peak(math.nan, "exact")) == peak_text(Peak(math.nan, "at least"))
    assert "exact" not in peak_text(Peak(math.nan, "exact"))


@pytest.mark.parametrize(
    ("grown", "labels"),
    [
        (1.93 * GIB, ["kept by &lt;losses&gt;[0..59] 1.88 GiB"]),
        (1.5 * GIB, ["kept by &lt;losses&gt;[0..59] 1.50 GiB", "not attributed 405.6 MiB"]),
        (2.5 * GIB, ["not attributed 1.90 GiB"]),
    ],
    ids=["all", "a part", "more than is there"],
)
def test_what_a_name_keeps_is_a_part_of_the_unattributed(grown: float, labels: list[str]) -> None:
    """As a search found at the end, when as much was not attributed as at the peak: 1.95 and 1.90 GiB."""
    session = scripted_run("leak")
    (at,) = (at for at, one in enumerate(session.findings) if one.kind == "leak")
    finding = session.findings[at]
    kept = kept_since(session, session.spans[0], str(finding.evidence["device"]), grown)
    evidence = {"holder": "<losses>[0..59]", "holder_grown": grown, "kept": kept}
    session.findings[at] = replace(finding, evidence={**finding.evidence, **evidence})
    html = card_bundle(session, session.spans[0], with_chart=False)["text/html"]
    phrases = re.findall(r"(?:kept by|not attributed)[^<,]* [GM]iB", html.split("<details")[0])

    assert [*dict.fromkeys(phrases)] == labels
    for label in labels:
        colour = palette.PARTS["kept" if "kept" in label else "unattributed"]
        assert f'fill="{colour}"><title>{label}</title>' in html


@pytest.mark.parametrize(("peak", "is_named"), [(2.1 * GIB, True), (3 * GIB, False)])
def test_a_holder_is_named_at_a_peak_of_as_much(peak: float, *, is_named: bool) -> None:
    """At the end 1.5 of 2 GiB have a name; of the 3 GiB at another peak nobody knows whose they were."""
    stage = Stage("kept", gpus=1, interval=0.5)
    with stage.span("cell", "cell") as span:
        stage.hold({"cuda:0": peak + GIB}, 1.0, {"weights": GIB, "unattributed": peak})
        stage.hold({"cuda:0": 3 * GIB}, 1.0, {"weights": GIB, "unattributed": 2 * GIB})
    session = stage.finish()
    kept = kept_since(session, span, "cuda:0", 1.5 * GIB)
    evidence = {"device": "cuda:0", "holder": "outputs", "kept": kept}
    session.findings.append(Finding("left behind", "info", "Held", evidence, span_id=span.id))
    html = card_bundle(session, session.spans[0], with_chart=False)["text/html"]

    assert ("kept by outputs 1.50 GiB" in html) is is_named


def test_the_sizes_of_what_stays_add_up() -> None:
    """Three parts have rows, and all others are one more."""
    script = Script()
    parts: dict[str, Any] = dict.fromkeys(("weights", "gradients", "buffers", "optimizer"), 0.0)
    script.read(allocated=0.0, reserved=9 * GIB, **parts)
    grown = {"weights": 1.0, "gradients": 1.5, "buffers": 0.5, "optimizer": 2.0}
    sizes: dict[str, Any] = {name: size * GIB for name, size in grown.items()}
    with script.span("cell", allocated=5 * GIB, peak=9 * GIB, **sizes):
        script.read(unattributed=0.0)

    assert headline_of(script.session).endswith(
        " 5.00 GiB stay: optimizer states 2.00, gradients 1.50, weights 1.00, others 512.0 MiB."
    )
