"""A job as a TOML file and back: old files are read, unknown keys are named, flags win."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.cli import run as main
from apiece.errors import InputError, OptionError
from apiece.jobs import Job, read_job
from apiece.jobs.config import PARTS, complete, job_from_dict
from apiece.jobs.settings import settings_of

# Files as the first releases took and wrote them.
OLD = [
    """
[data]
source = "people.csv"
label = "income"
separator = ";"
decimal = ","
encoding = "latin-1"
[budgets]
epsilon = "consent_epsilon"
delta = 1e-5
no_limit_cap = 8
[training]
strategy = "sample"
batch_size = 512
steps = 1000
learning_rate_schedule = { points = [[0, 0.1], [50, 1], [1000, 0]], between = "cosine" }
noise_schedule = { points = [[0, 2], [500, 1]], between = "hold" }
[compare]
strategies = ["uniform", "scale", "sample"]
seeds = 3
settings.uniform = { steps = 250, learning_rate = 0.5 }
[run]
out = "runs/first"
""",
    """
[data]
source = "people.csv"
split = "part"
ids = "person"
[budgets]
epsilon = "e"
delta = "d"
[run]
ledger = "sqlite:///people.db"
analysis = "income model 1"
""",
    """
[data]
source = "adult"
[budgets]
groups = [{ name = "a", epsilon = 1, share = 0.5 }, { name = "b", epsilon = 2.0, share = 0.5 }]
[training]
hidden = [8, 4]
momentum = 0.9
[run]
seed = 0
""",
]


@pytest.mark.parametrize("text", OLD, ids=range(len(OLD)))
def test_old_files_are_read_and_kept_as_they_are(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    job = read_job(path)
    given = tomllib.loads(text)
    kept = job.to_dict()
    for section, values in given.items():
        for name, value in values.items():
            assert kept[section][name] == value
    path.write_text(tomli_w.dumps(kept))
    assert read_job(path) == job
    written = tomli_w.dumps(complete(job, out=tmp_path / "run").to_dict())
    path.write_text(written)
    again = read_job(path)
    assert again.training == job.training
    assert Path(again.data.source).is_absolute() or job.data.packaged


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {"epsilon": st.text(min_size=1), "source": st.just("t.csv")},
        optional={
            "steps": st.integers(1, 10**6), "batch_size": st.floats(1e-3, 1e6),
            "hidden": st.lists(st.integers(1, 99)), "seed": st.integers(0, 2**62),
            "label": st.text(), "test_share": st.floats(0, 1, exclude_max=True),
            "seeds": st.integers(1, 9), "momentum": st.floats(0, 1, exclude_max=True),
        },
    )
)  # fmt: skip
def test_a_job_survives_its_file(changes: dict[str, Any]) -> None:
    job = job_from_dict({}, name="x", changes=changes)
    text = tomli_w.dumps(job.to_dict())
    assert job_from_dict(tomllib.loads(text), name="x", changes={}) == job


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"trainig": {}}, OptionError, "did you mean 'training'"),
        ({"training": {"batchsize": 3}}, OptionError, "did you mean 'batch_size'"),
        ({"data": {"steps": 3}}, OptionError, "key in [data]"),
        ({"training": 3}, InputError, "must be a table"),
        ({}, InputError, "data: none given"),
    ],
)
def test_a_config_that_is_none(data: Any, error: type[InputError], words: str) -> None:
    with pytest.raises(error) as caught:
        job_from_dict(data, name="x", changes={})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"strategies": ["uniform", "scale"]}, "strategy = 'sample': its model is kept"),
        ({"ledger": "sqlite:///l.db", "analysis": "m"}, "needs --ids"),
        ({"ledger": "sqlite:///l.db", "analysis": "m", "ids": "i"}, "without --split"),
        (
            {"source": "german", "ledger": "sqlite:///l.db", "analysis": "m", "ids": "i"},
            "without --split",  # this packaged table has no split of its own
        ),
    ],
)
def test_parts_that_do_not_go_together(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        job_from_dict({}, name="x", changes={"source": "t.csv", "epsilon": "e"} | more)
    assert words in str(caught.value)


def test_no_two_models_share_noise() -> None:
    changes = {"source": "t.csv", "epsilon": "e", "seed": 5, "seeds": 3}
    compared = {"strategies": ["uniform", "scale", "sample"]}
    job = job_from_dict({"compare": compared}, name="x", changes=changes)
    seeds = [seed for name in job.strategies for seed in job.seeds_of(name) or ()]
    assert len(set(seeds)) == 9
    assert (job.seeds_of("sample") or ())[0] == 5
    unseeded = job_from_dict({}, name="x", changes={"source": "t.csv", "epsilon": "e"})
    assert unseeded.seeds_of("sample") is None


def test_every_flag_is_a_setting_and_says_its_default(capsys: Any) -> None:
    assert main(["train", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, how in (each for part in PARTS.values() for each in settings_of(part)):
        flag = f"--{(how.flag or name).replace('_', '-')} "
        assert (flag in said) == (how.help is not None), name
    for words in (
        "[default: 512, or fewer",
        "[default: sample; weight",
        "[default: 0.2]",
    ):
        assert words in said
    assert isinstance(Job, type)
