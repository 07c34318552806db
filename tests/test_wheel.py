"""What is shipped: the wheel and the source archive hold all that the package needs, and run."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = """
from apiece import Budgets, Sample, assign
budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], size=1000, delta=1e-5)
plan = assign(budgets, Sample(), steps=10, expected_batch_size=100, clip_norm=1.0)
assert plan.verify().ok
"""
JOB = """
[data]
source = "german"
[budgets]
delta = 1e-4
groups = [
  { name = "strict", epsilon = 0.5, share = 0.5 }, { name = "weak", epsilon = 2.0, share = 0.5 },
]
[training]
batch_size = 64
steps = 5
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder with a wheel and a source archive of what git holds."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    place = tmp_path_factory.mktemp("dist")
    source = place / "source"
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if name.startswith(("src/", "research/", "LICENSE", "NOTICE", "README", "pyproject")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta as b; b.build_sdist('..'); b.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("setuptools is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    return place


def sources():
    return {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "apiece").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_both_archives_hold_every_file_of_the_package(built):
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == sources()
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in wheel.namelist()}
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = archive.getnames()
    assert sources() <= {name.partition("/src/")[2] for name in names if "/src/" in name}
    assert not [name for name in names if "/research" in name]


def interpreters():
    """Return an interpreter of each version that is supported, where there is one."""
    found = {"3.11": sys.executable} if sys.version_info[:2] == (3, 11) else {}
    for minor in (11, 12, 13):
        root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
        others = Path(root).glob(f"versions/3.{minor}.*/bin/python")
        places = [shutil.which(f"python3.{minor}"), *others]
        for place in filter(None, places):
            asked = subprocess.run([place, "--version"], capture_output=True, check=False)
            if asked.returncode == 0:
                found.setdefault(f"3.{minor}", place)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_runs_in_an_empty_environment(built, tmp_path, version):
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    subprocess.run([python, "-m", "venv", tmp_path / "empty"], check=True)
    binary = tmp_path / "empty" / "bin"
    wheel = next(built.glob("*.whl"))
    constraints = ROOT / "constraints.txt"
    subprocess.run(
        [binary / "pip", "install", "--quiet", "-c", constraints, f"{wheel}[train]"], check=True
    )
    subprocess.run([binary / "python", "-W", "error", "-c", EXAMPLE], check=True, cwd=tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    train = [binary / "apiece", "train", "job.toml", "--out", "run"]
    asked = subprocess.run(
        [binary / "apiece", "--version"], capture_output=True, text=True, check=True
    )
    assert "0.1.0" in asked.stdout
    done = subprocess.run(train, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
