"""Watches without magics, and the outputs of a notebook without a front end."""

import html
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter

import hfmem_widget
from hfmem_widget.monitor.shared import shared_monitor
from tests.data.modules import run_alone
from tests.kernel.over_ipc import run_notebook

WATCHED = """%%memwatch --label kept
import time
blocks = [bytearray(1_000_000) for _ in range(50)]
time.sleep(1)
"""
PLOTLY = "application/vnd.plotly.v1+json"


def execute(command: list[str], *cells: str) -> nbformat.NotebookNode:
    """Run some cells as nbclient and papermill do, and return the notebook with its outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return run_notebook(notebook, command)


@pytest.fixture(scope="module")
def executed(bare_command: list[str]) -> nbformat.NotebookNode:
    """Return a notebook with a watched cell, after a run without a front end."""
    return execute(bare_command, "%load_ext hfmem_widget", WATCHED)


def test_a_notebook_without_a_page_keeps_card_and_chart(executed: nbformat.NotebookNode) -> None:
    """The saved outputs are static, small, and have a plain-text line."""
    outputs = executed.cells[1].outputs
    types = [set(output.data) for output in outputs]

    assert types == [{"text/html", "text/plain"}, {PLOTLY, "text/html", "text/plain"}]
    assert outputs[0].data["text/plain"].startswith('memwatch "kept" · ')
    assert len(str(outputs)) < 80_000


def test_nbconvert_shows_card_and_chart(executed: nbformat.NotebookNode) -> None:
    """The HTML that nbconvert writes has the figures as text and the chart as SVG."""
    exporter: Any = HTMLExporter()  # type: ignore[no-untyped-call]
    body, _ = exporter.from_notebook_node(executed)
    text = html.unescape(re.sub(r"<[^>]+>", " ", body))

    assert "left behind" in text
    assert "headroom at the peak" in text
    assert "<svg" in body.partition("left behind")[2]


def test_a_script_prints_one_line() -> None:
    """Outside IPython a watched block ends with its line on standard output, and nothing else."""
    block = "with hfmem_widget.watch('load'):\n    data = bytearray(20_000_000)"
    done = run_alone(f"import hfmem_widget\n{block}\n")

    assert re.fullmatch(r'memwatch "load" · .* · peak .* sampled · .*\n', done.stdout)
    assert done.stderr == ""


def test_a_decorated_function_may_call_itself() -> None:
    """Each call has a watch of its own, and none is left at the end."""

    @hfmem_widget.watch("down", quiet=True)
    def down(number: int) -> int:
        return 0 if number == 0 else 1 + down(number - 1)

    assert down(3) == 3
    assert not shared_monitor().poller.alive


def test_a_watch_that_runs_cannot_be_entered_again() -> None:
    """The error says what to do, and the first watch continues."""
    watch = hfmem_widget.watch(quiet=True)
    with watch as session:
        with pytest.raises(hfmem_widget.WatchStateError, match="is running"), watch:
            pass
        assert session.running

    assert not session.running


def test_the_error_of_a_block_is_not_kept_alive() -> None:
    """Nothing of ours holds the exception, whose frames would hold the tensors of the failed step."""

    class HeldError(Exception):
        """An error with weak references."""

    def fail() -> None:
        with hfmem_widget.watch(quiet=True):
            raise HeldError

    try:
        fail()
    except HeldError as error:
        reference = weakref.ref(error)

    assert reference() is None


def test_sixty_four_threads_may_watch_at_once() -> None:
    """One poller serves them all, each watch has its own session, and nothing is left at the end."""
    monitor = shared_monitor()

    def work(number: int) -> tuple[str, int]:
        with hfmem_widget.watch(f"thread {number}", interval=0.01, quiet=True) as session:
            assert monitor.poller.alive
        return session.label, len(session.spans)

    with ThreadPoolExecutor(64) as pool:
        done = list(pool.map(work, range(64)))

    assert done == [(f"thread {number}", 1) for number in range(64)]
    assert not monitor.poller.alive
    assert not monitor.ledger.so_far()


def test_the_resident_peak_is_exact_on_request() -> None:
    """With `resident_peak` it includes memory that came and went between samples."""
    script = (
        "import hfmem_widget\n"
        "with hfmem_widget.watch(interval=10, quiet=True, resident_peak=True) as session:\n"
        "    data = bytearray(100_000_000)\n"
        "    del data\n"
        "span = session.spans[0]\n"
        "peak = span.peaks['cpu/reserved']\n"
        "rose = peak.value - session.value(span.before, 'cpu/reserved')\n"
        "print(peak.certainty, rose > 90_000_000)"
    )

    assert run_alone(script).stdout.split() == ["exact", "True"]
