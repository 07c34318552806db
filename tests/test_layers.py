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
    "reproduce",
    "sklearn",
    "adapters",
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
    "assignment",
    "plan",
    "accounting",
    "mechanisms",
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


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    own = layer(path)
    assert own in LAYERS, f"{own} is in no layer"
    for name in imports(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] == "torch":
            assert own in TORCH, f"{own} must not import torch"
        if parts[0] == "apiece" and len(parts) > 1 and parts[1] in LAYERS:
            assert parts[1] == own or LAYERS.index(parts[1]) > LAYERS.index(own), (
                f"{own} imports {name}, which lies above it"
            )


def test_import_is_light() -> None:
    heavy = "('torch', 'pandas', 'matplotlib', 'scipy.stats')"
    code = f"import sys, apiece; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
