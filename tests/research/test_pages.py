"""The page is what the stored results give, and nothing else."""

from pathlib import Path

from research import EXPERIMENTS, RESULTS
from research.experiment import Done
from research.page import HEAD, section, state
from research.registry import find, load
from research.store import Store
from sample_experiments import folder

ROOT = Path(__file__).parents[2]


def test_a_section_has_tables_notes_and_where_they_come_from(tmp_path: Path) -> None:
    experiment = load(folder(tmp_path) / "experiments", "half-a-number")
    done = [Done({"seed": 1}, 0.5, 30.0, "a machine", "2026-01-02"),
            Done({"seed": 2}, 1.0, None, "a machine", "2026-01-03")]  # fmt: skip
    text = section(experiment, done)
    assert "## Nobody: Table 0" in text
    assert "`python -m research half-a-number`: 2 units, 0.5 minutes in all of 1 of them, " in text
    assert "2026-01-02 to 2026-01-03, on: a machine." in text
    assert "| 2 | 1.0 |" in text
    assert "2 halves." in text
    assert "not run (nothing)" in section(experiment, [])
    assert state([], "no data") == "not run; no data"


def test_the_page_of_the_repository_is_what_its_results_give() -> None:
    store = Store(RESULTS)
    results = [(load(EXPERIMENTS, n), store.load(n)) for n in find(EXPERIMENTS)]
    written = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
    page = HEAD + "".join(section(*each) for each in results)
    assert written == page, "run: python -m research --page"
