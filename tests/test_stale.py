"""A stored result knows what made it: what counts as a change, and what a repetition confirms."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stale", ROOT / "benchmarks" / "stale.py")
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
        str(path.relative_to(ROOT))
        for folder in ("benchmarks/results", "experiments/results")
        for path in (ROOT / folder).glob("*.json")
    }
    assert set(declared) == stored
    missing = {name for one in declared.values() for name in one.code if not (ROOT / name).exists()}
    assert not missing
    assert set(stale.read_records()) <= stored


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
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "code.py").write_text(BEFORE)
    (tmp_path / "benchmarks" / "results" / "a.json").write_text("{}")
    (tmp_path / "benchmarks" / "stored.toml").write_text(
        '[groups]\nall = ["library"]\n'
        '[results."benchmarks/results/a.json"]\ncommand = "run a"\ncode = ["all"]\n'
    )
    (tmp_path / "benchmarks" / "stored.json").write_text("{}")
    monkeypatch.setattr(stale, "ROOT", tmp_path)
    monkeypatch.setattr(stale, "MANIFEST", tmp_path / "benchmarks" / "stored.toml")
    monkeypatch.setattr(stale, "RECORDS", tmp_path / "benchmarks" / "stored.json")
    return tmp_path


def test_a_result_is_stale_until_it_is_recorded_and_after_its_code_changed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = stale.read_manifest(stale.MANIFEST)
    assert stale.list_stale(results) == 1
    stale.write_record(results["benchmarks/results/a.json"])
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
    (project / "benchmarks" / "results" / "a.json").write_text('{"edited": 1}')
    assert stale.list_stale(results) == 1


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
