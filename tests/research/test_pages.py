"""The page is what the stored results give, and nothing else."""

from pathlib import Path

import pytest

from apiece.errors import DataError
from research import EXPERIMENTS, RESULTS
from research.experiment import Outcome
from research.guide import fill_guide
from research.page import HEAD, describe_state, format_section
from research.registry import find_experiments, load_experiment
from research.store import Store
from sample_experiments import folder

ROOT = Path(__file__).parents[2]


def test_a_section_has_tables_notes_and_where_they_come_from(tmp_path: Path) -> None:
    experiment = load_experiment(folder(tmp_path) / "experiments", "half-a-number")
    done = [Outcome({"seed": 1}, 0.5, 30.0, "a machine", "2026-01-02"),
            Outcome({"seed": 2}, 1.0, None, "a machine", "2026-01-03")]  # fmt: skip
    text = format_section(experiment, done)
    assert "## Nobody: Table 0" in text
    assert "`python -m research half-a-number`: 2 units, 0.5 minutes in all of 1 of them, " in text
    assert "2026-01-02 to 2026-01-03, on: a machine." in text
    assert "| 2 | 1.0 |" in text
    assert "2 halves." in text
    assert "not run (nothing)" in format_section(experiment, [])
    assert describe_state([]) == "not run"


def test_the_page_of_the_repository_is_what_its_results_give() -> None:
    store = Store(RESULTS)
    results = [
        (load_experiment(EXPERIMENTS, n), store.load(n)) for n in find_experiments(EXPERIMENTS)
    ]
    written = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
    page = HEAD + "".join(format_section(*each) for each in results)
    assert written == page, "run: python -m research --page"


def test_the_guide_lists_what_is_declared() -> None:
    guide = (ROOT / "research" / "README.md").read_text(encoding="utf-8")
    assert guide == fill_guide(guide, EXPERIMENTS, Store(RESULTS)), "run: python -m research --page"
    with pytest.raises(DataError, match="tables"):
        fill_guide("# Research\n", EXPERIMENTS, Store(RESULTS))
