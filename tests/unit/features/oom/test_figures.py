"""The figures in what is said of an out-of-memory error, however the sentences around them read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.model import Incident
from hfmem_widget.text import GIB
from tests.data import DATA
from tests.data.oom_incidents import CASES, Case

FIGURES: dict[str, Any] = json.loads((DATA / "oom_figures.json").read_text(encoding="utf-8"))
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?(?: (?:[KMGTP]iB|%))?")


def told(incident: Incident) -> dict[str, Any]:
    """Return the figures of the diagnosis, and of each advice: of its sentence, and what it may save."""
    diagnosis = diagnose(incident)
    return {
        "diagnosis": FIGURE.findall(diagnosis.sentence),
        "advice": [
            {
                "says": FIGURE.findall(one.sentence()),
                "GiB": round(one.bytes / GIB, 2),
                "measured": one.is_measured,
            }
            for one in advise(incident, diagnosis)
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_figure_is_the_incidents(case: Case) -> None:
    """Of each scripted error: what is taken, what is free, what each change saves, and in this order."""
    assert told(case.incident) == FIGURES[case.name]
