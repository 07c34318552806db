"""PrivateClassifier: each record's own (ε, δ) behind scikit-learn's fit and predict."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d

from apiece.adapters.fitting import (
    Given,
    budgets_of,
    codes_of,
    declared_classes,
    fit,
    outputs,
    seed_of,
)
from apiece.datasets import Numeric
from apiece.errors import InputError, unknown
from apiece.jobs.model import Amount, Classes
from apiece.jobs.trained import Promise, promises_of
from apiece.recipes import RECIPES, Recipe, outputs_of


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """A logistic regression, or with hidden layers a network, that keeps each record's (ε, δ).

    Nothing is learned from the rows but by the private training: classes, and the range or the
    values of each column, are declared. A row with a number that cannot be read contributes
    nothing. What stands before the estimator in a `Pipeline` is not private: let it learn nothing.

    Args:
        classes: All labels that there can be, at least two; required.
        columns: What each column of X is, required: `Numeric(lower, upper)` for all, or a mapping
            of names to `Numeric`, `Categorical`, `Date` or `Skip`, or a `Schema`, or the path of
            one. The columns of an array are called x0, x1, …
        epsilon: For all records, where `fit` is given none.
        delta: The same.
        strategy: How budgets become a plan: a name or a strategy, as for `assign`; for PATE as for
            `pate.plan_votes`. None is "sample", for PATE "weight".
        batch_size: Expected; None takes all records, of more than 2048 that many. For PATE the rows
            of a teacher in a step; None takes 32.
        steps: How many updates.
        clip_norm: The mean bound on a record's gradient.
        learning_rate: Of plain SGD.
        hidden: Widths of hidden layers.
        rows_per_person: With people, the most rows that a person brings to a step; None for all.
        method: "dp-sgd", or "pate": teachers on the rows, who vote on public rows with noise, and a
            student that learns from the answers.
        public: For PATE, rows that are public, with the columns of X and no labels: they are not
            protected.
        teachers: For PATE, how many.
        questions: For PATE, how many of the public rows teachers are asked about.
        threshold: For PATE, the share of votes that an answer needs, as for `pate.plan_votes`.
        semi_supervised: For PATE, whether answers are spread over all public rows.
        account: An `Account` that notes each fit, and those of clones.
        random_state: None for randomness of the operating system, as a release needs; a number
            makes an experiment repeatable.

    Attributes:
        plan_: The public plan that was run.
        classes_: The declared classes, sorted.
        network_: The trained `torch.nn.Sequential`.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, where X had any.

    Guarantee:
        A record's, or with people a person's, (ε, δ) for everything in the fitted estimator, in
        the add/remove relation, as `plan_` states it: where random_state is None.

    Example:
        >>> from apiece.datasets import Numeric
        >>> X, y = np.array([[0.0], [1.0]] * 500), np.array(["no", "yes"] * 500)
        >>> model = PrivateClassifier(["no", "yes"], Numeric(0, 1), delta=1e-4, random_state=0)
        >>> model.fit(X, y, epsilon=np.repeat([1.0, 2.0], 500)).score(X, y)
        1.0
        >>> [group.epsilon for group in model.promises_]
        [1.0, 2.0]
    """

    __metadata_request__fit: ClassVar = {"epsilon": True, "delta": True, "people": True}

    def __init__(
        self,
        classes: Any = None,
        columns: Any = None,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        strategy: Any = None,
        batch_size: float | None = None,
        steps: int = 200,
        clip_norm: float = 1.0,
        learning_rate: float = 2.0,
        hidden: Any = (),
        rows_per_person: int | None = None,
        method: str = "dp-sgd",
        public: Any = None,
        teachers: int | None = None,
        questions: int = 200,
        threshold: float | None = None,
        semi_supervised: bool = False,
        account: Any = None,
        random_state: Any = None,
    ) -> None:
        self.classes = classes
        self.columns = columns
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.batch_size = batch_size
        self.steps = steps
        self.clip_norm = clip_norm
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.rows_per_person = rows_per_person
        self.method = method
        self.public = public
        self.teachers = teachers
        self.questions = questions
        self.threshold = threshold
        self.semi_supervised = semi_supervised
        self.account = account
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        epsilon: npt.ArrayLike | None = None,
        delta: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
    ) -> PrivateClassifier:
        """Return self, trained on these rows, each or each person at their own budget.

        Args:
            X: (n, columns) A table, or an array of numbers.
            y: (n,) Labels, each a declared class.
            epsilon: For all, or one a row; None takes the estimator's. A person's rows agree.
            delta: The same.
            people: (n,) Whose each row is; None where each row is a record of its own.

        Raises:
            InputError: For what is not declared, labels that are no class, and values out of
                bounds; a `ValueError`, as scikit-learn's own are.
            InfeasibleError: Where no plan meets the request.
        """
        target = Classes(declared_classes(self.classes))
        given = Given.of(self, X, epsilon=epsilon, delta=delta, people=people)
        classes = np.array(target.names)
        codes = codes_of(X, y, classes)
        self.classes_ = classes
        fit(self, given, target, target.encoded(codes))
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return a probability for each row and class, in the order of `classes_`.

        Args:
            X: (n, columns) As for `fit`.

        Raises:
            DataError: For a row with a number that cannot be read.
        """
        check_is_fitted(self)
        return np.asarray(outputs(self, X).double().softmax(dim=1).numpy())

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the likeliest class of each row.

        Args:
            X: (n, columns) As for `fit`.

        Raises:
            DataError: For a row with a number that cannot be read.
        """
        check_is_fitted(self)
        return np.asarray(self.classes_[outputs(self, X).argmax(dim=1).numpy()])

    @property
    def promises_(self) -> tuple[Promise, ...]:
        """What each budget group asked for, and what the fit spends of it, rounded up."""
        check_is_fitted(self)
        return promises_of(self.plan_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # such a row contributes nothing
        return tags


class PrivateRegressor(RegressorMixin, BaseEstimator):
    """A linear regression, or with hidden layers a network, that keeps each record's (ε, δ).

    As `PrivateClassifier`, but for the target: its range is declared, values outside are clipped
    to it, and what is predicted lies in it.

    Args:
        target: `Numeric(lower, upper)`, the range of y; required.
        columns: What each column of X is; required.
        epsilon: For all records, where `fit` is given none.
        delta: The same.
        strategy: How budgets become a plan.
        batch_size: Expected; None takes all records, of more than 2048 that many.
        steps: How many updates.
        clip_norm: The mean bound on a record's gradient.
        learning_rate: Of plain SGD.
        hidden: Widths of hidden layers.
        rows_per_person: With people, the most rows that a person brings to a step; None for all.
        account: An `Account` that notes each fit, and those of clones.
        random_state: None for randomness of the operating system, as a release needs; a number
            makes an experiment repeatable.

    Attributes:
        plan_: The public plan that was run.
        network_: The trained `torch.nn.Sequential`; its output is in [-1, 1], `target` scaled.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, where X had any.

    Guarantee:
        As `PrivateClassifier`.

    Example:
        >>> X = np.linspace(0, 1, 1000)[:, None]
        >>> model = PrivateRegressor(Numeric(0, 10), Numeric(0, 1), delta=1e-4, random_state=0)
        >>> bool(model.fit(X, 10 * X[:, 0], epsilon=2.0).score(X, 10 * X[:, 0]) > 0.9)
        True
    """

    __metadata_request__fit: ClassVar = {"epsilon": True, "delta": True, "people": True}

    def __init__(
        self,
        target: Any = None,
        columns: Any = None,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        strategy: Any = "sample",
        batch_size: float | None = None,
        steps: int = 200,
        clip_norm: float = 1.0,
        learning_rate: float = 0.5,
        hidden: Any = (),
        rows_per_person: int | None = None,
        account: Any = None,
        random_state: Any = None,
    ) -> None:
        self.target = target
        self.columns = columns
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.batch_size = batch_size
        self.steps = steps
        self.clip_norm = clip_norm
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.rows_per_person = rows_per_person
        self.account = account
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        epsilon: npt.ArrayLike | None = None,
        delta: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
    ) -> PrivateRegressor:
        """Return self, trained on these rows, each or each person at their own budget.

        Args:
            X: (n, columns) A table, or an array of numbers.
            y: (n,) Finite numbers; those outside the range are clipped to it.
            epsilon: For all, or one a row; None takes the estimator's. A person's rows agree.
            delta: The same.
            people: (n,) Whose each row is; None where each row is a record of its own.

        Raises:
            InputError: For what is not declared, and values out of bounds; a `ValueError`.
            InfeasibleError: Where no plan meets the request.
        """
        if not isinstance(self.target, Numeric):
            raise InputError(
                f"target = {self.target!r}: the range of y is not read from it, where one person's "
                "value could be seen: declare target=Numeric(lower, upper)"
            )
        target = Amount(self.target)
        given = Given.of(self, X, epsilon=epsilon, delta=delta, people=people)
        values = column_or_1d(y, warn=True, dtype=np.float64)
        check_consistent_length(X, values)
        if not np.isfinite(values).all():
            raise InputError("y: contains NaN or infinity; leave these rows out")
        fit(self, given, target, target.encoded(values))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return a number in the declared range for each row.

        Args:
            X: (n, columns) As for `fit`.

        Raises:
            DataError: For a row with a number that cannot be read.
        """
        check_is_fitted(self)
        return Amount(self.target).decoded(outputs(self, X))

    @property
    def promises_(self) -> tuple[Promise, ...]:
        """What each budget group asked for, and what the fit spends of it, rounded up."""
        check_is_fitted(self)
        return promises_of(self.plan_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # such a row contributes nothing
        return tags


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
