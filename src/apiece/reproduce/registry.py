"""Finds experiments: one file each, in the `experiments` folder of the repository."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from apiece.errors import DataError, unknown
from apiece.reproduce.experiment import Experiment

MARK = "EXPERIMENT = Experiment("


def find(folder: Path) -> dict[str, Path]:
    """Return the file of each experiment by its name, without running any.

    Args:
        folder: With one file an experiment, `NAME.py` with _ for -; others are helpers.

    Raises:
        DataError: Where there is no such folder, or no experiment in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "first_one.py").write_text(MARK)
        ...     list(find(Path(folder)))
        ['first-one']
    """
    files = sorted(folder.glob("*.py"))
    found = {
        path.stem.replace("_", "-"): path
        for path in files
        if f"\n{MARK}" in f"\n{path.read_text(encoding='utf-8')}"
    }
    if not found:
        raise DataError(
            f"{folder}: no experiments in it; they come with apiece's repository, whose folder "
            "`experiments` --experiments names"
        )
    return found


def load(folder: Path, name: str) -> Experiment:
    """Return an experiment; its file is run as Python, as any script that one starts.

    Args:
        folder: As for `find`.
        name: Of the experiment.

    Raises:
        OptionError: For a name that there is not, with the nearest one.
        DataError: For a file whose experiment is called otherwise.

    Example:
        >>> load(Path("experiments"), "recipes").paper  # doctest: +SKIP
        'ours'
    """
    files = find(folder)
    if name not in files:
        raise unknown("experiment", name, files)
    path = files[name].resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # experiments share helpers that lie beside them
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    experiment: Experiment = module.EXPERIMENT
    if experiment.name != name:
        raise DataError(f"{path}: its experiment is called {experiment.name!r}; name the file so")
    return experiment
