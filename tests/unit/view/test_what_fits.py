"""A training at other sizes: what it would take, the table of it, and what the page's script gets."""

import json
import math
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from hfmem_widget.session import WhatIf
from hfmem_widget.session.what_if import Moment, Variant
from hfmem_widget.text import MIB
from hfmem_widget.view.what_fits import what_if_html
from tests.scenes import scripted_run

OWN = Variant(
    checkpointing=False,
    precision="fp32",
    held={"weights": 100 * MIB, "optimizer": 200 * MIB},
    moments=(Moment(100 * MIB, 110 * MIB, 0.0, 0.0), Moment(0.0, 10 * MIB, MIB / 8, MIB / 1024)),
    low=0.9,
    high=1.1,
    off=0.0,
)
EXAMPLE = WhatIf(8, 128, (1, 16), (64, 256), 700.0 * MIB, 0.0, 1.0, (OWN,))
"""The same as in `js/tests/whatif.test.ts`."""


def data_of(html: str) -> dict[str, Any]:
    (attribute,) = re.findall(r'data-hfmem-what-if="([^"]*)"', html)
    data: dict[str, Any] = json.loads(unescape(attribute))
    return data


@pytest.mark.parametrize(
    ("rows", "length", "peak", "gradients"),
    [(8, 128, 566, 0), (1, 64, 410, 100), (16, 256, 1846, 0)],
)
def test_the_peak_is_the_highest_moment(rows: int, length: int, peak: int, gradients: int) -> None:
    """For the same coefficients the page's script has the same peak."""
    assert OWN.peak(rows, length) == peak * MIB
    assert OWN.parts(rows, length)["gradients"] == gradients * MIB


def test_the_table_has_a_few_sizes_that_are_known() -> None:
    """The table has half and double of the training's own sizes, and none beyond the dry runs."""
    text = what_if_html(EXAMPLE).text

    assert re.findall(r"^\d+ \S \d+", text, re.MULTILINE) == [
        "8 \N{MULTIPLICATION SIGN} 128",
        "4 \N{MULTIPLICATION SIGN} 128",
        "16 \N{MULTIPLICATION SIGN} 128",
        "8 \N{MULTIPLICATION SIGN} 64",
        "8 \N{MULTIPLICATION SIGN} 256",
    ]
    assert "does not fit" in text
    short = what_if_html(replace(EXAMPLE, lengths=(64, 128), room=math.nan)).text
    assert "8 \N{MULTIPLICATION SIGN} 256" not in short
    assert "fit" not in short


def test_the_script_gets_plain_figures() -> None:
    """They are JSON of at most 5 kB, in which what comes from outside is escaped."""
    many = [
        replace(OWN, precision='"><script>', checkpointing=on, moments=OWN.moments * 3)
        for on in (False, True)
    ]
    control = what_if_html(replace(EXAMPLE, room=math.nan, variants=(*many, *many)), scripted=False)

    assert "<script" not in control.html
    data = data_of(control.html)
    assert len(json.dumps(data)) < 5000
    assert data["room"] is None
    assert data["variants"][0]["precision"] == '"><script>'
    assert data["variants"][0]["moments"][1] == [0, 10 * MIB, MIB / 8, MIB / 1024]


def test_the_card_and_the_report_of_a_training_have_it_where_it_was_worked_out() -> None:
    """A report's own script draws it, and no second one; a static page has the table."""
    from hfmem_widget.features.report.page import page
    from hfmem_widget.view.card import card_bundle

    session = scripted_run("training")
    plain_card = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    session.what_if = EXAMPLE
    card = card_bundle(session, session.spans[0], with_chart=True)["text/html"]
    html = page(session, static=True)

    assert "what-if" not in plain_card
    assert data_of(card)["rows"] == [1, 16]
    assert data_of(html)["batch"] == 8
    assert "<script" not in html
    assert "16 \N{MULTIPLICATION SIGN} 128" in html
