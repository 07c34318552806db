"""A day in the life of a small ledger, the harness of adversarial askers, and its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from apiece.ledger import codec
from sample_experiments import module

ROOT = Path(__file__).parents[2]


def test_a_day_in_the_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten askers, two trainings, withdrawals; what was begun is gone on with."""
    day, people = module("benchmarks/ledger_day.py"), codec.BLOCK + 30
    url = f"sqlite:///{tmp_path}/p.db"
    monkeypatch.setattr(day, "STEPS", 10)
    day.Ledger.make(url, np.arange(people), np.array([1.0, 3.0, 8.0])[np.arange(people) % 3], 1e-6
                    ).set_policy(day.POLICY)  # fmt: skip
    draw, left = day.PlannedSampler.draw, [STOP]

    def killed(self, step, streams):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self, step, streams)

    with monkeypatch.context() as broken:
        broken.setattr(day.PlannedSampler, "draw", killed)
        with pytest.raises(KeyboardInterrupt):
            day.live(url, people, tmp_path)
    day.live(url, people, tmp_path)
    assert day.faults(url, people, tmp_path) == []
    (place,) = tmp_path.glob("model 2 9.npy")
    np.save(place, np.append(np.load(place), day.leaves_of(people)[0][0]))  # planted
    assert day.faults(url, people, tmp_path) == [
        "model 2, step 9: somebody who withdrew was drawn"]  # fmt: skip


STOP = 8  # draws before the kill, after the first have left


@pytest.mark.parametrize(
    ("policy", "adversary", "least", "most"),
    [
        ("no policy", "hungry", 0, 0),
        ("each asker a quota", "colluding", 0, 0.9),
        ("a sure share", "colluding", 1, 1),
        ("a sure share", "sybil", 1, 1),
    ],
)
def test_what_an_honest_asker_keeps(
    policy: str, adversary: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = module("benchmarks/depletion.py")
    monkeypatch.setattr(found, "ROUNDS", 5)
    kept = found.kept(found.POLICIES[policy], getattr(found, adversary))
    assert least <= kept <= most


def test_the_table_in_the_guide_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "benchmarks/results/depletion.json").read_text())
    guide = (ROOT / "docs/ledger.md").read_text()
    for policy, row in stored.items():
        assert f"| {policy} | {' | '.join(f'{share:.0%}' for share in row.values())} |" in guide
