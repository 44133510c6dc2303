"""Kernels with the packages that Colab, Kaggle and Databricks pin, of which none is changed.

There need be no torch: here a cell holds plain bytes. `make test-hosts` runs all kernel tests there.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kernel.drive import ROOT, Kernel, Result, ipykernel_of
from tests.kernel.pinned import HOSTS, python_of

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
OURS = """
import importlib.metadata as metadata, json
names = ["hfmem-widget", "anywidget", "psygnal", "nvidia-ml-py"]
found = {each.metadata["Name"]: each for each in metadata.distributions()}
needs = [need for name in names if name in found for need in found[name].requires or ()]
print(json.dumps([{name: each.version for name, each in found.items()}, needs]))
"""
WATCHED = """%%memwatch --label fit --output session
import time
kept = bytearray(50_000_000)
for _ in range(8):
    print('step')
    time.sleep(0.25)
"""


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(host: str) -> Iterator[Kernel]:
    with Kernel(command=ipykernel_of(python_of(host))) as kernel:
        assert kernel.run("%load_ext hfmem_widget").status == "ok"
        yield kernel


@pytest.fixture(scope="module")
def watched(loaded: Kernel) -> Result:
    """Return a cell of two seconds that was watched."""
    return loaded.run(WATCHED)


def test_pip_changes_no_package_of_the_host(host: str) -> None:
    """Its releases are within the bounds of ours, and of what ours bring."""
    done = subprocess.run([python_of(host), "-c", OURS], capture_output=True, text=True, check=True)
    found, needs = json.loads(done.stdout)
    needs += tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = {canonicalize_name(name): version for name, version in found.items()}
    wanted = [need for need in map(Requirement, needs) if "extra" not in str(need.marker or "")]
    refused = [
        str(need) for need in wanted if versions[canonicalize_name(need.name)] not in need.specifier
    ]

    assert wanted
    assert refused == []


def test_a_watched_cell_leaves_card_and_chart(watched: Result) -> None:
    """In the places of the line and of the live chart."""
    shown: dict[str, Any] = {}
    for one in watched.displays:
        shown[one.content["transient"]["display_id"]] = one.content["data"]
    card, chart = shown.values()

    assert watched.status == "ok"
    assert card["text/plain"].startswith('memwatch "fit" · ')
    assert "left behind" in card["text/html"]
    assert {PLOTLY, "text/html", "text/plain"} <= chart.keys()


def test_the_chart_is_live_while_the_cell_runs(watched: Result) -> None:
    """Its widget is shown, and gets messages from the poller's thread between the cell's own prints."""
    kinds = [one.kind for one in watched.messages]
    last_print = len(kinds) - 1 - kinds[::-1].index("stream")
    meanwhile = watched.messages[:last_print]

    assert any(WIDGET in one.content["data"] for one in watched.displays)
    assert sum(one.kind == "comm_msg" and bool(one.buffers) for one in meanwhile) >= 2


def test_a_figure_can_be_made(loaded: Kernel, watched: Result) -> None:
    """Plotly 5 reads no base64, so the figure has arrays."""
    result = loaded.run("figure = session.figure()\nprint(len(figure.data), len(figure.data[0].x))")

    assert watched.status == result.status == "ok"
    assert all(int(count) > 1 for count in result.text().split())
