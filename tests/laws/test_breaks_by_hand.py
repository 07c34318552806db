"""Properties that breaks planted by hand once passed by, each with the break that it now sees."""

from collections.abc import Callable

import numpy as np
import pytest

from apiece.accounting import privacy_curve, selection
from apiece.accounting.selection import SelectedProfile
from apiece.audit import Claim, anytime
from apiece.budgets import Units
from apiece.mechanisms import Allocated, Composed, Gaussian, Mechanism, Repeated, Runs
from apiece.mechanisms import allocated as blocks
from apiece.plan import Stage, parts
from apiece.training.batches import AllocatedSampler
from apiece.training.sums import Brought, bring
from planted import plant

KEY = bytes(32)


def check_rows_in_physical_batches() -> None:
    """Physical batches hold each person, and each of their rows, exactly once."""
    for counts in ([3, 1, 5, 1], [1], [2, 2, 1], [7, 1, 1, 1], [1, 1, 9, 1]):
        people = np.repeat(np.arange(len(counts)), counts)
        units = Units.of(people, np.arange(len(counts)))
        brought = bring(units, np.arange(len(counts)), KEY)
        for width in range(1, 12):
            slices = list(brought.parts(width))
            persons = np.concatenate([np.arange(len(counts))[part] for part, _ in slices])
            rows = np.concatenate([brought.rows[part] for _, part in slices])
            assert persons.tolist() == list(range(len(counts)))
            assert sorted(rows.tolist()) == list(range(people.size))


def check_error_shared_by_groups() -> None:
    """One of two groups is named only on twice the evidence that it needs alone."""
    generator = np.random.default_rng(3)
    ins, outs = generator.normal(1.5, 1, 400), generator.normal(0, 1, 400)
    claim = Claim.budget(0.5, 1e-5)
    alone = anytime.sequential([{"a": (ins, outs)}], {"a": claim}, max_samples=400)
    pairs = alone.watched[0].samples
    assert alone.watched[0].rejected
    assert 20 <= alone.watched[0].evidence < 40
    silent = np.zeros(pairs)
    rounds = [{"a": (ins[:pairs], outs[:pairs]), "b": (silent, silent)}]
    both = anytime.sequential(rounds, {"a": claim, "b": claim}, max_samples=pairs, delta=1e-5)
    watched = {one.group: one for one in both.watched}
    assert watched["a"].evidence >= 20
    assert not watched["a"].rejected
    assert [bound.confidence for bound in both.bounds.values()] == pytest.approx([0.975] * 2)


def check_coarser_levels_of_selection() -> None:
    """The bound on the best of many runs does not fall where its integral is cut more coarsely."""
    curve = privacy_curve(Gaussian(1.0))
    profile = curve.profile
    epsilon = np.linspace(0.5, 8.0, 16)
    fine = SelectedProfile.of([profile], Runs(10)).delta(epsilon).upper
    levels = selection._LEVELS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_LEVELS", np.concatenate((levels[:-1:12], [0.0])))
        coarse = SelectedProfile.of([profile], Runs(10)).delta(epsilon).upper
    assert (coarse >= fine * (1 - 1e-9)).all()


def lengths(mechanism: Mechanism) -> list[int]:
    """Numbers of steps of the blocks of an allocated mechanism."""
    if isinstance(mechanism, Composed):
        return [size for part in mechanism.mechanisms for size in lengths(part)]
    if isinstance(mechanism, Repeated):
        return lengths(mechanism.mechanism) * mechanism.times
    assert isinstance(mechanism, Allocated)
    return [mechanism.steps]


def check_blocks_of_allocated_steps() -> None:
    """The blocks that are accounted are those that are drawn, and have T steps together."""
    for times, steps in ((1, 1), (1, 7), (3, 10), (4, 100), (7, 7), (6, 23), (2, 9)):
        accounted = sorted(lengths(parts.allocated_steps(1.5, times, steps)))
        assert sum(accounted) == steps
        assert len(accounted) == times
        records = 400
        stage = Stage(
            steps, records * times / steps, 1.5, np.array([times / steps]), np.array([1.0]),
            times=np.array([times]),
        )  # fmt: skip
        sampler = AllocatedSampler(
            stage, np.zeros(records, dtype=np.int64), lambda g, s: np.random.default_rng([g, s])
        )
        joined = np.zeros((records, steps), dtype=int)
        for step in range(steps):
            joined[sampler.draw(step), step] += 1
        assert (joined.sum(axis=1) == times).all()
        # each block is drawn as a whole: no record joins twice between two of its ends
        ends = np.cumsum(drawn_lengths(times, steps))
        assert sorted(drawn_lengths(times, steps)) == accounted
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            assert (joined[:, start:end].sum(axis=1) == 1).all()


def drawn_lengths(times: int, steps: int) -> list[int]:
    ends = [block * steps // times for block in range(times + 1)]
    return np.diff(ends).tolist()


CHECKS: dict[str, Callable[[], None]] = {
    "rows": check_rows_in_physical_batches,
    "groups": check_error_shared_by_groups,
    "levels": check_coarser_levels_of_selection,
    "blocks": check_blocks_of_allocated_steps,
}

BREAKS = [
    ("rows", Brought.parts, "first, start = last, end",
     "first, start = last, end - (end - start == 1)"),
    ("rows", Brought.parts, "end = int(ends[last - 1])",
     "end = int(ends[last - 1]) - (last == persons)"),
    ("groups", anytime.sequential, "own = needed + math.log(len(bets))", "own = needed"),
    ("groups", anytime.sequential, "1 - (1 - confidence) / len(bets)", "confidence"),
    ("levels", SelectedProfile.of, "(shift[:1], shift[:-1])", "(shift[:1], shift[1:])"),
    ("blocks", parts.allocated_steps, "block_sizes(times, steps)", "block_sizes(times, steps + 1)"),
    ("blocks", blocks.block_sizes, "((size, times - larger), (size + 1, larger))",
     "((size + 1, times - larger), (size + 1, larger))"),
    ("blocks", AllocatedSampler.draw, "for b in (block, block + 1)", "for b in (block, block + 2)"),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    ("name", "target", "old", "new"),
    BREAKS,
    ids=[f"{one[0]}-{at}" for at, one in enumerate(BREAKS)],
)
def test_a_break_is_seen(
    name: str, target: object, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, target, old, new)
    with pytest.raises(AssertionError):
        CHECKS[name]()
