"""The tests mirror the sources: `tests/PACKAGE/test_MODULE.py` tests `PACKAGE/MODULE.py`.

What a module is tested by then lies where a reader looks for it. There is no exception.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def untested(source: Path, tests: Path) -> set[str]:
    """Return "PACKAGE/MODULE" of each module that has no test file of its own."""
    modules = [p.relative_to(source) for p in source.rglob("*.py") if p.name != "__init__.py"]
    return {
        str(m.with_suffix(""))
        for m in modules
        if not (tests / m.parent / f"test_{m.stem.strip('_')}.py").exists()
    }


def strangers(source: Path, tests: Path) -> set[str]:
    """Return the folders of tests that are called like no package, and hold tests all the same."""
    return {
        str(p.parent.relative_to(tests))
        for p in tests.rglob("test_*.py")
        if not (source / p.parent.relative_to(tests)).is_dir()
    }


def test_every_module_has_its_own_test() -> None:
    found = untested(ROOT / "src" / "apiece", ROOT / "tests")
    assert not found, "write tests/PACKAGE/test_MODULE.py for these"


def test_other_folders_of_tests_are_these() -> None:
    """Properties of everything, comparisons with others, and what needs many runs."""
    assert strangers(ROOT / "src" / "apiece", ROOT / "tests") == {
        "faults",
        "laws",
        "neighbours",
        "reference",
        "statistical",
    }


def test_a_module_without_a_test_is_seen(tmp_path: Path) -> None:
    for name in ("src/a/one.py", "src/a/_two.py", "src/a/__init__.py", "tests/a/test_one.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert untested(tmp_path / "src", tmp_path / "tests") == {"a/_two"}
    (tmp_path / "tests/a/test_two.py").touch()
    assert untested(tmp_path / "src", tmp_path / "tests") == set()
    assert strangers(tmp_path / "src", tmp_path / "tests") == set()
    (tmp_path / "tests/b").mkdir()
    (tmp_path / "tests/b/test_x.py").touch()
    assert strangers(tmp_path / "src", tmp_path / "tests") == {"b"}
