"""PrivateImageClassifier: a recipe on images, each at their own (ε, δ), behind fit and predict."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from apiece.adapters.scikit.budgets import budgets_of
from apiece.adapters.scikit.fitting import seed_of
from apiece.adapters.scikit.labels import codes_of, declared_classes
from apiece.errors import unknown
from apiece.jobs import Promise, promises_of
from apiece.recipes import RECIPES, Recipe, outputs_of


class PrivateImageClassifier(ClassifierMixin, BaseEstimator):
    """A head on frozen features of images, which keeps each image's (ε, δ).

    Features come from transforms that see no private data; with a recipe's views an image and its
    mirror image are one record.

    Args:
        classes: All that there can be; nothing is read from y.
        recipe: A name in `apiece.recipes.RECIPES`, or a `Recipe`.
        epsilon: For all images, where `fit` is given none.
        delta: The same.
        strategy: How budgets become a plan: a name or a strategy, as for `assign`.
        cache: A folder where features are kept; None for nowhere.
        random_state: None for randomness of the operating system, as a release needs; a number
            makes an experiment repeatable.

    Attributes:
        plan_: The public plan that was run.
        classes_: The declared classes, sorted.
        network_: The trained head.

    Guarantee:
        An image's (ε, δ) for everything in the fitted estimator, in the add/remove relation, as
        `plan_` states it: where random_state is None.

    References:
        Tramèr and Boneh 2021.

    Example:
        >>> from apiece.recipes import Recipe
        >>> recipe = Recipe(transform="leaf-patches", groups=32, epochs=5, batch_size=100)
        >>> X, y = np.zeros((200, 1, 8, 8), np.uint8), np.repeat(["dark", "light"], 100)
        >>> X[100:, :, ::2] = 255
        >>> model = PrivateImageClassifier(["dark", "light"], recipe, delta=1e-4, random_state=0)
        >>> model.fit(X, y, epsilon=np.repeat([2.0, 4.0], 100)).score(X, y)
        1.0
    """

    __metadata_request__fit: ClassVar = {"epsilon": True, "delta": True}

    def __init__(
        self,
        classes: Any = None,
        recipe: Any = "scattering-linear",
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        strategy: Any = "sample",
        cache: Any = None,
        random_state: Any = None,
    ) -> None:
        self.classes = classes
        self.recipe = recipe
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.cache = cache
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        epsilon: npt.ArrayLike | None = None,
        delta: npt.ArrayLike | None = None,
    ) -> PrivateImageClassifier:
        """Return self, trained on these images, each at their own budget.

        Args:
            X: (n, colours, side, side) Bytes.
            y: (n,) Labels, each a declared class.
            epsilon: For all, or one an image; None takes the estimator's.
            delta: The same.

        Raises:
            InputError: For what is not declared, labels that are no class, other images, and values
                out of bounds; a `ValueError`, as scikit-learn's own are.
            InfeasibleError: Where no plan meets the request.
        """
        recipe = self._recipe()
        classes = np.array(declared_classes(self.classes))
        codes = codes_of(X, y, classes)
        self.classes_ = classes
        budgets = budgets_of(
            self.epsilon if epsilon is None else epsilon,
            self.delta if delta is None else delta,
            None,
            codes.size,
        )
        plan = recipe.plan(budgets, self.strategy)
        features = recipe.features(X, cache=self.cache)
        targets = torch.from_numpy(codes)
        self.network_ = recipe.train(
            plan, features, targets, self.classes_.size, seed=seed_of(self.random_state)
        )
        self.plan_ = plan.public()
        return self

    def _recipe(self) -> Recipe:
        if isinstance(self.recipe, Recipe):
            return self.recipe
        if self.recipe not in RECIPES:
            raise unknown("recipe", str(self.recipe), RECIPES)
        return RECIPES[self.recipe]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return a probability for each image and class, in the order of `classes_`.

        Args:
            X: (n, colours, side, side) As for `fit`.

        Raises:
            InputError: For other images.
        """
        check_is_fitted(self)
        found = outputs_of(self.network_, self._recipe().features(X, cache=self.cache))
        return np.asarray(found.double().softmax(dim=1).numpy())

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the likeliest class of each image.

        Args:
            X: (n, colours, side, side) As for `fit`.

        Raises:
            InputError: For other images.
        """
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    @property
    def promises_(self) -> tuple[Promise, ...]:
        """What each budget group asked for, and what the fit spends of it, rounded up."""
        check_is_fitted(self)
        return promises_of(self.plan_)
