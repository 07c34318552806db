"""What a forge runs is what a developer runs: workflows, the steps of a release, its helpers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
# An action by the digest of its commit, and the version that this is.
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def read_workflow(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_those_of_each_job(path: Path) -> None:
    uses = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert uses
    assert [use for use in uses if not PINNED.fullmatch(use)] == []
    workflow = read_workflow(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["permissions"], name
        assert job["timeout-minutes"] <= 350, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    for line in re.findall(r"\bmake ([a-z -]+)", text):
        assert set(line.split()) <= targets, line
    for helper in re.findall(r"\.ci/[\w-]+", text):
        assert (ROOT / helper).stat().st_mode & 0o111, helper


def test_the_matrix_holds_the_oldest_and_the_tested_versions() -> None:
    workflow = read_workflow(ROOT / ".github" / "workflows" / "tests.yml")
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]
    supported = [
        entry.rpartition(" ")[2]
        for entry in PROJECT["classifiers"]
        if re.search(r"Python :: \d+\.\d+$", entry)
    ]
    assert matrix["python"] == supported
    (required,) = [x for x in PROJECT["optional-dependencies"]["train"] if x.startswith("torch")]
    oldest = required.partition(">=")[2]
    assert matrix["torch"][0].startswith(oldest + ".")
    assert f"torch=={matrix['torch'][-1]}\n" in CONSTRAINTS
    assert len(matrix["torch"]) == 3


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The helpers beside the files that they read and write."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "src" / "apiece").mkdir(parents=True)
    for name in ("constraints.txt", "pyproject.toml", "CHANGELOG.md", "src/apiece/_version.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def call(folder: Path, helper: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = folder / ".ci" / helper
    python = [] if "bash" in path.read_text().splitlines()[0] else [sys.executable]
    return subprocess.run([*python, path, *words], capture_output=True, text=True, check=False)


def test_another_pytorch_is_pinned_alone(copy: Path) -> None:
    assert call(copy, "pin-torch", "2.6.0").returncode == 0
    before = set(CONSTRAINTS.splitlines())
    after = set((copy / "constraints.txt").read_text().splitlines())
    assert after - before == {"torch==2.6.0"}
    assert {line.partition("==")[0] for line in before - after} <= {
        "torch", "torchvision", "torchaudio"
    }  # fmt: skip


def test_a_tag_is_the_version_with_its_section(copy: Path) -> None:
    version = (copy / "src/apiece/_version.py").read_text().split('"')[-2]
    assert "no section" in call(copy, "check-release", f"v{version}").stderr
    assert "the version" in call(copy, "check-release", "v99.0.0").stderr
    path = copy / "CHANGELOG.md"
    path.write_text(
        f"# Changelog\n\n## {version} (2026-12-01)\n\nGood news.\n\n## 0.0.1 (2026-01-01)\n"
    )
    done = call(copy, "check-release", f"v{version}")
    assert (done.returncode, done.stdout) == (0, "Good news.\n")


def test_links_are_written_once(copy: Path) -> None:
    assert call(copy, "name-urls", "https://example.org/people/apiece/").returncode == 0
    urls = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Source"] == "https://example.org/people/apiece"
    assert call(copy, "name-urls", "https://example.org/people/apiece").returncode == 1
    assert "https" in call(copy, "name-urls", "elsewhere").stderr
