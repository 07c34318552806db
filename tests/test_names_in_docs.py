"""Every name of apiece that a page writes out, or imports, is there; or says what to install."""

import importlib
import re
from pathlib import Path

import pytest

from apiece.errors import NotInstalledError

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# Made by the examples of CONTRIBUTING.md, in a copy of the source.
EXAMPLES = {"apiece.adapters.wandb", "apiece.adapters.wandb.WandB"}
DOTTED = re.compile(r"(?<![\w/.\-])apiece(?:\.[A-Za-z_]\w*)+(?![\w/\-])")
IMPORTS = re.compile(r"from (apiece[\w.]*) import (\([^)]*\)|[^\n]*)")
FILES = re.compile(r"\.(?:sh|md|toml|json|jsonl|xdx|cdx|db|py|html|pdf|yml)$")


def names_in(text: str) -> set[str]:
    """Return the dotted names that a page writes out, or imports."""
    found = {name for name in DOTTED.findall(text) if not FILES.search(name)}
    for module, names in IMPORTS.findall(text):
        listed = re.split(r"[,\s()]+", re.sub(r"#.*", "", names))
        found |= {f"{module}.{name}" for name in listed if name.isidentifier()}
    return found


def resolve(name: str) -> None:
    """Import the longest module of a dotted name, and look the rest up in it."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for count, part in enumerate(parts[1:], 2):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except NotInstalledError:
            return
        except ModuleNotFoundError:
            found = getattr(found, part)


def lost_in(text: str) -> list[str]:
    """Return the names of a text that are nowhere."""
    lost = []
    for name in sorted(names_in(text) - EXAMPLES):
        try:
            resolve(name)
        except (AttributeError, ImportError) as error:
            lost.append(f"{name}: {error}")
    return lost


def test_the_names_of_the_pages_are_there() -> None:
    lost = {str(page.relative_to(ROOT)): lost_in(page.read_text()) for page in PAGES}
    assert {page: names for page, names in lost.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("`apiece.training.TensorBoard` and `apiece.report`", 0),
        ("`apiece.training.TensorBord`", 1),
        ("from apiece.plan import Plan, Plane  # both", 1),
        ("from apiece.nowhere import (\n    Plan,\n)", 2),
        ("`apiece.Trainer.resum`", 1),
        ("see dist/apiece.cdx.json", 0),
    ],
)
def test_a_name_that_is_nowhere_is_seen(text: str, lost: int) -> None:
    assert len(lost_in(text)) == lost
