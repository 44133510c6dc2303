"""The `sitecustomize` that begins to follow: small, in nobody's way, and the one it hides runs as ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hfmem_widget.ranks.environment import CLAIMED, PATH, RUN, SITE

SCRIPT = Path(SITE, "sitecustomize.py")

BARE = {name: value for name, value in os.environ.items() if not name.startswith("HFMEM_")}


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a fresh interpreter whose path has ours first."""
    path = os.pathsep.join(filter(None, (SITE, environ.pop(PATH, ""))))
    return subprocess.run(
        [sys.executable, "-c", code],
        env=BARE | {PATH: path} | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("environ", [{}, {RUN: "/nowhere"}, {RUN: "/nowhere", CLAIMED: "1"}])
def test_it_loads_nothing_of_ours(environ: dict[str, str]) -> None:
    """Neither us nor torch nor numpy, whether or not something is to be followed."""
    code = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(python(code, **environ).stdout.split())

    assert loaded & {"hfmem_widget", "torch", "numpy", "importlib.util"} == set()
    assert "sitecustomize" in loaded


def waits(**environ: str) -> bool:
    """Return whether a fresh interpreter waits for torch."""
    code = "import sys; print(any('BeforeTorch' in str(one) for one in sys.meta_path))"
    return python(code, **environ).stdout == "True\n"


def test_it_waits_for_torch_where_something_is_to_be_followed() -> None:
    """Not without a run, and not below a rank; a rank that becomes another program is one still."""
    assert waits(**{RUN: "/nowhere"})
    assert not waits()
    assert not waits(**{RUN: "/nowhere", CLAIMED: "1"})
    code = (
        "import os, sys; os.environ['HFMEM_CLAIMED'] = str(os.getpid()); os.execv(sys.executable, "
        "[sys.executable, '-c', 'import sys; print(str(sys.meta_path[0]))'])"
    )
    assert "BeforeTorch" in python(code, **{RUN: "/nowhere"}).stdout


def test_the_hidden_one_runs_once_and_stands_in_its_place(tmp_path: Path) -> None:
    """Whoever imports it gets the site's own."""
    (tmp_path / "sitecustomize.py").write_text("print('ran', __name__, __file__)\nMINE = 5\n")
    done = python("import sitecustomize; print(sitecustomize.MINE)", **{PATH: str(tmp_path)})

    assert done.stdout.split() == ["ran", "sitecustomize", f"{tmp_path}/sitecustomize.py", "5"]
    assert done.stderr == ""


def test_what_the_hidden_one_raises_is_said_as_ever(tmp_path: Path) -> None:
    """By Python, which then goes on."""
    (tmp_path / "sitecustomize.py").write_text("1 / 0\n")
    done = python("print('on')", **{PATH: str(tmp_path)})

    assert done.stdout == "on\n"
    assert "ZeroDivisionError" in done.stderr


def test_an_environment_without_us_is_left_alone(tmp_path: Path) -> None:
    """Another Python that has torch and not hfmem_widget imports torch as ever."""
    (tmp_path / "torch.py").write_text("HERE = True\n")
    (tmp_path / "hfmem_widget").mkdir()
    (tmp_path / "hfmem_widget" / "__init__.py").write_text("raise SyntaxError('another version')\n")
    done = python("import torch; print(torch.HERE)", **{PATH: str(tmp_path), RUN: "/nowhere"})

    assert (done.stdout, done.stderr) == ("True\n", "")
