"""Every example in a docstring runs and prints what it says; those of public names run as pasted.

A public name's example sees nothing but what it imports itself: it runs in an empty namespace and
an empty folder, as in a reader's session. Helpers' examples run inside their module.
"""

import doctest
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import apiece
from test_docstring_style import methods, packages, public

SOURCE = Path(apiece.__file__).parent
# Modules that users import from, beside the packages of the API reference.
DOCUMENTED = (
    "adapters.federation",
    "adapters.flower",
    "adapters.huggingface",
    "adapters.lightning",
    "adapters.mlflow",
    "adapters.ray",
    "adapters.wandb",
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules_with_examples() -> list[str]:
    """The names of the modules whose text has an example; none is imported for that."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


@cache
def public_names() -> set[str]:
    """Return module and name of everything public that has a docstring, methods included."""
    things = [thing for package in packages() for _, thing in public(package)]
    found = {f"{thing.__module__}.{thing.__qualname__}" for thing in things}
    for thing in things:
        own = methods(thing) if inspect.isclass(thing) else ()
        found |= {f"{f.__module__}.{f.__qualname__}" for _, f in own}
    return found


def examples_in(module: ModuleType) -> Iterator[doctest.DocTest]:
    """Yield a module's examples, each with the names that it may use."""
    documented = module.__name__.removeprefix("apiece.") in DOCUMENTED
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        shown = example.name.rpartition(".")[2][:1] != "_"
        if example.name in public_names() or (documented and shown):
            example.globs = {"__name__": "__main__"}
        yield example


def faults(example: doctest.DocTest) -> str:
    """Return what an example prints otherwise than it says."""
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append)
    return "".join(report)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("apiece"):
            raise
        pytest.skip(f"{error.name} is not installed")
    monkeypatch.chdir(tmp_path)
    found = ""
    for example in examples_in(module):
        if example.examples and "TensorBoard" in example.name:
            pytest.importorskip("tensorboard")
        with warnings.catch_warnings():
            if name.removeprefix("apiece.") in DOCUMENTED:
                warnings.simplefilter("ignore")  # of the other frameworks
            found += faults(example)
    if missing := re.search("NotInstalledError: (.*)", found):
        pytest.skip(missing[1])
    assert not found, found


def test_every_public_callable_of_the_package_has_an_example() -> None:
    named = {
        name: value
        for name in apiece.__all__
        if inspect.isclass(value := getattr(apiece, name)) or inspect.isfunction(value)
    }
    lacking = [name for name, value in named.items() if ">>> " not in (inspect.getdoc(value) or "")]
    assert len(named) > 30
    assert lacking == []


HALVE = '''
import math

def halve(value):
    """Return half.

    Example:
        {imports}>>> halve(math.pi) < 2
        True
    """
    return value / 2
'''


@pytest.mark.parametrize(
    ("imports", "right"),
    [
        ("", False),
        (">>> import math\n        ", False),
        (">>> import math\n        >>> from halves import halve\n        ", True),
    ],
)
def test_an_example_that_lacks_an_import_is_seen(
    imports: str, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run inside its module, where all names are there."""
    (tmp_path / "halves.py").write_text(HALVE.format(imports=imports))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "halves", raising=False)  # type: ignore[attr-defined]
    module = importlib.import_module("halves")
    monkeypatch.setattr(f"{__name__}.public_names", lambda: {"halves.halve"})
    (example,) = [e for e in examples_in(module) if e.examples]
    assert (faults(example) == "") == right
