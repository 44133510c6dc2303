"""Findings on the card: few, in sentences, with what to do one click away."""

import json
import re

import pytest

from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.findings import findings_html, findings_lines, sentence
from hfmem_widget.view.line import compact_bundle
from tests.data.texts import seen
from tests.scenes import SCRIPTED_RUNS, scripted_run, shared_run

SEVERITIES = [("critical", "critical"), ("warn", "warning"), ("info", "note")]
NEARLY_FULL = {"eight gpus", "failed"}
HEALTHY = [name for name in SCRIPTED_RUNS if name != "leak" and name not in NEARLY_FULL]


def finding(number: int = 0, severity: str = "warn", *advice: str) -> Finding:
    return Finding("test", severity, f"Number {number} took 1.25 GiB.", {}, advice)  # type: ignore[arg-type]  # severities are parametrized as text


def with_findings(*findings: Finding, name: str = "training") -> tuple[Session, Span]:
    session = scripted_run(name)
    session.findings += findings
    return session, session.spans[0]


def in_sight(html: str) -> str:
    return seen(re.sub(r"<details.*?</details>", "", html))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_cell_has_none(name: str) -> None:
    """No praise and no tips: nothing at all stands in their place."""
    session = shared_run(name)
    bundle = card_bundle(session, session.spans[0], with_chart=True)
    assert "what to do" not in bundle["text/html"]
    assert "\n  warning" not in bundle["text/plain"]
    assert findings_html(()) == ""
    assert findings_lines(()) == []


def test_at_most_three_are_in_sight_and_the_rest_is_one_click_away() -> None:
    """Of five findings three are in sight, and the fold says how many more there are."""
    html = findings_html([finding(number) for number in range(5)])
    assert re.findall(r"Number \d", in_sight(html)) == ["Number 0", "Number 1", "Number 2"]
    assert re.findall(r"Number \d", seen(html)) == [f"Number {number}" for number in range(5)]
    assert "2 more findings" in html


def test_the_gravest_comes_first() -> None:
    """Critical findings stand above warnings, and these above remarks."""
    session, span = with_findings(finding(1, "info"), finding(2, "warn"), finding(3, "critical"))
    html = card_bundle(session, span, with_chart=True)["text/html"]
    assert re.findall(r"Number \d", seen(html)) == ["Number 3", "Number 2", "Number 1"]


@pytest.mark.parametrize(("severity", "word"), SEVERITIES)
def test_a_severity_has_a_word_and_a_form(severity: str, word: str) -> None:
    """A severity is never a colour alone: it has a form, and a word for screen readers."""
    html = findings_html([finding(0, severity)])
    assert re.search(rf'<span role="img" aria-label="{word}:"[^>]*>.</span>Number 0', html)
    forms = {re.search(r">(.)</span>", findings_html([finding(0, one)])) for one, _ in SEVERITIES}
    assert len(forms) == len(SEVERITIES)


@pytest.mark.parametrize(("title", "text"), [("A", "A."), ("A.", "A."), ("A?", "A?"), ("", "")])
def test_a_title_reads_as_a_sentence(title: str, text: str) -> None:
    """A title without a full stop gets one, and no second one."""
    assert sentence(title) == text


def test_the_most_useful_advice_is_in_sight_and_the_rest_folded() -> None:
    """What else there is to do is one click away, in its own order; where there is none, so is no fold."""
    html = findings_html([finding(0, "warn", "Do this.", "Then that.")])
    assert "Do this." in in_sight(html)
    assert "Then that." not in in_sight(html)
    assert re.findall(r"<li[^>]*>([^<]*)", html) == ["Then that."]
    assert "<details" not in findings_html([finding()])


def test_plain_text_has_a_line_for_each() -> None:
    """In plain text three findings have a line each, with their first advice, and the others are counted."""
    advised = finding(0, "warn", "Take less", "or nothing")
    session, span = with_findings(advised, *(finding(number) for number in range(1, 4)))
    lines = card_bundle(session, span, with_chart=True)["text/plain"].splitlines()
    assert lines[0].startswith('memwatch "fine-tune"')
    assert lines[2:-1] == [
        "  warning: Number 0 took 1.25 GiB.",
        "    Take less.",
        *(f"  warning: Number {at} took 1.25 GiB." for at in (1, 2)),
        "  1 more finding",
    ]


def test_a_quick_cells_line_has_the_gravest_below_it() -> None:
    """Below a quick cell's line only the gravest finding is in sight."""
    session, span = with_findings(finding(1, "info"), finding(2, "critical"))
    bundle = compact_bundle(session, span)
    assert re.findall(r"Number \d", in_sight(bundle["text/html"])) == ["Number 2"]
    assert bundle["text/plain"].splitlines()[1:] == [
        "  critical: Number 2 took 1.25 GiB.",
        "  1 more finding",
    ]


def test_a_hundred_findings_leave_the_card_small() -> None:
    """A hundred findings leave the card small, however long each of them is."""
    long = Finding("x", "warn", "word " * 4000, {}, ("word " * 4000,) * 50)
    session, span = with_findings(*[long] * 100)
    assert len(json.dumps(card_bundle(session, span, with_chart=False))) < 60_000


def test_a_card_names_its_budget_once() -> None:
    """A card names its budget once; the chart draws it only where the data come near it."""
    session = scripted_run("leak")
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    assert seen(html).split("allocated, start")[0].count("budget 6.00 GiB") == 1


def test_commands_in_advice_are_code() -> None:
    """A magic with its option and its word, and an option; other words and what looks like markup are not."""
    advice = "%memholders --free errors frees it; --budget warns, well-known <b>--x</b>; %memholders --all."
    html = findings_html([finding(1, "warn", advice)])
    commands = re.findall(r"<code[^>]*>(.*?)</code>", html)

    assert commands == ["%memholders --free errors", "--budget", "%memholders --all"]
    assert "<b>" not in html
