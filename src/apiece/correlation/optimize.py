"""The coefficients that disturb a workload least, for what a person's participations may be.

What is minimised is sensitivity times error, each up to a common factor: the error at a fixed μ.
Gradients are exact; series are multiplied by transforms, so a step costs O(T log T).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers
from apiece.correlation.sensitivity import count_participations, sum_shifted
from apiece.correlation.series import correlate_series, invert_series, multiply_series
from apiece.correlation.strategies import Banded, Buffered
from apiece.correlation.workloads import Workload
from apiece.errors import unknown

# Over all steps: the root of the mean of the squared errors, the error after the last step, or the
# largest.
ErrorKind: TypeAlias = Literal["mean", "last", "max"]
# A squared quantity of a first column, and its gradient in the column.
_Squared: TypeAlias = tuple[float, Floats]

# Steps of the search, at most; some dozens are usual.
_MOST_ITERATIONS = 500
# The objective where it is beyond all numbers: more than any that is not.
_TOO_LARGE = 1e6
# Columns of A C⁻¹ that stand for all where learning rates vary.
_SAMPLED_COLUMNS = 128
# The largest of the squared errors is searched for by the norm of this order, which is smooth.
_NORM_ORDER = 128.0
# Slowest and fastest decays that a search over buffers starts from, as half-lives in steps over T.
_LONGEST_HALF_LIFE = 2.0


def optimize_banded(
    workload: Workload,
    *,
    bands: int,
    participations: int = 1,
    separation: int | None = None,
    error: ErrorKind = "mean",
) -> Banded:
    """Return the banded strategy with the least error at a fixed privacy cost.

    With at most `separation` bands the coefficients are free. With more, or where a person takes
    part more often than once within the bands, they are kept from increasing and from being
    negative, so that the sensitivity is exact.

    Args:
        workload: What the noise disturbs.
        bands: At least 1; more than the workload has steps are as many as it has.
        participations: How many steps a person takes part in at most.
        separation: The least distance of two of them; None for as far apart as the steps allow.
        error: "mean" over all steps, that after the "last", or the "max" of all. The last two are
            one where learning rates are alike.

    Raises:
        InputError: For numbers that are not whole or below 1.
        OptionError: For another error.

    References:
        Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".

    Example:
        >>> from apiece.correlation.workloads import Workload
        >>> from apiece.correlation.optimize import optimize_banded
        >>> workload = Workload(64)
        >>> found = optimize_banded(workload, bands=8)
        >>> round(workload.mean_error(found), 2)
        1.8
    """
    objective = _Objective(workload, participations, separation, error)
    size = min(_check.count("bands", bands), workload.steps)
    start = Banded.square_root(size).coefficients[1:]
    if size == 1:
        return Banded([1.0])
    if objective.has_disjoint_columns(size):
        return Banded(_search(objective, start, _free_column))
    # Of each ratio a_j/a_{j−1} in (0, 1) its logit.
    coefficients = Banded.square_root(size).coefficients
    ratios = coefficients[1:] / coefficients[:-1]
    logits = np.log(ratios / (1 - ratios))
    return Banded(_search(objective, logits, _falling_column))


def optimize_buffered(
    workload: Workload,
    *,
    buffers: int = 4,
    participations: int = 1,
    separation: int | None = None,
    error: ErrorKind = "mean",
) -> Buffered:
    """Return the strategy of few buffers with the least error at a fixed privacy cost.

    Args:
        workload: What the noise disturbs.
        buffers: Copies of the model that the noise remembers, at least 1.
        participations: As for `optimize_banded`.
        separation: As for `optimize_banded`.
        error: As for `optimize_banded`.

    Raises:
        InputError: For numbers that are not whole or below 1.
        OptionError: For another error.

    References:
        McMahan et al. 2024, "A Hassle-free Algorithm for Private Learning in Practice".

    Example:
        >>> from apiece.correlation.workloads import Workload
        >>> from apiece.correlation.optimize import optimize_buffered
        >>> workload = Workload(1000)
        >>> found = optimize_buffered(workload, buffers=3)
        >>> round(workload.mean_error(found), 1)
        1.8
    """
    objective = _Objective(workload, participations, separation, error)
    count = _check.count("buffers", buffers)
    # Half-lives from one step to more than the training, evenly in their logarithm.
    half_lives = np.geomspace(1.0, _LONGEST_HALF_LIFE * workload.steps, count)
    decays = 2.0 ** (-1 / half_lives)
    # Together they hold half of what they may.
    weights = np.full(count, 0.5 / count)
    # As `_read_buffers` takes them: logits of decays, and log odds of weights against what is left.
    logits = np.log(decays / (1 - decays))
    scores = np.log(weights / 0.5)
    start = np.concatenate([logits, scores])
    parameters = _minimize(objective, start, _buffered_column)
    fitted_decays, fitted_weights = _read_buffers(parameters)
    return Buffered(fitted_decays, fitted_weights)


# ---------------------------------------------------------------- what is minimised


class _Objective:
    """log(sensitivity² · error²) of a first column, and its gradient."""

    def __init__(
        self, workload: Workload, participations: int, separation: int | None, error: ErrorKind
    ) -> None:
        if error not in get_args(ErrorKind):
            raise unknown("error", error, get_args(ErrorKind))
        steps = workload.steps
        times = _check.count("participations", participations)
        # As far apart as the steps allow, unless a distance was given.
        self.separation = max(steps // times, 1)
        if separation is not None:
            self.separation = _check.count("separation", separation)
        self.times = count_participations(steps, times, self.separation)
        self.steps = steps
        self._momentum = workload.momentum ** np.arange(steps, dtype=float)
        self._rates = workload.learning_rates
        self._error = error

    def has_disjoint_columns(self, bands: int) -> bool:
        """Return whether a person's columns of so many bands never overlap."""
        return self.times == 1 or bands <= self.separation

    def __call__(self, column: Floats) -> _Squared:
        """Return the objective of a column, (steps,), and its gradient."""
        sensitivity, of_sensitivity = self._sensitivity(column)
        error, of_error = self._squared_error(column)
        value = np.log(sensitivity) + np.log(error)
        return float(value), of_sensitivity / sensitivity + of_error / error

    def _sensitivity(self, column: Floats) -> _Squared:
        # Up to the last coefficient that is not 0.
        bands = int(np.flatnonzero(column)[-1]) + 1
        if self.has_disjoint_columns(bands):
            squared = self.times * float(column @ column)
            return squared, 2 * self.times * column
        # Columns overlap: the coefficients then fall and are positive, and the worst schedule is
        # known.
        total = sum_shifted(column, self.times, self.separation)
        gradient = np.zeros_like(column)
        for start in range(0, self.times * self.separation, self.separation):
            gradient[: column.size - start] += 2 * total[start:]
        return float(total @ total), gradient

    def _squared_error(self, column: Floats) -> _Squared:
        inverse = invert_series(column, self.steps)
        # The first column of A C⁻¹, without learning rates.
        response = multiply_series(self._momentum, inverse, self.steps)
        error, of_response = self._error_of_response(response)
        of_inverse = correlate_series(of_response, self._momentum, self.steps)
        # δ(1/a) = −(1/a)²·δa.
        square = multiply_series(inverse, inverse, self.steps)
        return error, -correlate_series(of_inverse, square, self.steps)

    def _error_of_response(self, response: Floats) -> _Squared:
        """Return the squared error by what a step's noise adds to later steps, at rate 1."""
        if self._rates is None:
            # Rows are the beginnings of one sequence: the t-th entry is in T − t of them.
            total = np.cumsum(response)
            weights = np.ones(self.steps)
            if self._error == "mean":
                weights = np.arange(self.steps, 0, -1) / self.steps
            weighted = weights * total
            # A response enters the totals of its own step and of all later ones.
            from_back = np.cumsum(weighted[::-1])
            return float(weighted @ total), 2 * from_back[::-1]
        if self._error == "last":
            # The last row of A C⁻¹: its s-th entry is Σ over u ≥ s of rate_u·response_{u−s}.
            row = correlate_series(self._rates, response, self.steps)
            return float(row @ row), 2 * correlate_series(self._rates, row, self.steps)
        samples = np.linspace(0, self.steps - 1, _SAMPLED_COLUMNS)
        columns = np.unique(samples.astype(int))
        if self._error == "max":
            return self._largest_error(self._rates, response, columns)
        # The mean squared error is the mean of the columns' squared norms, for all of which a few
        # stand that are evenly spread.
        error = 0.0
        gradient = np.zeros(self.steps)
        # Of column s of A C⁻¹, row t is Σ over s ≤ u ≤ t of rate_u·response_{u−s}.
        for column in columns:
            later = self._rates[column:]
            entries = np.cumsum(later * response[: later.size])
            error += float(entries @ entries) / columns.size
            from_back = np.cumsum(entries[::-1])
            falling = from_back[::-1]
            gradient[: later.size] += 2 * later * falling / columns.size
        return error, gradient

    def _largest_error(self, rates: Floats, response: Floats, columns: Integers) -> _Squared:
        """Return the norm of high order of the squared errors after all steps.

        A column stands for all up to the next one, as if their learning rates were its own.
        """
        gaps = np.diff(columns, append=self.steps)
        squares = np.zeros(self.steps)
        for column, gap in zip(columns, gaps, strict=True):
            later = rates[column:]
            totals = np.cumsum(np.cumsum(later * response[: later.size]) ** 2)
            squares[column:] += totals
            squares[column + gap :] -= totals[: totals.size - gap]
        # Where two steps tie, the largest error has no gradient: a norm of high order is near it
        # and smooth. In units of the largest no power overflows.
        largest = squares.max()
        powers = (squares / largest) ** _NORM_ORDER
        error = float(largest * powers.sum() ** (1 / _NORM_ORDER))
        # Of the norm, by each squared error.
        weights = (squares / error) ** (_NORM_ORDER - 1)
        gradient = np.zeros(self.steps)
        for column, gap in zip(columns, gaps, strict=True):
            later = rates[column:]
            entries = np.cumsum(later * response[: later.size])
            # What a squared entry adds to all rows that the column stands for.
            sums = np.cumsum(weights[column:][::-1])[::-1]
            sums[: sums.size - gap] -= sums[gap:].copy()
            falling = np.cumsum((sums * entries)[::-1])[::-1]
            gradient[: later.size] += 2 * later * falling
        return error, gradient


# ---------------------------------------------------------------- what is searched

# Parameters and a number of steps → the column, and what takes its gradient back to them.
_Form: TypeAlias = Callable[[Floats, int], tuple[Floats, Callable[[Floats], Floats]]]


def _free_column(parameters: Floats, steps: int) -> tuple[Floats, Callable[[Floats], Floats]]:
    """Coefficients after the first, as they are."""
    column = np.zeros(steps)
    column[0] = 1.0
    column[1 : parameters.size + 1] = parameters
    return column, lambda gradient: gradient[1 : parameters.size + 1]


def _falling_column(parameters: Floats, steps: int) -> tuple[Floats, Callable[[Floats], Floats]]:
    """Coefficients that are positive and never increase, by the logits of their ratios."""
    # Imported where it is used: it takes half as long as all else that a plan's help needs.
    from scipy.special import expit

    ratios = expit(parameters)
    column = np.zeros(steps)
    column[0] = 1.0
    column[1 : parameters.size + 1] = np.cumprod(ratios)

    def pull_back(gradient: Floats) -> Floats:
        # A ratio scales its own coefficient and all after it.
        scaled = (gradient * column)[1 : parameters.size + 1]
        from_back = np.cumsum(scaled[::-1])
        return from_back[::-1] * (1 - ratios)

    return column, pull_back


def _read_buffers(parameters: Floats) -> tuple[Floats, Floats]:
    """Return the decays by their logits, and the weights, which sum to less than 1."""
    from scipy.special import expit

    logits, scores = np.split(parameters, 2)
    shares = np.exp(scores)
    return expit(logits), shares / (1 + shares.sum())


def _buffered_column(parameters: Floats, steps: int) -> tuple[Floats, Callable[[Floats], Floats]]:
    decays, weights = _read_buffers(parameters)
    lags = np.arange(steps - 1)
    powers = decays[:, None] ** lags
    column = np.ones(steps)
    column[1:] = weights @ powers

    def pull_back(gradient: Floats) -> Floats:
        of_weights = powers @ gradient[1:]
        of_scores = weights * (of_weights - weights @ of_weights)
        # lag·decay^(lag − 1)·decay·(1 − decay), by the logit.
        of_logits = weights * (1 - decays) * ((lags * powers) @ gradient[1:])
        return np.concatenate([of_logits, of_scores])

    return column, pull_back


def _search(objective: _Objective, start: Floats, form: _Form) -> Floats:
    """Return the coefficients that a search ends with."""
    parameters = _minimize(objective, start, form)
    column, _ = form(parameters, objective.steps)
    return column[: start.size + 1]


def _minimize(objective: _Objective, start: Floats, form: _Form) -> Floats:
    """Return the parameters with the least objective that L-BFGS finds."""

    def evaluate(parameters: Floats) -> _Squared:
        column, pull_back = form(parameters, objective.steps)
        # A step that is too long may make the inverse grow beyond all numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = objective(column)
            slope = pull_back(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return _TOO_LARGE, np.zeros_like(parameters)
        return value, slope

    # It takes longer than all else that commands import.
    from scipy.optimize import minimize

    found = minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_ITERATIONS}
    )
    result: Floats = found.x
    return result
