"""Everything the static views draw: ``python -m tests.data.gallery OUT.html [light|dark]``."""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from hfmem_widget.view.anatomy import anatomy_bundle
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import PLOTLY_MIME, chart_bundle
from hfmem_widget.view.one_line import compact_bundle, running_bundle
from tests.scenes import SCRIPTED_RUNS, scripted_run

THEMES = {
    "light": {
        "--jp-ui-font-color1": "rgba(0,0,0,.87)",
        "--jp-border-color2": "#e0e0e0",
        "--jp-layout-color0": "#fff",
    },
    "dark": {
        "--jp-ui-font-color1": "rgba(255,255,255,.87)",
        "--jp-border-color2": "#424242",
        "--jp-layout-color0": "#111",
    },
}

# What JupyterLab 4.6 does to rendered HTML, as far as it could spoil a card.
JUPYTERLAB = """
body { margin: 0; padding: 12px; background: var(--jp-layout-color0); color: var(--jp-ui-font-color1);
  font: 14px/1.5 system-ui, sans-serif }
h2 { font-size: 12px; font-weight: normal; margin: 22px 0 4px; opacity: .6 }
.out table { border-collapse: collapse; border-spacing: 0; border: none; font-size: 13px; table-layout: fixed;
  margin-left: auto; margin-bottom: 1em; margin-right: auto }
.out thead { border-bottom: 1px solid #888; vertical-align: bottom }
.out td, .out th, .out tr { vertical-align: middle; padding: .5em; line-height: normal; white-space: normal;
  max-width: none; border: none; text-align: right }
.out th { font-weight: bold }
.out tbody tr:nth-child(odd) { background: rgba(128,128,128,.2) }
.out svg { max-width: 100%; height: auto }
.out p { text-align: left; margin: 0 0 1em }
.out pre { margin: 0; white-space: pre-wrap }
"""


def page(theme: str) -> str:
    """Return the gallery in one of the `THEMES`."""
    variables = "".join(f"{name}:{value};" for name, value in THEMES[theme].items())
    sections = [_output("running", running_bundle("fine-tune", 0.0)["text/html"])]
    charts: dict[str, object] = {}
    for name in SCRIPTED_RUNS:
        session = scripted_run(name)
        span = session.spans[0]
        chart = chart_bundle(session, span)
        card = card_bundle(session, span, with_chart=chart is not None)
        sections.append(_output(f"{name}: card", card["text/html"]))
        if chart is not None:
            charts[f"plot-{len(charts)}"] = chart[PLOTLY_MIME]
            sections.append(_output("chart, Plotly", f'<div id="plot-{len(charts) - 1}"></div>'))
            sections.append(_output("chart, SVG", chart["text/html"]))
            sections.append(
                _output(
                    "card with its own picture",
                    card_bundle(session, span, with_chart=False)["text/html"],
                )
            )
        anatomies = [session.anatomy("now"), session.anatomy("peak")]
        sections.append(
            _output("anatomy", anatomy_bundle(anatomies, title=session.label)["text/html"])
        )
        sections.append(_output("one line", compact_bundle(session, span)["text/html"]))
        sections.append(_output("plain text", f"<pre>{escape(card['text/plain'])}</pre>"))
        if name in {"training", "two gpus"}:
            bare = re.sub(r' style="[^"]*"', "", card["text/html"])
            sections.append(_output("card without its styles", bare))
    drawing = "".join(
        f"Plotly.newPlot({json.dumps(name)},{_for_script(figure)});"
        for name, figure in charts.items()
    )
    return (
        f'<!doctype html><meta charset="utf-8"><title>gallery</title><style>:root{{{variables}}}{JUPYTERLAB}'
        f"</style>{''.join(sections)}<script>{get_plotlyjs()}</script><script>{drawing}</script>"
    )


def _output(title: str, html: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="out">{html}</div>'


def _for_script(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        page(sys.argv[2] if len(sys.argv) > 2 else "light"), encoding="utf-8"
    )
