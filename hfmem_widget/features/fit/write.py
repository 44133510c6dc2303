"""Changes written into the user's own calls, as the text of a new cell. No user code is run."""

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hfmem_widget.session import Change

_MOST_CHARACTERS, _MOST_MAGICS = 50_000, 100  # of a cell that is read
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")
_LINE_END = re.compile(r"\r\n|\r|\n")
_COMMENT = re.compile(r"#[^\r\n]*")
_MAGIC = re.compile(r"(\s*)(?:[%!?]|None; |[^=#'\"]+=\s*[%!]|.*\?\s*$)")
_FIRST_LINE = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*(%%(\w+)[^\r\n]*)(?:\r\n|\r|\n)?")
_BEFORE_PYTHON = {"memwatch", "time", "timeit", "capture", "prun", "memit"}
"""The cell magics whose body is Python."""

_TRAINING = {"output_dir", "per_device_train_batch_size", "learning_rate", "num_train_epochs"}
"""Keywords that only the arguments of a training have."""
_NO_MODEL = re.compile(r"(?i)(tokenizer\w*|processor|config|extractor|scheduler|^peft\w*)$")
_INPUTS = re.compile("(?i)input|batch|encod|token|process|prompt")
"""Names of dictionaries that `generate` gets by `**` and that have no options in them."""
_HARMLESS = re.compile("save|push|generate|train|eval|predict|print|summary|code|template")
"""Methods that do not change their object."""
_SAME = {
    "activation_checkpointing": "gradient_checkpointing",
    "gradient_checkpointing": "activation_checkpointing",
    "dtype": "torch_dtype",
    "torch_dtype": "dtype",
    "max_length": "max_seq_length",
    "per_device_train_batch_size": "per_gpu_train_batch_size",
}
"""The name of a keyword in another version."""
_AGAINST = {
    "bf16": "fp16",
    "fp16": "bf16",
    "optim": "adafactor",
    "attn_implementation": "use_flash_attention_2",
}
"""The option that a keyword excludes."""
_MISSING = {
    "arguments": "# Add to TrainingArguments(...): {}",
    "model": "# Add to from_pretrained(...): {}",
    "generate": "# Add to model.generate(...): {}",
    "peft": "# Add after the model is made: model = get_peft_model(model, LoraConfig({}))",
    "data": "# Cut longer rows where the data is made: {}",
    "ranks": "# In a script that torchrun starts, add to TrainingArguments(...): {}",
}

_Edit = tuple[int, int, str]  # start and stop in the text, and its replacement
_Node = TypeVar("_Node", bound=ast.AST)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of Python, and its syntax tree, in which magics are `pass`."""

    text: str
    lines: list[str]
    tree: ast.Module

    def place(self, node: Any) -> tuple[int, int]:
        """Return the start and the stop of a node in the text, with its decorators."""
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        return self._at(first, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        before = self.lines[line - 1].encode(errors="replace")[:column]  # a column counts bytes
        return sum(map(len, self.lines[: line - 1])) + len(before.decode(errors="ignore"))

    def source(self, node: ast.AST) -> str:
        return self.text[slice(*self.place(node))]

    def new_line(self, at: int) -> str:
        """Return a line break, and the indentation of the line at this place."""
        line = _LINE_END.split(self.text[:at])[-1]
        return ("\r\n" if "\r\n" in self.text else "\n") + line[: len(line) - len(line.lstrip())]

    def edited(self, edits: Sequence[_Edit]) -> str:
        text = self.text
        unique = {edit[:2] if edit[0] < edit[1] else edit: edit for edit in edits}
        for start, stop, new in sorted(unique.values(), key=lambda edit: edit[0])[::-1]:
            text = text[:start] + new + text[stop:]
        return text


def _read(text: str) -> _Cell | None:
    """Return a cell; None if it is not Python."""
    if len(text) > _MOST_CHARACTERS:
        return None
    if (first := _FIRST_LINE.match(text)) and first[2] not in _BEFORE_PYTHON:
        return None
    lines = _LINE.findall(text)
    python = list(lines)
    continues = [line.rstrip().endswith("\\") and line[:2] != "%%" for line in lines]
    for _ in range(_MOST_MAGICS):
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse("".join(python))
            return _Cell(text, lines, tree)
        except SyntaxError as error:
            at = min(error.lineno or 0, len(lines)) - 1
        except (ValueError, RecursionError, MemoryError):
            return None
        while at > 0 and continues[at - 1]:
            at -= 1
        if at < 0 or not (magic := _MAGIC.match(python[at])):
            return None
        timed = python[at].replace("%time ", "None; ", 1)  # as long, so that columns stay
        python[at] = timed if timed != python[at] else f"{magic[1]}pass\n"
        while continues[at] and at + 1 < len(lines):
            at += 1
            python[at] = "\n"
    return None


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree except f-strings and the bodies of `if False`.

    Before Python 3.12, the places of an f-string's parts are wrong.
    """
    pending = [tree]
    while pending:
        match node := pending.pop():
            case ast.JoinedStr() | ast.If(ast.Constant(False)):
                continue
        yield node
        pending += ast.iter_child_nodes(node)


def _all(kind: type[_Node], tree: ast.AST) -> list[_Node]:
    return [node for node in _nodes(tree) if isinstance(node, kind)]


def _root(node: ast.AST) -> str:
    """Return the name that `name.field[key](...)` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name)):
            return name
    return ""


def _names(statement: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a statement loads, or stores."""
    named = _all(ast.Name, statement)
    return {node.id for node in named if isinstance(node.ctx, context)} - {"_"}


def _set_names(targets: Sequence[ast.expr]) -> set[str]:
    """Return the names that an assignment to these targets sets, whole or in part."""
    return {name for to in targets for name in (_root(to), *_names(to, ast.Store)) if name}


def _of_trainers(cells: Mapping[int, _Cell]) -> set[object]:
    """Return the models and arguments that Trainers get: names of variables, and calls."""
    return {
        argument.id if isinstance(argument, ast.Name) else argument
        for cell in cells.values()
        for node in _all(ast.Call, cell.tree)
        if _called(node).endswith("Trainer")
        for argument in (
            *node.args[:2],
            *(named.value for named in node.keywords if named.arg in {"args", "config", "model"}),
        )
    }


def _takes(target: str, call: ast.Call, *, is_handed: bool) -> bool:
    name, keywords = _called(call), {keyword.arg for keyword in call.keywords}
    match target:
        case "arguments" if re.search(r"(Arguments|Config|^replace)$", name):
            is_known = name.endswith("TrainingArguments") and not name.startswith("Data")
            return bool(is_known or keywords & _TRAINING or is_handed)
        case "model" if name == "from_pretrained" and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            return not _NO_MODEL.search(getattr(owner, "attr", _root(owner)))
        case "generate":
            return name == "generate" and isinstance(call.func, ast.Attribute)
        case "peft":
            return name == "LoraConfig" or (name == "get_peft_model" and "r" in keywords)
        case "data":
            has_length = bool(keywords & {"max_length", "max_seq_length"})
            is_arguments = _takes("arguments", call, is_handed=is_handed)
            return (
                has_length and (is_arguments or name.endswith("Trainer"))
            ) or name == "SFTConfig"
    return False


def _find(
    target: str, cells: Mapping[int, _Cell], handed: set[object]
) -> tuple[int, ast.Call, ast.Assign | None] | None:
    """Return the newest call that takes the change, preferably one whose result a Trainer gets.

    Returned are the index of its cell, the call, and the assignment of its result.
    """
    candidates = []
    for index, cell in cells.items():
        kept: dict[ast.AST, ast.Assign] = {}
        for node in _all(ast.Assign, cell.tree):
            value = node.value
            while isinstance(value, ast.Call | ast.Attribute):
                kept[value] = node  # also of from_pretrained(...).to("cuda")
                value = value.func if isinstance(value, ast.Call) else value.value
        for call in _all(ast.Call, cell.tree):
            variables = _set_names(kept[call].targets) if call in kept else set()
            is_handed = bool(handed & {call, *variables})
            if _takes(target, call, is_handed=is_handed):
                order = is_handed, index, call.lineno, call.col_offset
                candidates.append((order, call, kept.get(call)))
    if not candidates:
        return None
    order, call, statement = max(candidates, key=lambda candidate: candidate[0])
    return order[1], call, statement


def _items(cell: _Cell, options: ast.expr) -> dict[str, ast.expr] | None:
    """Return the items of a dictionary that the cell writes for one call only; None for others."""
    if isinstance(options, ast.Name):
        uses = [one for one in _nodes(cell.tree) if getattr(one, "id", None) == options.id]
        above = [one for one in cell.tree.body if one.lineno < options.lineno]
        assigned = [one for one in above if isinstance(one, ast.Assign) and one.targets[0] in uses]
        if len(uses) != 2 or not assigned:
            return None
        options = assigned[0].value
    named: dict[Any, ast.expr] = {None: options}
    match options:
        case ast.Dict(keys, values):
            names = [getattr(key, "value", None) for key in keys]
            named = dict(zip(names, values, strict=True))
        case ast.Call(ast.Name("dict"), [], keywords):
            named = {one.arg: one.value for one in keywords}
    return named if all(isinstance(name, str) for name in named) else None


def _assigned(cell: _Cell, wanted: Mapping[str, str], variables: set[str]) -> dict[str, _Edit]:
    """Return the edits of statements such as `args.bf16 = False`, by attribute."""
    return {
        target.attr: (*cell.place(node.value), wanted[target.attr])
        for node in _all(ast.Assign, cell.tree)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in wanted
        if isinstance(target.value, ast.Name) and target.value.id in variables
    }


def _in_call(cell: _Cell, call: ast.Call, wanted: Mapping[str, str]) -> tuple[list[_Edit], str]:
    """Return the edits of a call, and the keywords that `**options` may have already, for a note."""
    values = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    if _called(call) == "generate":
        unpacked = [value for value in unpacked if not _INPUTS.search(cell.source(value))]
    options = [_items(cell, value) for value in unpacked]
    for items in options:
        values |= items or {}
    is_spaced = any(re.match(r"\w+ = ", cell.source(keyword)) for keyword in call.keywords)
    edits, missing = [], []
    for name, value in wanted.items():
        present = next((key for key in (name, _SAME.get(name, "")) if key in values), "")
        if present:
            edits.append((*cell.place(values[present]), value))
        else:
            missing.append(f"{name} = {value}" if is_spaced else f"{name}={value}")
        excluded = _AGAINST.get(name, "")
        if value != "False" and excluded in values and excluded not in wanted:
            edits.append((*cell.place(values[excluded]), "False"))
    if missing and None in options:
        return edits, ", ".join(missing)
    return edits + (_insertions(cell, call, missing) if missing else []), ""


def _insertions(cell: _Cell, call: ast.Call, keywords: Sequence[str]) -> list[_Edit]:
    """Return the edits that add keywords after a call's last argument, in the style of its lines."""
    start, stop = cell.place(call)
    arguments = sorted(cell.place(argument) for argument in (*call.args, *call.keywords))
    first, last = arguments[-1] if arguments else (start, cell.place(call.func)[1])
    rest = _COMMENT.sub(lambda comment: " " * len(comment[0]), cell.text[last : stop - 1])
    if not arguments:
        at = last + rest.rfind("(") + 1
        return [(at, at, ", ".join(keywords))]
    in_brackets = rest.rfind(")") + 1
    last, rest = last + in_brackets, rest[in_brackets:]
    lines_before = _LINE_END.split(cell.text[start:first])
    if not (_LINE_END.search(rest) or (len(lines_before) > 1 and not lines_before[-1].strip())):
        return [(last, last, "".join(f", {keyword}" for keyword in keywords))]
    new_line = cell.new_line(first) + "    " * (len(lines_before) == 1)
    has_comma = "," in rest
    end = last + len(cell.text[last : stop - 1].rstrip())
    lines = ",".join(new_line + keyword for keyword in keywords)
    return [(last, last, "" if has_comma else ","), (end, end, lines + "," * has_comma)]


def _below(cell: _Cell, statement: ast.stmt, *lines: str) -> _Edit:
    start, stop = cell.place(statement)
    end = stop + len(_LINE_END.split(cell.text[stop:])[0])
    return end, end, "".join(cell.new_line(start) + line for line in lines)


@dataclass(frozen=True, slots=True)
class _Site:
    """The place of a change: the cell's index, its statement, and the names that it sets."""

    index: int
    statement: ast.stmt
    names: set[str]
    edits: list[_Edit]
    note: str = ""  # on changes that are left to the user


def _site(
    target: str, wanted: Mapping[str, str], cells: Mapping[int, _Cell], handed: set[object]
) -> _Site | None:
    keywords = _code(wanted)
    if match := _find(target, cells, handed):
        index, call, _ = match
        edits, left = _in_call(cells[index], call, wanted)
        note = left and f"# Add to the options of {_called(call)}(**...): {left}"
        return _Site(index, *_within(cells[index], call), edits, note)
    if target == "peft" and (match := _find("model", cells, handed)) and (kept := match[2]):
        index, to = match[0], kept.targets[0]
        first = next(iter(getattr(to, "elts", ())), to)  # `model` of `model, tokenizer`
        if name := getattr(first, "id", ""):
            imported = "from peft import LoraConfig, get_peft_model"
            wrapped = f"{name} = get_peft_model({name}, LoraConfig({keywords}))"
            statement, names = _within(cells[index], kept)
            below = _below(cells[index], kept, imported, wrapped)
            return _Site(index, statement, names & {name} or names, [below])
    if target == "arguments" and (assignment := _assignment_of_arguments(cells, handed)):
        index, kept, name = assignment
        # Where the cell sets all these attributes, their values are edited. Setting bf16 or fp16 has no
        # effect: the class reads them only when it is called.
        is_set = _assigned(cells[index], wanted, {name}).keys() - {"bf16", "fp16"} == wanted.keys()
        lines = "from dataclasses import replace", f"{name} = replace({name}, {keywords})"
        return _Site(index, kept, {name}, [] if is_set else [_below(cells[index], kept, *lines)])
    return None


def _within(cell: _Cell, node: ast.AST) -> tuple[ast.stmt, set[str]]:
    """Return the cell's statement around a node, and the names that its result is assigned to."""
    statement = next(one for one in cell.tree.body if node in _nodes(one))
    if isinstance(statement, _Definition):
        return statement, {statement.name}
    assigned = _all(ast.Assign, statement)
    around = (one for one in assigned if node in _nodes(one))
    return statement, _set_names([target for one in around for target in one.targets])


def _assignment_of_arguments(
    cells: Mapping[int, _Cell], handed: set[object]
) -> tuple[int, ast.Assign, str] | None:
    """Return the newest assignment to a Trainer's arguments, where no call of their class was found."""
    for index in sorted(cells, reverse=True):
        for statement in reversed(cells[index].tree.body):
            if isinstance(statement, ast.Assign):
                for name in _set_names(statement.targets) & handed:
                    if re.search("arg|conf", name):
                        return index, statement, name
    return None


def _changes(statement: ast.stmt, names: set[str]) -> bool:
    """Return whether a statement binds one of the names, sets a part of it, or may change it by a method."""
    loops = (loop for loop in _all(ast.For, statement) if _root(loop.iter) in names)
    items = (_names(loop.target, ast.Store) for loop in loops)
    parts = names.union(*items)  # also the `parameter` of `for parameter in model.parameters()`
    for node in _nodes(statement):
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                if _root(node) in parts:
                    return True
            case ast.Expr(ast.Call(ast.Attribute(owner, method), arguments)):
                if _root(owner) in names and not _HARMLESS.search(method):
                    return True
                if method.startswith("for_training") and names & set(map(_root, arguments)):
                    return True  # of Unsloth
    return bool(_names(statement, ast.Store) & names)


def _rest(
    cells: Mapping[int, _Cell], sites: Sequence[_Site], dropped: Collection[str]
) -> list[tuple[int, str]] | None:
    """Return the statements of later cells that train with the changed objects; None if uncertain."""
    own, changed = sorted({site.index for site in sites}), {site.statement for site in sites}
    names = set().union(*(site.names for site in sites))
    trainers: set[str] = set()
    functions = {  # that train
        one.name
        for one in changed
        if isinstance(one, _Definition) and "train" in map(_called, _nodes(one))
    }
    needed: list[tuple[int, str, str, bool]] = []
    training = None
    for index in sorted(index for index in cells if index >= own[0]):
        for statement in cells[index].tree.body:
            reads, is_own = _names(statement, ast.Load), index in own
            if isinstance(statement, _Definition) or not (statement in changed or reads & names):
                continue
            targets = getattr(statement, "targets", ())
            if not is_own and any(getattr(one, "attr", "") in dropped for one in targets):
                continue  # such as `args.bf16 = False`
            calls = _all(ast.Call, statement)
            if builds := any(_called(call).endswith("Trainer") for call in calls):
                trainers = _names(statement, ast.Store)
                names |= trainers
                needed = [one for one in needed if not one[3]]
            trains = bool(reads & functions) or any(
                _called(call) == "train" and (builds or _root(call) in trainers) for call in calls
            )
            if trains and index == own[-1]:
                return [one[:2] for one in needed]
            if not is_own and (builds or trains or _changes(statement, names)):
                source = cells[index].source(statement)
                # Of statements that begin alike, such as calls with other arguments, the newest cell's.
                begins = source if hasattr(statement, "body") else source.partition("(")[0]
                needed = [one for one in needed if one[2] != begins or one[0] == index]
                needed.append((index, source, begins, bool(builds or reads & trainers)))
                training = [one[:2] for one in needed] if trains else training
    return training


def _code(wanted: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={' '.join(value.split())}" for name, value in wanted.items())


def written(cells: Sequence[str], changes: Sequence[Change]) -> str:
    """Return the text of a new cell: the user's own calls with changes, and the statements that train again.

    The cells are all inputs as they were typed, the oldest first.
    """
    read = {index: cell for index, text in enumerate(cells) if (cell := _read(text))}
    wanted: dict[str, dict[str, str]] = {}
    for change in changes:
        wanted.setdefault(change.target, {})[change.name] = change.value
    evaluation, handed = wanted.pop("evaluation", None), _of_trainers(read)
    of_data = _find("data", read, handed) if "data" in wanted else None
    if of_data and of_data == _find("arguments", read, handed):
        wanted["arguments"] = {**wanted.get("arguments", {}), **wanted.pop("data")}
    missing = {target: _MISSING[target].format(_code(wanted[target])) for target in wanted}
    if evaluation:
        return "\n".join([_evaluating(read, evaluation), *missing.values()])
    sites = {to: site for to in wanted if (site := _site(to, wanted[to], read, handed))}
    notes = [missing[target] for target in wanted if target not in sites]
    parts = []
    for index in sorted({site.index for site in sites.values()}):
        here = {target: site for target, site in sites.items() if site.index == index}
        edits = [edit for site in here.values() for edit in site.edits]
        if "arguments" in sites:
            set_here = _assigned(read[index], wanted["arguments"], sites["arguments"].names)
            edits += set_here.values()
        text = read[index].edited(edits)
        is_python = _read(text) is not None
        parts.append((index, text if is_python else read[index].text))
        notes += [site.note if is_python else missing[target] for target, site in here.items()]
    if not parts:
        return "\n".join(notes)
    names = set().union(*(site.names for site in sites.values()))
    older = (call for index, _ in parts[:-1] for call in _nodes(read[index].tree))
    if any(_called(call) == "train" and _root(call) not in names for call in older):
        notes.append("# The training of an older cell is here, too: it may not be needed.")
    if "generate" not in wanted:
        rest = _rest(read, [*sites.values()], wanted.get("arguments", ()))
        if rest is None:
            used = " and ".join(sorted(names)) if 0 < len(names) < 4 else "what is made here"
            notes.append(f"# The cells that use {used} must run again.")
        parts += rest or []
    return _joined(sorted(parts, key=lambda part: part[0]), cells, notes)


def made_anew(text: str) -> list[str]:
    """Return the names that a cell assigns before it reads them, in their order."""
    cell = _read(text)
    read: set[str] = set()
    names: list[str] = []
    for statement in cell.tree.body if cell else ():
        read |= _names(statement, ast.Load)
        if isinstance(statement, ast.Assign):
            names += sorted(_names(statement, ast.Store) - read - {*names})
    return names


def _evaluating(cells: Mapping[int, _Cell], wanted: Mapping[str, str]) -> str:
    """Return the newest statement that evaluates, below assignments to its Trainer's arguments."""
    for index in sorted(cells, reverse=True):
        cell = cells[index]
        for call in _nodes(cell.tree):
            match call:
                case ast.Call(ast.Attribute(trainer, "evaluate" | "predict")):
                    statement, _ = _within(cell, call)
                    magic = [first[1].rstrip()] if (first := _FIRST_LINE.match(cell.text)) else []
                    name = cell.source(trainer)
                    sets = [f"{name}.args.{option} = {value}" for option, value in wanted.items()]
                    return "\n".join([*magic, *sets, cell.source(statement)])
    return f"# Set in trainer.args: {_code(wanted)}"


def _joined(parts: Sequence[tuple[int, str]], cells: Sequence[str], notes: Sequence[str]) -> str:
    """Return parts of cells as one cell, with at most one cell magic, and the notes at its end."""
    text, notes = parts[0][1], [*notes]
    if len(parts) > 1:
        bodies, magics = [], []
        for index in dict.fromkeys(index for index, _ in parts):
            body = "\n".join(part.strip("\r\n") for at, part in parts if at == index)
            magics += _without_magics(cells[index])[1]
            bodies.append(_without_magics(body)[0].strip("\r\n"))
        watches = [magic for magic in magics if magic.startswith("%%memwatch")]
        text = "\n".join([*watches[-1:], "\n\n".join(bodies)])
        others = (magic for magic in magics if magic not in watches)
        notes += [f"# {name} is left out: a cell magic must be the first line." for name in others]
    lines = {"", *_LINE_END.split(text)}
    new = [note for note in dict.fromkeys(notes) if note not in lines]
    return "\n".join([text.rstrip("\r\n"), *new]) if new else text


def _without_magics(text: str) -> tuple[str, list[str]]:
    """Return a cell without its leading cell magics, and these."""
    magics = []
    while first := _FIRST_LINE.match(text):
        magics.append(first[1].rstrip())
        text = text[: first.start(1)] + text[first.end() :]
    return text, magics
