"""Private estimators for scikit-learn: each record's own (ε, δ) behind fit and predict."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_consistent_length
from sklearn.utils.validation import check_is_fitted, column_or_1d

from apiece._identity import common_index
from apiece._types import AnyArray, Floats, Ids
from apiece.adapters.account import Account
from apiece.adapters.defaults import (
    AMOUNT,
    CLASSES,
    MOMENTUM,
    Defaults,
    choose_knots,
    choose_rate,
    decay_to_zero,
    noise_of_weights,
)
from apiece.adapters.effects import (
    Contrast,
    Effect,
    Surface,
    contrast_of_amount,
    contrast_of_classes,
    draw,
    frame_of,
    read_effect,
    read_surface,
)
from apiece.adapters.fitting import (
    encode_for_prediction,
    encode_for_training,
    encode_labels,
    read_budgets,
    read_classes,
    read_columns,
    read_features,
    read_frame,
    read_pairs,
    read_people,
    read_seed,
    read_weights,
    require_bins,
    require_joined,
    require_same_index,
    warn_of_fitted_steps,
    weigh_classes,
)
from apiece.adapters.papers import Papers
from apiece.assignment.unspent import default_batch
from apiece.budgets import Budgets
from apiece.budgets.groups import list_doubts
from apiece.budgets.levels import Offered
from apiece.datasets import Date, Numeric, Schema, Skip
from apiece.datasets.cells import check_knots
from apiece.datasets.encode import encode
from apiece.datasets.pairs import Pair, count_features, locate_features
from apiece.datasets.schema import Feature
from apiece.errors import InputError, unknown
from apiece.jobs.config import Pate, Training, check_method
from apiece.jobs.people import Examples
from apiece.jobs.prepared import plan_training
from apiece.jobs.results import list_tuned
from apiece.jobs.trained import Promise, list_promises
from apiece.pate import plan_votes
from apiece.plan import BoundPlan, Schedule

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from apiece.jobs.model import Amount, Classes, Target
    from apiece.recipes import Recipe


# The largest expected batch size, in records, where none is given.
MOST_EXPECTED = 2048.0


@dataclass(eq=False, repr=False)
class _Private(Papers):
    """The parameters and methods that all estimators here share.

    Attributes:
        plan_: The public plan that was run.
    """

    _: KW_ONLY
    epsilon: float | str | None = None
    delta: float = 1e-5
    levels: Offered | None = None
    strategy: Any = "sample"
    random_state: object = None

    @property
    def promises_(self) -> tuple[Promise, ...]:
        """Each budget group's budget, and its spending by the fit, rounded up."""
        check_is_fitted(self)
        return list_promises(self.plan_)

    def _budgets(
        self,
        X: object,
        y: object,
        epsilon: npt.ArrayLike | None,
        delta: npt.ArrayLike | None,
        ids: Ids | None,
        rows: int,
    ) -> Budgets:
        """Return the budgets given to `fit`, else the estimator's own, joined to the rows."""
        epsilons = self.epsilon if epsilon is None else epsilon
        deltas = self.delta if delta is None else delta
        require_joined(X, y, epsilon=epsilons, delta=deltas)
        return read_budgets(epsilons, deltas, ids, rows, self.levels)

    @abstractmethod
    def _outputs(self, X: object) -> torch.Tensor:
        """Return the fitted network's outputs for each row."""


class _Classifies(ClassifierMixin, _Private):
    """The methods that classifiers share: the likeliest of the declared classes."""

    classes_: AnyArray

    def predict_proba(self, X: object) -> npt.NDArray[np.float64]:
        """Return a probability for each row and class, in the order of `classes_`.

        Args:
            X: As for `fit`.

        Raises:
            InputError: For other columns or images, or a row with a number that cannot be read.
        """
        check_is_fitted(self)
        # In double precision: the softmax of single precision outputs would lose small
        # probabilities.
        outputs = self._outputs(X).double()
        return np.asarray(outputs.softmax(dim=1).numpy())

    def decision_function(self, X: object) -> npt.NDArray[np.float64]:
        """Return (n,) the log odds of the second of two classes, or (n, classes) scores.

        Args:
            X: As for `fit`.

        Raises:
            InputError: As `predict_proba`.
        """
        check_is_fitted(self)
        outputs = self._outputs(X).double().numpy()
        # The log odds of two classes are the difference of their scores.
        if len(self.classes_) == 2:
            return np.asarray(outputs[:, 1] - outputs[:, 0])
        return np.asarray(outputs)

    def predict(self, X: object) -> AnyArray:
        """Return the likeliest class of each row.

        Args:
            X: As for `fit`.

        Raises:
            InputError: As `predict_proba`.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return the share of rows whose likeliest class is the true one, from 0 to 1.

        Args:
            X: As for `fit`.
            y: True class of each row, with the index of X where both have one.
            sample_weight: Weight of each row, with that index too; None for equal ones.

        Raises:
            DataError: Where two have different indices.
            InputError: As `predict`.
        """
        # Joined by index where both have one: by position a shuffled y would be scored silently.
        common_index(X=X, y=y, sample_weight=sample_weight)
        return float(super().score(X, y, sample_weight))


@dataclass(eq=False, repr=False)
class _Tabular(_Private):
    """The parameters and methods of estimators of tables: a network on declared columns.

    Attributes:
        feature_names_in_: Names of the columns of X, where it had any.
    """

    _: KW_ONLY
    batch_size: float | None = None
    steps: int = 200
    clip_norm: float | None = None
    learning_rate: float | None = None
    learning_rate_schedule: Schedule | None = None
    momentum: float | None = None
    hidden: Sequence[int] = ()
    curves: int | None = None
    pairs: Sequence[tuple[str, str] | tuple[int, int]] | None = None
    rows_per_person: int | None = None
    account: Any = None
    search: object = None

    # What scikit-learn's metadata routing hands through pipelines and searches, without being asked
    # for it.
    __metadata_request__fit: ClassVar = {"epsilon": True, "delta": True, "people": True}
    _defaults: ClassVar[Defaults] = AMOUNT

    def fit(
        self,
        X: object,
        y: object,
        *,
        epsilon: npt.ArrayLike | None = None,
        delta: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Return self, trained on these rows, each or each person at their own budget.

        Args:
            X: (n, columns) A table, or an array of numbers.
            y: (n,) Labels, each a declared class; or finite numbers, those outside the declared
                range clipped to it.
            epsilon: For all, or one a row, a number or the name of one of `levels`; None takes the
                estimator's. A person's rows agree. A Series has the index of X (of y, where X is
                an array); a list or an array is taken by position.
            delta: As `epsilon`, in numbers.
            people: (n,) The person of each row, joined likewise; None where each row is a record of
                its own.
            sample_weight: (n,) A factor in [0, 1] on each row's loss, joined likewise; None for 1.
                It is a part of the row, as private as the row is.

        Raises:
            DataError: For a Series with another index than X, or the same in another order.
            InputError: For what is not declared, labels that are no class, and values out of
                bounds; a `ValueError`, as scikit-learn's own are.
            InfeasibleError: Where no plan meets the request.
        """
        # Everything is checked before a plan is run: a refused fit costs nobody anything.
        warn_of_fitted_steps(self)
        target = self._target()
        frame = read_frame(self, X, reset=True)
        require_joined(X, y, people=people)
        ids = read_people(people, len(frame))
        budgets = self._budgets(X, y, epsilon, delta, ids, len(frame))
        # Checked first with straight lines: whether there are curves depends on the plan.
        names = list(frame.columns)
        declared = read_features(self.columns, names, check_knots(self.curves or 0, "curves"))
        pairs = self._read_pairs(names, declared)
        # Labels and numbers are checked, and their rows counted, while nothing has been paid for.
        targets = self._encode_targets(X, y)
        require_joined(X, y, sample_weight=sample_weight)
        weights = self._read_weights(sample_weight, targets)
        if not isinstance(self.account, Account | None):
            raise InputError(f"account = {self.account!r}: give an apiece.sklearn.Account or None")
        training, pate = self._settings(budgets)
        # These doubts follow from budgets and sizes of groups, which the plan shows as well.
        for doubt in list_doubts(budgets.groups):
            warnings.warn(doubt, UserWarning, stacklevel=2)
        # Only plain DP-SGD has its plan here; a search and PATE make theirs while they train.
        plan = None
        if training.method == "dp-sgd" and self.search is None:
            unit = "record" if ids is None else "person"
            plan = plan_training(training, budgets, self._strategy(), unit=unit)
            # By the plan's noise, which is public: no row has a say in the learning rate.
            if self._chooses_rate():
                rate = choose_rate(plan, training.momentum, self._defaults)
                training = replace(training, learning_rate=rate)
        # Curves need a plan's noise, and so the declarations are read once more with their knots.
        curves = self._choose_curves(plan)
        columns = read_features(self.columns, names, curves)
        require_bins(pairs, columns)
        self.curves_ = curves
        self.pairs_ = pairs
        features = encode_for_training(frame, columns, self.pairs_)
        # With the rows' positions as labels: so the targets of those that stay are found.
        # Rows with a faulty cell are NaN throughout and leave here; by their positions the targets
        # and weights of the others are found.
        rows = Examples(features, np.arange(len(frame)), ids).without_faulty()
        records = Examples(rows.features, targets[rows.labels], rows.person)
        seed = read_seed(self.random_state)
        if weights is not None:
            weights = weights[rows.labels]
        training = self._train(budgets, target, records, weights, training, plan, seed)
        # What is recorded is public: names, settings, and the numbers of the public plan.
        self._record_run(
            y,
            features=int(features.shape[1]),
            settings=list_tuned(training, pate),
            seed=seed,
            columns=read_columns(self.columns, names, self.curves_),
            pairs=self.pairs_,
            hidden=training.hidden,
            rows_per_person=None if ids is None else training.rows_per_person or "all",
            method=training.method,
        )
        return self

    def _read_pairs(self, names: list[str], columns: dict[str, Feature]) -> tuple[Pair, ...]:
        """Return the pairs of columns by name, checked."""
        pairs = read_pairs(self.pairs, names, columns)
        if pairs and not self._is_additive():
            raise InputError(
                "pairs: are surfaces of an additive model, which hidden layers and PATE do not "
                "train; leave pairs out, or fit without hidden layers by DP-SGD"
            )
        if self.curves is not None:
            require_bins(pairs, columns)
        return pairs

    def _strategy(self) -> Any:
        return "sample" if self.strategy is None else self.strategy

    def _is_additive(self) -> bool:
        """Return whether a fit adds up columns: DP-SGD without hidden layers."""
        return not len(self.hidden) and getattr(self, "method", "dp-sgd") == "dp-sgd"

    def _chooses_rate(self) -> bool:
        """Return whether the learning rate follows from the noise of the plan."""
        return self.learning_rate is None and self.search is None and self._is_additive()

    def _choose_curves(self, plan: BoundPlan | None) -> int:
        """Return the knots of curves: those given, else as the noise of the plan allows."""
        if self.curves is not None:
            return self.curves
        if plan is None or not self._is_additive():
            return 0
        return choose_knots(plan)

    def _read_weights(
        self, sample_weight: npt.ArrayLike | None, targets: AnyArray
    ) -> Floats | None:
        """Return the factor on each row's loss, checked; None for 1."""
        if sample_weight is None:
            return None
        return read_weights(sample_weight, len(targets))

    def _settings(self, budgets: Budgets) -> tuple[Training, Pate]:
        """Return the settings of the training, checked as those of a job."""
        is_chosen = self._chooses_rate()
        # By public counts of budgets and the steps.
        batch = self.batch_size
        if batch is None:
            batch = default_batch(
                budgets.groups, self._strategy(), steps=self.steps, most=MOST_EXPECTED
            )
        clip_norm = self.clip_norm
        # The defaults of clip norm and momentum were chosen together with the rule for the learning
        # rate.
        if clip_norm is None:
            clip_norm = self._defaults.clip_norm if is_chosen else 1.0
        momentum = self.momentum
        if momentum is None:
            momentum = MOMENTUM if is_chosen else 0.0
        # A chosen rate follows once there is a plan; until then the fixed one stands in its place.
        rate = self.learning_rate
        training = Training(
            batch_size=batch,
            steps=self.steps,
            clip_norm=clip_norm,
            learning_rate=self._defaults.fixed_rate if rate is None else rate,
            learning_rate_schedule=self.learning_rate_schedule,
            momentum=momentum,
            hidden=tuple(self.hidden),
            rows_per_person=self.rows_per_person,
        )
        # With a chosen rate the last steps are small, so that the noise of the end is, too.
        if is_chosen and self.learning_rate_schedule is None:
            training = replace(training, learning_rate_schedule=decay_to_zero(self.steps))
        return training, Pate()

    def _train(
        self,
        budgets: Budgets,
        target: Target,
        rows: Examples,
        weights: Floats | None,
        training: Training,
        plan: BoundPlan | None,
        seed: int | None,
    ) -> Training:
        """Train by DP-SGD, and return the settings, some of them chosen by a search."""
        from apiece.jobs.model import fit_network, weigh_targets

        if self.search is not None and self.learning_rate_schedule is not None:
            raise InputError("learning_rate_schedule: is for one fit; with a search leave it out")
        if self.search is not None:
            return self._search(budgets, target, rows, weights, training, seed)
        assert plan is not None  # only a search and PATE make their own
        self._note_plan(plan)  # before the first step: a fit that fails later has been paid
        weighted, targets = weigh_targets(target, rows.labels, weights)
        self.network_ = fit_network(plan, rows, weighted, targets, training, seed=seed)
        self.plan_ = plan.public()
        return training

    def _search(
        self,
        budgets: Budgets,
        target: Target,
        rows: Examples,
        weights: Floats | None,
        training: Training,
        seed: int | None,
    ) -> Training:
        """Store the best network of a search and its plan, and return its settings."""
        import torch

        from apiece.jobs.model import fit_network, score_records, weigh_targets
        from apiece.jobs.search import SETTINGS, Candidates, Search, derive_run_seed
        from apiece.training.randomness import Streams

        # Anything but a `Search` is a mapping of candidates.
        search = self.search if isinstance(self.search, Search) else Search(self.search)
        # Without rows of validation the training rows score the candidates, under the promise of
        # the search.
        scored = rows
        if search.validation is not None:
            X, y = search.validation
            scored = Examples(self._encode_rows(X), self._encode_targets(X, y))
        defaults = {name: getattr(training, name) for name in SETTINGS}
        candidates = Candidates.of(search, budgets, self._strategy(), defaults, unit=rows.unit)
        ids = candidates.first.ids
        # All plans of a search have one cost: the first one stands for them in the account.
        self._note_plan(candidates.first)
        weighted, labels = weigh_targets(target, rows.labels, weights)

        def train(plan: BoundPlan, settings: dict[str, Any], run: int) -> torch.nn.Module:
            # Each run has a seed of its own, or the noise of two candidates would be the same.
            run_seed = None if seed is None else derive_run_seed(seed, run)
            run_training = replace(training, **settings)
            return fit_network(plan, rows, weighted, labels, run_training, seed=run_seed)

        targets = torch.from_numpy(scored.labels)
        best = candidates.find_best(
            train,
            lambda network: score_records(network, scored, target, targets, ids),
            Streams.from_seed(seed),
        )
        self.network_ = best.model
        self.plan_ = candidates.plan(best.settings).public()
        return replace(training, **best.settings)

    def _note_plan(self, plan: BoundPlan) -> None:
        """Note a plan that is about to be run in the account, where there is one."""
        if self.account is not None:
            self.account.note(plan, named=plan.unit == "person")

    def _encode_rows(self, X: object) -> npt.NDArray[np.float32]:
        """Return the features of rows to be predicted."""
        frame = read_frame(self, X, reset=False)
        # A fitted estimator that was loaded has its knots in its columns.
        curves = getattr(self, "curves_", 0)
        columns = read_features(self.columns, list(frame.columns), curves)
        return encode_for_prediction(frame, columns, getattr(self, "pairs_", ()))

    def _outputs(self, X: object) -> torch.Tensor:
        import torch

        # In double precision: a row's outputs do not depend on the rows beside it.
        # A copy: the stored network keeps its type, and its papers their digest.
        network = copy.deepcopy(self.network_).double()
        features = torch.from_numpy(self._encode_rows(X).astype(np.float64))
        with torch.no_grad():
            outputs: torch.Tensor = network(features)
        return outputs

    def effects(self, columns: Sequence[str | tuple[str, str]] | None = None) -> pd.DataFrame:
        """Return what each column and pair adds to the prediction of a model without hidden layers.

        Args:
            columns: Names, and of pairs the two names; None for all.

        Returns:
            A row for each column and value: knots of a curve (between them it is straight), ends of
            a straight line, categories, and "(missing)". Of two classes there is one number, the
            log odds of the second; of more a score for each, less their mean; of a regression the
            target's own unit, of one on a logarithmic scale half its length. The values of a
            column but "(missing)" have mean 0. A pair has a row for each two values, `second_value`
            that of its second column: what both add together, beside their own effects; it is
            bilinear between knots. `noise` is the standard deviation of all noise that
            the training's steps add to the number, before later steps correct a part of it.

        Raises:
            InputError: For hidden layers, PATE, and a column or pair that the model has not.

        Guarantee:
            Computed from the fitted estimator and public numbers: it costs nobody anything.
        """
        contrast = self._contrast()
        return frame_of(self._read_effects(columns), contrast.outputs)

    def plot_effects(self, columns: Sequence[str | tuple[str, str]] | None = None) -> Figure:
        """Return a Matplotlib figure of `effects`, with bands of two standard deviations of noise.

        The surface of a pair is drawn in colours, with its band in the title.

        Args:
            columns: As for `effects`.

        Raises:
            InputError: As `effects`.
        """
        contrast = self._contrast()
        return draw(self._read_effects(columns), contrast.outputs, contrast.title)

    @property
    def coef_(self) -> Floats:
        """What one unit of each column of X adds: (1, columns) of two classes, (columns,) of a
        regression, else (classes, columns); AttributeError where a column adds no straight line.
        """
        return self._read_line()[0]

    @property
    def intercept_(self) -> Floats | float:
        """What is added where all columns are 0, as `coef_`: (classes,), (1,), or a number."""
        intercept: Floats | float = self._read_line()[1]
        return intercept

    def _read_line(self) -> tuple[Floats, Any]:
        """Return the coefficients and the intercept of a model that is a straight line."""
        check_is_fitted(self)
        # Papers and not the network decide: they are bound to its weights.
        if self.run_.hidden or self.run_.method != "dp-sgd":
            raise AttributeError(
                "coef_: columns act together in this model; fit one without hidden layers"
            )
        assert self.run_.estimator is not None
        columns = Schema.from_dict({"columns": self.run_.estimator["columns"]}, "fit").columns
        for name, kind in columns.items():
            # A line needs a linear scale, no knots and no indicator of missing cells.
            is_line = (
                isinstance(kind, Numeric)
                and kind.scale == "linear"
                and not kind.knots
                and not kind.missing
            )
            if not is_line and not isinstance(kind, Skip):
                raise AttributeError(
                    f"coef_: column {name!r} adds no straight line; effects() has what it adds"
                )
        contrast = self._contrast()
        if isinstance(getattr(self, "target", None), Numeric) and self.target.scale == "log":  # type: ignore[attr-defined]
            raise AttributeError("coef_: the target is on a logarithmic scale; call effects()")
        # The one linear layer: (outputs, features).
        layer = self.network_[0]  # type: ignore[index]
        # (shown outputs, features).
        weights = (layer.weight.detach().double().numpy().T @ contrast.matrix).T
        intercept = layer.bias.detach().double().numpy() @ contrast.matrix
        # The features are the declared numbers in order: all other columns of a line are skipped.
        numbers = {name: kind for name, kind in columns.items() if isinstance(kind, Numeric)}
        coefficients = np.zeros((len(weights), len(columns)))
        for position, (name, kind) in enumerate(numbers.items()):
            # A number is scaled from its range to [-1, 1].
            # x = lower + half·(1 + scaled): slope per unit is weight/half, and the middle goes into
            # the intercept.
            half = (kind.upper - kind.lower) / 2
            slope = weights[:, position] / half
            coefficients[:, list(columns).index(name)] = slope
            intercept = intercept - slope * (kind.upper + kind.lower) / 2
        return self._shape_line(coefficients, intercept)

    def _shape_line(self, coefficients: Floats, intercept: Floats) -> tuple[Floats, Any]:
        """Return coefficients (outputs, columns) and intercepts (outputs,) in their shapes."""
        return coefficients, intercept

    def make_monotone(self, column: str, *, increasing: bool = True) -> Self:
        """Return a copy whose prediction never falls, or never rises, along a column.

        The column's function is replaced by the nearest monotone one, each knot weighing as much,
        which removes a part of the noise where the truth is monotone.

        Args:
            column: Name of a column of numbers or dates.
            increasing: Whether it may rise; else it may fall.

        Raises:
            InputError: As `effects`, for categories, for more than two classes, and for a column in
                one of `pairs`.

        Guarantee:
            Computed from the fitted estimator alone: the copy keeps its promise at no more cost.
        """
        from sklearn.isotonic import isotonic_regression

        contrast = self._contrast()
        (effect,) = self._read_effects([column])
        assert isinstance(effect, Effect)  # of one name
        # A column in a pair acts through the surface as well, which no curve of it alone makes
        # monotone.
        partners = [pair for pair in self._fitted_pairs() if column in pair]
        if partners:
            raise InputError(
                f"column = {column!r}: its effect depends on another column in the pair "
                f"{partners[0]!r}; fit without this pair"
            )
        if effect.positions is None:
            raise InputError(
                f"column = {column!r}: has categories in no order; name one of numbers"
            )
        if len(contrast.outputs) > 1:
            raise InputError(
                f"column = {column!r}: {len(contrast.outputs)} classes have no single direction; "
                "fit two classes"
            )
        # "(missing)" is no point of the curve, and stays as it is.
        points = len(effect.positions)
        values = effect.values[:points, 0]
        # Isotonic regression, each point weighing the same: the nearest monotone values in ℓ2.
        change = isotonic_regression(values, increasing=increasing) - values
        # The copy has papers of its own below: those of the original stay true of the original.
        copied: Self = copy.deepcopy(self)
        copied._add_to_effect(column, change)
        return copied

    def _add_to_effect(self, column: str, change: Floats) -> None:
        """Add to a column's function at its points, and bind the papers to the new weights."""
        import torch

        from apiece.jobs.statement import Bound

        columns = self._fitted_features()
        where = locate_features(columns)[column]
        kind = columns[column]
        assert isinstance(kind, Numeric | Date)  # checked before
        # A straight line is known by its slope over [-1, 1], half the rise between the ends.
        weights = change if kind.knots else np.array([(change[-1] - change[0]) / 2])
        contrast = self._contrast()
        # (network's outputs, features): `spread` says how the shown number is divided among the
        # outputs.
        shares = contrast.spread[:, None] * weights
        layer = self.network_[0]  # type: ignore[index]
        with torch.no_grad():
            layer.weight[:, where.start : where.start + len(weights)] += torch.from_numpy(shares)
        # The papers speak of these weights from now on.
        bound = Bound.of(self.network_.state_dict(), None, self.run_.seed, None)
        self.run_ = replace(self.run_, bound=bound)

    def _fitted_features(self) -> dict[str, Feature]:
        """Return the declarations of the features that the network was fitted to."""
        check_is_fitted(self)
        return Schema.from_dict({"columns": self.run_.data.columns}, "fit").features(but=set())

    def _fitted_pairs(self) -> tuple[Pair, ...]:
        """Return the pairs whose joint effects the network was fitted to."""
        stored = (self.run_.estimator or {}).get("pairs", ())
        return tuple((first, second) for first, second in stored)

    def _read_effects(
        self, columns: Sequence[str | tuple[str, str]] | None
    ) -> list[Effect | Surface]:
        """Return the functions of some columns and pairs of an additive model."""
        features = self._fitted_features()
        pairs = self._fitted_pairs()
        if self.run_.hidden or self.run_.method != "dp-sgd":
            raise InputError(
                "effects: columns act together in this model; fit one without hidden layers, by "
                "DP-SGD, and with curves=16 it learns more than straight lines"
            )
        names: list[Any] = [*features, *pairs] if columns is None else list(columns)
        # A pair may be a list, as from JSON.
        names = [tuple(name) if isinstance(name, list) else name for name in names]
        for name in names:
            if isinstance(name, tuple) and name not in pairs:
                raise unknown("pair", name, map(str, pairs))
            if not isinstance(name, tuple) and name not in features:
                raise unknown("column", name, features)
        contrast = self._contrast()
        layer = self.network_[0]  # type: ignore[index]
        # (features, shown outputs).
        weights = layer.weight.detach().double().numpy().T @ contrast.matrix
        settings = self.run_.kept.settings
        momentum = settings.get("momentum", 0.0)
        # All noise of the steps in one weight, times what the contrast makes of it.
        noise = noise_of_weights(self.plan_, settings["learning_rate"], momentum)
        noise *= contrast.gain
        places = locate_features(features)
        effects: list[Effect | Surface] = []
        for name in names:
            if isinstance(name, tuple):
                # A pair's products come after all columns, pair by pair.
                start = count_features(features, pairs[: pairs.index(name)])
                stop = count_features(features, pairs[: pairs.index(name) + 1])
                effects.append(read_surface(name, features, weights[start:stop], noise))
            else:
                effects.append(read_effect(name, features[name], weights[places[name]], noise))
        return effects

    @abstractmethod
    def _contrast(self) -> Contrast:
        """Return how the network's outputs are shown as effects."""

    @abstractmethod
    def _target(self) -> Target:
        """Return the declared target: its classes, or its range."""

    @abstractmethod
    def _encode_targets(self, X: object, y: object) -> AnyArray:
        """Return the targets of the rows as numbers, checked."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # such a row contributes nothing
        return tags


@dataclass(eq=False, repr=False)
class PrivateClassifier(_Classifies, _Tabular):
    """A logistic regression, or with hidden layers a network, that keeps each record's (ε, δ).

    Nothing is learned from the rows but by the private training: classes, and the range or the
    values of each column, are declared. A row with a number that cannot be read contributes
    nothing. Steps before the estimator in a `Pipeline` are not private: let them learn nothing.

    Args:
        classes: All labels that there can be, at least two; required.
        columns: The declaration of each column of X, required: `Numeric(lower, upper)` for all, or
            a mapping of names to `Numeric`, `Categorical`, `Date`, `Boolean` or `Skip`, or a
            `Schema`, or the path of one. The columns of an array are called x0, x1, …
        class_weight: A factor in [0, 1] on the loss of each class, public as the classes are; a
            class that is not named has 1. "balanced" is refused: it counts people.
        method: "dp-sgd", or "pate": teachers on the rows, who vote on public rows with noise, and a
            student that learns from the answers.
        public: For PATE, rows that are public, with the columns of X and no labels: they are not
            protected.
        teachers: For PATE, their number.
        questions: For PATE, the number of public rows that teachers are asked about.
        threshold: For PATE, the share of votes that an answer needs, as for `pate.plan_votes`.
        semi_supervised: For PATE, whether answers are spread over all public rows.
        epsilon: For all records, where `fit` is given none.
        delta: For all records, where `fit` is given none.
        levels: The budgets that people could choose, as {"low": 1, "high": 8}: epsilon then has
            these names, which name the groups of `plan_`.
        strategy: How budgets become a plan: a name or a strategy, as for `assign`; for PATE as for
            `pate.plan_votes`. None is "sample", for PATE "weight".
        random_state: None for randomness of the operating system, as a release needs; a number
            makes an experiment repeatable.
        batch_size: Expected; None takes as many as let each group spend its ε, at most 2048: by
            the public counts of budgets, the strategy and the steps. For PATE the rows of a teacher
            in a step; None takes 32.
        steps: Number of updates.
        clip_norm: The mean bound on a record's gradient; None takes 3 (regression: 1) where the
            learning rate is chosen, else 1.
        learning_rate: Learning rate of SGD. None chooses one by the plan's noise, without hidden
            layers and a search; else it takes 2 (regression: .5).
        learning_rate_schedule: A factor on it by step, as `Schedule(((0, 1.0), (499, 0.0)))`, with
            which noise of early steps is forgotten; None falls to 0 where the learning rate is
            chosen, else it is 1 throughout.
        momentum: Of SGD; None takes .9 where the learning rate is chosen, else 0.
        hidden: Widths of hidden layers.
        curves: Knots of the curve that is fitted to each column of numbers or dates, where its
            declaration says none; 0 for a straight line. Without hidden layers the model is then a
            sum of curves and categories, which `effects` shows. None takes 16, 8 or 0 by the plan's
            noise, and 0 for hidden layers, a search and PATE.
        pairs: Columns whose joint effect is learned beside their own, as [("age", "town")] by name,
            or of an array by position: a surface over the products of their knots and categories,
            which `effects` shows. Numbers and dates in a pair need curves. The products of a row
            have a norm of at most 1, as a column's features have, and are clipped with them. Name
            few pairs, which no look at the rows has chosen. None for no pair.
        rows_per_person: With people, the most rows that a person brings to a step; None for all.
        account: An `Account` that notes each fit, and those of clones.
        search: Settings to choose among under the same promise: a `Search`, or a mapping as
            {"learning_rate": [0.1, 1.0], "steps": [50, 200]} for 20 runs on average.

    Attributes:
        plan_: The public plan that was run.
        classes_: The declared classes, sorted.
        curves_: Knots of the curves, 0 for straight lines.
        pairs_: The pairs, by name.
        network_: The trained `torch.nn.Sequential`.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, where X had any.

    Guarantee:
        A record's, or with people a person's, (ε, δ) for everything in the fitted estimator, in
        the add/remove relation, as `plan_` states it: where random_state is None.

    Example:
        >>> import numpy as np
        >>> from apiece.adapters.estimators import PrivateClassifier
        >>> from apiece.datasets import Numeric
        >>> X, y = np.array([[0.0], [1.0]] * 500), np.array(["no", "yes"] * 500)
        >>> model = PrivateClassifier(["no", "yes"], Numeric(0, 1), delta=1e-4, random_state=0)
        >>> model.fit(X, y, epsilon=np.repeat([1.0, 2.0], 500)).score(X, y)
        1.0
        >>> [group.epsilon for group in model.promises_]
        [1.0, 2.0]

        Columns that matter together, here whether two answers are the same:

        >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 250)
        >>> same = np.where(X[:, 0] == X[:, 1], "yes", "no")
        >>> model.set_params(curves=2, pairs=[(0, 1)]).fit(X, same, epsilon=4.0).score(X, same)
        1.0
        >>> model.effects([("x0", "x1")]).shape
        (4, 5)
    """

    classes: npt.ArrayLike | None = None
    columns: object = None
    _: KW_ONLY
    strategy: Any = None
    class_weight: Mapping[Any, float] | None = None
    method: str = "dp-sgd"
    public: object = None
    teachers: int | None = None
    questions: int = 200
    threshold: float | None = None
    semi_supervised: bool = False

    _defaults: ClassVar[Defaults] = CLASSES

    def _contrast(self) -> Contrast:
        check_is_fitted(self)
        return contrast_of_classes(tuple(map(str, self.classes_)))

    def _target(self) -> Classes:
        from apiece.jobs.model import Classes

        return Classes(tuple(read_classes(self.classes).tolist()))

    def _encode_targets(self, X: object, y: object) -> AnyArray:
        classes = read_classes(self.classes)
        codes = encode_labels(X, y, classes)
        self.classes_ = classes
        return codes

    def _read_weights(
        self, sample_weight: npt.ArrayLike | None, targets: AnyArray
    ) -> Floats | None:
        weights = super()._read_weights(sample_weight, targets)
        factors = weigh_classes(self.class_weight, self.classes_)
        if factors is not None:
            # Both factors are in [0, 1], and so is their product.
            weights = factors[targets] if weights is None else weights * factors[targets]
        if weights is not None and self.method == "pate":
            raise InputError(
                "sample_weight, class_weight: teachers of PATE are trained and vote without "
                'weights; leave them out, or take method="dp-sgd"'
            )
        return weights

    def _settings(self, budgets: Budgets) -> tuple[Training, Pate]:
        training, _ = super()._settings(budgets)
        training = replace(training, method=self.method)
        pate = Pate(teachers=self.teachers, threshold=self.threshold)
        if self.method == "pate":
            # A teacher has few rows: its batch is small, where none is given.
            size = 32 if self.batch_size is None else self.batch_size
            training = replace(training, batch_size=size)
            pate = replace(
                pate, questions=self.questions, semi_supervised=bool(self.semi_supervised)
            )
        if self.method == "pate" and self.public is None:
            raise InputError('public: missing; with method="pate" give rows that are public')
        if self.method == "dp-sgd" and self.public is not None:
            pate = replace(pate, public="rows")  # which is refused
        # The same checks as for a job's settings, so that both refuse the same combinations.
        check_method(training, pate, searched=self.search is not None)
        return training, pate

    def _train(
        self,
        budgets: Budgets,
        target: Target,
        rows: Examples,
        weights: Floats | None,
        training: Training,
        plan: BoundPlan | None,
        seed: int | None,
    ) -> Training:
        """Train by DP-SGD, or a student by PATE, and return the settings."""
        if training.method == "dp-sgd":
            return super()._train(budgets, target, rows, weights, training, plan, seed)
        from apiece.jobs.running import train_student

        assert self.teachers is not None  # checked before
        # Votes are paid by a plan of their own: what spends is the answers, and not the teachers'
        # training.
        votes = plan_votes(
            budgets,
            "weight" if self.strategy is None else self.strategy,
            teachers=self.teachers,
            questions=self.questions,
            threshold=self.threshold,
            unit=rows.unit,
        )
        self._note_plan(votes.plan)
        frame = read_frame(self, self.public, reset=False)
        # Public rows are encoded as the private ones are; those that cannot be read are passed
        # over, which tells of nobody.
        public = encode(frame, read_features(self.columns, list(frame.columns), self.curves_))
        self.network_, _ = train_student(
            votes,
            rows,
            public.features[~public.faulty],
            training,
            classes=len(self.classes_),
            semi_supervised=bool(self.semi_supervised),
            seed=seed,
        )
        self.plan_ = votes.plan.public()
        return training


@dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _Tabular):
    """A linear regression, or with hidden layers a network, that keeps each record's (ε, δ).

    It works as `PrivateClassifier` does, but for the target: its range is declared, values outside
    are clipped to it, and predictions lie in it. All other parameters of DP-SGD and all attributes
    are those of `PrivateClassifier`; the output of `network_` is in [-1, 1], `target` scaled.

    Args:
        target: `Numeric(lower, upper)`, the range of y; required.
        columns: The declaration of each column of X, as in `PrivateClassifier`; required.

    Guarantee:
        As `PrivateClassifier`.

    Example:
        >>> import numpy as np
        >>> from apiece.adapters.estimators import PrivateRegressor
        >>> from apiece.datasets import Numeric
        >>> X = np.linspace(0, 1, 1000)[:, None]
        >>> model = PrivateRegressor(Numeric(0, 10), Numeric(0, 1), delta=1e-4, random_state=0)
        >>> bool(model.fit(X, 10 * X[:, 0], epsilon=2.0).score(X, 10 * X[:, 0]) > 0.9)
        True
    """

    target: Numeric | None = None
    columns: object = None

    def _contrast(self) -> Contrast:
        check_is_fitted(self)
        target = self.target
        assert isinstance(target, Numeric)  # checked by fit
        # On a logarithmic scale effects are in half its length, not in the target's unit.
        width = 2.0 if target.scale == "log" else target.upper - target.lower
        return contrast_of_amount(width)

    def _shape_line(self, coefficients: Floats, intercept: Floats) -> tuple[Floats, Any]:
        target = self.target
        assert isinstance(target, Numeric)  # checked by fit
        # 0 to the network is the middle of the range.
        return coefficients[0], float(intercept[0]) + (target.upper + target.lower) / 2

    def _target(self) -> Amount:
        if not isinstance(self.target, Numeric):
            raise InputError(
                f"target = {self.target!r}: the range of y is not read from it, where one person's "
                "value could be seen: declare target=Numeric(lower, upper)"
            )
        from apiece.jobs.model import Amount

        return Amount(self.target)

    def _encode_targets(self, X: object, y: object) -> AnyArray:
        values = column_or_1d(y, warn=True, dtype=np.float64)
        check_consistent_length(X, values)
        require_same_index(X, y)
        if not np.isfinite(values).all():
            raise InputError("y: contains NaN or infinity; leave these rows out")
        # Numbers outside the declared range are clipped to it: its ends, and no row's, are what the
        # model knows.
        return self._target().encode(values).numpy()

    def predict(self, X: object) -> npt.NDArray[np.float64]:
        """Return a number in the declared range for each row.

        Args:
            X: As for `fit`.

        Raises:
            InputError: For other columns, or a row with a number that cannot be read.
        """
        check_is_fitted(self)
        return self._target().decode(self._outputs(X))

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return the coefficient of determination R², which is at most 1.

        Args:
            X: As for `fit`.
            y: True number of each row, with the index of X where both have one.
            sample_weight: Weight of each row, with that index too; None for equal ones.

        Raises:
            DataError: Where two have different indices.
            InputError: As `predict`.
        """
        common_index(X=X, y=y, sample_weight=sample_weight)
        return float(super().score(X, y, sample_weight))


@dataclass(eq=False, repr=False)
class PrivateImageClassifier(_Classifies):
    """A head on frozen features of images, which keeps each image's (ε, δ).

    Features come from transforms that see no private data; with a recipe's views an image and its
    mirror image are one record. epsilon, delta, levels, strategy and random_state are those of
    `PrivateClassifier`.

    Args:
        classes: All labels that there can be; none is learned from y.
        recipe: A name in `apiece.recipes.RECIPES`, or a `Recipe`.
        cache: A folder in which features are stored; None stores none.

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
        >>> import numpy as np
        >>> from apiece.adapters.estimators import PrivateImageClassifier
        >>> from apiece.recipes import Recipe
        >>> recipe = Recipe(transform="leaf-patches", groups=32, epochs=5, batch_size=100)
        >>> X, y = np.zeros((200, 1, 8, 8), np.uint8), np.repeat(["dark", "light"], 100)
        >>> X[100:, :, ::2] = 255
        >>> model = PrivateImageClassifier(["dark", "light"], recipe, delta=1e-4, random_state=0)
        >>> model.fit(X, y, epsilon=np.repeat([2.0, 4.0], 100)).score(X, y)
        1.0
    """

    classes: npt.ArrayLike | None = None
    recipe: Recipe | str = "scattering-linear"
    _: KW_ONLY
    cache: str | Path | None = None

    __metadata_request__fit: ClassVar = {"epsilon": True, "delta": True}

    def fit(
        self,
        X: object,
        y: object,
        *,
        epsilon: npt.ArrayLike | None = None,
        delta: npt.ArrayLike | None = None,
    ) -> Self:
        """Return self, trained on these images, each at their own budget.

        Args:
            X: (n, colours, side, side) Bytes.
            y: (n,) Labels, each a declared class.
            epsilon: For all, or one an image; None takes the estimator's. A Series has the index
                of y; a list or an array is taken by position.
            delta: As `epsilon`.

        Raises:
            InputError: For what is not declared, labels that are no class, other images, and values
                out of bounds; a `ValueError`, as scikit-learn's own are.
            InfeasibleError: Where no plan meets the request.
        """
        import torch

        recipe = self._find_recipe()
        classes = read_classes(self.classes)
        codes = encode_labels(X, y, classes)
        self.classes_ = classes
        # By rows: images have no ids.
        budgets = self._budgets(X, y, epsilon, delta, None, codes.size)
        plan = recipe.plan(budgets, self.strategy)
        # By public transforms: what they compute of an image depends on that image alone.
        features = recipe.features(np.asarray(X), cache=self.cache)
        seed = read_seed(self.random_state)
        self.network_ = recipe.train(
            plan, features, torch.from_numpy(codes), classes.size, seed=seed
        )
        self.plan_ = plan.public()
        source = "the images given to fit"
        if recipe.public_data:
            source += f", by {recipe.public_data}"
        self._record_run(
            y,
            source=source,
            features=features[0, 0].numel(),
            settings={
                "batch_size": plan.expected_batch_size,
                "steps": plan.steps,
                "clip_norm": recipe.clip_norm,
                "learning_rate": recipe.learning_rate,
                "momentum": recipe.momentum,
            },
            seed=seed,
            hidden=(),
            recipe=recipe.to_dict(),
            shape=list(features.shape[2:]),
        )
        return self

    def _find_recipe(self) -> Recipe:
        from apiece.recipes import RECIPES, Recipe

        if isinstance(self.recipe, Recipe):
            return self.recipe
        if self.recipe not in RECIPES:
            raise unknown("recipe", str(self.recipe), RECIPES)
        return RECIPES[self.recipe]

    def _outputs(self, X: object) -> torch.Tensor:
        from apiece.recipes import outputs_of

        features = self._find_recipe().features(np.asarray(X), cache=self.cache)
        return outputs_of(self.network_, features)
