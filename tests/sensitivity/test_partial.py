"""Partial sensitivities as a value: shares that add up, whatever their size, and nobody in repr."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from apiece.errors import InputError
from apiece.sensitivity import partial_sensitivity
from apiece.sensitivity.partial import PartialSensitivity
from refusals import refused

RAW = arrays.arrays(
    np.float64, st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 2)),
    elements=st.floats(-1e308, 1e308),
)  # fmt: skip


def partial(raw: np.ndarray) -> PartialSensitivity:
    norms = np.ones(len(raw))
    return PartialSensitivity(raw, norms, norms == 0, "add_remove")


@settings(derandomize=True, max_examples=80, deadline=None)
@given(RAW)
def test_fractions_add_up_to_one_or_are_nothing(raw: np.ndarray) -> None:
    """Sums of huge entries would overflow and those of tiny ones vanish, if not scaled first."""
    fractions = partial(raw).fractions
    assert fractions.shape == raw.shape
    assert (fractions >= 0).all()
    totals, some = fractions.sum(axis=(1, 2)), (raw != 0).any(axis=(1, 2))
    assert totals[some] == pytest.approx(1, rel=1e-12)
    assert (totals[~some] == 0).all()


def test_a_share_does_not_depend_on_other_records_or_on_the_sign() -> None:
    raw = np.array([[3.0, -1.0], [0.0, 0.0], [5e-324, 5e-324]])
    assert partial(raw).fractions.tolist() == [[0.75, 0.25], [0, 0], [0.5, 0.5]]
    for i in range(3):
        alone = partial(raw[i : i + 1]).fractions[0]
        assert alone.tolist() == partial(raw).fractions[i].tolist()


class Doubling:
    """A function of a record of one's own."""

    def differentiate(self, *records: np.ndarray) -> PartialSensitivity:
        return partial(2 * np.stack(records, axis=1))


def test_any_function_that_differentiates_is_taken_and_nothing_else() -> None:
    found = partial_sensitivity(Doubling(), np.array([0.5]), np.array([1.0]))
    assert (len(found), found.raw.tolist()) == (1, [[1.0, 2.0]])
    for other in ("a**2", None, lambda x: x, np.zeros(3)):
        with refused(InputError, "Expression", "ModelLoss"):
            partial_sensitivity(other, np.zeros(1))  # type: ignore[arg-type]


def test_the_repr_holds_nothing_about_anyone() -> None:
    shown = repr(partial(np.array([[0.123456, 7.25]])))
    assert "0.12" not in shown
    assert "7.25" not in shown
