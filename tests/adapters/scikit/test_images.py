"""PrivateImageClassifier: images at their own budgets, with classes that are declared."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from apiece.errors import BudgetError, InputError
from apiece.recipes import Recipe
from apiece.sklearn import PrivateImageClassifier

RECIPE = Recipe(transform="leaf-patches", groups=32, epochs=5, batch_size=100.0)


def images() -> tuple[Any, Any]:
    X = np.random.default_rng(0).integers(0, 60, (200, 1, 8, 8), dtype=np.uint8)
    X[100:, :, ::2] += 180
    return X, np.repeat(["flat", "striped"], 100)


def made(**more: Any) -> PrivateImageClassifier:
    return PrivateImageClassifier(["striped", "flat"], RECIPE, delta=1e-4, random_state=0, **more)


def test_it_learns_keeps_its_promises_and_is_repeatable() -> None:
    X, y = images()
    model = made().fit(X, y, epsilon=np.repeat([2.0, 4.0], 100))
    assert model.score(X, y) > 0.9
    assert [p.epsilon for p in model.promises_] == [2.0, 4.0]
    assert all(p.epsilon_spent <= p.epsilon for p in model.promises_)
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)
    again = clone(made()).fit(X, y, epsilon=np.repeat([2.0, 4.0], 100))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_what_is_not_declared_is_refused() -> None:
    X, y = images()
    with pytest.raises(InputError, match="classes"):
        PrivateImageClassifier(recipe=RECIPE, epsilon=1.0).fit(X, y)
    with pytest.raises(InputError, match="no declared class"):
        made(epsilon=1.0).fit(X, np.where(y == "flat", "other", y))
    with pytest.raises(BudgetError, match="epsilon"):
        made().fit(X, y)
    with pytest.raises(InputError, match="bytes"):
        made(epsilon=1.0).fit(X / 255, y)
    with pytest.raises(InputError, match="scattering"):
        PrivateImageClassifier(["flat", "striped"], "scatering", epsilon=1.0).fit(X, y)
