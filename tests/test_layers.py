"""Imports point downward only, and torch is imported only where the design allows it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "apiece"

# Top to bottom; a module may import from lower lines, and from its own package.
LAYERS = [
    "__main__",
    "__init__",
    "cli",
    "sklearn",
    "adapters",
    "synthesis",
    "reporting",
    "jobs",
    "contract",
    "audit",
    "pate",
    "sensitivity",
    "recipes",
    "training",
    "queries",
    "ledger",
    "filters",
    "prospects",
    "assignment",
    "plan",
    "accounting",
    "mechanisms",
    "correlation",
    "budgets",
    "datasets",
    "tables",
    "numerics",
    "_files",
    "_json",
    "_lazy",
    "_identity",
    "_check",
    "_identifiers",
    "_text",
    "_types",
    "errors",
    "_version",
]
TORCH = {"jobs", "training", "audit", "pate", "adapters", "sensitivity", "recipes"}


def layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> list[str]:
    """Every module named by an import statement, `from apiece import x` as apiece.x."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names += [f"apiece.{a.name}" for a in node.names] if module == "apiece" else [module]
    return names


def misplaced_imports(room: str, tree: ast.AST) -> list[str]:
    """The imports of a module of a room that point upward, or bring torch where it must not be."""
    if room not in LAYERS:
        return [f"{room} is in no layer"]
    faults = []
    for name in imports(tree):
        parts = name.split(".")
        if parts[0] == "torch" and room not in TORCH:
            faults.append(f"{room} must not import torch")
        known = parts[0] == "apiece" and len(parts) > 1 and parts[1] in LAYERS
        if known and LAYERS.index(parts[1]) < LAYERS.index(room):
            faults.append(f"{room} imports {name}, which lies above it")
    return faults


def test_imports_point_downward() -> None:
    faults = {
        str(path.relative_to(SOURCE)): misplaced_imports(layer(path), ast.parse(path.read_text()))
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert len(faults) > 150
    assert {file: misplaced for file, misplaced in faults.items() if misplaced} == {}


@pytest.mark.parametrize(
    ("room", "text", "count"),
    [
        ("plan", "from apiece.budgets import Budgets\nfrom apiece.plan import parts", 0),
        ("plan", "from apiece import _check, errors", 0),
        ("plan", "from apiece.training import Trainer", 1),
        ("plan", "def f():\n    import apiece.jobs", 1),
        ("plan", "from apiece import cli, queries", 2),
        ("plan", "import torch.nn", 1),
        ("training", "import torch.nn", 0),
        ("attic", "", 1),
    ],
)
def test_an_import_that_points_upward_is_seen(room: str, text: str, count: int) -> None:
    assert len(misplaced_imports(room, ast.parse(text))) == count


def test_import_is_light() -> None:
    heavy = "('torch', 'pandas', 'matplotlib', 'scipy.stats')"
    code = f"import sys, apiece; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
