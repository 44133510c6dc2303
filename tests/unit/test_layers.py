"""The architecture, held: who may import whom, and what importing us may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hfmem_widget

PACKAGE = Path(hfmem_widget.__file__).parent
NAME = "hfmem_widget"

GROUND = {"errors", "faults", "labels", "units", "interrupts"}
MAY_IMPORT = {
    "session": GROUND,
    "sources": GROUND | {"session"},
    "monitor": GROUND | {"session", "sources", "options"},
    "analysis": GROUND | {"session"},
    # The Python heap is looked through here alone; view takes only the dataclasses of what was found.
    "holding": GROUND | {"session", "sources"},
    "view": GROUND | {"session", "analysis", "forecast", "holding"},
    "options": GROUND,
    "testing": GROUND | {"session", "sources"},
    "training": GROUND | {"session", "monitor", "surrounding"},
    "spans": GROUND | {"session", "monitor", "decorating"},
    "trainer": GROUND
    | {"session", "monitor", "view", "options", "training", "stretch", "surrounding", "companions"},
    "attaching": GROUND
    | {"spans", "trainer", "loading", "optimizers", "surrounding", "when_imported"},
    "loading": GROUND | {"session", "monitor", "shards", "surrounding"},
    "shards": GROUND,
    "optimizers": GROUND | {"monitor", "surrounding"},
    "surrounding": {"faults", "interrupts"},
    "when_imported": {"faults"},
    "decorating": {"errors", "labels"},
    "stretch": GROUND
    | {"session", "monitor", "view", "options", "optimizers", "companions", "decorating"},
    # What goes along with a watch: it reads, judges and shows one thing from end to end.
    "companions": GROUND
    | {"session", "sources", "monitor", "analysis", "view", "options", "holding", "when_imported"},
    "predicting": GROUND | {"session", "monitor", "forecast"},
    "watching": GROUND
    | {"session", "monitor", "view", "options", "stretch", "training", "trainer", "optimizers"},
    "mapping": GROUND | {"session", "sources"},
    "held": GROUND | {"session", "monitor", "holding", "stretch", "watching"},
    # What is let go of, on the user's own request: found, done and measured.
    "freeing": GROUND | {"session", "monitor", "holding", "stretch", "watching"},
    "every_cell": GROUND | {"session", "monitor", "view", "options", "companions"},
    "history": GROUND | {"session", "analysis", "keeping"},
    "keeping": GROUND | {"session", "analysis", "view"},
    "comparing": GROUND | {"session", "analysis", "history", "keeping", "stretch"},
    # What is free is read on the user's own request, by those who know how; view takes only its dataclasses.
    "forecast": GROUND | {"session", "sources"},
    "magics": GROUND
    | {"session", "monitor", "analysis", "forecast", "view", "options", "history"}
    | {"holding", "companions"}
    | {"stretch", "every_cell", "attaching", "comparing", "watching", "predicting"}
    | {"held", "freeing", "mapping"},
    **{room: set() for room in GROUND},
    "units": {"errors", "labels"},
    "faults": {"interrupts"},
}
"""Each room, and the rooms it may look into: the arrow of the design, which only points one way."""

ON_META = {
    f"forecast/{name}.py"
    for name in (
        *("as_on_device", "backward", "checkpointing", "dry_run", "experts", "inputs"),
        "live_bytes",
    )
} | {"forecast/on_meta.py", "forecast/predict.py"}
"""What runs a model on PyTorch's meta device; imported when somebody asks for a forecast."""

HOMES = {
    "torch": {"sources/torch_cuda.py", "watching.py"} | ON_META,
    "pynvml": {"sources/nvml.py"},
    "psutil": {"sources/host.py"},
    "transformers": {"trainer.py", "watching.py", "forecast/on_meta.py", "forecast/checkpoint.py"},
    "anywidget": {"view/widget.py"},
    "IPython": {
        "magics/__init__.py",
        "magics/completion.py",
        "magics/executions.py",
        "magics/memanatomy.py",
        "magics/memcompare.py",
        "magics/memfit.py",
        "magics/memfree.py",
        "magics/memholders.py",
        "magics/memmap.py",
        "magics/memwatch.py",
        "magics/report.py",
        "magics/usage.py",
        "__init__.py",
    },
    "plotly": {"view/figure.py", "session/session.py", "session/model.py"},
    "threading.Thread": {"monitor/ticker.py"},
}
"""The one file that may touch each of these (`__init__`, `session`, `watching` for type checkers)."""

METHODS_WHERE_USERS_LOOK = {
    ("session/session.py", "view"),
    ("session/session.py", "analysis"),
    ("session/model.py", "view"),
    ("session/segments.py", "view"),
    ("session/segments.py", "analysis"),
    ("analysis/comparison.py", "view"),
    ("forecast/model.py", "view"),
    ("holding/model.py", "view"),
    ("holding/growth.py", "view"),
    ("holding/release.py", "view"),
    ("session/stacks.py", "view"),
}
"""`Session.figure()` and `.anatomy()`; how `Anatomy` and `Comparison` show themselves: in methods."""


MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_point_down(path: Path) -> None:
    """A module imports only from the rooms its own room may look into."""
    relative = str(path.relative_to(PACKAGE))
    room = relative.split("/", maxsplit=1)[0].removesuffix(".py")
    if room == "__init__":
        return
    wrong = []
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] != NAME or len(parts) == 1:
            continue
        target = parts[1]
        if (relative, target) in METHODS_WHERE_USERS_LOOK or not (
            (PACKAGE / target).is_dir() or (PACKAGE / f"{target}.py").exists()
        ):
            continue
        if target != room and target not in MAY_IMPORT[room]:
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_library_has_one_home(path: Path) -> None:
    """A library with a file of its own is imported nowhere else."""
    relative = str(path.relative_to(PACKAGE))
    text = path.read_text(encoding="utf-8")
    names = {name.split(".")[0] for name in imported(ast.parse(text))}
    if "threading.Thread(" in text:
        names.add("threading.Thread")
    for library, homes in HOMES.items():
        assert library not in names or relative in homes, f"{relative} uses {library}"


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after some code."""
    script = f"{code}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


DISTURBING = {"empty_cache", "ipc_collect", "synchronize", "malloc_trim"}
MAY_DISTURB = "freeing/act.py"


def called(tree: ast.AST) -> Iterator[str]:
    """Yield what is named after a dot, with ``gc`` before it where it is the collector's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            yield f"gc.{node.attr}" if of == "gc" else node.attr


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_one_file_alone_collects_and_empties(path: Path) -> None:
    """Nothing but what the user asks for by name collects garbage, empties a cache or waits for a device."""
    names = set(called(ast.parse(path.read_text(encoding="utf-8"))))
    found = names & (DISTURBING | {"gc.collect", "gc.freeze", "gc.disable"})

    assert not found or str(path.relative_to(PACKAGE)) == MAY_DISTURB


HEAVY = {"torch", "transformers", "plotly", "pynvml", "anywidget", "numpy", "pandas", "psutil"}


def test_importing_loads_nothing_heavy() -> None:
    """`import hfmem_widget` leaves every heavy library alone, and IPython too."""
    assert loaded_by("import hfmem_widget") & (HEAVY | {"IPython"}) == set()


def test_loading_the_extension_loads_nothing_heavy() -> None:
    """`%load_ext hfmem_widget` adds no heavy library to a shell."""
    shell = "from IPython.core.interactiveshell import InteractiveShell as S; s = S.instance()"
    bare = loaded_by(shell)

    assert (
        loaded_by(f"{shell}; s.run_line_magic('load_ext', 'hfmem_widget')") - bare
    ) & HEAVY == set()


def test_loading_the_extension_starts_no_thread() -> None:
    """`%load_ext hfmem_widget` starts nothing."""
    script = (
        "import threading\n"
        "from IPython.core.interactiveshell import InteractiveShell as S\n"
        "s = S.instance(); before = threading.active_count()\n"
        "s.run_line_magic('load_ext', 'hfmem_widget')\n"
        "raise SystemExit(threading.active_count() - before)"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_all_public_names_resolve() -> None:
    """Everything in `__all__` is there, and everything lazy is in `__all__`."""
    assert all(hasattr(hfmem_widget, name) for name in hfmem_widget.__all__)
    assert set(hfmem_widget.__all__) == set(hfmem_widget._HOMES)
