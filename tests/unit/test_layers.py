"""The architecture, held: who may import whom, and what importing us may load."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.display import resolve
from hfmem_widget.features import FEATURES
from tests.data.modules import loaded_by

PACKAGE = Path(hfmem_widget.__file__).parent
NAME = "hfmem_widget"

LAYERS = (
    ("errors",),
    ("text", "guard", "display", "unseen"),
    ("options",),
    ("session",),
    ("sources", "analysis"),
    ("monitor", "view", "recording"),
    ("ranks",),
    ("features",),
    ("drivers", "ci"),
    ("magics", "cli"),
    ("__main__",),
)
"""The layers, lowest first. A module imports from lower layers and from its own folder."""

LAYER_OF = {folder: height for height, layer in enumerate(LAYERS) for folder in layer}

ON_META = {
    f"features/fit/{name}.py"
    for name in (
        *("as_on_device", "backward", "dry_run", "inputs", "liger", "live_bytes", "on_meta"),
        *("one_rank", "predict", "trial", "workspaces"),
    )
}
"""What runs a model on PyTorch's meta device; imported when somebody asks for a forecast."""

HOMES = {
    "torch": {"sources/torch_cuda.py", "drivers/api.py"} | ON_META,
    "pynvml": {"sources/nvml.py"},
    "psutil": {"sources/host.py", "sources/children.py", "ranks/identity.py", "ranks/tail.py"},
    "msgspec": {"recording/check.py", "ci/summary.py"},
    "transformers": {"drivers/trainer.py", "drivers/api.py"}
    | {f"features/fit/{name}.py" for name in ("on_meta", "checkpoint", "trial")},
    "anywidget": {"view/wire/widget.py"},
    "IPython": {"__init__.py"}
    | {
        f"magics/{name}.py"
        for name in ("__init__", "executions", "memwatch", "open", "reports", "usage")
    },
    "plotly": {"view/chart/figure.py", "session/session.py", "session/model.py"},
    "threading.Thread": {"monitor/ticker.py"},
}
"""The one file that may touch each of these (`__init__`, `session`, `watching` for type checkers)."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> tuple[str, ...]:
    return tuple(_imported(tree_of(path)))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folders_of(path: Path) -> tuple[str, ...]:
    """Return the folders of a module, and its name where it stands at the top."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] or parts


def ours(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the parts of each name that a module imports of the package, at whatever place in it."""
    for name in imported(path):
        parts = tuple(name.split("."))
        if parts[0] == NAME and len(parts) > 1 and parts[1] in LAYER_OF:
            yield parts[1:]


def test_imports_only_point_down() -> None:
    """A module imports from lower layers and from its own folder alone; the package's front door from all."""
    folder_of = {path: folders_of(path)[0] for path in MODULES}

    assert [
        (name_of(path), ".".join(one))
        for path, folder in folder_of.items()
        for one in (ours(path) if folder != "__init__" else ())
        if one[0] != folder and LAYER_OF[one[0]] >= LAYER_OF[folder]
    ] == []


def test_no_feature_imports_another() -> None:
    """Features know the list of them at most, and what is below."""
    folders = {one.name for one in (PACKAGE / "features").iterdir() if one.is_dir()}
    features = [path for path in MODULES if folders_of(path)[0] == "features"]

    assert [
        (name_of(path), ".".join(one))
        for path in features
        for one in ours(path)
        if one[0] == "features" and one[1:] and one[1] in folders - set(folders_of(path))
    ] == []


def names_from_outside(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module has for other packages, and for what it imports of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                package = (getattr(node, "module", None) or alias.name).partition(".")[0]
                if package not in {NAME, *sys.stdlib_module_names}:
                    yield alias.asname or alias.name.partition(".")[0]


def test_types_of_other_packages_are_not_evaluated() -> None:
    """An older release may lack one: annotations that name them stay text."""
    trees = [(path, tree_of(path)) for path in MODULES if "__future__" not in imported(path)]
    annotations = [
        (path, name.id)
        for path, tree in trees
        for node in ast.walk(tree)
        for name in ast.walk(
            getattr(node, "annotation", getattr(node, "returns", None)) or ast.Pass()
        )
        if isinstance(name, ast.Name)
    ]
    outside = {path: set(names_from_outside(tree)) for path, tree in trees}

    assert [(name_of(path), name) for path, name in annotations if name in outside[path]] == []


def test_few_modules_stand_at_the_top() -> None:
    """Every module is in a folder or file of the list."""
    assert len([*PACKAGE.glob("*.py")]) <= 8
    assert {folders_of(path)[0] for path in MODULES} - {"__init__"} == set(LAYER_OF)


def test_no_module_imports_itself_through_others() -> None:
    """Imports make no circle, those within functions and for type checkers included."""
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in MODULES}
    waiting = {
        name: {
            target
            for parts in ours(path)
            for end in range(len(parts))
            if (target := ".".join(parts[: end + 1])) in modules
        }
        for name, path in modules.items()
    }
    while free := [name for name, to in waiting.items() if not to & set(waiting) - {name}]:
        for name in free:
            del waiting[name]

    assert waiting == {}


SHOWN = re.compile(rf'"({NAME}(?:\.\w+)+:\w+)"')


def named_as_text() -> Iterator[str]:
    """Yield what is named as ``"module:attribute"`` anywhere in the package."""
    for path in MODULES:
        yield from SHOWN.findall(path.read_text(encoding="utf-8"))
    for feature in FEATURES:
        yield from filter(None, (feature.check, feature.companion))


def test_every_name_that_stands_as_text_is_there() -> None:
    """Renderers of nouns, and what features bring, are named as text and looked up when needed."""
    names = set(named_as_text())

    assert len(names) > 20
    assert all(callable(resolve(name)) for name in names)


def test_every_feature_has_its_folder() -> None:
    """The list of features has every feature's folder."""
    folders = [one for one in (PACKAGE / "features").iterdir() if (one / "__init__.py").exists()]

    assert sorted(one.name for one in FEATURES) == sorted(one.name for one in folders)


def libraries_of(path: Path) -> set[str]:
    """Return the libraries that a module imports, and whether it makes threads."""
    names = {name.split(".")[0] for name in imported(path)}
    return names | {
        name for name in ("threading.Thread",) if f"{name}(" in path.read_text(encoding="utf-8")
    }


def test_each_library_has_one_home() -> None:
    """A library with a file of its own is imported nowhere else."""
    assert [
        (name_of(path), library)
        for path in MODULES
        for library in sorted(libraries_of(path) & set(HOMES))
        if name_of(path) not in HOMES[library]
    ] == []


OWNERS = {f"sources/torch_{name}.py" for name in ("cuda", "history", "mps", "xpu")}
OWNERS |= {"sources/allocator.py"}
"""Where the allocator's entry points are called."""

DISTURBING = {"empty_cache", "ipc_collect", "synchronize", "malloc_trim"}
MAY_DISTURB = {"features/free/api.py", "features/fit/trial.py", "sources/heap/scan.py"}
"""The last disables the collector while it looks for objects that wait for it, and collects nothing."""


def called(tree: ast.AST, within: str = "", *, passes_on: bool) -> Iterator[str]:
    """Yield what is named after a dot, with ``gc`` before it where it is the collector's.

    With `passes_on`, a method may pass on to torch what it is itself called for.
    """
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, ast.FunctionDef) else within
        yield from called(node, name, passes_on=passes_on)
        if isinstance(node, ast.Attribute) and not (passes_on and node.attr == within):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            yield f"gc.{node.attr}" if owner == "gc" else node.attr


def test_only_what_is_asked_for_by_name_collects_and_empties() -> None:
    """Nothing but what the user asks for by name collects garbage, empties a cache or waits for a device."""
    forbidden = DISTURBING | {"gc.collect", "gc.freeze", "gc.disable"}
    others = [path for path in MODULES if name_of(path) not in MAY_DISTURB]

    assert [
        (name_of(path), name)
        for path in others
        for name in called(tree_of(path), passes_on=name_of(path) in OWNERS)
        if name in forbidden
    ] == []


PRIVATE = re.compile(
    r"_(cuda|xpu|mps)_\w+|_has_mps|_accelerator_\w+|_record_memory_history\w*|_lazy_call|_queued_calls"
)
"""The allocator's entry points that are no public name of torch's."""


def entry_points(tree: ast.Module) -> Iterator[str]:
    """Yield the allocator's entry points that a module names, as an attribute or as a text of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not (is_private := PRIVATE.fullmatch(node.attr)) and "memory" not in node.attr:
                continue
            of = ast.unparse(node.value)
            if (is_private and of != "self") or (of.endswith("cuda") and "memory" in node.attr):
                yield node.attr
        elif isinstance(node, ast.Constant) and PRIVATE.fullmatch(str(node.value)):
            yield str(node.value)


def test_an_allocator_has_one_owner() -> None:
    """PyTorch's allocator is read, reset, listed and observed in one place; all others are handed it."""
    uses = {name_of(path): set(entry_points(tree_of(path))) for path in MODULES}

    assert {name: names for name, names in uses.items() if names and name not in OWNERS} == {}
    assert all(uses[name] for name in OWNERS)


HEAVY = {"torch", "transformers", "plotly", "pynvml", "anywidget", "numpy", "pandas", "psutil"}
HEAVY |= {"msgspec"}


def test_loading_the_extension_loads_nothing_heavy_and_starts_no_thread() -> None:
    """`%load_ext hfmem_widget` adds no heavy library to a shell, and nothing that runs."""
    code = """
import sys, threading
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
modules, threads = set(sys.modules), threading.active_count()
shell.run_line_magic("load_ext", "hfmem_widget")
assert "MemwatchMagics" in shell.magics_manager.registry
print(*sorted(sys.modules.keys() - modules), threading.active_count() - threads)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *loaded, threads = done.stdout.split()

    assert HEAVY.isdisjoint(loaded)
    assert threads == "0"


LATER = {
    *("torch", "transformers", "plotly", "pynvml"),
    "hfmem_widget.features.oom.html",
    "hfmem_widget.features.oom.incident",
    "hfmem_widget.recording.reader",
    "hfmem_widget.sources.heap.scan",
    "hfmem_widget.view.card",
    "hfmem_widget.view.chart.scene",
    "hfmem_widget.view.wire.publisher",
}
"""What the first watched cell need not wait for: it explains, reads back or draws, later or never."""


HELP = "from hfmem_widget.cli.main import main\ntry: main(['-h'])\nexcept SystemExit: pass"
BEGIN = """
import hfmem_widget.drivers.watch
from hfmem_widget.features import companions_for
from hfmem_widget.options import WatchOptions
companions_for(WatchOptions())
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [(HELP, HEAVY | {"IPython"}), (BEGIN, LATER)],
    ids=["the help of the command", "a watch with its companions"],
)
def test_a_beginning_loads_nothing_heavy(code: str, heavy: set[str]) -> None:
    """`hfmem -h` loads no heavy library; a watch loads nothing that judges an error or draws."""
    assert loaded_by(code) & heavy == set()


def test_all_public_names_resolve() -> None:
    """Everything in `__all__` is there, and type checkers know it."""
    tree = ast.parse(Path(hfmem_widget.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(hasattr(hfmem_widget, name) for name in hfmem_widget.__all__)
    assert {*hfmem_widget.__all__} == {a.asname for each in imports for a in each.names if a.asname}


@pytest.mark.parametrize(
    ("subject", "offered", "hidden"),
    [
        (
            hfmem_widget,
            {"watch", "fit", "compare", "holders", "open", "MemoryCallback"},
            {"Peak", "Span", "Timeline", "OptionError"},
        ),
        (
            hfmem_widget.Session(),
            {"anatomy", "figure", "findings", "peak", "spans", "steps", "to_pandas"},
            {"adopt", "append", "on_step", "replace_lock", "subscribers", "open_span"},
        ),
    ],
    ids=["the package", "a session"],
)
def test_the_tab_key_offers_names(subject: object, offered: set[str], hidden: set[str]) -> None:
    """It offers functions, a Trainer's callback and figures, and nothing that only the package uses."""
    names = {name for name in dir(subject) if not name.startswith("_")}

    assert offered <= names
    assert not names & hidden
    assert subject is not hfmem_widget or names < set(hfmem_widget.__all__)
    assert "__version__" in dir(hfmem_widget)
