"""The version is said once in the sources, and is that of the package."""

import tomllib
from pathlib import Path

import apiece
from apiece._version import __version__


def test_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert apiece.__version__ == __version__ == project["version"]
