"""`hfmem run NOTEBOOK`: its cells in a kernel of their own, each recorded and compared with another run's."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from jsonschema import Draft202012Validator
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from referencing import Registry, Resource

import hfmem_widget
from hfmem_widget.cli.main import INTERRUPTED
from hfmem_widget.cli.output import FINE, NO, WRONG
from tests.data import ROOT
from tests.scenes import scripted_run


def start(folder: Path, cells: Sequence[Any], *options: object) -> subprocess.Popen[str]:
    """Start `hfmem run` with a notebook of some cells, in another folder than the notebook's."""
    made = [new_code_cell(one) if isinstance(one, str) else one for one in cells]
    path = folder / "its" / "notebook.ipynb"
    path.parent.mkdir()
    nbformat.write(new_notebook(cells=made), path)
    words = "-m", "hfmem_widget", "run", "its/notebook.ipynb", *map(str, options)
    places = {"TMPDIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=os.environ | places | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


class Ended(NamedTuple):
    code: int
    lines: list[str]
    err: str


def run(folder: Path, cells: Sequence[Any], *options: object) -> Ended:
    process = start(folder, cells, *options)
    out, err = process.communicate()
    return Ended(process.returncode, out.splitlines(), err)


MINE = "%%memwatch --label mine\nheld = bytearray({} << 20)"
SMALL = "short = 1"
CELLS = [
    new_markdown_cell("# A notebook"),
    "import os, sys\nassert 'torch' not in sys.modules\nassert os.path.exists('notebook.ipynb')",
    "# what stays\nkept = bytearray(40 << 20)",
    "%load_ext hfmem_widget",
    MINE.format(20),
    "from hfmem_widget import history\nassert 'kept' not in str(history())",
    new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
    new_code_cell("1 / 0", metadata={"tags": ["skip-execution"]}),
    "%%bash\necho hello",
    *("twice = 2", SMALL, "twice = 2"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """Return where a notebook was run, and its end."""
    folder = tmp_path_factory.mktemp("base")
    return folder, run(folder, CELLS, "--dir", "run")


def test_each_cell_is_recorded_and_has_a_line(base: tuple[Path, Ended]) -> None:
    """One that watches itself is recorded once, under its own label; the notebook's history has no other."""
    folder, (code, lines, err) = base
    sessions = [hfmem_widget.open(path) for path in sorted((folder / "run").iterdir())]

    assert code == FINE, err
    assert [line.partition('" · ')[0] for line in lines[:7]] == [
        '"[1] import os, sys',
        '"[2] kept = bytearray(40 << 20)',
        '"[3] %load_ext hfmem_widget',
        '"[4] held = bytearray(20 << 20)',
        '"[5] from hfmem_widget import history',
        '"[6] 1 / 0',
        '"[7] echo hello',
    ]
    assert re.search(r"\(\+(39|40)\.\d\)$", lines[1])
    assert "raised ZeroDivisionError" in lines[5]
    labels = ["[2] kept = bytearray(40 << 20)", "[3] %load_ext hfmem_widget", "mine"]
    assert [session.label for session in sessions[1:4]] == labels
    assert [len([*one.spans]) for one in sessions] == [1] * len(lines)


def test_the_notebook_is_not_changed(base: tuple[Path, Ended]) -> None:
    """Outputs are not stored anywhere."""
    notebook = nbformat.read(base[0] / "its" / "notebook.ipynb", as_version=4)

    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_the_same_notebook_is_within_its_limit(base: tuple[Path, Ended], tmp_path: Path) -> None:
    """The exit code is 0, and one line has the number of cells."""
    code, lines, err = run(tmp_path, CELLS, "--baseline", base[0] / "run", "--fail-over", "10%")

    assert code == FINE, err
    assert lines[-2:] == ["", "10 cells not over the limit of 10 %."]


def test_cells_are_compared_one_by_one(base: tuple[Path, Ended], tmp_path: Path) -> None:
    """Cells are matched by label or source; memory that one left is not blamed on later ones."""
    cells = [SMALL, *CELLS[:4], MINE.format(90), *CELLS[5:9], "new = 1", "twice = 2"]
    code, lines, err = run(tmp_path, cells, "--baseline", base[0] / "run", "--fail-over", "50 MiB")

    assert code == NO, err
    over, *others = lines[lines.index("") + 1 :]
    assert re.search(r"in the baseline, .* in mine \(\+(69|70)\.", over)
    assert over.endswith("more than the limit of 50.0 MiB.")
    assert others == [
        "7 cells not over the limit of 50.0 MiB.",
        "Compared: 8 of 10 cells.",
        "No match in the baseline: [9] new = 1, [10] twice = 2.",
        "No match in this run: [8] twice = 2, [10] twice = 2.",
        "Moved: [1] short = 1.",
    ]


def baseline(folder: Path, name: str, label: str = "") -> None:
    """Save a scripted run as the only recording of a baseline."""
    session = scripted_run(name)
    session.label = label or session.label
    (folder / "base").mkdir()
    session.save(folder / "base" / "001-00000000.hfmem.jsonl")


def test_notebooks_without_a_common_cell_cannot_be_judged(tmp_path: Path) -> None:
    """The exit code is 2, and the cells of both are listed."""
    baseline(tmp_path, "cpu")
    code, lines, err = run(tmp_path, ["1 + 1"], "--baseline", "base")

    assert code == WRONG
    assert lines[-3:] == [
        "Compared: 0 of 1 cell.",
        "No match in the baseline: [1] 1 + 1.",
        "No match in this run: tiny-bert.",
    ]
    assert "the baseline has no figures to judge any cell by" in err


def test_a_cell_on_another_device_cannot_be_judged(tmp_path: Path) -> None:
    """The exit code is 2, though other cells are unchanged."""
    baseline(tmp_path, "training", "mine")
    cells = ["%load_ext hfmem_widget", MINE.format(9)]
    code, _, err = run(tmp_path, cells, "--baseline", "base")

    assert code == WRONG
    assert "the baseline has no figures to judge mine by" in err


@pytest.mark.parametrize(
    ("cell", "options", "last"),
    [
        (
            "raise ValueError('two\\nlines \\x1b[31m')",
            (),
            r"\[2\] raise ValueError\(.*… raised ValueError: two lines \[31m",
        ),
        (
            "import os, time\ntime.sleep(1.5)\nos._exit(3)",
            (),
            r"The kernel ended in \[2\] import os, time\.",
        ),
        (
            "import time\ntime.sleep(600)",
            ("--timeout", 2),
            r"\[2\] import time took longer than 2\.0 s\.",
        ),
    ],
    ids=["an error", "the end of the kernel", "too long"],
)
def test_the_first_cell_that_fails_ends_the_run(
    cell: str, options: tuple[object, ...], last: str, tmp_path: Path
) -> None:
    """The last line names the cell and its failure; recordings are kept as far as they were written."""
    code, lines, _ = run(tmp_path, ["fine = 1", cell, "never = 1"], "--dir", "run", *options)

    assert code == NO
    assert re.fullmatch(last, lines[-1])
    assert not [line for line in lines if "never" in line]
    assert len([*(tmp_path / "run").iterdir()]) == 2


def test_a_program_reads_what_each_cell_took(base: tuple[Path, Ended], tmp_path: Path) -> None:
    """Stdout is one document of the documented form; the lines for people are on stderr."""
    folder, cells = base[0] / "run", [SMALL, *CELLS[:4], MINE.format(90), "1 / 0"]
    code, lines, err = run(tmp_path, cells, "--json", "--baseline", folder, "--fail-over", "50 MiB")
    data = json.loads("\n".join(lines))
    paths = (ROOT / "docs" / "schemas").glob("*.json")
    texts = {path.name: json.loads(path.read_text("utf-8")) for path in paths}
    schemas = {name: Resource.from_contents(text) for name, text in texts.items()}
    form = schemas["notebook.json"].contents
    Draft202012Validator(form, registry=Registry().with_resources(schemas.items())).validate(data)

    assert code == NO, err
    assert [cell["explanation"]["label"] for cell in data["cells"]][-2:] == ["mine", "[6] 1 / 0"]
    assert data["failure"] == "[6] 1 / 0 raised ZeroDivisionError: division by zero"
    assert data["judged"] == []
    assert '"[3] kept = bytearray(40 << 20)" · ' in err


def test_an_interrupt_ends_the_kernel(tmp_path: Path) -> None:
    """The exit code is that of an interrupt, and no process is left."""
    pid_file = tmp_path / "its" / "pid"
    cell = "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')"
    process = start(tmp_path, [f"{cell}\ntime.sleep(600)"])
    while not pid_file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate()

    assert process.returncode == INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text("utf-8")), 0)
