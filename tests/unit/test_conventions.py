"""What every test here has."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
SOURCES = {file.relative_to(TESTS.parent): file.read_text("utf-8") for file in FILES}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def each_test(source: str) -> list[Function]:
    body = ast.parse(source).body
    in_classes = (one for node in body if isinstance(node, ast.ClassDef) for one in node.body)
    functions = [node for node in (*body, *in_classes) if isinstance(node, Function)]
    return [node for node in functions if node.name.startswith("test_")]


def without_docstring(file: Path, source: str) -> Iterator[str]:
    """Yield where a test does not say its fact."""
    for test in each_test(source):
        if not (ast.get_docstring(test) or "").strip():
            yield f"{file}:{test.lineno} {test.name}"


def test_every_test_says_its_fact() -> None:
    """A test without a docstring is named by its file and line."""
    silent = [place for one in SOURCES.items() for place in without_docstring(*one)]

    assert not silent, "\n".join(["tests without a docstring:", *silent])


def test_a_test_without_a_docstring_is_found() -> None:
    """In a class, behind a decorator or with an empty docstring, a silent test is named by its line."""
    source = """
def test_one(): "It says so."

class Cases:
    @mark
    def test_two(self): ...

async def test_three(): ""

def helper(): ...
"""
    places = list(without_docstring(Path("test_x.py"), source))

    assert sorted(places) == ["test_x.py:6 test_two", "test_x.py:8 test_three"]


def surely_runs(looped: ast.expr) -> bool:
    """Return whether a loop over this surely has a turn: over a literal, a range, or a constant."""
    match looped:
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            return bool(elts)
        case ast.Call(ast.Name("range")):
            return True
        case ast.Call(ast.Name("enumerate" | "sorted" | "zip"), [first, *_]):
            return surely_runs(first)
        case ast.Call(ast.Attribute(owner, "items" | "values")):
            return surely_runs(owner)
    return isinstance(looped, ast.Name) and looped.id.isupper()


def checks(test: Function) -> list[bool]:
    """Return, for each check in a test, whether it is sure to be reached."""
    reached: list[bool] = []
    todo: list[tuple[ast.AST, bool]] = [(test, True)]
    while todo:
        node, is_sure = todo.pop()
        match node:
            case (
                ast.Assert()
                | ast.With(items=[ast.withitem(ast.Call(ast.Attribute(attr="raises")))])
            ):
                reached.append(is_sure)
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if name.startswith("assert"):
                reached.append(is_sure)
            case ast.For(iter=looped):
                is_sure = is_sure and surely_runs(looped)
        todo += ((child, is_sure) for child in ast.iter_child_nodes(node))
    return reached


def checks_of_nothing(file: Path, source: str) -> Iterator[str]:
    """Yield where all that a test checks is in a loop that may have no turn."""
    for test in each_test(source):
        if not (found := checks(test)) or any(found):
            continue
        if not any(ast.unparse(one).startswith("given(") for one in test.decorator_list):
            yield f"{file}:{test.lineno} {test.name}"


def test_no_test_checks_nothing() -> None:
    """A test whose checks are all in a loop over what might be empty says that it is not."""
    assert [place for one in SOURCES.items() for place in checks_of_nothing(*one)] == []


def test_a_test_that_may_check_nothing_is_found() -> None:
    """A loop over what is looked up is found, at any depth; one over constants, or beside a check, is not."""
    source = """
def test_one():
    for number in (1, 2):
        for each in found(number): assert each

def test_two():
    assert found()
    for each in found(): assert each

def test_three():
    for key, value in CASES.items(): assert value

def test_four():
    for each in found():
        with pytest.raises(KeyError): each()
"""
    places = list(checks_of_nothing(Path("test_x.py"), source))

    assert places == ["test_x.py:2 test_one", "test_x.py:13 test_four"]


def test_no_test_sets_a_deadline() -> None:
    """Hypothesis' deadline is off in one place: no test fails because the machine is busy."""
    set_here = [file for file, source in SOURCES.items() if "deadline=" in source]

    assert set_here == [Path("tests", "unit", "test_conventions.py")]


PACKAGE = TESTS.parent / "hfmem_widget"
CHANGES = {"append", "add", "pop", "clear", "update", "setdefault", "remove", "discard", "set"}
MOST_NAMES = 8


def root_of(node: ast.expr) -> str:
    """Return the name at the beginning of `name.field[key]`; nothing of other expressions."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changed_in(function: ast.AST) -> Iterator[str]:
    """Yield the names that a function binds for its module, or whose content it changes."""
    for node in ast.walk(function):
        match node:
            case ast.Global(names):
                yield from names
            case ast.Assign(targets) | ast.Delete(targets):
                parts = [part for one in targets for part in getattr(one, "elts", [one])]
                yield from (root_of(one) for one in parts if not isinstance(one, ast.Name))
            case ast.AugAssign(target) if not isinstance(target, ast.Name):
                yield root_of(target)
            case ast.Call(ast.Attribute(owner, name)) if name in CHANGES:
                yield root_of(owner)


def names_that_change(source: str) -> set[str]:
    """Return the names of a module that stand for another value, or another content, as time goes by."""
    tree = ast.parse(source)
    assigned = (one for one in tree.body if isinstance(one, ast.Assign | ast.AnnAssign))
    targets = [one.targets if isinstance(one, ast.Assign) else [one.target] for one in assigned]
    names = {each.id for group in targets for each in group if isinstance(each, ast.Name)}
    functions = (one for one in ast.walk(tree) if isinstance(one, Function | ast.Lambda))
    return names & {name for one in functions for name in changed_in(one)}


def test_what_changes_in_a_process_is_in_one_object() -> None:
    """A fork replaces `monitor.process.this`, and a test makes it anew; hardly a name changes beside it."""
    sources = [
        (file.relative_to(PACKAGE), file.read_text("utf-8")) for file in PACKAGE.rglob("*.py")
    ]
    names = sorted(f"{file} {name}" for file, text in sources for name in names_that_change(text))

    assert "monitor/process.py this" in names
    assert len(names) <= MOST_NAMES, "\n".join(names)


def test_a_name_that_changes_is_found() -> None:
    """A name is found that changes by assignment, a container's method or a field; a constant is not."""
    source = """
ONE = {}
two, three, four, five = 1, [], {}, object()
two = 1
three: list[int] = []
four = {}
five = object()

def change(other):
    global two
    two = 2
    three.append(1)
    del four["a"]
    five.field = 1
    other.append(ONE["a"])
"""
    assert names_that_change(source) == {"two", "three", "four", "five"}
