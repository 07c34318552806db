"""A day in the life of a small ledger, the harness of adversarial askers, and its table."""

import json
from pathlib import Path

import numpy as np
import pytest

from apiece.ledger import codec
from research.benchmarks import depletion, ledger_day

ROOT = Path(__file__).parents[2]


def test_a_day_in_the_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From consents on: askers, two trainings, withdrawals; what was begun is gone on with."""
    day, url = ledger_day, f"sqlite:///{tmp_path}/p.db"
    monkeypatch.setattr(day, "STEPS", 10)
    (tmp_path / "consents.csv").write_text("".join(day.consents(codec.BLOCK + 400)))
    draw, left = day.PlannedSampler.draw, [STOP]

    def killed(self, step, streams):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self, step, streams)

    with monkeypatch.context() as broken:
        broken.setattr(day.PlannedSampler, "draw", killed)
        with pytest.raises(KeyboardInterrupt):
            day.live(url, tmp_path)
    day.live(url, tmp_path)
    assert day.faults(url, tmp_path, receipts=2) == []
    people = day.enrolled(tmp_path)  # planted
    assert codec.BLOCK < people["ids"].size < codec.BLOCK + 400
    bad = np.flatnonzero(~people["training"])[0], day.leaves_of(people["ids"].size)[0][0]
    for step, who in zip((8, 9), bad, strict=True):
        (place,) = tmp_path.glob(f"model 2 {step}.npy")
        np.save(place, np.append(np.load(place), who))
    assert list(day.drawn_faults(tmp_path, people)) == [
        f"model 2, step {step}: somebody who withdrew or permits it not was drawn"
        for step in (8, 9)
    ]
    monkeypatch.setattr(day, "QUOTA", 0.01)
    said = day.charged_faults(day.Ledger.open(url), {**people, "statistics": people["training"]})
    assert {each.partition(": ")[2] for each in said} == {
        "somebody is over its quota",
        "somebody who withdrew or permits it not was charged",
        "the honest asker did not get its share",
    }


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
    found = depletion
    monkeypatch.setattr(found, "ROUNDS", 5)
    kept = found.kept(found.POLICIES[policy], getattr(found, adversary))
    assert least <= kept <= most


def test_the_table_in_the_guide_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "research/results/depletion.json").read_text())
    guide = (ROOT / "docs/ledger.md").read_text()
    for policy, row in stored.items():
        assert f"| {policy} | {' | '.join(f'{share:.0%}' for share in row.values())} |" in guide
