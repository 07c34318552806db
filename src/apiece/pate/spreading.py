"""Semi-supervised: a few answers, spread over all public inputs by who lies near whom.

Nothing but answers and public inputs goes in, so it costs no privacy. Source: Zhou et al. 2004.
"""

from __future__ import annotations

import warnings

import numpy as np

from apiece._types import Floats, Integers
from apiece.errors import UnsupportedError
from apiece.pate.voting import NONE

NEIGHBOURS = 10


def spread(inputs: Floats, answers: Integers) -> Integers:
    """Return a class for each input, −1 where no answer reaches it.

    Args:
        inputs: (Q, …) Public.
        answers: (Q,) Classes, −1 where there is none.

    Raises:
        UnsupportedError: Where scikit-learn is not installed.

    Example:
        >>> x = np.concatenate([np.linspace(0, 1, 20), np.linspace(5, 6, 20)])[:, None]
        >>> known = np.where(np.arange(40) % 20 == 0, np.arange(40) // 20, -1)
        >>> spread(x, known)[[7, 33]].tolist()
        [0, 1]
    """
    try:
        from sklearn.semi_supervised import LabelSpreading
    except ModuleNotFoundError:
        raise UnsupportedError(
            "semi_supervised: needs scikit-learn; pip install 'apiece[sklearn]', or leave it out"
        ) from None
    flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    model = LabelSpreading(
        kernel="knn", n_neighbors=min(NEIGHBOURS, len(flat) - 1), alpha=0.2, max_iter=200
    )
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # of inputs that no answer reaches, and of slow convergence
        model.fit(flat, answers)
    reached = model.label_distributions_.max(axis=1)
    return np.where(reached > 0, model.transduction_, NONE)
