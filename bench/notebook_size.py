"""How many bytes a watched cell adds to the notebook that is saved.

nbclient runs a notebook with one cell of three seconds that allocates and frees, bare, watched, and
with a FigureWidget that is given the same memory ten times a second. What a cell adds is the saved
file's size above the bare one's. nbclient, papermill and nbconvert keep the state of widgets in the
file; JupyterLab does so only if it is told to, so the FigureWidget is given with it and without.
The last rows are the outputs of longer runs, from `tests.scenes`, as they would be saved.
Sizes hardly vary from run to run: of three, the largest.
"""

import json
import os
from collections.abc import Mapping
from functools import partial

import nbformat
from common import measure
from nbclient import NotebookClient

from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.chart.figure import chart_bundle
from tests.scenes import SCRIPTED_RUNS, scripted_run

SECONDS = 3
RUNS = 3
WORK = f"""import time
blocks = []
for step in range({10 * SECONDS}):
    blocks.append(bytearray((1 + step % 7) << 20))
    if step % 7 == 6:
        blocks.clear()
    time.sleep(0.1)
"""
FIGURE = f"""import time
import plotly.graph_objects as go
from hfmem_widget.sources.host import HostSource
host = HostSource()
figure = go.FigureWidget([go.Scatter(name=one.label) for one in host.series[:3]])
display(figure)
rows, blocks = [], []
for step in range({10 * SECONDS}):
    blocks.append(bytearray((1 + step % 7) << 20))
    if step % 7 == 6:
        blocks.clear()
    rows.append((step / 10, *host.read(step / 10)))
    with figure.batch_update():
        for column, trace in enumerate(figure.data):
            trace.x, trace.y = [row[0] for row in rows], [row[column + 1] for row in rows]
    time.sleep(0.1)
"""
BARE, FIGURE_WIDGET = "unwatched", "FigureWidget, ten updates a second"
CELLS = {
    BARE: WORK,
    "%%memwatch": f"%%memwatch\n{WORK}",
    "%%memwatch --no-chart": f"%%memwatch --no-chart\n{WORK}",
    FIGURE_WIDGET: FIGURE,
}


def saved_size(cell: str, *, widget_state: bool) -> int:
    """Run a notebook with this cell, and return the bytes of its file."""
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext hfmem_widget", cell)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, store_widget_state=widget_state).execute()
    # The cell's source is not what it adds.
    for one in notebook.cells:
        one.source = ""
    return len(nbformat.writes(notebook).encode())


def output_size(*bundles: Mapping[str, object] | None) -> int:
    """Return the bytes of MIME bundles as outputs in a notebook's file."""
    outputs = [nbformat.v4.new_output("display_data", data=dict(one)) for one in bundles if one]
    return len(json.dumps(outputs, indent=1, ensure_ascii=False).encode())


def main() -> None:
    """Measure and print."""
    arguments = measure.cli(__doc__).parse_args()
    paths = (str(measure.ROOT), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ways = {
        f"{name}, {'widget state saved' if state else 'as JupyterLab saves'}": partial(
            saved_size, cell, widget_state=state
        )
        for name, cell in CELLS.items()
        for state in (False, True)
    }
    sizes = measure.interleave(ways, RUNS)
    bare = min(min(values) for name, values in sizes.items() if name.startswith(BARE))
    rows = [[name, f"{max(values) - bare:,.0f}"] for name, values in sizes.items()]
    for run in SCRIPTED_RUNS:
        session = scripted_run(run)
        span = session.spans[0]
        chart = chart_bundle(session, span)
        card = card_bundle(session, span, with_chart=chart is not None)
        rows.append([f"scripted run {run!r}", f"{output_size(card, chart):,}"])
    measure.report(
        f"Bytes that a cell of {SECONDS} s adds to the saved notebook",
        measure.machine("ipykernel", "nbclient", "plotly", "anywidget"),
        ["cell", "bytes added"],
        rows,
        raw=sizes,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
