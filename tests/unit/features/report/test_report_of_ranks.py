"""A report of a distributed run."""

from __future__ import annotations

import base64
import gzip
import json
import re

from hfmem_widget.features.report.page import page
from hfmem_widget.session import Session
from tests.data.overviews import EIGHT, MANY, overview
from tests.scenes import scripted_run


def policy(html: str) -> str:
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert found is not None
    return found[1]


def test_a_static_report_has_the_strip_and_the_tables() -> None:
    """And may show the image that it carries, and no other."""
    html = page(overview(MANY), static=True, now=0.0)

    assert "ranks \N{MULTIPLICATION SIGN} time" in html
    assert ">phase, GiB<" in html
    assert "img-src data:;" in policy(html)
    assert len(html) < 100_000


def test_a_report_without_ranks_may_show_no_image() -> None:
    """As before there were any."""
    session: Session = scripted_run("training")

    assert "img-src" not in policy(page(session, static=True, now=0.0))


def test_the_live_chart_is_given_all_ranks() -> None:
    """The whole strip, behind the samples."""
    session = overview(EIGHT)
    found = re.search(r'id="hfmem-data">([^<]+)<', page(session, now=0.0))
    assert found is not None
    head, _, rest = gzip.decompress(base64.b64decode(found[1])).partition(b"\n")
    told = json.loads(head)

    assert told["content"]["ranks"]["world"] == 8
    assert session.ranks is not None
    assert rest.endswith(session.ranks.strip.cells)
    assert told["sizes"][-1] == len(session.ranks.strip.cells)


def test_the_parts_are_those_of_the_worst_rank() -> None:
    """All ranks together have none."""
    html = page(overview(EIGHT), static=True, now=0.0)

    assert "rank:5" in html[html.index("Memory at the peak") :]
