"""What a type checker knows of the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hfmem_widget
from tests.data import ROOT

NOTEBOOK = """
from typing import assert_type
import hfmem_widget

assert_type(hfmem_widget.watch("a"), hfmem_widget.Watch)
assert_type(hfmem_widget.span("a"), hfmem_widget.SpanScope)
assert_type(hfmem_widget.fit("a"), hfmem_widget.Fit)
assert_type(hfmem_widget.fit("a").forecast, hfmem_widget.Forecast)
assert_type(hfmem_widget.compare("a"), hfmem_widget.Comparison)
assert_type(hfmem_widget.holders(), hfmem_widget.Holders)
assert_type(hfmem_widget.holders().since(hfmem_widget.holders()), hfmem_widget.Growth)
assert_type(hfmem_widget.free(), hfmem_widget.Release)
assert_type(hfmem_widget.memory_map(), hfmem_widget.MemoryMap)
with hfmem_widget.watch("a", devices="cpu", budget="20GiB") as session:
    assert_type(session, hfmem_widget.Session)
assert_type(session.anatomy(), hfmem_widget.Anatomy)
assert_type(session.steps, hfmem_widget.Steps)
assert_type(session.stacks, hfmem_widget.Stacks | None)
"""


@pytest.mark.slow
def test_a_type_checker_knows_every_name_and_no_other(tmp_path: Path) -> None:
    """A slip is an error before it runs; what the functions return can be named in annotations."""
    pytest.importorskip("mypy", reason="the lint group is not installed")
    known = "".join(f"hfmem_widget.{name}\n" for name in hfmem_widget.__all__)
    path = tmp_path / "user.py"
    slips = "hfmem_widget.wacth('a')\nhfmem_widget.watch('a', budgt=1)\nhfmem_widget.watch(interval='1')\n"
    path.write_text(f"{NOTEBOOK}{known}{slips}", encoding="utf-8")
    # The settings and the cache of `make check`, which has read the package already.
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", ROOT / ".mypy_cache",
         "--config-file", ROOT / "pyproject.toml", path],
        capture_output=True, text=True, check=False, env=os.environ | {"MYPYPATH": str(ROOT)},
    )  # fmt: skip
    errors = re.findall("error: (.*)", run.stdout)

    assert run.stderr == ""
    assert errors == [
        'Module has no attribute "wacth"; maybe "watch"?  [attr-defined]',
        'Unexpected keyword argument "budgt" for "watch"; did you mean "budget"?  [call-arg]',
        'Argument "interval" to "watch" has incompatible type "str"; expected "float | None"  [arg-type]',
    ], run.stdout


def test_the_tab_key_offers_what_is_public_and_nothing_else() -> None:
    """What the package is made of is left out."""
    offered = {name for name in dir(hfmem_widget) if not name.startswith("_")}

    assert offered == set(hfmem_widget.__all__)
    assert "__version__" in dir(hfmem_widget)


def test_of_a_session_the_tab_key_offers_what_one_reads() -> None:
    """Not what fills it."""
    offered = {name for name in dir(hfmem_widget.Session()) if not name.startswith("_")}

    assert not offered & {"adopt", "append", "off_step", "replace_lock", "subscribers", "open_span"}
    assert {"anatomy", "figure", "findings", "peak", "spans", "steps", "to_pandas"} <= offered
