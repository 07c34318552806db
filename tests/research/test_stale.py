"""A stored result knows what made it: what counts as a change, and what a repetition confirms."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "stale", ROOT / "research" / "benchmarks" / "stale.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stale"] = module
    spec.loader.exec_module(module)
    return module


stale = load_tool()


def test_every_stored_result_is_declared_and_its_code_is_there() -> None:
    declared = stale.read_manifest()
    stored = {
        str(path.relative_to(ROOT)) for path in (ROOT / "research" / "results").glob("*.json")
    }
    assert set(declared) == stored
    missing = {name for one in declared.values() for name in one.code if not (ROOT / name).exists()}
    assert not missing
    assert set(stale.read_records()) <= stored


def in_history(commit: str) -> bool:
    """Whether git has a commit among what led to this state."""
    words = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def has_whole_history() -> bool:
    words = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "false"


def faults_of_older(result: Any) -> list[str]:
    """What a result of older code lacks: a commit, a reason, or its sentence on each page."""
    faults = stale.unsaid(result, stale.read_records()[result.path]["date"])
    if not re.fullmatch("[0-9a-f]{8}", result.measured):
        faults.append(f"{result.measured!r} is no commit of eight digits")
    elif has_whole_history() and not in_history(result.measured):
        faults.append(f"{result.measured} is not in the history")
    return faults


def test_a_result_of_older_code_has_a_commit_a_reason_and_the_sentence_on_its_pages() -> None:
    manifest = stale.read_manifest().values()
    older = [result for result in manifest if result.measured or result.until]
    assert older
    faults = {result.path: faults_of_older(result) for result in older}
    assert {path: lacking for path, lacking in faults.items() if lacking} == {}


BEFORE = '''"""A module."""
def double(x: int) -> int:
    """Twice a number."""
    if x < 0:
        raise ValueError("negative")
    return 2 * x  # twice
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('    """Twice a number."""\n', ""),
        ("  # twice", ""),
        ("x: int", "x: float"),
        ('"negative"', '"x is negative; give 0 or more"'),
    ],
)
def test_words_are_no_change(old: str, new: str) -> None:
    changed = BEFORE.replace(old, new)
    assert changed != BEFORE
    assert stale.fingerprint(changed, ".py") == stale.fingerprint(BEFORE, ".py")


@pytest.mark.parametrize(
    ("old", "new"), [("2 * x", "3 * x"), ("x < 0", "x <= 0"), ("double", "twice")]
)
def test_code_is_a_change(old: str, new: str) -> None:
    assert stale.fingerprint(BEFORE.replace(old, new), ".py") != stale.fingerprint(BEFORE, ".py")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "research" / "results").mkdir(parents=True)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "code.py").write_text(BEFORE)
    (tmp_path / "research" / "results" / "a.json").write_text("{}")
    (tmp_path / "research" / "stored.toml").write_text(
        '[groups]\nall = ["library"]\n'
        '[results."research/results/a.json"]\ncommand = "run a"\ncode = ["all"]\n'
    )
    (tmp_path / "research" / "stored.json").write_text("{}")
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "MANIFEST", tmp_path / "research" / "stored.toml")
    monkeypatch.setattr(stale, "RECORDS", tmp_path / "research" / "stored.json")
    return tmp_path


def test_a_result_is_stale_until_it_is_recorded_and_after_its_code_changed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = stale.read_manifest(stale.MANIFEST)
    assert stale.list_stale(results) == 1
    stale.write_record(results["research/results/a.json"])
    assert stale.list_stale(results) == 0
    code = project / "library" / "code.py"
    code.write_text(BEFORE.replace("2 * x", "3 * x"))
    capsys.readouterr()
    assert stale.list_stale(results) == 1
    printed = capsys.readouterr().out
    assert "library" in printed
    assert "run a" in printed
    code.write_text(BEFORE)
    assert stale.list_stale(results) == 0
    (project / "library" / "new.py").write_text("")
    assert stale.list_stale(results) == 1
    (project / "library" / "new.py").unlink()
    (project / "research" / "results" / "a.json").write_text('{"edited": 1}')
    assert stale.list_stale(results) == 1


def test_a_result_of_older_code_is_listed_apart_where_its_page_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "research/results/a.json"
    manifest = project / "research" / "stored.toml"
    page = project / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("Figures of `a.json`.\n")
    (project / "README.md").write_text("Nothing of aa.json or a.json5.\n")
    stale.write_record(stale.read_manifest(manifest)[name])
    declared = manifest.read_text()
    manifest.write_text(declared + 'measured = "0123abcd"\nuntil = "a GPU"\n')
    capsys.readouterr()
    assert stale.list_stale(stale.read_manifest(manifest)) == 1
    assert "take `measured` and `until` out" in capsys.readouterr().out
    (project / "library" / "code.py").write_text(BEFORE.replace("2 * x", "3 * x"))
    assert stale.list_stale(stale.read_manifest(manifest)) == 1
    date = stale.read_records()[name]["date"]
    sentence = stale.read_manifest(manifest)[name].sentence(date)
    assert f"docs/page.md has to say: {sentence}" in capsys.readouterr().out
    page.write_text("Figures.\n" + sentence.replace(" with ", "\nwith ") + "\n")
    assert stale.list_stale(stale.read_manifest(manifest)) == 0
    assert f"{name}: 0123abcd; a new one needs a GPU" in capsys.readouterr().out
    page.write_text(sentence.replace("a GPU", "an hour"))
    assert stale.list_stale(stale.read_manifest(manifest)) == 1
    page.write_text("Figures.\n")
    assert stale.list_stale(stale.read_manifest(manifest)) == 1
    page.write_text(sentence)
    manifest.write_text(declared + 'measured = "0123abcd"\n')
    assert stale.list_stale(stale.read_manifest(manifest)) == 1
    manifest.write_text(declared + 'measured = "0123abcd"\nuntil = "a GPU"\n')
    (project / "research" / "results" / "a.json").write_text('{"edited": 1}')
    assert stale.list_stale(stale.read_manifest(manifest)) == 1


@pytest.mark.parametrize(
    ("repeated", "same"),
    [
        ({"accuracy": 97.5, "seconds": 9.0, "runs": [1, 2]}, True),
        ({"accuracy": 97.5 * (1 + 1e-9), "seconds": 3.0, "runs": [1, 2]}, True),
        ({"accuracy": 97.6, "seconds": 3.0, "runs": [1, 2]}, False),
        ({"accuracy": 97.5, "seconds": 3.0, "runs": [1, 3]}, False),
        ({"accuracy": 97.5, "seconds": 3.0, "runs": [1]}, False),
        ({"accuracy": 97.5, "seconds": 3.0}, False),
    ],
)
def test_a_repetition_confirms_figures_and_no_times(
    repeated: dict[str, object], same: bool
) -> None:
    stored = {"accuracy": 97.5, "seconds": 3.0, "runs": [1, 2]}
    assert (stale.numbers_differ(stored, json.loads(json.dumps(repeated))) is None) == same


@pytest.fixture
def two_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path, Path]:
    """A result, the project, and a checkout of the commit that the result was recorded with."""
    trees = []
    for name in ("now", "before"):
        tree = tmp_path / name
        (tree / "src" / "apiece").mkdir(parents=True)
        (tree / "src" / "apiece" / "plan.py").write_text("rate = 1\n")
        (tree / "script.py").write_text("import apiece\n")
        trees.append(tree)
    now, before = trees
    (now / "result.json").write_text("{}")
    (now / "stored.json").write_text("{}")
    monkeypatch.setattr(stale, "ROOT", now)
    monkeypatch.setattr(stale, "RECORDS", now / "stored.json")
    result = stale.Result("result.json", "run it", ("src/apiece/plan.py", "script.py"), 0)
    stale.write_record(result)
    return result, now, before


def test_a_change_of_the_package_alone_may_be_carried(two_trees: tuple[Any, Path, Path]) -> None:
    result, now, before = two_trees
    (now / "src" / "apiece" / "plan.py").write_text("probability = 1\n")
    assert stale.why_not_carried(result, before) is None


@pytest.mark.parametrize(
    ("tree", "name", "reason"),
    [
        ("now", "script.py", "script.py has changed"),
        ("now", "result.json", "nothing is recorded"),
        ("before", "src/apiece/plan.py", "it was stale"),
    ],
)
def test_what_equality_says_nothing_of_is_not_carried(
    two_trees: tuple[Any, Path, Path], tree: str, name: str, reason: str
) -> None:
    result, now, before = two_trees
    path = (now if tree == "now" else before) / name
    path.write_text("other = 2\n")
    assert reason in stale.why_not_carried(result, before)


def test_trees_that_differ_carry_nothing(
    two_trees: tuple[Any, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, now, before = two_trees
    (now / "src" / "apiece" / "plan.py").write_text("rate = 2\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(before), *named, *words], check=True)
    equality = now / "research" / "benchmarks" / "equality.py"
    equality.parent.mkdir(parents=True)
    records = (now / "stored.json").read_text()
    equality.write_text("raise SystemExit(1)\n")
    assert stale.carry([result], before / "src") == 1
    assert (now / "stored.json").read_text() == records
    equality.write_text("raise SystemExit(0)\n")
    assert stale.carry([result], before / "src") == 0
    assert len(json.loads((now / "stored.json").read_text())["result.json"]["carried"]) >= 7
    # Values that the change was meant to change reach the comparison, and the record names them.
    (now / "stored.json").write_text(records)
    equality.write_text(
        "import sys\nraise SystemExit('--leave-out lstm' not in ' '.join(sys.argv))\n"
    )
    assert stale.carry([result], before / "src") == 1
    assert stale.carry([result], before / "src", ["lstm"]) == 0
    record = json.loads((now / "stored.json").read_text())["result.json"]
    assert record["carried"].endswith(", but for lstm")
