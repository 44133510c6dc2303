"""What stands between dollars in a real JupyterLab, whose MathJax reads every HTML output."""

from __future__ import annotations

from tests.browser.lab import Lab

LOAD = "%load_ext hfmem_widget"
WATCH = """%%memwatch -l "cost $a$ and $b$"
import time
time.sleep(0.5)
"""
RUN_OUT = """%%memwatch -l "cost $a$ and $b$"
raise MemoryError("Unable to allocate 9.31 GiB for an array with shape (1, $a$) and data type $b$")
"""
FOUND = """
from IPython.display import HTML, display
from hfmem_widget.session import Finding
from tests.scenes import scripted_run
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.line import compact_bundle
from hfmem_widget.view.chart.figure import chart_bundle

session = scripted_run("training")
session.findings.append(Finding("leak", "warn", "what $a$ and $b$ hold", {}, (r"see \\(a\\)",), 1))
for bundle in (
    card_bundle(session, session.spans[0], with_chart=False),
    compact_bundle(session, session.spans[0]),
    {"text/html": chart_bundle(session, session.spans[0])["text/html"]},
):
    display(bundle, raw=True)
"""
HOLD = """
import numpy
kept = {"$a$ and $b$": numpy.ones(64 << 20)}
%memholders
"""
COMPARE = "%memcompare"
# The last, so that what stands above it has been looked at as well.
FORMULA = 'HTML("<p>a formula: $x^2$</p>")'
SHOWN = ("cost $a$", "Out of memory", "what $a$ and $b$ hold", "$a$", "cost $a$ and $b$")
FORMULAS = "() => document.querySelectorAll('mjx-container').length"


def test_dollars_in_a_text_are_dollars(lab: Lab) -> None:
    """In labels, findings, names and the card of an error; a formula of the user's own is one still."""
    lab.open(LOAD, WATCH, RUN_OUT, FOUND, HOLD, COMPARE, FORMULA)
    for cell in range(7):
        lab.run_cell(cell)
    for cell, text in enumerate(SHOWN, 1):
        lab.wait_for_text(cell, text)
    lab.wait_for(FORMULAS)
    assert lab.page.evaluate(FORMULAS) == 1
