"""Public docstrings are contracts of one form: Google's sections, with Guarantee and References.

Held against the code: who has parameters describes each; who raises says so; who states a bound has
a Guarantee; every function and class has an Example (tests/test_docstrings.py runs them).
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import apiece
from apiece import errors

ROOT = Path(__file__).parents[1]

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Guarantee", "References",
            "Example")  # fmt: skip
OLDER = re.compile(r"Raises `|\bSource:|^Guarantee: \S", re.MULTILINE)
STATES_A_BOUND = re.compile(
    r"\b(?:rounded (?:up|down)|(?:upper|lower) bound|guarantees?|-DP\b|never more than)", re.I
)


def sections(doc: str) -> dict[str, str]:
    """Return a docstring's sections by name; the text before the first is called ""."""
    found, name = {"": ""}, ""
    for line in doc.splitlines():
        if re.fullmatch(r"[A-Z][a-z]+( [a-z]+)?:", line):
            name = line[:-1]
            found[name] = ""
        else:
            found[name] += line + "\n"
    return found


def entries(text: str) -> list[str]:
    """Return the names that a section of "name: text" entries describes."""
    return re.findall(r"^    (\*{0,2}\w+)(?: \([^)]*\))?:", text, re.MULTILINE)


def uncalled(thing: Any) -> bool:
    """Whether users only name it, in annotations or after `except`: a Protocol or an exception."""
    error = inspect.isclass(thing) and issubclass(thing, BaseException)
    return error or getattr(thing, "_is_protocol", False)


def parameters(thing: Any) -> list[str]:
    """Return what a caller gives, in order; nothing for what nobody calls."""
    if uncalled(thing):
        return []
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(thing).parameters.values()
    told = {name for base in bases(thing) for name in parameters(base)}
    return [
        star.get(p.kind, "") + p.name
        for p in given
        if p.name not in ("self", "cls", *told) and not p.name.startswith("_")
    ]


def bases(thing: Any) -> list[type]:
    """Return the classes of ours above a class: what they describe is said there, once."""
    above = thing.__mro__[1:] if inspect.isclass(thing) else ()
    return [base for base in above if base.__module__.startswith("apiece") and entries(
        sections(inspect.getdoc(base) or "").get("Attributes", ""))]  # fmt: skip


def raises(thing: Any) -> bool:
    """Whether the body of a function, or of a class's constructor, raises or checks its values."""
    own = vars(thing) if inspect.isclass(thing) else {}
    made = [own[n] for n in ("__init__", "__post_init__") if inspect.isfunction(own.get(n))]
    for function in made if inspect.isclass(thing) else [inspect.unwrap(thing)]:
        if not function.__module__.startswith("apiece"):
            continue
        try:
            text = inspect.getsource(function)
        except OSError:  # made by dataclass
            continue
        tree = ast.parse(f"if True:\n{text}" if text[0].isspace() else text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and node.exc is not None:
                return True
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_check."):
                return True
    return False


def faults(thing: Any, *, example: bool = True) -> list[str]:
    """Return what is missing in the docstring of a function or a class, one line each."""
    doc = inspect.getdoc(thing) or ""
    part, found = sections(doc), []
    head = doc.split("\n\n")[0]
    if "\n" in head or not head.endswith((".", ":", "?")):
        found.append("begins with one line, which ends with a point")
    if unknown := [name for name in part if name and name not in SECTIONS]:
        found.append(f"has unknown sections {unknown}")
    if [n for n in SECTIONS if n in part] != [n for n in part if n]:
        found.append(f"has its sections in the order {SECTIONS}")
    if match := OLDER.search(doc):
        found.append(f"has no {match[0]!r} in its text, but a section")
    wanted, described = parameters(thing), entries(part.get("Args", part.get("Attributes", "")))
    if wanted and described[: len(wanted)] != wanted:
        found.append(f"describes {wanted} in Args or Attributes, not {described}")
    returned = None if inspect.isclass(thing) else inspect.signature(thing).return_annotation
    said = re.match(r"(Return|Yield|Whether)\b", doc) or {"Returns", "Yields"} & part.keys()
    if returned not in (None, "None", inspect.Signature.empty) and not said:
        found.append("says what it returns")
    if raises(thing) and "Raises" not in part:
        found.append("has Raises")
    for name in entries(part.get("Raises", "")):
        known = {*vars(errors), *vars(builtins), *getattr(thing, "__globals__", {})}
        if name not in known:
            found += [f"raises what there is, not {name}"]
    stated = STATES_A_BOUND.search(part[""] + part.get("Returns", ""))
    if stated and "Guarantee" not in part:
        found.append(f"has a Guarantee: it says {stated[0]!r}")
    if example and not uncalled(thing) and ">>> " not in part.get("Example", ""):
        found.append("has an Example")
    if ">>> " in "".join(text for name, text in part.items() if name != "Example"):
        found.append("has its examples in Example")
    return found


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods that a class defines itself, and that no class above describes."""
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        own = inspect.isfunction(function) and function.__module__.startswith("apiece")
        told = any(name in vars(base) for base in kind.__mro__[1:])
        if own and not told and not name.startswith("_"):
            yield name, getattr(kind, name) if isinstance(value, classmethod) else function


def packages() -> list[str]:
    """Return the public packages, without "apiece.": those in the API reference."""
    pages = [page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")]
    return sorted(re.findall(r"^::: apiece\.([\w.]+)$", "\n".join(pages), re.MULTILINE))


def public(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes that a package names in `__all__`."""
    module = importlib.import_module(f"apiece.{package}")
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield name, thing


def faults_of(package: str) -> list[str]:
    found = []
    for name, thing in public(package):
        found += [f"{package}.{name} {fault}" for fault in faults(thing)]
        for method, function in methods(thing) if inspect.isclass(thing) else ():
            told = faults(function, example=False)
            found += [f"{package}.{name}.{method} {fault}" for fault in told]
    return found


def test_docstrings_are_contracts() -> None:
    found = [fault for package in packages() for fault in faults_of(package)]
    assert not found, "\n".join(found)


def test_every_public_name_is_of_such_a_package() -> None:
    inside = {name for package in packages() for name, _ in public(package)}
    others = {"__version__", "accounting", "audit", "contract"}
    assert set(apiece.__all__) - others <= inside


GOOD = '''
def halve(value: float, *, times: int = 1) -> float:
    """Return an upper bound on half of `value`.

    Args:
        value: A number.
        times: How often.

    Raises:
        InputError: Where it is negative.

    Guarantee:
        Rounded up.

    Example:
        >>> halve(2.0)
        1.0
    """
    if value < 0:
        raise InputError("no")
    return value / 2**times
'''


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", None),
        ("        times: How often.\n", "", "describes ['value', 'times']"),
        ("        value: A number.\n", "        value, times: Both.\n", "describes"),
        ("    Raises:\n        InputError: Where it is negative.\n\n", "", "has Raises"),
        ("InputError: Where", "InputErorr: Where", "not InputErorr"),
        ("    Guarantee:\n        Rounded up.\n\n", "", "has a Guarantee: it says 'upper bound'"),
        ("    Example:\n", "", "has an Example"),
        (">>> halve(2.0)\n        1.0", "It halves.", "has an Example"),
        ("Example:", "Examples:", "unknown sections ['Examples']"),
        ("half of `value`.", "half of `value`", "begins with one line"),
        ("half of `value`.", "half\n    of `value`.", "begins with one line"),
        ("Return an upper bound on half", "The upper bound on half", "says what it returns"),
        ("        value: A", "        value: Raises `InputError` unless a", "has no 'Raises `'"),
        ("    Raises:", "    Example:\n\n    Raises:", "in the order"),
    ],
)
def test_what_is_missing_is_seen(tmp_path: Any, old: str, new: str, fault: str | None) -> None:
    path = tmp_path / "halves.py"
    path.write_text("from apiece.errors import InputError\n" + GOOD.replace(old, new))
    spec = importlib.util.spec_from_file_location("apiece_halves", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = faults(module.halve)
    assert (found == []) if fault is None else any(fault in one for one in found), found
