"""The public names: a name that comes or goes is a decision, so it is written down here too."""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import apiece

TEXT = """
__version__ accounting audit contract
Bounds Budgets Composed Excess Gaussian GaussianFilter Laplace Ledger ModelLoss Odometer Plan
PrivacyCurve Expression
RenyiFilter Repeated Sampled Trainer add_noise assign calibrate clip_and_sum excess make_private
partial_sensitivity poisson_batches privacy_curve release_histogram report
Synthetic synthesize
AdaPDP Allocate Hybrid JorgensenSampling Rounds Sample Scale Sequential Threshold Uniform
"""
NAMES = TEXT.split()


def test_public_names_are_these() -> None:
    assert sorted(apiece.__all__) == sorted(NAMES)


def test_every_public_name_is_there() -> None:
    assert [name for name in NAMES if getattr(apiece, name, None) is None] == []


CALLED = {
    "audit": ("lower_bound", "one_run", "lira"),
    "contract": ("check", "enforce", "budget_manipulation", "collusion"),
}


def test_names_of_packages() -> None:
    lost = [
        f"{package}.{name}"
        for package, names in CALLED.items()
        for name in names
        if not callable(getattr(importlib.import_module(f"apiece.{package}"), name, None))
    ]
    assert lost == []


def test_what_others_can_do_is_in_one_place() -> None:
    audit = importlib.import_module("apiece.audit")
    assert not {"budget_manipulation", "collusion", "Exposure"} & {*vars(audit)}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trainer'"):
        _ = apiece.trainer  # type: ignore[attr-defined]


# ---------------------- a public name is named by a guide, or is a type of one that is


SOURCE = Path(apiece.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
# Its names are those above.
LISTED_ABOVE = {"apiece"}


def _read_lists() -> dict[str, list[str]]:
    """Return each package's public names."""
    lists = {}
    for path in SOURCE.rglob("*.py"):
        module = ".".join(["apiece", *path.relative_to(SOURCE).with_suffix("").parts])
        module = module.removesuffix(".__init__")
        if module not in LISTED_ABOVE and "__all__" in path.read_text():
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    lists[module] = ast.literal_eval(node.value)
    return lists


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _code_of_guides() -> set[str]:
    """Return the words of all code in the README, the guides and the tutorials."""
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
    inline = re.findall(r"`[^`\n]+`", text)
    return _words(" ".join([*blocks, *inline]))


def _types_of(definition: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Return the words of the public annotations: of arguments, results and fields."""
    functions = [definition] if isinstance(definition, ast.FunctionDef) else []
    annotations: list[ast.expr | None] = []
    for node in definition.body if isinstance(definition, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and (
            node.name in ("__init__", "__iter__") or not node.name.startswith("_")
        ):
            functions.append(node)
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            annotations.append(node.annotation)
    for function in functions:
        arguments = function.args
        taken = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        annotations += [*(argument.annotation for argument in taken), function.returns]
    return _words(" ".join(ast.unparse(node) for node in annotations if node is not None))


Definitions = dict[str, list[ast.FunctionDef | ast.ClassDef]]


@functools.cache
def _read_definitions() -> Definitions:
    definitions: Definitions = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                definitions.setdefault(node.name, []).append(node)
    return definitions


def _with_bases(name: str, definitions: Definitions) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield what has a name, and the classes that it is made of."""
    for node in definitions.get(name, []):
        yield node
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            yield from _with_bases(ast.unparse(base).split("[")[0], definitions)


def _find_reached(names: set[str], code: set[str]) -> set[str]:
    """Return the names in code, and those that what is reached takes, returns or has as a field."""
    definitions = _read_definitions()
    reached: set[str] = set()
    found = names & code
    while found:
        reached |= found
        nodes = [node for name in found for node in _with_bases(name, definitions)]
        types: set[str] = set().union(*map(_types_of, nodes))
        found = names & types - reached
    return reached


def test_a_guide_names_each_public_name_or_what_takes_or_returns_it() -> None:
    """Else nobody learns of it, and it is the package's own."""
    lists = _read_lists()
    names = {name for listed in lists.values() for name in listed}
    reached = _find_reached(names, _code_of_guides())
    unknown = {module: sorted({*listed} - reached) for module, listed in lists.items()}
    assert {module: listed for module, listed in unknown.items() if listed} == {}


def test_a_name_that_no_guide_has_is_seen() -> None:
    assert _find_reached({"clip_factors", "Plan"}, {"Plan", "assign"}) == {"Plan"}
    assert _find_reached({"clip_factors"}, {"clip_factors"}) == {"clip_factors"}
    assert _find_reached({"privacy_curve", "PrivacyCurve"}, {"privacy_curve"}) == {
        "privacy_curve",
        "PrivacyCurve",
    }
