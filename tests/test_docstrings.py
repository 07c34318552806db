"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import apiece

MODULES = ["apiece", *(m.name for m in pkgutil.walk_packages(apiece.__path__, "apiece."))]


@pytest.mark.parametrize("name", [n for n in MODULES if not n.endswith("__main__")])
def test_examples_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("apiece"):
            raise
        pytest.skip(f"{error.name} is not installed")
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)
