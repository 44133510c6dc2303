"""The page that a session becomes: what is on it, how large it is, and what it may do."""

import base64
import getpass
import gzip
import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.errors import HFMemError, OptionError
from hfmem_widget.features.report.page import LARGEST, packed, page
from hfmem_widget.session import Finding, Session
from hfmem_widget.text import GIB
from hfmem_widget.view.wire import protocol
from tests.data.overviews import EIGHT, MANY, overview
from tests.data.recorders import cell_of
from tests.scenes import scripted_run
from tests.scenes.stage import Stage
from tests.unit.view.test_hostile_text import CORPUS, Elements, hostile

LARGEST_STATIC = 100_000


class Document(Elements):
    """A parsed page."""

    @property
    def scripts(self) -> list[str]:
        return [text for text, name in self._texts() if name == "script"]

    @property
    def text(self) -> str:
        return "".join(text for text, name in self._texts() if name not in {"script", "style"})

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def policy(self) -> str:
        return str(next(one["content"] for one in self.all("meta") if "http-equiv" in one))

    def _texts(self) -> list[tuple[str, str]]:
        around = (elements[-1][0] if elements else "" for elements in self.within)
        return list(zip(self.seen, around, strict=True))


def many_devices() -> Session:
    """Return an hour of eight GPUs with random readings, which no compression makes smaller."""
    metrics = ("allocated", "reserved", "device_used", "weights", "gradients", "optimizer")
    keys = [f"cuda:{index}" for index in range(8)]
    rows = np.random.default_rng(1).random((3600, len(keys) * len(metrics))) * 100 * GIB
    session, _ = cell_of(*map(tuple, rows.tolist()), keys=keys, metrics=metrics, total=140 * GIB)
    session.stopped_at = session.started_at + 3600.0
    return session


def notebook(cells: int, hold: Callable[[Stage, int], None], gpus: int = 1) -> str:
    """Return the text of the page of a session of `%memwatch on` with so many cells."""
    stage = Stage("notebook", gpus=gpus)
    for number in range(cells):
        with stage.span("cell", f"cell {number}"):
            hold(stage, number)
    return Document(page(stage.finish(), static=True)).text


@pytest.mark.parametrize("name", ["training", "eight gpus", "steps", "leak", "hour with gaps"])
def test_a_page_is_small_enough_to_send(name: str) -> None:
    """It has at most 1.5 MB with the live chart, and 100 kB with the still one alone."""
    session = scripted_run(name)

    assert len(page(session).encode()) <= LARGEST
    assert len(page(session, static=True).encode()) <= LARGEST_STATIC


def test_samples_that_do_not_fit_are_folded_and_the_page_says_so() -> None:
    """An hour of eight GPUs with random readings keeps to the size."""
    text = page(many_devices())

    assert len(text.encode()) <= LARGEST
    assert "lowest and the highest of all samples within" in text


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["training", "eight gpus", "failed", "leak", "short"])
def test_a_page_is_whole_and_in_order(name: str, *, static: bool) -> None:
    """All tags are closed, ids are there once, and one heading stands above the others."""
    document = Document(page(scripted_run(name), static=static))
    ids = [one["id"] for _, one in document.elements if "id" in one]
    headings = [tag for tag, _ in document.elements if re.fullmatch(r"h\d", tag)]

    assert document.all("html") == [{"lang": "en"}]
    assert len(ids) == len(set(ids))
    assert headings == ["h1", *["h2"] * (len(headings) - 1)]
    assert {one["aria-labelledby"] for one in document.all("section")} <= set(ids)


def test_only_the_script_of_the_page_may_run_and_nothing_may_be_loaded() -> None:
    """The policy allows one script by its hash; a still chart has none."""
    document, still = Document(page(scripted_run())), Document(page(scripted_run(), static=True))
    assert still.all("script") == []
    assert "script-src" not in still.policy
    assert still.all("svg")
    kinds = [one.get("type") for one in document.all("script")]
    digest = hashlib.sha256(document.scripts[kinds.index("module")].encode()).digest()

    assert kinds == ["text/plain", "module"]
    assert document.policy == (
        f"default-src 'none'; script-src 'sha256-{base64.b64encode(digest).decode()}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    assert not any({"src", "href", "srcset", "action"} & set(one) for _, one in document.elements)
    assert "url(" not in page(scripted_run(), static=True)


def test_a_live_page_needs_the_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout in which it was not built says so in a sentence; a static page needs none."""
    monkeypatch.setattr("hfmem_widget.view.html.built", Mock(side_effect=FileNotFoundError))

    with pytest.raises(HFMemError, match="make build"):
        page(scripted_run())
    assert page(scripted_run(), static=True)


@pytest.mark.parametrize("text", [*CORPUS.values(), "\u2028{x}{0}%s</style>"])
def test_text_from_outside_stays_text(text: str) -> None:
    """With any labels, names, notes and findings, the page has the tags of harmless ones."""
    session, harmless = hostile(text)[0], hostile("x")[0]
    session._software = {text: text}
    harmless._software = {"x": "x"}

    tags, usual = (
        [tag for tag, _ in Document(page(one, static=True, now=0.0)).elements]
        for one in (session, harmless)
    )

    assert set(tags) <= set(usual) | {"time"}
    assert tags.count("script") == tags.count("img") == 0
    assert tags.count("section") == usual.count("section")


def test_a_hostile_label_does_not_end_the_frame() -> None:
    """The data of the live chart consist of letters, digits and three signs."""
    session, _ = hostile(CORPUS["script"])

    (data, _) = Document(page(session)).scripts

    assert re.fullmatch(r"[A-Za-z0-9+/=]+", data)


def test_a_page_reveals_nothing_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no arguments, variables, paths, ids of GPUs, and no name of machine or user."""
    monkeypatch.setenv("HFMEM_TOKEN", "a-token-of-somebody")
    monkeypatch.setattr(sys, "argv", ["train.py", "--password=a-password"])
    document = Document(page(scripted_run()))
    frame = gzip.decompress(base64.b64decode(document.scripts[0])).decode("utf-8", "replace")
    seen = document.text + frame + str(document.elements)
    secrets = ["a-token", "a-password", "train.py", os.getcwd(), socket.gethostname(), "GPU-cuda"]  # noqa: PTH109

    # A name of two letters is among the bytes of a frame by chance.
    revealed = [one for one in (*secrets, str(Path.home()) + "/") if len(one) > 3 and one in seen]
    assert revealed == []
    assert getpass.getuser() == "root" or getpass.getuser() not in seen


def test_the_frame_is_that_of_the_wire() -> None:
    """The chart of a page reads what a notebook's page would get, with all buffers."""
    session = scripted_run("steps")
    detail = protocol.Detail(10_000, sys.maxsize, 10_000, sys.maxsize, 400)
    message, buffers = protocol.snapshot(session, "report", 0, panel=False, detail=detail)

    head, _, rest = gzip.decompress(base64.b64decode(packed(session, LARGEST)[0])).partition(b"\n")
    known = json.loads(head)

    assert known["content"] == json.loads(json.dumps(message))
    assert known["sizes"] == list(map(len, buffers))
    assert rest == b"".join(buffers)


@pytest.mark.parametrize("name", ["training", "eight gpus", "leak"])
def test_the_page_of_a_recording_is_that_of_the_session(name: str, tmp_path: Path) -> None:
    """An opened recording has the same words and figures as the watched session."""
    session = scripted_run(name)
    opened = hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl"))

    shown, expected = (Document(page(one, static=True, now=0.0)).text for one in (opened, session))

    assert shown == expected


def test_versions_are_those_of_the_recording(tmp_path: Path) -> None:
    """The process that writes the page may have others."""
    session = Session("run", stopped_at=1.0, software={"torch": "0.0.99"})
    opened = hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl"))

    assert "0.0.99" in page(opened)
    assert f">{hfmem_widget.__version__}<" not in page(opened)


def test_the_cells_of_a_notebook_are_listed() -> None:
    """Of a session of many cells, the newest have a row each, and a sentence counts the others."""
    text = notebook(45, lambda stage, at: stage.hold({"cuda:0": at * GIB}, 0.2))

    assert "5 cells before these" in text
    assert ("cell 5" in text, "cell 44" in text) == (True, True)
    assert "cell 4 " not in text
    assert "allocated, start" in text


def test_the_cells_of_a_cpu_have_its_words() -> None:
    """Private memory is counted there, as on the card."""
    text = notebook(2, lambda stage, at: stage.hold({"cpu": at * GIB}, 0.2), gpus=0)

    assert "private memory, start" in text
    assert "allocated, start" not in text


def test_a_cell_of_many_names_its_child_processes() -> None:
    """They are below its name, as on its card."""
    text = notebook(2, lambda stage, at: stage.hold_in_children({"cuda:0": 4 * at * GIB}, 0.5, at))

    assert text.count("by 1 child process") == 1


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (Session(), "Nothing was watched."),
        (Session("no samples", stopped_at=0.0), "too few samples"),
        (scripted_run("short"), "too few samples"),
        (Session("torn", stopped_at=1.0, broken_off=True), "not watched to its end"),
        (Session("now"), "still running after"),
        (Session("long ago", started_at=-1e17), "Nothing was watched."),
        (Session("later", started_at=1e17), "Nothing was watched."),
    ],
    ids=["nothing", "no samples", "10 ms", "broken off", "running", "no year", "too late"],
)
def test_a_session_without_data_has_a_page_in_words(session: Session, words: str) -> None:
    """A session with nothing to draw gives a page that says so, without a script."""
    document = Document(page(session))

    assert words in document.text
    assert document.all("script") == []


def test_the_gravest_findings_come_first_and_the_rest_are_counted() -> None:
    """Advice and many phases, which a notebook folds, are open here, also on paper."""
    stage = Stage("train", gpus=1)
    with stage.span("cell", "train"):
        for number in range(9):
            with stage.span("block", f"block {number}"):
                stage.hold({"cuda:0": GIB}, 0.1)
    session = stage.finish()
    grave = Finding("oom", "critical", "the gravest", {}, ("do this", "or that"))
    session.findings[:] = [*(Finding("leak", "info", f"note {at}", {}) for at in range(20)), grave]

    document = Document(page(session, static=True))

    assert document.text.index("the gravest") < document.text.index("note 0")
    assert "6 more findings" in document.text
    assert len(document.all("details")) == 2
    assert all("open" in one for one in document.all("details"))


def test_a_device_that_only_its_driver_knows_has_a_page() -> None:
    """A device with only the memory in use is on the page too."""
    used = (tick * GIB for tick in range(9))
    session, _ = cell_of(GIB, *used, metrics=["device_used"], every=0.1)

    assert "cuda:0" in Document(page(session)).text


def test_the_page_of_a_running_session_says_that_it_runs() -> None:
    """Its chart goes up to now."""
    stage = Stage("train", gpus=1)
    with stage.span("cell", "train"):
        stage.hold({"cuda:0": GIB}, 2.0)
        document = Document(page(stage.session))

    assert "still running after 1.9 s" in document.text
    assert len(document.scripts) == 2


def test_a_report_is_written_once(tmp_path: Path) -> None:
    """An existing file is not replaced, and nothing is left beside it."""
    session = scripted_run("short")
    path = session.report(tmp_path / "run.html")
    first = path.read_bytes()

    with pytest.raises(OptionError, match="already exists"):
        session.report(str(path))

    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.pdf", r"must be a name that ends in \.html, not 'run\.pdf'"),
        ("run", r"ends in \.html"),
        ("", r"ends in \.html"),
        ("missing/run.html", "cannot be written"),
    ],
)
def test_a_path_that_cannot_be_is_refused(name: str, message: str, tmp_path: Path) -> None:
    """Another ending, or a folder that does not exist, is an error of one sentence."""
    with pytest.raises(OptionError, match=message):
        scripted_run("short").report(tmp_path / name)

    assert list(tmp_path.iterdir()) == []


def test_a_static_report_of_ranks_has_the_strip_and_the_tables() -> None:
    """Its policy allows the image that it has; a report without ranks allows none."""
    html = page(overview(MANY), static=True, now=0.0)

    assert "ranks \N{MULTIPLICATION SIGN} time" in html
    assert ">phase, GiB<" in html
    assert "img-src data:;" in Document(html).policy
    assert len(html) < LARGEST_STATIC
    assert "img-src" not in Document(page(scripted_run("training"), static=True, now=0.0)).policy


def test_the_live_chart_is_given_all_ranks() -> None:
    """The strip of all ranks is behind the samples; the parts are those of the worst rank."""
    session = overview(EIGHT)
    html = page(session, static=True, now=0.0)
    assert "rank:5" in html[html.index("Memory at the peak") :]
    head, _, rest = gzip.decompress(base64.b64decode(packed(session, LARGEST)[0])).partition(b"\n")
    data = json.loads(head)

    assert data["content"]["ranks"]["world"] == 8
    assert session.ranks is not None
    assert rest.endswith(session.ranks.strip.cells)
    assert data["sizes"][-1] == len(session.ranks.strip.cells)


def test_a_reports_path_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file outside of the notebook's folder has none, as no page could open it; its name is escaped."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    session = scripted_run("training")
    near = session.report("a<b c.html", static=True)
    far = session.report(tmp_path / "far.html", static=True)

    link = '<a href="a%3Cb%20c.html" target="_blank">a&lt;b c.html</a>'
    assert near._repr_html_() == link  # type: ignore[attr-defined]
    assert "<a" not in far._repr_html_()  # type: ignore[attr-defined]
    assert near.read_text().startswith("<!doctype html>")
