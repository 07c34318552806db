"""Gaussian differential privacy for audits: μ from counts, ε from μ.

Source: Dong, Roth, Su 2022 (GDP); Nasr et al. 2023, §4 (auditing through it).
"""

from __future__ import annotations

import numpy as np
from scipy import special

from apiece._types import Floats, Integers
from apiece.audit.thresholds import Candidates
from apiece.numerics import gaussian_epsilon_below, last_true

MOST, ROUNDS = 64, 30  # how far and how finely the largest rejected value is sought
_TAILS = special.expit(np.linspace(-16.0, 9.0, 101))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the ε of a μ-GDP mechanism at `delta`; 0 where δ(0) ≤ delta, rounded down.

    >>> round(epsilon_from_mu(1.0, 1e-5), 3)
    4.377
    """
    return float(gaussian_epsilon_below(mu, delta)) if mu > 0 else 0.0


def _fisher(product: Floats) -> Floats:
    """Return P(U·V ≤ product) for independent uniform U, V."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = product * (1 - np.log(product))
    return np.where(product > 0, value, 0.0)


def p_values(candidates: Candidates, mu: float) -> Floats:
    """Return, for each candidate, a p-value of "the trade-off is at least that of μ-GDP".

    At a false-positive rate α the hypothesis allows TPR ≤ Φ(Φ⁻¹(α) + μ). The two arms give two
    independent p-values, combined by Fisher's product; the supremum over α is taken over cells of
    a grid with the worse end of the cell for each, so it is an upper bound on the supremum.
    """
    tp = candidates.true_positives[:, None]
    fp = candidates.false_positives[:, None]
    n, m = candidates.in_count, candidates.out_count
    by_fp = special.betainccinv(fp + 1, np.maximum(m - fp, 1), _TAILS)
    by_tp = special.betaincinv(np.maximum(tp, 1), n - tp + 1, _TAILS)
    grid = np.sort(np.hstack([by_fp, special.ndtr(special.ndtri(by_tp) - mu)]), axis=1)
    allowed = special.ndtr(special.ndtri(grid) + mu)
    p_in = np.where(tp > 0, special.betainc(np.maximum(tp, 1), n - tp + 1, allowed), 1.0)
    p_out = np.where(fp < m, special.betaincc(fp + 1, np.maximum(m - fp, 1), grid), 1.0)
    ones = np.ones((len(candidates), 1))
    worst = _fisher(np.hstack([p_in, ones]) * np.hstack([ones, p_out])).max(axis=1)
    return np.asarray(np.minimum(worst, 1.0))


def _only(candidates: Candidates, which: Integers) -> Candidates:
    return Candidates(
        threshold=candidates.threshold[which],
        true_positives=candidates.true_positives[which],
        false_positives=candidates.false_positives[which],
        in_count=candidates.in_count,
        out_count=candidates.out_count,
    )


def largest_mu(candidates: Candidates, error: float) -> tuple[float, int]:
    """Return the largest μ that some candidate rejects at `error`, and that candidate.

    A candidate's p-value grows with μ, so one that does not reject a μ is left out above it.
    """
    alive = np.arange(len(candidates))

    def rejects(mu: float) -> bool:
        nonlocal alive
        found = alive[p_values(_only(candidates, alive), mu) <= error]
        alive = found if found.size else alive
        return found.size > 0

    mu = last_true(rejects, most=MOST, rounds=ROUNDS)
    return mu, int(alive[0]) if alive.size else 0
