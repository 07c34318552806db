"""Papers completed after a training: what the steward says changes, and nothing else of a run."""

import shutil
from dataclasses import replace
from pathlib import Path

import tomli_w

from apiece import _json
from apiece.jobs import Run, statement_of
from apiece.jobs.config import read_words
from apiece.jobs.model import restated
from apiece.jobs.prepared import RunFolder
from apiece.jobs.results import COMPLETED, CONFIG, METRICS, MODEL, REPORT, STATEMENT
from apiece.jobs.statement import as_text, config_digest
from apiece.reporting.pages import report


def complete_papers(folder: str | Path, **said: str) -> Run:
    """Return the run in a folder, after all its papers say this too."""
    # statement.json, the statement in model.pt, metrics.json, config.toml and report.html are made
    # anew with these words. Weights, plan, promises and figures stay to the bit, and so does what a
    # ledger holds of the model. What was given away before keeps its own words and stays valid. An
    # interruption leaves the old papers or all that is needed for the new ones, which the next call
    # then finishes.
    # said: purpose, controller, contact, and valid_until from today on; the others stay. Nothing is
    # read but the folder, and only declared words differ. Raises as `Run.load` and `read_words`.
    folder = Path(folder)
    _finish(folder)
    run = Run.load(folder)
    if not said:
        return run
    words = read_words(said)
    new: dict[str, str | bytes] = {}
    if run.estimator is None:
        config = _json.read_toml(folder / CONFIG, "config")
        config["run"] = config.get("run", {}) | words
        new[CONFIG] = tomli_w.dumps(config)
        run = replace(run, bound=run.bound and replace(run.bound, config=config_digest(config)))
    run = replace(run, **words)  # type: ignore[arg-type]
    told = statement_of(run)
    new[METRICS] = run.to_json(indent=2) + "\n"
    new[STATEMENT] = as_text(told)
    new[REPORT] = report(run).html
    new[MODEL] = restated(folder / MODEL, told)
    staged = RunFolder(folder / "papers.new")
    for name, content in new.items():
        staged.write(name, content)
    staged.path.rename(folder / COMPLETED)  # from here on they are the papers
    _finish(folder)
    return run


def _finish(folder: Path) -> None:
    """Put papers that were made whole into their places, if there are any."""
    made = folder / COMPLETED
    if made.is_dir():
        for path in made.iterdir():
            RunFolder(folder).write(path.name, path.read_bytes())
        shutil.rmtree(made)
