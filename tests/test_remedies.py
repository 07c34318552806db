"""Every refusal of adapters, jobs and commands says what to do next, in words that are there.

The raise statements are found in the syntax tree. What a message says in an expression counts as
the name that stands there, so that a remedy is in the text itself or in a name that says so.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import apiece
from apiece.cli import group

SOURCE = Path(apiece.__file__).parent
ROOMS = ("adapters", "jobs", "cli", "sklearn.py")
# What a person can do: verbs in the imperative, or the bound that a value has to keep.
REMEDY = re.compile(
    r"""\b(add|ask|audit|begin|build|call|change|choose|convert|count|declare|drop|enroll|fit|free|give|import|install|
    keep|leave|lower|make|mend|move|name|open|pass|pick|plan|put|raise|read|remove|rename|repeat|
    restore|resume|run|say|set|shorten|start|take|train|try|use|wait|write|must|needs?|ends|
    goes\ on|end|_?remedy|as\ in|did\ you\ mean)\b""",
    re.VERBOSE | re.IGNORECASE,
)
# Raised to be caught in the same module, which says what to do; and what carries another's words.
INNER = {"ValueError", "KeyError", "TypeError", "Unproved", "Exit", "SystemExit", "Interrupted"}


def text_of(node: ast.expr) -> str:
    """Return the text of a message; of what is not a text the names in it."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(map(text_of, node.values))
        case ast.FormattedValue():
            return f"<{text_of(node.value)}>"
        case ast.BinOp():
            return text_of(node.left) + text_of(node.right)
        case ast.IfExp():
            return f"{text_of(node.body)}|{text_of(node.orelse)}"
        case ast.Call():
            return f"<{ast.unparse(node.func)}>" + "".join(map(text_of, node.args))
    return f"<{ast.unparse(node)}>"


def refusals(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and message of each error that is made with a message of its own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        kind = ast.unparse(node.exc.func)
        if kind.endswith("Error") and kind not in INNER and node.exc.args:
            yield node.lineno, kind, " ".join(text_of(node.exc.args[0]).split())


def without_remedy(text: str) -> bool:
    """Whether a message tells nothing to do; one that hands on another's words is that one's."""
    if re.search("<(error|why|reason|said|told|message|refusal)>", text):
        return False
    return REMEDY.search(text.partition(":")[2] or text) is None


@cache
def found() -> dict[str, str]:
    """Every refusal, by where it is."""
    paths = [p for room in ROOMS for p in sorted((SOURCE / room).rglob("*.py"))]
    paths += [SOURCE / "sklearn.py"]
    return {
        f"{path.relative_to(SOURCE)}:{line}": text
        for path in paths
        for line, _, text in refusals(ast.parse(path.read_text()))
    }


def test_every_refusal_has_a_remedy() -> None:
    assert len(found()) > 150
    assert {where: text for where, text in found().items() if without_remedy(text)} == {}


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ('raise InputError(f"levels: {a} for {b} records; one a record")', True),
        ('raise InputError("records: wrong")', True),
        ('raise StateError(f"{path}: is damaged ({error.strerror})")', True),
        ('raise InputError(f"levels: {a} for {b} records; give one a record")', False),
        ('raise InputError("x = 3: must be in [0, 1]")', False),
    ],
)
def test_a_message_without_one_is_found(code: str, bad: bool) -> None:
    ((_, _, text),) = refusals(ast.parse(code))
    assert without_remedy(text) == bad


def options(command: click.Command) -> set[str]:
    own = {flag for param in command.params for flag in param.opts}
    commands = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*(options(each) for each in commands))


def test_options_and_commands_that_messages_name_are_there() -> None:
    """In all of apiece: a remedy that names an option or a command names one that there is."""
    context = click.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    known = {"--help"}.union(*(options(each) for each in commands.values() if each))
    texts = [
        (f"{path.relative_to(SOURCE)}:{line}", text)
        for path in sorted(SOURCE.rglob("*.py"))
        for line, _, text in refusals(ast.parse(path.read_text()))
    ]
    flags = {
        (w, f)
        for w, text in texts
        for f in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)", text)
    }
    named = {(w, c) for w, text in texts for c in re.findall(r"\bapiece ([a-z]+)\b", text)}
    words = {"that", "wrote", "did", "knows", "model", *commands}  # "apiece wrote" is a sentence
    assert len(flags) > 50
    assert {pair for pair in flags if pair[1] not in known} == set()
    assert {pair for pair in named if pair[1] not in words} == set()
