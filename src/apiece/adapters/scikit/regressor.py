"""PrivateRegressor: a number in a declared range, at each record's own (ε, δ)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d

from apiece.adapters.scikit.fitting import Given, fit, outputs
from apiece.datasets import Numeric
from apiece.errors import InputError
from apiece.jobs import Amount, Promise, promises_of


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
