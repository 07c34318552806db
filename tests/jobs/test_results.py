"""Run.load: a folder as `apiece train` wrote it, and no other; nothing that follows is believed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.errors import ApieceError, DataError, InputError, StateError
from apiece.jobs import Run, job_from_dict, prepare, run
from sample_tables import X_AND_Y as SCHEMA

# What follows from nothing else in the folder: a name, a figure, a clock;
UNCHECKED = {"apiece", "name", "seconds", "test_accuracy", "commonest_class_share", "label"}
UNCHECKED |= {"classes", "schema", "features", "source", "test_records", "notes"}
# … and, of a strategy whose model is not kept, how its plan came about.
UNCHECKED |= {"strategy", "saturated"}
# … and when it was done, with what, on which bytes, how well, by which declared columns.
UNCHECKED |= {"finished", "t.csv", "kind", "lower", "upper", "scale", "missing"}
UNCHECKED |= {"value", "by_class", "confusion", "by_group", "curve"}
UNCHECKED |= {"python", "numpy", "scipy", "torch"}


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
    return out, run(prepare(job, out=out), out=out, watch=lambda *_: None)


@pytest.fixture
def folder(made: tuple[Path, Run], tmp_path: Path) -> Path:
    """A copy of the folder that a test may spoil."""
    for name in ("metrics.json", "plan.json", "config.toml"):
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


def refused(folder: Path, leaf: tuple[Any, ...]) -> bool:
    """Return whether a folder is refused when one leaf of its metrics is another."""
    path = folder / "metrics.json"
    whole = path.read_text()
    at = spoiled = json.loads(whole)
    for key in leaf[:-1]:
        at = at[key]
    at[leaf[-1]] = changed(at[leaf[-1]])
    path.write_text(json.dumps(spoiled))
    try:
        Run.load(folder)
    except ApieceError as error:
        return "\n" not in str(error)
    finally:
        path.write_text(whole)
    return False


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


@pytest.mark.slow
def test_every_figure_that_can_be_checked_is(folder: Path) -> None:
    """Each leaf of metrics.json is changed in turn: refused, or it is one of those named."""
    every = leaves(json.loads((folder / "metrics.json").read_text()))
    believed = {
        next(key for key in reversed(leaf) if isinstance(key, str))
        for leaf in every
        if not refused(folder, leaf)
    }
    assert believed <= UNCHECKED


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
