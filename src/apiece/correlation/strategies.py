"""Strategy matrices: lower triangular, Toeplitz, with ones on the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Json
from apiece.errors import InputError, unknown

# Coefficients of a banded strategy, at most: noise remembers a copy of the model for each.
_MOST_BANDS = 10**5
# Buffers of a buffered strategy, at most.
_MOST_BUFFERS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Banded:
    """A strategy with finitely many bands: C[t, s] = coefficients[t − s].

    One band is independent noise. The noise of a step is
    z̃_t = z_t − Σ_{0<j<bands} coefficients[j] · z̃_{t−j}, so `bands` − 1 copies of the model are
    remembered.

    Args:
        coefficients: (bands,), the first column of C, finite; the first is 1.

    Raises:
        InputError: For no coefficients, too many, or a first one that is not 1.

    References:
        Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".

    Example:
        >>> from apiece.correlation.strategies import Banded
        >>> Banded([1.0, 0.5, 0.25]).memory
        2
    """

    coefficients: Floats

    def __init__(self, coefficients: npt.ArrayLike) -> None:
        values = _check.finite_array("coefficients", coefficients)
        if values.ndim != 1 or not 1 <= values.size <= _MOST_BANDS:
            raise InputError(
                f"coefficients: of shape {values.shape}; give 1 to {_MOST_BANDS} numbers"
            )
        if values[0] != 1:
            raise InputError(f"coefficients[0] = {values[0]:g}: must be 1; divide all by it")
        object.__setattr__(self, "coefficients", values)

    @classmethod
    def square_root(cls, bands: int) -> Banded:
        """Return the square root of the matrix of running sums, cut after `bands` bands.

        Args:
            bands: At least 1; 1 is independent noise.

        Raises:
            InputError: For a number below 1.

        References:
            Fichtenberger, Henzinger, Upadhyay 2023.

        Example:
            >>> from apiece.correlation.strategies import Banded
            >>> Banded.square_root(4).coefficients.tolist()
            [1.0, 0.5, 0.375, 0.3125]
        """
        lags = np.arange(1, _check.count("bands", bands))
        # The series of (1 − x)^(−1/2): a_j = a_{j−1} · (2j − 1)/(2j).
        ratios = (2 * lags - 1) / (2 * lags)
        return cls(np.concatenate([[1.0], np.cumprod(ratios)]))

    @property
    def bands(self) -> int:
        """The number of diagonals that are not 0."""
        return self.coefficients.size

    @property
    def memory(self) -> int:
        """How many copies of the model the noise remembers."""
        return self.bands - 1

    def first_column(self, steps: int) -> Floats:
        """Return the first column of C for this many steps, (steps,).

        Args:
            steps: T.
        """
        column = np.zeros(steps)
        length = min(steps, self.bands)
        column[:length] = self.coefficients[:length]
        return column

    def to_json(self) -> Json:
        """Return the strategy as JSON."""
        return {"banded": {"coefficients": self.coefficients.tolist()}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Banded):
            return NotImplemented
        return np.array_equal(self.coefficients, other.coefficients)

    def __hash__(self) -> int:
        return _hash_values(self.coefficients)

    def __repr__(self) -> str:
        return f"Banded({self.bands} bands)"


@dataclass(frozen=True, slots=True, eq=False)
class Buffered:
    """A strategy of few buffers, each of which fades: C[t, s] = Σ_m weights[m]·decays[m]^(t−s−1).

    On the diagonal it is 1. Each buffer is one copy of the model, however many steps there are:
    z̃_t = z_t − Σ_m weights[m] · b_m, then b_m ← decays[m] · b_m + z̃_t.

    Args:
        decays: (m,), each in [0, 1).
        weights: (m,), each at least 0, at most 1 in all; so coefficients never increase.

    Raises:
        InputError: For values out of bounds.

    References:
        Dvijotham et al. 2024 and McMahan et al. 2024 (buffered linear Toeplitz, BLT).

    Example:
        >>> from apiece.correlation.strategies import Buffered
        >>> Buffered([0.5], [0.5]).first_column(4).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """

    decays: Floats
    weights: Floats

    def __init__(self, decays: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        rates = _check.finite_array("decays", decays)
        shares = _check.finite_array("weights", weights)
        is_pair = rates.ndim == 1 and rates.shape == shares.shape
        if not (is_pair and 1 <= rates.size <= _MOST_BUFFERS):
            raise InputError(
                f"decays, weights: of shapes {rates.shape} and {shares.shape}; give 1 to "
                f"{_MOST_BUFFERS} numbers each, as many of one as of the other"
            )
        if not ((rates >= 0) & (rates < 1)).all():
            raise InputError("decays: must each be in [0, 1); a buffer fades or it is a sum")
        if not ((shares >= 0).all() and shares.sum() <= 1):
            raise InputError("weights: must be at least 0 each and at most 1 in all")
        object.__setattr__(self, "decays", rates)
        object.__setattr__(self, "weights", shares)

    @property
    def memory(self) -> int:
        """How many copies of the model the noise remembers."""
        return self.decays.size

    def first_column(self, steps: int) -> Floats:
        """Return the first column of C for this many steps, (steps,).

        Args:
            steps: T.
        """
        column = np.ones(steps)
        lags = np.arange(max(steps - 1, 0))
        # (m, steps − 1); a buffer that decays at once, 0⁰ = 1, still acts on the next step.
        powers = self.decays[:, None] ** lags
        column[1:] = self.weights @ powers
        return column

    def to_json(self) -> Json:
        """Return the strategy as JSON."""
        fields: Json = {"decays": self.decays.tolist(), "weights": self.weights.tolist()}
        return {"buffered": fields}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Buffered):
            return NotImplemented
        same_decays = np.array_equal(self.decays, other.decays)
        return same_decays and np.array_equal(self.weights, other.weights)

    def __hash__(self) -> int:
        return hash((_hash_values(self.decays), _hash_values(self.weights)))

    def __repr__(self) -> str:
        return f"Buffered({self.memory} buffers)"


def _hash_values(values: Floats) -> int:
    """Return a hash that equal arrays share."""
    # −0 equals 0 in other bytes, and −0 + 0 is 0.
    return hash((values + 0.0).tobytes())


# One more is a class here and an entry below, all its fields lists of numbers; and how its noise
# goes from step to step, in `training.correlated`.
NoiseStrategy: TypeAlias = Banded | Buffered

# Name in JSON → its class.
STRATEGY_KINDS: Final[dict[str, type[NoiseStrategy]]] = {"banded": Banded, "buffered": Buffered}


def strategy_from_json(document: Json) -> NoiseStrategy:
    """Return the strategy that `to_json` wrote.

    Raises `InputError` for anything else.
    """
    if len(document) != 1:
        raise InputError("noise strategy: must be one of banded and buffered, with its numbers")
    ((kind, fields),) = document.items()
    if kind not in STRATEGY_KINDS:
        raise unknown("noise strategy", kind, STRATEGY_KINDS)
    try:
        strategy = STRATEGY_KINDS[kind](**fields)
    except TypeError:
        raise InputError(f"noise strategy {kind}: other fields than it has") from None
    return strategy
