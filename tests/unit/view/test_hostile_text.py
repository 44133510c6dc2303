"""Text from outside is text: in every sink, and in each place that the kit of cards and tables has for it."""

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.analysis.anatomy import anatomy
from hfmem_widget.features.fit.html import fit_bundle
from hfmem_widget.features.holders.html import holders_bundle
from hfmem_widget.features.memory_map.html import moments_bundle
from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.html import out_of_memory_bundle
from hfmem_widget.features.oom.model import Incident
from hfmem_widget.features.oom.observer import LiveBlocks
from hfmem_widget.session import (
    Anatomy,
    Contents,
    Device,
    Finding,
    Guide,
    Recorder,
    Sample,
    Series,
    Session,
    Span,
)
from hfmem_widget.session.segments import MemoryMap
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.text import GIB
from hfmem_widget.view import html as kit
from hfmem_widget.view.anatomy import anatomy_bundle, contents_text
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import PLOTLY_MIME, anatomy_dict, chart_bundle
from hfmem_widget.view.html import AS_TEXT
from hfmem_widget.view.line import compact_bundle, running_bundle
from hfmem_widget.view.table import Column, TableRow, table
from tests.data.oom_cases import CASES
from tests.data.plotly_words import plain_words

CORPUS = {
    "element": "<img src=x onerror=alert(1)>",
    "script": "</script><script>alert(1)</script>",
    "end of everything": "</title></text></svg></span></dd></td></div><h1>x</h1>",
    "attribute": '" onload="alert(1)" x=\'',
    "plotly link": '<a href="javascript:alert(1)">click</a>',
    "mathjax": r"$\href{javascript:alert(1)}{x}$",
    "entity": "&lt;b&gt; &amp;",
    "bidi": "safe\u202etxt.exe\u2066\u200f",
    "control": "a\x00b\x1b[31mc\x07\r\nd",
    "long": "<b>" * 4000,
    "comment": "<!-- x --> <![CDATA[ y ]]>",
}
METRICS = ("allocated", "reserved", "device_used", "weights")
TAGS = {"details", "summary", "div", "strong", "span", "table", "thead", "tbody", "tr", "th", "td"}
TAGS |= {"ol", "li", "code"}
SVG_TAGS = {"svg", "g", "title", "path", "rect", "line", "circle", "text"}
ATTRIBUTES = {
    *("class", "style", "aria-hidden", "aria-label", "role", "tabindex", "scope", "transform"),
    *("width", "height", "viewbox", "preserveaspectratio", "d", "x", "y", "x1", "x2", "y1", "y2"),
    *("cx", "cy", "r", "rx", "dy", "text-anchor", "font-weight", "vector-effect"),
    *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity"),
}


Element = tuple[str, dict[str, str | None]]
"""A tag and its attributes."""


class Elements(HTMLParser):
    """Takes HTML apart; fails at a tag that is left open, and at the end of one that was never opened."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.seen: list[str] = []  # the texts
        self.within: list[list[Element]] = []  # the elements around each text
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.seen.append(data)
        self.within.append([*self._open])


class Strict(Elements):
    """Fails at any tag or attribute that a view has no use for, and at any comment or declaration."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS | SVG_TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        super().handle_starttag(tag, attrs)

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        pytest.fail(f"a declaration: {data}")


def hostile(text: str, devices: int = 1) -> tuple[Session, Span]:
    """Return a session in which every text that can come from outside is `text`."""
    recorder = Recorder(text)
    session = recorder.session
    session.notes += [text]
    session.polling.stopped = text
    keys = [f"cuda:{index}{text}" for index in range(devices)]
    recorder.adopt(
        [Device(key, text, total=80 * GIB) for key in keys],
        [Series(key, metric, text) for key in keys for metric in METRICS],
    )
    session.findings += [
        Finding(text, "warn", f"{text}{number}", {}, (text,)) for number in range(5)
    ]
    for key in keys:
        session.guides.append(Guide(key, "budget", text, 0.0, math.inf, GIB, GIB))
        session.guides.append(Guide(key, "trend", text, 0.0, 4.0, GIB / 2, GIB, (1.0, 1.0)))
        session.guides.append(Guide(key, "oom", text, 2.0, 2.0, GIB / 2, GIB / 2))
    row = (GIB, 2 * GIB, 3 * GIB, GIB / 2) * devices
    span = recorder.open_span("cell", text, recorder.append(Sample(0.0, row)))
    for step in range(4):
        inner = recorder.open_span("step", text, recorder.append(Sample(step + 0.1, row)))
        recorder.close_span(
            inner.id, recorder.append(Sample(step + 0.9, row)), {}, f"raised {text}"
        )
    for number in range(9):
        inner = recorder.open_span("block", f"{number} {text}", session.last_sample)
        recorder.close_span(inner.id, session.last_sample, {})
    return session, recorder.close_span(
        span.id, recorder.append(Sample(5.0, row)), {}, f"raised {text}"
    )


def anatomy_of(text: str) -> Anatomy:
    peak = anatomy(hostile(text)[0], "peak")
    parts = tuple(replace(part, label=text, note=text) for part in peak.parts)
    return replace(peak, moment=text, notes=(text,), parts=parts)


@cache
def sinks(text: str) -> Sequence[dict[str, Any]]:
    from tests.data.drawn_scenes import FIT  # which has cards that are tested by this

    peak = anatomy_of(text)
    bundles: list[dict[str, Any]] = [running_bundle(text, 0.0), anatomy_bundle([peak], title=text)]
    contents = contents_text(Contents((text,), (text,), 2, 1, {text: 1, f"{text}2": 2}))
    bundles.append(anatomy_bundle([peak], contents=contents))
    for devices in (1, 2):
        session, span = hostile(text, devices)
        chart = chart_bundle(session, span)
        assert chart is not None
        bundles += [chart, compact_bundle(session, span)]
        bundles += [card_bundle(session, span, with_chart=shown) for shown in (True, False)]
    row = Holder(
        f"cache[{text}]", "tensors", text, 3, 2, (1,), text, 0, 0, (text,), parts=((text, 5),)
    )
    forecast = replace(FIT.forecast, model=text)
    verdicts = tuple(replace(one, room=replace(one.room, name=text)) for one in FIT.verdicts)
    fit = replace(FIT, name=text, stored=text, forecast=forecast, verdicts=verdicts)
    incident = next(one.incident for one in CASES if "float32 on a card that has" in one.name)
    assert incident.blocks is not None
    ran_out = replace(
        incident,
        device=Device("cuda:0", text),
        path=(*incident.path[:-1], replace(incident.path[-1], label=text)),
        blocks=replace(incident.blocks, biggest=(LiveBlocks(GIB, 1, text),)),
    )
    moments = ((text, MemoryMap(("cuda:0",), (), 0.0, {"cuda:0": text})),)
    bundles += [holders_bundle(Holders((row,)), detail=True), fit_bundle(fit), error(ran_out)]
    return [*bundles, moments_bundle(moments)]


def error(incident: Incident) -> dict[str, str]:
    reason = diagnose(incident)
    return out_of_memory_bundle(incident, reason, advise(incident, reason), earlier=0)


def errors() -> list[Mapping[str, str]]:
    return [error(case.incident) for case in CASES[:3]]


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_html_has_only_our_own_tags_and_attributes(text: str) -> None:
    """No text can open a tag or set an attribute that is not among ours."""
    bundles = sinks(text)
    assert bundles
    for bundle in bundles:
        Strict(bundle["text/html"])


@pytest.mark.parametrize("name", ["element", "attribute", "plotly link", "mathjax", "entity"])
def test_html_shows_the_text_as_it_was_typed(name: str) -> None:
    """Text with markup in it is on the page character by character."""
    bundles = sinks(CORPUS[name])
    assert bundles
    for bundle in bundles:
        assert CORPUS[name] in "".join(Strict(bundle["text/html"]).seen)


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_plotly_gets_no_tag_and_no_dollar_of_theirs(text: str) -> None:
    """Of ours, it gets bold, line breaks, the page's colour, and the box for a trace's name."""
    figures = [plain_words(one[PLOTLY_MIME]) for one in sinks(text) if PLOTLY_MIME in one]
    assert figures
    for figure in (*figures, anatomy_dict([anatomy_of(text)])):
        for one in strings(figure):
            assert not re.search(r"<(?!/?b>|br>|/?extra>)", one)
            assert "$" not in one


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_no_sink_has_control_or_bidi_characters(text: str) -> None:
    """Characters that steer terminals or turn text around reach no output."""
    explained = [{"text/plain": repr(hostile(text, devices)[0].explain())} for devices in (1, 2)]
    bundles = [*sinks(text), *explained]
    assert bundles
    for bundle in bundles:
        for one in strings(bundle):
            line = one.replace("\n", "")
            assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs"}


def test_a_text_without_end_does_not_swell_the_notebook() -> None:
    """A name of many thousand characters leaves every output below 60 kB."""
    assert all(len(json.dumps(bundle)) < 60_000 for bundle in sinks(CORPUS["long"]))


@pytest.mark.parametrize("name", ["%{y}", "{0}", "%{customdata}"])
def test_a_name_is_no_template(name: str) -> None:
    """Plotly replaces ``%{…}`` in what hovering shows."""
    session, span = hostile(name)
    chart = chart_bundle(session, span)
    assert chart is not None
    templates = [one.get("hovertemplate", "") for one in chart[PLOTLY_MIME]["data"]]
    assert any(templates)
    assert not any(name in template for template in templates if name != "%{y}")
    assert all(template.count("%{y") <= 1 for template in templates)


def test_nothing_is_read_as_a_formula() -> None:
    """All text stands within an element that MathJax ignores, in whichever output."""
    element_classes = [
        [attributes.get("class") for _, attributes in elements]
        for bundle in (*sinks(CORPUS["mathjax"]), *errors())
        for elements in Strict(bundle["text/html"]).within
    ]

    assert len(element_classes) > 100
    assert all(AS_TEXT in classes for classes in element_classes)


def test_whatever_makes_html_has_it_from_the_kit() -> None:
    """Each module that makes or draws ``text/html`` uses the kit, and none escapes text by itself."""
    package = Path(hfmem_widget.__file__).parent
    rooms = [*package.glob("view/**/*.py"), *package.glob("features/**/*.py")]
    makers = {str(one.relative_to(package)): one.read_text() for one in rooms}
    makes_html = re.compile(r'"text/html": (?!"")|kit\.bundle\(')  # what is empty needs no kit
    names = {name for name, text in makers.items() if makes_html.search(text)}
    features = {f"features/{name}/html.py" for name in ("holders", "fit", "compare", "stacks")}
    assert {"view/card.py"} | features <= names
    kit, drawn_by = "view/html.py", {"view/chart/figure.py": "view/chart/svg.py"}
    import_of = re.compile(r"hfmem_widget\.view(\.html import| import html as kit)")
    without = {one for one in names - {kit} if not import_of.search(makers[drawn_by.get(one, one)])}
    assert not without
    assert [one for one, text in makers.items() if "import escape" in text] == [kit]


def test_where_drawings_are_taken_out_their_words_are_not_seen() -> None:
    """JupyterLab takes the drawings of an untrusted notebook, and leaves their words: these have no size."""
    bundles = (*sinks("model"), *errors())
    pages = [Strict(bundle["text/html"]) for bundle in bundles if PLOTLY_MIME not in bundle]
    style_lists = [
        [attributes.get("style") for _, attributes in elements]
        for page in pages
        for text, elements in zip(page.seen, page.within, strict=True)
        if text.strip() and SVG_TAGS & {tag for tag, _ in elements}
    ]

    assert len(style_lists) > 10
    assert all("font-size:0" in styles for styles in style_lists)


def seen(fragment: kit.Fragment) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", fragment.html)).replace("\u25a0", " ").split())


def everything(text: str) -> list[kit.Fragment]:
    """Return a text in each place that the kit has for one."""
    row = TableRow(
        (kit.marked("#000", text), text, (text, text)), facts=text, below=(text, kit.code(text))
    )
    columns = (Column(text), Column(text, is_quiet=True), Column(text, is_words=True))
    return [
        kit.headed(text, text, at_right=text),
        kit.note(text),
        kit.line(kit.strong(text), kit.faint(text)),
        kit.phrases([text, text]),
        kit.fold(text, kit.note(text)),
        kit.figures([(text, text, text)]),
        kit.section(text, text, kit.note(text)),
        kit.Fragment(kit.bar([("#000", 1.0, text)], 2.0, text)),
        kit.Fragment(kit.caption(text)),
        table(columns, [row], scrolls=text),
        table(columns, [row], names_last=True),
    ]


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
def test_no_place_of_the_kit_lets_a_text_become_markup(text: str) -> None:
    """Whatever the text is, the tags are the kit's, all closed, and nothing steers a terminal."""
    html = everything(text)
    assert html
    for one in html:
        Strict(one.html)
        assert all(char.isprintable() or char in "\n\u00a0" for char in one.html + one.text)


@pytest.mark.parametrize("names_last", [False, True])
def test_a_table_says_the_same_in_both_forms(*, names_last: bool) -> None:
    """Each name and figure of the HTML is a word of the text."""
    rows = [
        TableRow((kit.code("a.b"), "1", "10 %"), facts="two tensors", below=("also c",)),
        TableRow(("sum", "3"), is_sum=True, is_ruled=True),
    ]
    drawn_table = table((Column(""), Column(""), Column("")), rows, names_last=names_last)
    words = set(re.sub(r"[()]", " ", drawn_table.text).replace("\u2500", " ").split())

    assert words == set(seen(drawn_table).split())


def test_what_stands_small_below_figures_has_a_line_of_its_own() -> None:
    """The line is aligned with its figure; where no figure has any there is no line."""
    rows = [TableRow(("a", ("5", "", "+4"), ("55", "1-2", ""))), TableRow(("bb", "6", "7"))]

    assert table((Column("n"), Column("x"), Column("y")), rows).text.splitlines() == [
        "n    x    y",
        "a    5   55",
        "        1-2",
        "    +4",
        "bb   6    7",
    ]


def test_a_table_without_rows_is_nothing() -> None:
    """A table without rows has neither heads nor an empty frame."""
    assert not table((Column("n"),), [])
    assert not kit.note("")


def test_sections_are_apart_in_plain_text() -> None:
    """A blank line stands between two sections, and none before what follows both."""
    parts = (
        kit.section("a", "", kit.note("x")),
        kit.section("b", "", kit.note("y")),
        kit.note("end"),
    )

    assert kit.bundle(kit.headed("t"), *parts)["text/plain"] == "a\nx\n\nb\ny\nend"


def test_parts_of_a_bar_are_kept_apart_by_a_line() -> None:
    """A line separates the parts, some of which are alike in grey print."""
    assert '<g stroke="#000' in kit.bar([("#111", 1.0, "a"), ("#222", 1.0, "b")], 2.0, "both")


def test_words_beside_figures_keep_a_width_where_there_is_little_room() -> None:
    """They break in a few lines, not in one for each word; a name of one word needs none."""
    columns = [Column("phase"), Column("peak"), Column(is_words=True)]
    html = table(columns, [TableRow(("step", "7.00 GiB", "worst: step 15 (5,056 tokens)"))]).html
    (width,) = re.findall(r"min-width:(\d+)px", html)
    assert int(width) > 100


def test_a_figure_is_not_broken_where_styles_are_removed() -> None:
    """Neither a figure nor its head is broken, unless the head is longer; names and words break."""
    heads = (Column("a name"), Column("a peak"), Column("a long head"), Column("so", is_words=True))
    html = table(heads, [TableRow(("of two", "7.00 GiB", "1 %", "two words"))]).html
    cells = re.findall(r"<t[hd] [^>]*>([^<]*)<", html)
    assert cells[:4] == ["a name", "a\u00a0peak", "a long head", "so"]
    assert cells[4:] == ["of two", "7.00\u00a0GiB", "1\u00a0%", "two words"]
