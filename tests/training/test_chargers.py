"""Chargers: nobody is summed who has not paid, and nobody gives more than was charged."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apiece.errors import VerificationError
from apiece.filters import GaussianFilter
from apiece.training.batches import Draw
from apiece.training.clipping import ClippedSum
from apiece.training.clipping.records import clip_factors
from apiece.training.filtered import ROOM, ByBound, ByNorm, compute_charges
from apiece.training.loop import Charger, Prepaid

STDDEV = 2.0


class Till(GaussianFilter):
    """A filter that keeps the charges of its last call."""

    charged: np.ndarray
    admitted: np.ndarray

    def admit(self, norms: object, noise_stddev: float) -> np.ndarray:
        before = self.spent
        self.admitted = super().admit(norms, noise_stddev)  # type: ignore[arg-type]
        self.charged = np.sqrt(self.spent - before) * noise_stddev
        return self.admitted


class Whims:
    """Sums over records whose gradient has another length in each pass: a model with dropout.

    shares: the length of each record's share, summed over the last passes of a step.
    """

    def __init__(self, size: int, rng: np.random.Generator, spread: float) -> None:
        self.rng, self.spread, self.own = rng, spread, rng.lognormal(0, 1, size)
        self.passes = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()

    def __call__(self, records: np.ndarray, bounds: np.ndarray) -> ClippedSum:
        lengths = self.own[records] * self.rng.lognormal(0, self.spread, records.size)
        norms, clips = torch.from_numpy(lengths).float(), torch.from_numpy(bounds)
        shares = (norms * clip_factors(norms, clips)).double().numpy()
        self.passes.append((records, bounds, shares))
        summed = {"w": torch.tensor([shares.sum()])}
        return ClippedSum(summed, norms, torch.zeros(records.size), clips)

    def share_in(self, total: ClippedSum) -> np.ndarray:
        """Each record's share of `total`, from the passes that it is made of."""
        found = np.zeros(self.own.size)
        for k in range(2 ** len(self.passes)):  # the passes that add up to it
            chosen = [p for at, p in enumerate(self.passes) if k >> at & 1]
            value = sum(float(shares.sum()) for _, _, shares in chosen)
            if value == pytest.approx(float(total.gradients["w"][0]), abs=1e-9):
                for records, _, shares in chosen:
                    found[records] += shares
                return found
        raise AssertionError("a sum that no passes add up to")


def draw(bounds: np.ndarray, records: np.ndarray | None = None) -> Draw:
    records = np.arange(bounds.size) if records is None else records
    return Draw(records, bounds[records], STDDEV, 10.0)


class ByStaleNorm(ByNorm):
    """Planted break: the late ones are summed at their clip bounds, not at what they paid."""

    def charge(self, drawn: Draw, sum_over: Callable[..., ClippedSum]) -> ClippedSum:
        def careless(records: np.ndarray, bounds: np.ndarray) -> ClippedSum:
            return sum_over(records, drawn.clip_norms[records])

        return super().charge(drawn, careless)


class Unpaid(ByBound):
    """Planted break: everyone who was drawn is summed, paid or not."""

    def charge(self, drawn: Draw, sum_over: Callable[..., ClippedSum]) -> ClippedSum:
        super().charge(drawn, sum_over)
        return sum_over(drawn.records, drawn.clip_norms)


def excess(make: type[ByNorm] | type[ByBound], seed: int) -> float:
    """Return by how much a record's share at most exceeds what it has just paid."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 8))
    bounds, worst = rng.lognormal(0, 1, size), -np.inf
    till = Till(rng.uniform(0.2, 6.0, size), 1e-5)
    charger = make(till, bounds) if issubclass(make, ByBound) else make(till)  # type: ignore[call-arg]
    sums = Whims(size, rng, float(rng.choice([0.0, 0.5, 2.0])))
    for _ in range(4):
        sums.passes.clear()
        records = np.flatnonzero(rng.random(size) < 0.6) if issubclass(make, ByBound) else None
        total = charger.charge(draw(bounds, records), sums)
        paid = np.where(till.admitted, till.charged, 0.0)
        worst = max(worst, float((sums.share_in(total) - paid).max()))
        assert charger.active is not None
        assert np.array_equal(charger.active, till.admitted)
    return worst


@pytest.mark.parametrize("make", [ByNorm, ByBound])
@given(seed=st.integers(0, 10**9))
def test_nobody_gives_more_than_they_paid(make: type[ByNorm] | type[ByBound], seed: int) -> None:
    assert excess(make, seed) <= 1e-9


@pytest.mark.parametrize("broken", [ByStaleNorm, Unpaid])
def test_broken_chargers_are_caught(broken: type[ByNorm] | type[ByBound]) -> None:
    assert max(excess(broken, seed) for seed in range(60)) > 0.05


def test_prepaid_sums_who_was_drawn() -> None:
    sums = Whims(5, np.random.default_rng(0), 0.0)
    Prepaid().charge(draw(np.ones(5), np.array([1, 4])), sums)
    ((records, bounds, _),) = sums.passes
    assert records.tolist() == [1, 4]
    assert bounds.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("drawn", [[], [0], [0, 1, 2]])
def test_by_bound_charges_everyone_drawn_or_not(drawn: list[int]) -> None:
    """A discount for not being drawn would need the coin to be secret and accounted for."""
    till, bounds = Till([9.0, 9.0, 1e-3], 1e-5), np.array([0.5, 1.0, 1.0])
    charger: Charger = ByBound(till, bounds)
    sums = Whims(3, np.random.default_rng(0), 0.0)
    charger.charge(draw(bounds, np.array(drawn, dtype=np.int64)), sums)
    assert till.charged.tolist() == pytest.approx([0.5, 1.0, 0.0], rel=1e-6)
    assert till.admitted.tolist() == [True, True, False]
    assert sums.passes[-1][0].tolist() == [k for k in drawn if k < 2]


def test_by_norm_takes_one_pass_where_everyone_can_pay_their_bound() -> None:
    till, bounds = Till([50.0] * 4, 1e-5), np.full(4, 0.5)
    sums = Whims(4, np.random.default_rng(0), 2.0)
    ByNorm(till).charge(draw(bounds), sums)
    assert len(sums.passes) == 1
    assert (till.charged <= 0.5 * (1 + 1e-6)).all()


def test_by_norm_of_nobody_is_the_empty_sum() -> None:
    till, bounds = Till([1e-4] * 3, 1e-9), np.full(3, 10.0)
    till.admit(till.affordable(STDDEV), STDDEV)  # nothing is left
    sums = Whims(3, np.random.default_rng(0), 0.0)
    sums.own[:] = 100.0
    total = ByNorm(till).charge(draw(bounds), sums)
    assert float(total.gradients["w"][0]) == 0
    assert not till.admitted.any()


class Fickle(GaussianFilter):
    """Says that all can pay, and then refuses."""

    def affordable(self, noise_stddev: float) -> np.ndarray:
        return np.full(self.epsilon.shape, np.inf)


def test_accounts_that_contradict_themselves_stop_the_run() -> None:
    with pytest.raises(VerificationError, match="had said was affordable"):
        ByNorm(Fickle([0.01] * 2, 1e-5)).charge(
            draw(np.full(2, 9.0)), Whims(2, np.random.default_rng(0), 0.0)
        )


def test_what_is_charged_is_above_the_norm_and_never_above_the_bound() -> None:
    norms = torch.tensor([0.0, 0.3, 0.9999999, 5.0, torch.nan, torch.inf])
    bounds = torch.full((6,), 1.0, dtype=torch.float64)
    found = compute_charges(ClippedSum({}, norms, norms, bounds))
    assert found[0] == 1e-12
    assert found[1] == pytest.approx(0.3 * ROOM, rel=1e-6)
    assert found[2:].tolist() == [1.0, 1.0, 0.0, 0.0]
