"""Jobs with correlated noise: their file, plan, statement, ledger and resumption."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from apiece.errors import InputError, UnsupportedError
from apiece.jobs import prepare, run
from apiece.jobs.config import job_from_dict
from apiece.jobs.prepared import prepare_again
from apiece.jobs.results import statement_of
from apiece.ledger import Ledger
from apiece.reporting import report
from tests.jobs.small import SIZE, job

# Of 45 people in training: four passes of five steps.
SHAPE: dict[str, Any] = {"steps": 20, "batch_size": 9}


def test_its_settings_survive_the_file() -> None:
    changes = {
        "source": "t.csv",
        "epsilon": "e",
        "noise": "correlated",
        "separation": 4,
        "bands": 3,
    }
    one = job_from_dict({}, name="x", changes=changes)
    assert one.training.strategy == "scale"
    text = tomli_w.dumps(one.to_dict())
    assert job_from_dict(tomllib.loads(text), name="x", changes={}) == one
    # What says nothing of noise is written as it was.
    plain = job_from_dict({}, name="x", changes={"source": "t.csv", "epsilon": "e"})
    assert "noise" not in plain.to_dict()["training"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise": "corelated"}, "did you mean 'correlated'"),
        ({"bands": 3}, "is of correlated noise"),
        ({"noise": "independent", "separation": 3}, "is of correlated noise"),
        ({"noise": "correlated", "bands": 3, "buffers": 2}, "bands, buffers"),
        ({"noise": "cyclic", "buffers": 2}, "buffers"),
        ({"noise": "correlated", "noise_schedule": {"points": [[0, 1]], "between": "hold"}},
         "noise_schedule"),
        ({"noise": "correlated", "method": "pate", "teachers": 9, "public_share": 0.5}, "DP-SGD"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        job_from_dict({}, name="x", changes={"source": "t.csv", "epsilon": "e", **changes})


def test_a_search_is_refused() -> None:
    data = {"search": {"space": {"steps": [5, 9]}}}
    changes = {"source": "t.csv", "epsilon": "e", "noise": "correlated"}
    with pytest.raises(InputError, match="with a search leave it out"):
        job_from_dict(data, name="x", changes=changes)


def test_its_plan_is_made_for_its_optimizer(tmp_path: Path) -> None:
    plain = job(tmp_path, noise="correlated", **SHAPE)
    heavy = job(tmp_path, noise="correlated", momentum=0.9, **SHAPE)
    falling = job(
        tmp_path,
        noise="correlated",
        learning_rate_schedule={"points": [[0, 1.0], [20, 0.0]]},
        **SHAPE,
    )
    plans = [prepare(one, out=tmp_path / "run").plans["scale"] for one in (plain, heavy, falling)]
    matrices = {plan.stages[0].correlated for plan in plans}
    assert len(matrices) == 3
    assert plans[0].stages[0].correlated.separation == 5
    with pytest.raises(UnsupportedError, match="sampling"):
        prepare(job(tmp_path, noise="correlated", **SHAPE, strategy="sample"), out=tmp_path / "run")


@pytest.mark.parametrize("noise", ["correlated", "cyclic"])
def test_what_is_said_of_it(tmp_path: Path, noise: str) -> None:
    more = {"separation": 2} if noise == "cyclic" else {}
    done = run(
        prepare(job(tmp_path, noise=noise, **SHAPE, **more), out=tmp_path / "run"),
        out=tmp_path / "run",
    )
    statement = statement_of(done)
    page = report(done, edition="public").html
    words = {"correlated": "fixed beforehand", "cyclic": "by turns"}[noise]
    assert words in statement["mechanism"]["sampling"]
    assert any("leaves its steps empty" in line for line in statement["assumptions"])
    assert "Poisson" not in statement["mechanism"]["sampling"]
    assert "Poisson samples" not in page
    assert "left out, with their slots empty" in page


def test_it_resumes_and_its_ledger_is_charged_the_gaussian_alone(tmp_path: Path) -> None:
    url, out = f"sqlite:///{tmp_path}/p.db", tmp_path / "run"
    ids = [f"p{i:02d}" for i in range(SIZE)]
    ledger = Ledger.open(url)
    ledger.enroll(ids, np.where(np.arange(SIZE) % 2, 2.0, 8.0), 1e-3, slack=0.0)
    one = job(tmp_path, ids="who", seed=None, ledger=url, analysis="m", noise="correlated", **SHAPE)
    taken: list[int] = []

    def stop(*_: object) -> None:
        taken.append(1)
        if len(taken) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(prepare(one, out=out), out=out, progress=stop)
    again = prepare_again(out)
    assert again.resumed
    run(again, out=out)
    assert ledger.status("m") == "committed"
    # Who is in training paid all of the promise, and no more: nothing is left to a millionth.
    paid = np.arange(SIZE) % 4 > 0
    left = ledger.remaining(ids)[paid]
    whole = ledger.remaining(ids)[~paid]
    assert (ledger.spent(ids)[~paid] == 0).all()
    assert (left >= 0).all()
    assert left.max() < 1e-3 * whole.max()
    assert (ledger.remaining_slack(ids) == 0).all()
