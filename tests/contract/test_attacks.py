"""What others' budgets do to one record: published values, and a search that goes by its id."""

import numpy as np
import pytest

from apiece import contract
from apiece.assignment import Sample, Scale
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from refusals import refused

RUN = {"steps": 60, "expected_batch_size": 20, "clip_norm": 1.0}


def honest(size: int = 200, epsilon: float = 8.0, delta: float = 1e-6) -> Budgets:
    return Budgets(np.full(size, epsilon), delta, ids=np.arange(size) + 1000)


@pytest.mark.slow
def test_published_advantages() -> None:
    """Kaiser et al. 2026 Fig. 3: B/n = 128/50,000, 5 epochs, δ = 1e-12, the victim asks 8."""
    found = {}
    for decoy, shares in ((2.0, [0.2, 0.8]), (32.0, [0.2])):
        rows = contract.collusion(
            Budgets(np.full(5000, 8.0), 1e-12),
            17,
            epsilons=[decoy],
            shares=shares,
            strategy=Sample(),
            steps=1953,
            expected_batch_size=12.8,
            clip_norm=1.0,
            seed=0,
        )
        found |= {row.label: float(row.advantage.upper) for row in rows}
    published = {"as asked": 0.15, "20% ask 2": 0.17, "80% ask 2": 0.31, "20% ask 32": 0.06}
    assert found == pytest.approx(published, abs=0.006)


def test_manipulation_raises_the_advantage_with_sample() -> None:
    found = contract.budget_manipulation(
        honest(),
        1003,
        decoys=[4, 1],
        strategy="sample",
        **RUN,  # type: ignore[arg-type]
    )
    advantages = [e.advantage.upper for e in found]
    assert advantages == sorted(advantages)
    assert advantages[2] > advantages[0] + 0.02
    assert all(e.epsilon.upper <= 8.0 * (1 + 1e-9) for e in found)
    assert found[0].forward.upper < 1e-3 < found[1].forward.upper < found[2].forward.upper
    assert [e.to_dict()["others"] for e in found] == ["as asked", "at most 4", "at most 1"]


def test_manipulation_does_nothing_with_scale() -> None:
    found = contract.budget_manipulation(
        honest(),
        1003,
        decoys=[4, 1],
        strategy=Scale(),
        **RUN,  # type: ignore[arg-type]
    )
    for e in found:
        assert e.advantage.upper == pytest.approx(found[0].advantage.upper, abs=2e-3)
        assert e.forward.upper < 2e-3


def test_manipulation_keeps_smaller_requests() -> None:
    """A decoy above what a record asked leaves it alone: the adversary keeps every promise."""
    mixed = Budgets(np.r_[np.full(100, 1.0), np.full(100, 8.0)], 1e-6)
    found = contract.budget_manipulation(
        mixed,
        150,
        decoys=[2.0],
        strategy="sample",
        **RUN,  # type: ignore[arg-type]
    )
    groups = found[1].plan.budget_groups
    assert groups.epsilon.tolist() == [1.0, 2.0, 8.0]
    assert groups.records.tolist() == [100, 99, 1]


def test_collusion_can_also_raise_budgets_and_shelters_the_target() -> None:
    found = contract.collusion(
        honest(),
        1003,
        epsilons=[40.0],
        shares=[0.5],
        strategy="sample",
        seed=0,
        **RUN,  # type: ignore[arg-type]
    )
    assert found[1].advantage.upper < found[0].advantage.upper
    assert found[1].backward.upper > 0


def test_attack_bad_input() -> None:
    settings = {"strategy": "sample", **RUN}
    with refused(DataError, "target", 5):
        contract.budget_manipulation(honest(), 5, decoys=[1], **settings)  # type: ignore[arg-type]
    with refused(InputError, "decoy"):
        contract.budget_manipulation(honest(), 1003, decoys=[0], **settings)  # type: ignore[arg-type]
    with refused(InputError, "share"):
        contract.collusion(
            honest(),
            1003,
            epsilons=[1],
            shares=[1.5],
            seed=0,
            **settings,  # type: ignore[arg-type]
        )
    with pytest.raises(DataError, match="1 record"):
        contract.budget_manipulation(honest(1), 1000, decoys=[1], **settings)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_contract_holds_under_attack() -> None:
    """With Hybrid, the bound Δ̄ is kept whatever the others ask; with Sample it is not."""
    asked = Budgets(np.full(200, 8.0), 1e-6, excess=0.02)
    settings = {"decoys": [1.0], **RUN}
    kept = contract.budget_manipulation(asked, 3, strategy="hybrid", **settings)  # type: ignore[arg-type]
    broken = contract.budget_manipulation(asked, 3, strategy="sample", **settings)  # type: ignore[arg-type]
    assert max(e.forward.upper for e in kept) <= 0.02
    assert max(e.backward.upper for e in kept) <= 0.02
    assert broken[1].forward.lower > 0.02


@pytest.mark.slow
def test_the_target_is_named_by_its_id_wherever_it_stands() -> None:
    """The same people in another order: the same exposure, to the bit."""
    epsilon = np.linspace(2.0, 4.0, 5).repeat(8)
    names = np.array([f"p{i:02}" for i in range(40)])
    order = np.random.default_rng(0).permutation(40)
    found = []
    for places in (np.arange(40), order):
        budgets = Budgets(epsilon[places], 1e-6, ids=names[places])
        run = {"steps": 20, "expected_batch_size": 8, "decoys": [1.0]}
        found.append(contract.budget_manipulation(budgets, "p39", **run))  # type: ignore[arg-type]
    first, second = ([e.to_dict() for e in rows] for rows in found)
    assert first == second
    assert found[0][1].changed == 39
    for wrong in (39, "p40", None, "P39"):
        with pytest.raises(DataError, match="not among the ids"):
            contract.budget_manipulation(budgets, wrong, **run)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_worst_coalition_under_sample_asks_for_little() -> None:
    budgets = Budgets(np.full(200, 4.0), 1e-8)
    run = {"shares": [0.6], "steps": 100, "expected_batch_size": 10}
    rows = contract.collusion(budgets, 0, epsilons=[0.5, 2.0, 16.0], **run)  # type: ignore[arg-type]
    worst = contract.worst(rows)
    assert (worst.label, worst.changed) == ("60% ask 0.5", 119)
    assert worst.forward.upper > rows[0].forward.upper
    assert worst.advantage.upper > rows[0].advantage.upper
    none = contract.collusion(budgets, 0, epsilons=[0.5], strategy=Scale(), **run)  # type: ignore[arg-type]
    assert none[1].forward.upper == 0
    with pytest.raises(InputError, match="none given"):
        contract.worst([])


@pytest.mark.slow
def test_those_with_most_to_withhold_collude_first() -> None:
    budgets = Budgets(np.r_[np.full(50, 1.0), np.full(50, 8.0)], 1e-6)
    run = {"shares": [0.2], "epsilons": [1.0], "steps": 5, "expected_batch_size": 50}
    rows = contract.collusion(budgets, 0, **run)  # type: ignore[arg-type]
    assert rows[1].plan.budget_groups.records.tolist() == [70, 30]
    assert rows[1].changed == 20
    drawn = contract.collusion(budgets, 0, seed=0, **run)  # type: ignore[arg-type]
    assert 30 < drawn[1].plan.budget_groups.records[1] < 50


@pytest.mark.slow
def test_a_search_without_decoys_stays_within_consent() -> None:
    budgets = Budgets(np.linspace(2.0, 4.0, 5).repeat(20), 1e-8)
    rows = contract.budget_manipulation(budgets, 99, steps=50, expected_batch_size=10)
    assert len(rows) == 5
    for row in rows[1:]:
        most = np.sort(np.repeat(row.plan.budget_groups.epsilon, row.plan.budget_groups.records))
        assert (most <= np.sort(budgets.epsilon)).all()
        assert row.plan.budget_groups.epsilon[row.group] == 4.0
    assert contract.worst(rows).forward.upper >= rows[0].forward.upper


@pytest.mark.parametrize(
    ("largest", "caps"),
    [(6.4, [0.1, 0.282843, 0.8, 2.26274]), (0.5, [0.05, 0.0889140, 0.158114, 0.281171])],
)
def test_caps_that_nobody_names_are_even_in_log_below_the_largest(
    largest: float, caps: list[float]
) -> None:
    budgets = Budgets([largest, 0.04] * 10, 1e-6)
    rows = contract.budget_manipulation(
        budgets, 0, strategy="scale", steps=1, expected_batch_size=20
    )
    assert rows[0].label == "as asked"
    said = [float(row.label.removeprefix("at most ")) for row in rows[1:]]
    assert said == pytest.approx(caps, rel=1e-5)
    assert [row.changed for row in rows] == [0, 9, 9, 9, 9]


def test_accounting_by_moments_still_gives_whole_curves() -> None:
    rows = contract.budget_manipulation(honest(), 1000, decoys=[1], method="rdp", **RUN)  # type: ignore[arg-type]
    assert rows[1].advantage.upper > rows[0].advantage.upper
    assert rows[1].epsilon.upper <= 8.0 * (1 + 1e-9)
    assert rows[1].forward.upper > 0.001
