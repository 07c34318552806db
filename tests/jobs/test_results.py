"""Run.load: a folder as `apiece train` wrote it, and no other; nothing that follows is believed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from apiece._json import read_toml
from apiece.errors import ApieceError, DataError, InputError, StateError
from apiece.jobs import Run, load_model, prepare, read_job, results, run
from apiece.jobs.config import job_from_dict
from apiece.jobs.model import to_bytes
from apiece.jobs.results import statement_of
from apiece.jobs.statement import Bound
from sample_tables import X_AND_Y as SCHEMA


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A small comparison, and its folder."""
    folder = tmp_path_factory.mktemp("made")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.random(60), "y": random.choice(["a", "b"], 60)})
    frame.assign(e=np.where(np.arange(60) % 2, 1.0, 4.0)).to_csv(folder / "t.csv", index=False)
    (folder / "s.toml").write_text(SCHEMA)
    changes = {
        "source": str(folder / "t.csv"), "schema": str(folder / "s.toml"), "label": "y",
        "epsilon": "e", "delta": 1e-3, "steps": 2, "batch_size": 10, "seed": 3,
        "strategies": ["uniform", "scale"], "strategy": "scale",
    }  # fmt: skip
    job = job_from_dict({}, name="made", changes=changes)
    out = folder / "run"
    return out, run(prepare(job, out=out), out=out)


FILES = ("metrics.json", "plan.json", "config.toml", "statement.json", "model.pt")


@pytest.fixture
def folder(made: tuple[Path, Run], tmp_path: Path) -> Path:
    """A copy of the folder that a test may spoil."""
    for name in FILES:
        (tmp_path / name).write_bytes((made[0] / name).read_bytes())
    return tmp_path


def test_what_is_loaded_is_what_was_returned(made: tuple[Path, Run], folder: Path) -> None:
    loaded = Run.load(folder)
    assert loaded.to_dict() == made[1].to_dict()
    assert json.loads((folder / "metrics.json").read_text()) == loaded.to_dict()
    assert repr(loaded) == "Run(made: 2 models, scale kept)"
    assert loaded.totals
    assert all(not hasattr(found.plan, "ids") for found in (*loaded.strategies, made[1].kept))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        if isinstance(part, dict | list) and part:
            yield from leaves(part, (*path, key))
        else:
            yield (*path, key)


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case None:
            return 0.5
    return [0.5]


def loads(folder: Path) -> bool:
    """Return whether a folder is taken; what refuses it is one line."""
    try:
        Run.load(folder)
    except ApieceError as error:
        return "\n" in str(error)  # one line, or it counts as taken
    return True


def refused(folder: Path, leaf: tuple[Any, ...], name: str = "metrics.json") -> bool:
    """Return whether a folder is refused when one leaf of a JSON file is another."""
    path = folder / name
    whole = path.read_text()
    at = spoiled = json.loads(whole)
    for key in leaf[:-1]:
        at = at[key]
    at[leaf[-1]] = changed(at[leaf[-1]])
    path.write_text(json.dumps(spoiled))
    try:
        return not loads(folder)
    finally:
        path.write_text(whole)


@pytest.mark.parametrize(
    "leaf",
    [
        ("strategies", 1, "plan", "groups", 0, "epsilon_spent"),
        ("strategies", 1, "plan", "groups", 0, "advantage"),
        ("strategies", 0, "test_accuracy_mean"),
        ("strategies", 0, "seeds", 0),
        ("strategies", 0, "settings", "learning_rate"),
        ("all_models", "models"),
        ("all_models", "groups", 0, "epsilon_spent"),
        ("release", "fit"),
        ("release", "checks", 2, "says"),
        ("randomness", "noise"),
        ("randomness", "seed"),
        ("data", "training_records"),
        ("training", "strategy"),
        ("purpose",),
        ("levels",),
        ("tested", "by_class"),
        ("tested", "accuracy", "lower"),
    ],
    ids=str,
)
def test_a_figure_that_does_not_follow_is_refused(leaf: tuple[Any, ...], folder: Path) -> None:
    assert refused(folder, leaf)


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("metrics.json", ("name",)), ("metrics.json", ("strategies", 0, "seconds")),
        ("metrics.json", ("data", "fingerprints", "t.csv")), ("metrics.json", ("bound", "salt")),
        ("metrics.json", ("bound", "weights")), ("metrics.json", ("bound", "config")),
        ("metrics.json", ("bound", "head")), ("metrics.json", ("finished",)),
        ("metrics.json", ("strategies", 1, "test_accuracy", 0)), ("plan.json", ("notes",)),
        ("plan.json", ("groups", 0, "name")), ("statement.json", ("for_release",)),
        ("statement.json", ("bound_to", "weights")), ("statement.json", ("bound_to", "plan")),
        ("statement.json", ("bound_to", "ledger")), ("statement.json", ("digest",)),
        ("statement.json", ("mechanism", "randomness")), ("statement.json", ("purpose",)),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_computed_is_bound(name: str, leaf: tuple[Any, ...], folder: Path) -> None:
    assert refused(folder, leaf, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.json", "plan.json", "statement.json"])
def test_nothing_in_a_folder_can_be_changed(name: str, folder: Path) -> None:
    """Each leaf of each JSON file is changed in turn, and each is refused."""
    every = leaves(json.loads((folder / name).read_text()))
    assert [leaf for leaf in every if not refused(folder, leaf, name)] == []


@pytest.mark.slow
def test_no_byte_of_the_model_or_the_config_matters_and_is_changed(folder: Path) -> None:
    """A byte is another: the folder is refused, or what is loaded is the same to the bit."""
    kept, model = Run.load(folder).to_dict(), load_model(folder / "model.pt")
    random, loaded = np.random.default_rng(0), 0
    for name in ("model.pt", "config.toml"):
        whole = (folder / name).read_bytes()
        for at in random.choice(len(whole), 150, replace=len(whole) < 150).tolist():
            (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            if loads(folder):
                loaded += 1
                again = load_model(folder / "model.pt")
                assert Run.load(folder).to_dict() == kept
                assert again.statement == model.statement
                assert again.columns == model.columns
                state = again.network.state_dict()
                assert all(map(torch.equal, state.values(), model.network.state_dict().values()))
        (folder / name).write_bytes(whole)
    assert loaded  # the zeros between the parts of an archive


def test_what_is_not_read_may_differ(folder: Path) -> None:
    """Spaces, the order of names, comments, the log and the page change nothing that is loaded."""
    kept = Run.load(folder).to_dict()
    for name in ("metrics.json", "plan.json", "statement.json"):
        stored = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(stored, sort_keys=True))
    with (folder / "config.toml").open("a") as file:
        file.write("# a remark\n")
    for name in ("log.jsonl", "report.html"):
        (folder / name).write_text("anything")
    assert Run.load(folder).to_dict() == kept


def forged(folder: Path, how: str) -> Run:
    """Make a release of an experiment: no seed in config and metrics, and what else `how` says."""
    config = (folder / "config.toml").read_text()
    found = Run.load(folder)
    (folder / "config.toml").write_text(config.replace("seed = 3\n", ""))
    strategies = tuple(replace(each, seeds=None) for each in found.strategies)
    found = replace(found, seed=None, strategies=strategies)
    if how in ("salt and statement", "all anew"):
        model = load_model(folder / "model.pt")
        stored = read_toml(folder / "config.toml", "config")
        found = replace(found, bound=Bound.of(model.network.state_dict(), stored, None, None))
    (folder / "metrics.json").write_text(found.to_json())
    if how != "two files":
        (folder / "statement.json").write_text(json.dumps(statement_of(found)))
    if how == "all anew":
        again = replace(model, statement=statement_of(found))
        (folder / "model.pt").write_bytes(to_bytes(again))
    return found


@pytest.mark.parametrize("how", ["two files", "statement", "salt and statement"])
def test_an_experiment_does_not_become_a_release(
    how: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert forged(folder, how).release.checks[1].verdict == "yes"
    with pytest.raises(DataError):
        Run.load(folder)
    monkeypatch.setattr(results, "_require_bound", lambda *_: None)
    assert Run.load(folder).seed is None  # nothing else would have seen it


def test_who_writes_everything_anew_is_its_author(folder: Path) -> None:
    """Without a signature nothing shows that: the statement says so."""
    forged(folder, "all anew")
    assert Run.load(folder).seed is None
    said = json.loads((folder / "statement.json").read_text())
    assert said["for_release"]
    assert "its author's word" in said["bound_to"]["signature"]


OF_ANOTHER = (
    ("model.pt", "statement.json"), ("model.pt",),
    ("metrics.json", "config.toml", "plan.json"), ("statement.json",),
    ("metrics.json", "config.toml", "plan.json", "statement.json"), ("metrics.json",),
    ("metrics.json", "config.toml"),
)  # fmt: skip


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_another_run_s_model_plan_or_statement_is_refused(
    first: int, folder: Path, made: tuple[Path, Run], tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = replace(read_job(made[0] / "config.toml"), name="made")
    other = tmp_path_factory.mktemp("other") / "run"
    job = replace(job, run=replace(job.run, seed=4))
    run(prepare(job, out=other), out=other)
    assert loads(other)
    for names in OF_ANOTHER[first::2]:
        before = {name: (folder / name).read_bytes() for name in names}
        for name in names:
            (folder / name).write_bytes((other / name).read_bytes())
        assert not loads(folder), names
        for name, content in before.items():
            (folder / name).write_bytes(content)
    assert loads(folder)
    (folder / "model.pt").unlink()
    assert not loads(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("metrics.json", b"", "not JSON"),
        ("metrics.json", b"{}", "is missing"),
        ("metrics.json", b"[1]", "must be an object"),
        ("metrics.json", b"\xff\xfe", "not JSON"),
        ("metrics.json", b'{"apiece": NaN}', "NaN"),
        ("plan.json", b"{}", "plan.json"),
        ("plan.json", None, "plan.json: cannot be read"),
        ("config.toml", b"[data]\n", "none given"),
        ("config.toml", None, "config.toml: cannot be read"),
        ("metrics.json", None, "is no run folder"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    name: str, content: bytes | None, words: str, folder: Path
) -> None:
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        Run.load(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 3", "seed = 4"),
        ("steps = 2", "steps = 3"),
        ('strategy = "scale"', 'strategy = "uniform"'),
        ("batch_size = 10.0", "batch_size = 11.0"),
        ('"uniform",', '"uniform", "sample",'),
    ],
)
def test_another_job_s_config_is_refused(old: str, new: str, folder: Path) -> None:
    text = (folder / "config.toml").read_text()
    assert old in text
    (folder / "config.toml").write_text(text.replace(old, new))
    with pytest.raises(DataError, match=r"config\.toml: .* beside it has"):
        Run.load(folder)


def test_a_foreign_or_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no run folder, it has no metrics\.json"):
        Run.load(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(StateError, match="was interrupted; finish it with apiece train --resume"):
        Run.load(tmp_path)
