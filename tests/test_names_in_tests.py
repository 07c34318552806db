"""What a test replaces, imports or plants in apiece is there: slow tests too, which run at night.

A private name that a test names in a text (`setattr(module, "name")`, a program for another
process, a line of source that a plant replaces) is out of reach of the linter. It is looked up here
by the imports of the test's file; no test module is imported for that.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from apiece.errors import NotInstalledError

TESTS = Path(__file__).parent
DOTTED = re.compile(r"apiece(\.\w+)+")
# Files whose texts name on purpose what is not there.
OF_EXAMPLES = {
    "test_contributing.py", "test_names_in_docs.py", "test_names_in_tests.py", "test_structure.py",
}  # fmt: skip


class UnknownError(Exception):
    """An expression is not a name of apiece, or its module cannot be imported here."""


@cache
def find_object(name: str) -> Any:
    """The object of a dotted name.

    Raises:
        AttributeError: Where apiece has no such name.
        UnknownError: Where a package that its module needs is not installed.
    """
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except NotInstalledError as error:
            raise UnknownError from error
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("apiece"):
                raise UnknownError from error
            found = getattr(found, part)
    return found


def imported_names(nodes: list[ast.AST]) -> dict[str, str]:
    """The dotted name of everything of apiece that a file imports, by its name there."""
    names = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "apiece":
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "apiece":
                    names[alias.asname or "apiece"] = alias.name if alias.asname else "apiece"
    return names


def rebound_names(nodes: list[ast.AST]) -> set[str]:
    """Names that a file also gives to something else: parameters, variables, functions."""
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def dotted_name(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name of an expression that begins with an imported name."""
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value, names)}.{node.attr}"
    raise UnknownError


def replaced_names(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[str]:
    """The names of apiece that `setattr` and `delattr`, of pytest or built in, replace."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        lenient = any(keyword.arg == "raising" for keyword in node.keywords)
        if called not in ("setattr", "delattr") or lenient:
            continue
        owner = node.args[0]
        attribute = node.args[1] if len(node.args) > 1 else None
        if isinstance(owner, ast.Constant) and DOTTED.fullmatch(str(owner.value)):
            yield str(owner.value)
        elif isinstance(attribute, ast.Constant):
            try:
                yield f"{dotted_name(owner, names)}.{attribute.value}"
            except UnknownError:
                continue


def named_texts(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A name of apiece and the text that stands beside it, in each row of a table or call."""
    for node in nodes:
        match node:
            case ast.Tuple(elts=row) | ast.Call(func=ast.Name(id="plant"), args=row):
                pairs = pairwise(row)
            case _:
                continue
        for target, line in pairs:
            if not isinstance(line, ast.Constant) or not isinstance(line.value, str):
                continue
            try:
                yield dotted_name(target, names), line.value
            except UnknownError:
                continue


def programs(nodes: list[ast.AST]) -> Iterator[ast.Module]:
    """The texts of a file that are programs which import apiece."""
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if re.search(r"^\s*(?:from|import) apiece\b", node.value, re.MULTILINE):
            try:
                yield ast.parse(textwrap.dedent(node.value))
            except SyntaxError:
                continue


def lost_name(name: str) -> list[str]:
    """The name itself where apiece does not have it."""
    try:
        find_object(name)
    except UnknownError:
        return []
    except (AttributeError, ImportError):
        return [name]
    return []


def lost_text(name: str, text: str, *, planted: bool, replaced: bool) -> list[str]:
    """What is said to be in a function's source, or in a module, and is not."""
    try:
        target = find_object(name)
    except (AttributeError, ImportError, UnknownError):
        return []
    if replaced and inspect.ismodule(target) and text.isidentifier():
        return [] if hasattr(target, text) else [f"{name}.{text}"]
    plain = inspect.unwrap(target) if callable(target) else target
    if planted and inspect.isfunction(plain):
        source = textwrap.dedent(inspect.getsource(plain))
        return [] if text in source else [f"{name} has no {text!r}"]
    return []


def lost_in(text: str) -> set[str]:
    """What a test file names of apiece, in texts of Python, that is not there."""
    nodes = list(ast.walk(ast.parse(text)))
    rebound = rebound_names(nodes)
    names = {name: of for name, of in imported_names(nodes).items() if name not in rebound}
    lost = [name for target in replaced_names(nodes, names) for name in lost_name(target)]
    planted = "import plant" in text
    replaced = "setattr(" in text
    for name, beside in named_texts(nodes, names):
        lost += lost_text(name, beside, planted=planted, replaced=replaced)
    for program in programs(nodes):
        inner = list(ast.walk(program))
        imported = imported_names(inner)
        used = [*imported.values(), *replaced_names(inner, imported)]
        lost += [name for target in used for name in lost_name(target)]
    return set(lost)


def test_what_tests_replace_and_plant_is_there() -> None:
    lost = {
        str(path.relative_to(TESTS)): lost_in(path.read_text())
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in OF_EXAMPLES
    }
    assert {file: names for file, names in lost.items() if names} == {}


IMPORTS = "from planted import plant\nfrom apiece import _check\nfrom apiece._check import count\n"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("monkeypatch.setattr(_check, 'count', None)", []),
        ("patch.setattr(_check, 'counts', None)", ["apiece._check.counts"]),
        ("patch.setattr('apiece._check.counts', None)", ["apiece._check.counts"]),
        ("patch.setattr(_check, 'counts', None, raising=False)", []),
        ("def f(_check): setattr(_check, 'counts', None)", []),
        ("PARTS = [(_check, 'counts', 1)]\nsetattr(*PARTS[0])", ["apiece._check.counts"]),
        ("plant(patch, count, 'return', '')", []),
        ("plant(patch, count, 'yields', '')", ["apiece._check.count has no 'yields'"]),
        ("ROWS = [(count, 'yields', '')]", ["apiece._check.count has no 'yields'"]),
        ("CODE = 'from apiece.plan import Plan'", []),
        ("CODE = 'import os\\nfrom apiece.plan import Plane'", ["apiece.plan.Plane"]),
    ],
)
def test_a_name_that_is_gone_is_seen(text: str, lost: list[str]) -> None:
    assert lost_in(IMPORTS + text) == set(lost)
