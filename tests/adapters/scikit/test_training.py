"""An estimator runs a verified plan, chosen by public numbers alone."""

import numpy as np
import pytest

from apiece.errors import InputError, UnsupportedError
from apiece.sklearn import Numeric, PrivateRegressor


def fitted(size: int = 600, **changes: object) -> PrivateRegressor:
    settings = {"steps": 5, "random_state": 0, **changes}
    x = np.linspace(0, 1, size)
    model = PrivateRegressor(Numeric(0, 1), Numeric(0, 1), **settings)  # type: ignore[arg-type]
    return model.fit(x[:, None], x, epsilon=np.repeat([1.0, 2.0], [size // 2, size - size // 2]))


@pytest.mark.parametrize("records", [300, 2048, 5000])
def test_a_batch_is_never_larger_than_all(records: int) -> None:
    expected = fitted(records, steps=1).plan_.stages[0].expected_batch_size
    assert records / 3 < expected < records if records < 3000 else expected == 2048
    alike = fitted(records, steps=1, strategy="scale").plan_.stages[0].expected_batch_size
    assert alike == pytest.approx(min(records, 2048))


def test_the_plan_is_verified_and_of_all_steps() -> None:
    model = fitted()
    assert model.plan_.steps == 5
    assert model.plan_.verify().ok
    assert all(0 < promise.epsilon_spent <= promise.epsilon for promise in model.promises_)


def test_several_models_in_one_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="and one is made here; choose sample"):
        fitted(strategy="adapdp", steps=10)


def test_doubts_about_budgets_are_told_to_who_fits() -> None:
    with pytest.warns(UserWarning, match="expect nothing useful of fewer than 100") as seen:
        fitted(50)
    assert __file__ in {warning.filename for warning in seen}


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch_size": 1e9},
        {"clip_norm": np.nan},
        {"strategy": "sampel"},
        {"learning_rate": np.nan},
        {"learning_rate": -1.0},
        {"hidden": [0]},
        {"rows_per_person": 0},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        fitted(**wrong)
