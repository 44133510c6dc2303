"""What a watched cell lends to its children, and takes back; and the `sitecustomize` that they run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from hfmem_widget.monitor.patch import restore_all
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.environment import CLAIMED, OPTIONS, PATH, RUN, SITE, Lent, handed_on, lends
from hfmem_widget.ranks.identity import PLACES

DIRECTORY = Path("/shared/run1")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    restore_all(PLACES)
    assert not lends()


@pytest.mark.parametrize("before", [{}, {PATH: ""}, {PATH: "/a:/b"}, {PATH: "/a", "OTHER": "x"}])
def test_what_was_there_is_put_back(before: dict[str, str]) -> None:
    """What was not set is not set again, and what was empty is empty."""
    environ = dict(before)
    lent = Lent(DIRECTORY, environ=environ)

    assert lent.begin()
    assert environ[RUN] == str(DIRECTORY)
    assert environ[PATH].split(os.pathsep)[0] == SITE
    paths = [path for path in before.get(PATH, "").split(":") if path]
    assert environ[PATH].split(os.pathsep)[1:] == paths
    lent.end()
    lent.end()

    assert environ == before


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (
            {PATH: "/a"},
            {PATH: f"/new{os.pathsep}{SITE}{os.pathsep}/a{os.pathsep}/more", RUN: "/theirs"},
            {PATH: f"/new{os.pathsep}/a{os.pathsep}/more", RUN: "/theirs"},
        ),
        ({PATH: "/a"}, {}, {}),
        ({PATH: "/a"}, {PATH: "/only"}, {PATH: "/only"}),
        ({}, {PATH: f"{SITE}{os.pathsep}{SITE}"}, {}),
    ],
    ids=["added to it, and another run", "cleared it", "put another there", "doubled it"],
)
def test_what_the_user_has_changed_meanwhile_stays(
    before: dict[str, str], now: dict[str, str], after: dict[str, str]
) -> None:
    """Only our part is taken out, and what was taken away is not brought back."""
    environ = dict(before)
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    environ.clear()
    environ |= now
    lent.end()

    assert environ == after


@pytest.mark.parametrize("known", [{RUN: "/outer"}, {CLAIMED: "4711"}])
def test_within_a_run_nothing_is_lent(known: dict[str, str]) -> None:
    """A watch in a rank, or within a watch that lends already, leaves the environment alone."""
    environ = dict(known)
    lent = Lent(DIRECTORY, environ=environ)

    assert not lent.begin()
    assert environ == known
    lent.end()
    assert environ == known


def test_a_forked_child_lends_nothing_and_takes_nothing_back() -> None:
    """A child's environment is its own, and its processes are still followed; the lender is no rank."""
    environ: dict[str, str] = {}
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    assert lends()
    with mock.patch("os.getpid", return_value=1):
        assert not lends()
        lent.end()
    assert environ[RUN] == str(DIRECTORY)
    lent.end()
    assert not lends()


def test_some_options_are_the_ranks_too() -> None:
    """Options such as `ledger=False` hold for the ranks as well."""
    environ: dict[str, str] = {}
    options = WatchOptions(interval=0.5, ledger=False, steps="each", label="cell")
    lent = Lent(DIRECTORY, options, environ)
    lent.begin()

    expected = {"interval": 0.5, "ledger": False, "steps": "each"}
    assert handed_on(environ) == expected | {"phases": "auto", "resident_peak": False}
    lent.end()
    assert handed_on(environ) == {}


@pytest.mark.parametrize(
    "value", ["", "{", "[]", "5", '{"interval":-1}', '{"ledger":"x"}', "[" * 9999]
)
def test_options_that_cannot_be_read_are_none(value: str) -> None:
    """The rank is watched in the usual way, and records where its run is, whatever the variable says."""
    assert handed_on({OPTIONS: value}) == {}
    assert handed_on({OPTIONS: '{"record":"/etc/x","interval":2}'}) == {"interval": 2}


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
    """Our `sitecustomize` imports neither us nor torch nor numpy, whether or not a run is followed."""
    code = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(python(code, **environ).stdout.split())

    assert loaded & {"hfmem_widget", "torch", "numpy", "importlib.util"} == set()
    assert "sitecustomize" in loaded


def waits(**environ: str) -> bool:
    """Return whether a fresh interpreter waits for torch."""
    code = "import sys; print(any('BeforeTorch' in str(one) for one in sys.meta_path))"
    return python(code, **environ).stdout == "True\n"


def test_it_waits_for_torch_where_something_is_to_be_followed() -> None:
    """Torch is awaited within a run and above ranks only; a rank that becomes another program stays one."""
    assert waits(**{RUN: "/nowhere"})
    assert not waits()
    assert not waits(**{RUN: "/nowhere", CLAIMED: "1"})
    code = (
        "import os, sys; os.environ['HFMEM_CLAIMED'] = str(os.getpid()); os.execv(sys.executable, "
        "[sys.executable, '-c', 'import sys; print(str(sys.meta_path[0]))'])"
    )
    assert "BeforeTorch" in python(code, **{RUN: "/nowhere"}).stdout


def test_a_hidden_sitecustomize_runs_once_in_its_place(tmp_path: Path) -> None:
    """Whoever imports `sitecustomize` gets the site's own."""
    (tmp_path / "sitecustomize.py").write_text("print('ran', __name__, __file__)\nMINE = 5\n")
    done = python("import sitecustomize; print(sitecustomize.MINE)", **{PATH: str(tmp_path)})

    assert done.stdout.split() == ["ran", "sitecustomize", f"{tmp_path}/sitecustomize.py", "5"]
    assert done.stderr == ""


def test_an_error_of_a_hidden_sitecustomize_is_shown_by_python(tmp_path: Path) -> None:
    """Python then goes on."""
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
