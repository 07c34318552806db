"""The experiments of a folder: their names and outlines, read without running them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from apiece.errors import DataError, unknown
from research import EXPERIMENTS
from research.experiment import Experiment, Outline

# The line by which the file of an experiment is known.
MARK = "EXPERIMENT = Experiment("


def find_experiments(folder: Path) -> dict[str, Path]:
    """Return the file of each experiment by its name, without running any.

    An experiment NAME is in `NAME.py`, with _ for -; other files are helpers. Raises `DataError`
    where there is no such folder, or no experiment in it.
    """
    paths = {
        path.stem.replace("_", "-"): path
        for path in sorted(folder.glob("*.py"))
        if f"\n{MARK}" in f"\n{path.read_text(encoding='utf-8')}"
    }
    if not paths:
        raise DataError(f"{folder}: no experiments in it; look into research/experiments")
    return paths


def read_outline(path: Path) -> Outline:
    """Return the outline in an experiment's file; raise `DataError` where it is no literal."""
    names = Outline.__slots__
    try:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        call = next(
            node
            for node in nodes
            if isinstance(node, ast.Call) and f"EXPERIMENT = {ast.unparse(node.func)}(" == MARK
        )
        arguments = {str(keyword.arg): keyword.value for keyword in call.keywords}
        literals = {name: ast.literal_eval(arguments[name]) for name in names if name in arguments}
        return Outline(**literals)
    except (SyntaxError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: its experiment's {', '.join(names)} are no literals ({error}); write them out"
        ) from None


def load_experiment(folder: Path, name: str) -> Experiment:
    """Return an experiment; its file is run as Python, as any script that one starts.

    Args:
        folder: Folder of the experiments, one file each.
        name: Name of the experiment.

    Raises:
        OptionError: For a name that there is not, with the nearest one.
        DataError: For a folder without experiments, or a file whose experiment is called otherwise.

    Example:
        >>> from research import EXPERIMENTS
        >>> from research.registry import load_experiment
        >>> load_experiment(EXPERIMENTS, "recipes").paper  # doctest: +SKIP
        'ours'
    """
    files = find_experiments(folder)
    if name not in files:
        raise unknown("experiment", name, files)
    path = files[name]
    experiment: Experiment = _import_file(path).EXPERIMENT
    if experiment.name != name:
        raise DataError(f"{path}: its experiment is called {experiment.name!r}; name the file so")
    return experiment


def _import_file(path: Path) -> ModuleType:
    """Return the module of an experiment's file; one outside research/experiments runs anew."""
    if path.parent == EXPERIMENTS:
        return importlib.import_module(f"research.experiments.{path.stem}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
