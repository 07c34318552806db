"""The main job: what is in the folder at each moment, and what is charged before it is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apiece.errors import DataError, InputError
from apiece.jobs import Run, load_model, prepare, run, running
from apiece.jobs.prepared import Prepared, prepare_again
from apiece.ledger import Ledger

from .small import SIZE, job

FINISHED = {"config.toml", "log.jsonl", "metrics.json", "model.pt", "plan.json", "statement.json"}


def done(prepared: Prepared, out: Path) -> Run:
    return run(prepared, out=out)


def weights(out: Path) -> list[torch.Tensor]:
    return list(load_model(out / "model.pt").network.state_dict().values())


def events(out: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (out / "log.jsonl").read_text().splitlines()]


def test_a_run_fills_its_folder_and_tells_every_step(tmp_path: Path) -> None:
    out, seen = tmp_path / "run", list[tuple[str, int, int, int]]()
    prepared = prepare(job(tmp_path, strategies=["scale", "uniform"]), out=out)
    threads = torch.get_num_threads()
    found = run(prepared, out=out, progress=lambda *told: seen.append(told))
    assert torch.get_num_threads() == threads
    assert seen == [(name, 0, step, 3) for name in ("scale", "uniform") for step in (1, 2, 3)]
    assert {path.name for path in out.iterdir()} == FINISHED
    assert events(out)[0] == "planned"
    assert events(out)[-1] == "finished"
    assert found.models == 2
    assert Run.load(out).to_json() == found.to_json()
    with pytest.raises(DataError, match="is left untouched"):
        done(prepared, out)


@pytest.mark.parametrize("change", [{}, {"person": "who", "hidden": [4]}])
def test_a_run_that_was_stopped_goes_on_to_the_same_model(
    change: dict[str, Any], tmp_path: Path
) -> None:
    one = job(tmp_path, **change)
    done(prepare(one, out=tmp_path / "whole"), tmp_path / "whole")
    out = tmp_path / "run"

    def stop(_: str, __: int, step: int, ___: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(prepare(one, out=out), out=out, progress=stop)
    assert events(out)[-1] == "interrupted"
    begun = {"checkpoints", "config.toml", "log.jsonl", "plan.json"}
    assert {path.name for path in out.iterdir()} == begun
    again = prepare_again(out)
    assert again.resumed
    done(again, out)
    assert {path.name for path in out.iterdir()} == FINISHED
    for left, right in zip(weights(out), weights(tmp_path / "whole"), strict=True):
        assert torch.equal(left, right)


def test_everyone_is_charged_before_a_step_and_a_model_is_released_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, out = f"sqlite:///{tmp_path}/p.db", tmp_path / "run"
    ledger = Ledger.open(url)
    ledger.enroll([f"p{i:02d}" for i in range(SIZE)], 900.0, 1e-4)
    one = job(tmp_path, ids="who", seed=None, ledger=url, analysis="m")
    at_the_first_step, at_each_write = list[str](), dict[str, str]()
    write = running.RunFolder.write

    def noted(self: running.RunFolder, name: str, content: str | bytes) -> None:
        at_each_write[name] = ledger.status("m")
        write(self, name, content)

    monkeypatch.setattr(running.RunFolder, "write", noted)
    run(
        prepare(one, out=out),
        out=out,
        progress=lambda *_: at_the_first_step.append(ledger.status("m")),
    )
    assert at_the_first_step == ["reserved"] * 3
    kept = {name for name, status in at_each_write.items() if status == "committed"}
    assert kept == {"model.pt", "statement.json", "metrics.json"}
    spent = ledger.spent([f"p{i:02d}" for i in range(SIZE)])
    assert (spent > 0).tolist() == (np.arange(SIZE) % 4 > 0).tolist()


def test_a_ledger_of_numbers_wants_numbers(tmp_path: Path) -> None:
    url, out = f"sqlite:///{tmp_path}/p.db", tmp_path / "run"
    Ledger.open(url).enroll(np.arange(SIZE), 40.0, 1e-4)
    one = job(tmp_path, ids="who", seed=None, ledger=url, analysis="m")
    with pytest.raises(InputError, match="but this ledger's ids are"):
        done(prepare(one, out=out), out)
    assert not out.exists()
