"""A search of a job: the best of a random number of runs, gone on with after any kill."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apiece.errors import DataError, InputError, StateError
from apiece.jobs import Run, load_model, prepare, run
from apiece.jobs.prepared import prepare_again
from apiece.jobs.results import statement_of
from apiece.jobs.search import Range, Search
from apiece.ledger import Ledger
from apiece.training.checkpoints import CheckpointFolder
from apiece.training.randomness import Streams

from .small import SIZE, job, table

FINISHED = {"config.toml", "log.jsonl", "metrics.json", "model.pt", "plan.json", "statement.json"}
SPACE = {"learning_rate": {"log_uniform": [1e-3, 2.0]}, "steps": [2, 4]}
SEARCH: dict[str, Any] = {"space": SPACE, "runs": 6, "batch_size": 30, "seed": 9}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_model(out / "model.pt").network.state_dict()


def searched(one: Any, out: Path, stop: int | None = None) -> Run:
    """Run a job that is interrupted at the given step of all, where one is; else to its end."""
    seen = 0

    def watch(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == stop:
            raise KeyboardInterrupt

    prepared = prepare_again(out) if one is None else prepare(one, out=out)
    return run(prepared, out=out, progress=watch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """The folder of a search without a pause, and its run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, searched(job(folder, **SEARCH), folder / "run")


def test_the_winner_alone_is_kept_with_papers_that_tell_nothing_of_the_others(
    whole: tuple[Path, Run],
) -> None:
    out, found = whole[0] / "run", whole[1]
    assert {path.name for path in out.iterdir()} == FINISHED
    assert Run.load(out).to_json() == found.to_json()
    plan, settings = found.kept.plan, found.kept.settings
    assert plan.verify().ok
    assert plan.selection is not None
    assert plan.selection.runs.mean == 6
    assert (plan.steps, len(plan.selection.others)) == (settings["steps"], 1)
    assert found.models == 1
    assert found.kept.seconds == 0.0
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["seconds"]) for line in log] == [
        ("planned", None), ("finished", None),
    ]  # fmt: skip
    said = statement_of(found)
    assert "6 on average; the promise holds with the choosing inside" in said["guarantee"]["of"]
    changed = json.loads((out / "metrics.json").read_text())
    changed["strategies"][0]["settings"]["learning_rate"] = 3.0  # beyond what was searched
    (out / "metrics.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="settings of scale"):
        Run.load(out)


@pytest.mark.parametrize(
    "stop", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(12, marks=pytest.mark.slow)]
)
def test_a_search_that_was_stopped_goes_on_with_the_same_draws(
    stop: int, whole: tuple[Path, Run], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        searched(job(tmp_path, **SEARCH), out, stop)
    left = {path.name for path in (out / "checkpoints").iterdir()}
    assert {"job.json", "search"} < left
    assert len([name for name in left if name.startswith("run-")]) == 1  # the present one
    assert (out / "checkpoints").stat().st_mode & 0o077 == 0
    again = searched(None, out)
    assert {path.name for path in out.iterdir()} == FINISHED
    assert again.kept.settings == whole[1].kept.settings
    expected = weights(whole[0] / "run")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(out).items())


@pytest.mark.slow
def test_a_kill_after_any_note_of_a_run_changes_nothing(
    whole: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each note of a search, again and again."""
    out, save, kills = tmp_path / "run", CheckpointFolder.save, 0

    def killed(self: CheckpointFolder, state: Any, key: bytes) -> None:
        nonlocal kills
        if self.path.name != "search":
            return save(self, state, key)
        kills += 1
        if kills % 3 == 1:
            raise KeyboardInterrupt  # the run is lost
        save(self, state, key)
        if kills % 3 == 2:
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr(CheckpointFolder, "save", killed)
    found, one = None, job(tmp_path, **SEARCH)
    while found is None:
        assert kills < 100
        try:
            found = searched(one if kills == 0 else None, out)
        except KeyboardInterrupt:
            assert not (out / "model.pt").exists()
    assert kills > 3
    assert found.kept.settings == whole[1].kept.settings
    expected = weights(whole[0] / "run")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(out).items())


def test_a_release_is_charged_once_whatever_is_killed_and_never_ends_twice(tmp_path: Path) -> None:
    url, out = f"sqlite:///{tmp_path}/p.db", tmp_path / "run"
    ledger = Ledger.open(url)
    ids = [f"p{i:02d}" for i in range(SIZE)]
    ledger.enroll(ids, 900.0, 1e-2)
    one = job(tmp_path, **SEARCH | {"seed": None}, ids="who", ledger=url, analysis="m")
    with pytest.raises(KeyboardInterrupt):
        searched(one, out, 1)
    spent = ledger.spent(ids)
    key = (out / "checkpoints" / "search" / "key").read_bytes()
    shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(KeyboardInterrupt):
        searched(None, out, 1)
    assert (out / "checkpoints" / "search" / "key").read_bytes() == key
    found = searched(None, out)
    assert ledger.spent(ids).tolist() == spent.tolist()
    assert ledger.status("m") == "committed"
    assert Run.load(out).kept.plan.to_dict() == found.kept.plan.to_dict()
    assert found.release.checks[0].verdict != "no"
    with pytest.raises(StateError, match="is a copy"):
        searched(None, tmp_path / "copy")


def test_public_rows_score_at_no_cost(tmp_path: Path) -> None:
    table()[["age", "answer"]].to_csv(tmp_path / "public.csv", index=False)
    asked = SEARCH | {"validation": str(tmp_path / "public.csv")}
    found = searched(job(tmp_path, **asked), tmp_path / "run")
    plan = found.kept.plan
    assert plan.selection is not None
    assert plan.selection.score_noise is None
    assert plan.verify().ok
    scored = replace(plan, selection=replace(plan.selection, score_noise=6.0))
    assert (scored.epsilon_spent > plan.epsilon_spent).all()
    dear = prepare(job(tmp_path, **SEARCH), out=tmp_path / "dear").candidates
    assert dear is not None
    assert plan.noise_stddev <= dear.plan(found.kept.settings).noise_stddev
    with pytest.raises(InputError, match="score_noise"):
        job(tmp_path, **asked, score_noise=5.0)


def test_the_best_by_score_wins_and_noise_is_the_plans(tmp_path: Path) -> None:
    """Forty searches: never a lesser one wins, and in many the best is neither first nor last."""
    rates = SEARCH | {"space": {"learning_rate": [0.5, 1.0, 2.0]}, "score_noise": 30.0}
    planned = prepare(job(tmp_path, **rates), out=tmp_path / "run").candidates
    assert planned is not None
    assert planned.first.selection is not None
    assert planned.score_noise == planned.first.selection.score_noise == 30.0
    candidates = replace(planned, score_noise=0.5)
    trained, told, noise = list[tuple[int, float]](), list[Any](), list[float]()

    def train(_: object, settings: dict[str, Any], number: int) -> tuple[int, float]:
        trained.append((number, settings["learning_rate"]))
        return trained[-1]

    def right(model: tuple[int, float]) -> Any:
        return np.full(45, model[1] / 2)

    inside = 0
    for seed in range(40):
        trained.clear()
        told.clear()
        save = lambda done, best: told.append((done, best.score, best.model))  # noqa: E731
        best = candidates.find_best(train, right, Streams.from_seed(seed), save=save)
        most = max(rate for _, rate in trained)
        assert best.model[1] == best.settings["learning_rate"] == most
        assert best.model in trained
        assert [done for done, *_ in told] == list(range(1, len(trained) + 1))
        assert [number for number, _ in trained] == list(range(len(trained)))
        assert told[-1][1:] == (best.score, best.model)
        assert all(before[1] <= after[1] for before, after in itertools.pairwise(told))
        inside += trained[0][1] < most > trained[-1][1]
        noise.append((told[0][1] - 45 * told[0][2][1] / 2) / 0.5)
    assert inside >= 5
    assert abs(np.mean(noise)) < 0.6  # nearly 4 standard errors
    assert 0.6 < np.std(noise) < 1.5


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"learning_rate": {"log_uniform": [1, 0.1]}}, "must rise"),
        ({"learning_rate": {"log": [0.1, 1]}}, "or a range"),
        ({"learning_rate": {"uniform": [0.1]}}, "two ends"),
        ({"clip_norm": {"uniform": [0.5, 2]}}, "say how many"),
        ({"steps": {"integers": [1, 200]}}, "combinations"),
        ({"steps": {"integers": [10, 20.5]}}, "whole number"),
        ({"momentum": [0.5]}, "setting of a search"),
        ({}, "give settings"),
    ],
)
def test_bad_spaces_are_refused(space: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        Search(space)
    with pytest.raises(InputError, match=said):
        job(tmp_path, space=space)


def test_spaces_are_read_and_drawn() -> None:
    search = Search(
        {
            "steps": {"integers": [100, 300], "count": 3},
            "clip_norm": {"log_uniform": [0.5, 2.0], "count": 3},
            "learning_rate": {"log_uniform": [0.01, 1.0]},
        },
        {"mean": 40, "law": "poisson"},
    )
    assert search.values["steps"] == (100, 200, 300)
    assert search.values["clip_norm"] == pytest.approx((0.5, 1.0, 2.0))
    assert search.values["learning_rate"] == Range(0.01, 1.0, True)
    assert search.runs.shape is None
    own = {"steps": 1, "batch_size": 5.0, "clip_norm": 1.0, "learning_rate": 1.0}
    assert len(search.kinds(own)) == 9
    drawn = search.draw(lambda: 0.5, own)
    expected = {"steps": 200, "batch_size": 5.0, "clip_norm": 1.0, "learning_rate": 0.1}
    assert drawn == pytest.approx(expected)
    assert search.admits(drawn)
    assert not search.admits(drawn | {"steps": 150})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"method": "pate", "strategy": "weight", "teachers": 2, "public_share": 0.5},
            "for DP-SGD",
        ),
        ({"strategies": ["scale", "uniform"]}, "chooses one model"),
        ({"seeds": 2}, "chooses one model"),
        ({"noise_schedule": {"points": [[0, 1]]}}, "is for one run"),
        ({"space": None}, "space is missing"),
        ({"runs": {"mean": 3, "law": "bernoulli"}}, "laws are"),
        ({"runs": 1}, "one run"),
    ],
)
def test_what_no_search_goes_with_is_refused(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        job(tmp_path, **(SEARCH | more))
