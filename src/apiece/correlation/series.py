"""Power series cut after n terms: the first columns of lower triangular Toeplitz matrices.

The product of two such matrices has the product of their series as its first column, and the
inverse of one has the inverse series. So a T × T matrix is T numbers.
"""

import numpy as np

from apiece._types import Floats


def multiply_series(left: Floats, right: Floats, terms: int) -> Floats:
    """Return the first `terms` coefficients of the product of two series."""
    # Imported when it is first needed: it takes longer than all else that commands import.
    from scipy.signal import oaconvolve

    product = oaconvolve(left[:terms], right[:terms])[:terms]
    return np.pad(product, (0, terms - product.size))


# Products above which Newton's iteration by transforms is quicker than the recurrence.
_MANY_PRODUCTS = 10**7


def invert_series(series: Floats, terms: int) -> Floats:
    """Return the first `terms` coefficients of 1/series, whose constant term is 1."""
    if terms * min(series.size, terms) <= _MANY_PRODUCTS:
        from scipy.signal import lfilter

        impulse = np.zeros(terms)
        impulse[0] = 1.0
        inverse: Floats = lfilter([1.0], series[:terms], impulse)
        return inverse
    inverse = np.ones(1)
    while inverse.size < terms:
        # Newton's step for 1/series: what is right up to n terms becomes right up to 2n.
        length = min(2 * inverse.size, terms)
        correction = -multiply_series(series, inverse, length)
        correction[0] += 2.0
        inverse = multiply_series(inverse, correction, length)
    return inverse


def correlate_series(outer: Floats, inner: Floats, terms: int) -> Floats:
    """Return g_j = Σ_t outer_t · inner_{t−j} for j < terms: the adjoint of multiplying by `inner`.

    If f depends on p = multiply_series(inner, x) with gradient `outer`, its gradient in x is this.
    """
    from scipy.signal import oaconvolve

    length = outer.size
    reverse = oaconvolve(outer, inner[:length][::-1])
    # The lag 0 lies where the reversed series ends.
    start = min(inner.size, length) - 1
    lags: Floats = reverse[start : start + terms]
    return np.pad(lags, (0, terms - lags.size))
