"""Models fitted to released marginals: mirror descent over the marginals of a junction tree.

The loss is Σ ‖p·total − y‖²/(2σ²) over the measurements, which is convex in the marginals of the
model. `fit_draft` is quick and is what the next choice is made from; the final model is mbi's
(`fit_model`). Both are functions of what was released, so that no privacy depends on them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._lazy import require
from apiece._types import Floats
from apiece.synthesis.marginals import Clique, Measurement
from apiece.synthesis.trees import JunctionTree

# Steps of a draft, and of the final model.
DRAFT_STEPS: Final = 50
FINAL_STEPS: Final = 1000
# By what a step of the descent grows after a success, and shrinks after a failure.
_GROWTH: Final = 2.0
_SHRINKAGE: Final = 0.5
# A descent ends where a step gains less than this share of the loss, twenty times in turn.
_CLOSE: Final = 1e-7
_PATIENCE: Final = 20


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A graphical model of the rows: log potentials of marginals, and a total weight.

    Args:
        sizes: How many cells each column has.
        potentials: Marginal → log potential of its cells, in the order of a measurement.
        total: The weight of all rows.
        zeros: Marginal → log potential of what is ruled out: 0 or −∞.
    """

    sizes: tuple[int, ...]
    potentials: Mapping[Clique, Floats]
    total: float
    zeros: Mapping[Clique, Floats] = field(default_factory=dict)

    @cached_property
    def tree(self) -> JunctionTree:
        """The junction tree of the potentials."""
        return JunctionTree(self.sizes, [*self.potentials, *self.zeros])

    @cached_property
    def beliefs(self) -> list[Floats]:
        """The probabilities of the cells of each node of the tree."""
        return self.tree.calibrate(_add_zeros(self.potentials, self.zeros))

    def probabilities(self, clique: Clique) -> Floats:
        """Return the probability of each cell of a marginal."""
        return self.tree.marginal(self.beliefs, clique).ravel()

    def expect(self, clique: Clique) -> Floats:
        """Return the weighted count of each cell of a marginal."""
        return self.probabilities(clique) * self.total

    def draw(self, rows: int, generator: np.random.Generator) -> npt.NDArray[np.int32]:
        """Return rows of cell numbers."""
        return self.tree.draw(self.beliefs, rows, generator)


def estimate_total(measurements: Sequence[Measurement]) -> float:
    """Return the total weight, each measurement's own by the precision of its sum; at least 1."""
    # A sum over n cells has n times the variance of one.
    precisions = [1 / (m.noise_stddev**2 * m.values.size) for m in measurements]
    totals = [float(m.values.sum()) for m in measurements]
    return max(1.0, float(np.average(totals, weights=precisions)))


@dataclass(frozen=True, slots=True)
class _Target:
    """Measurements of one marginal taken together: their mean by precision, and that."""

    values: Floats
    precision: float


def _gather_targets(measurements: Sequence[Measurement]) -> dict[Clique, _Target]:
    """Return what each marginal was measured to be, all its measurements together."""
    sums: dict[Clique, Floats] = {}
    precisions: dict[Clique, float] = {}
    # Weights 1/σ²: together they are as one measurement of that precision.
    for m in measurements:
        precision = m.noise_stddev**-2
        sums[m.clique] = sums.get(m.clique, np.zeros(m.values.size)) + precision * m.values
        precisions[m.clique] = precisions.get(m.clique, 0.0) + precision
    return {
        clique: _Target(sums[clique] / precision, precision)
        for clique, precision in precisions.items()
    }


def fit_draft(
    sizes: tuple[int, ...],
    measurements: Sequence[Measurement],
    zeros: Mapping[Clique, Floats],
    previous: Model | None,
    steps: int = DRAFT_STEPS,
) -> Model:
    """Return a model near the best fit, from a previous one, in a few steps.

    Args:
        sizes: How many cells each column has.
        measurements: What was released.
        zeros: What is ruled out.
        previous: A model to start from.
        steps: Steps of the descent, at most.
    """
    targets = _gather_targets(measurements)
    total = estimate_total(measurements)
    # Marginals that the previous model had begin where they were, new ones at zero.
    potentials = {
        clique: np.zeros(target.values.size)
        if previous is None or clique not in previous.potentials
        else previous.potentials[clique]
        for clique, target in targets.items()
    }
    model = Model(sizes, potentials, total, zeros)
    # In weighted counts: (cells,) for each marginal.
    loss, gradient, marginals = _measure_misfit(model, targets)
    # The step that curvature allows to begin with; it grows and shrinks below.
    rate = 2.0 / (total * _bound_curvature(model.tree, targets))
    stalled = 0
    for _ in range(steps):
        # Mirror descent with entropy: a step is taken in log potentials, along the gradient in
        # marginals.
        tried = {clique: p - rate * gradient[clique] for clique, p in potentials.items()}
        candidate = _with_potentials(model, tried)
        new_loss, new_gradient, new_marginals = _measure_misfit(candidate, targets)
        # ⟨gradient, old − new marginals⟩: what a linear loss would fall by.
        fall = sum(
            float(np.dot(gradient[clique], marginals[clique] - new_marginals[clique]))
            for clique in targets
        )
        # Armijo's condition in the geometry of the mirror.
        # Negated, so that NaN is a failure.
        if not loss - new_loss >= 0.5 * rate * fall:
            rate *= _SHRINKAGE
            continue
        stalled = stalled + 1 if loss - new_loss <= _CLOSE * max(loss, 1.0) else 0
        model = candidate
        potentials = tried
        loss = new_loss
        gradient = new_gradient
        marginals = new_marginals
        rate *= _GROWTH
        if stalled >= _PATIENCE:
            break
    return model


def _with_potentials(model: Model, potentials: Mapping[Clique, Floats]) -> Model:
    """Return a model with other potentials of the same marginals, on the same tree."""
    changed = Model(model.sizes, potentials, model.total, model.zeros)
    # The same marginals have the same tree, which is dear to build.
    changed.__dict__["tree"] = model.tree
    return changed


def _measure_misfit(
    model: Model, targets: Mapping[Clique, _Target]
) -> tuple[float, dict[Clique, Floats], dict[Clique, Floats]]:
    """Return the loss, its gradient in each marginal, and the marginals, as weighted counts."""
    loss = 0.0
    gradient = {}
    marginals = {}
    for clique, target in targets.items():
        counts = model.expect(clique)
        off = counts - target.values
        loss += 0.5 * target.precision * float(np.dot(off, off))
        gradient[clique] = target.precision * off
        marginals[clique] = counts
    return loss, gradient, marginals


def _bound_curvature(tree: JunctionTree, targets: Mapping[Clique, _Target]) -> float:
    """Return a bound on the Lipschitz constant of the gradient in a node's marginals."""
    of_node: dict[int, float] = {}
    for clique, target in targets.items():
        home = tree.home_of(clique)
        assert home is not None
        # A marginal within a node of more cells is a sum: its gradient is spread over them.
        cells = math.prod(tree.shape(tree.nodes[home].clique))
        of_node[home] = of_node.get(home, 0.0) + target.precision * cells / target.values.size
    # The steepest node decides the step for all.
    return max(of_node.values())


def _add_zeros(
    potentials: Mapping[Clique, Floats], zeros: Mapping[Clique, Floats]
) -> dict[Clique, Floats]:
    """Return potentials with what is ruled out among them."""
    joined = dict(potentials)
    for clique, mask in zeros.items():
        joined[clique] = joined[clique] + mask if clique in joined else mask
    return joined


def measure_loss(model: Model, measurements: Sequence[Measurement]) -> float:
    """Return the loss of a model: Σ ‖p·total − y‖²/(2σ²), all measurements of a marginal as one."""
    return _measure_misfit(model, _gather_targets(measurements))[0]


def fit_model(draft: Model, measurements: Sequence[Measurement], steps: int = FINAL_STEPS) -> Model:
    """Return the final model, fitted by mbi from a draft.

    Args:
        draft: A model near the best fit, whose marginals are those of the measurements.
        measurements: What was released.
        steps: Steps of mbi's mirror descent.

    Raises:
        NotInstalledError: Where mbi is not installed.

    References:
        McKenna, Sheldon, Miklau 2019, Algorithm 1.
    """
    require("synthesis", "mbi", "jax")
    import jax

    # In double precision, and without changing the user's setting.
    with warnings.catch_warnings(), jax.enable_x64(True):
        # mbi warns of settings of JAX that are the user's.
        warnings.simplefilter("ignore")
        import mbi

        names = [str(column) for column in range(len(draft.sizes))]
        domain = mbi.Domain(names, draft.sizes)
        targets = _gather_targets(measurements)
        # Measurements of one marginal are one for mbi, as for the draft.
        linear = [
            mbi.LinearMeasurement(target.values, _name(clique), stddev=target.precision**-0.5)
            for clique, target in targets.items()
        ]
        constraints = tuple(
            mbi.Constraint(
                domain.project(_name(clique)),
                invalid=np.argwhere(np.isneginf(mask.reshape(domain.project(_name(clique)).shape))),
            )
            for clique, mask in draft.zeros.items()
        )
        estimator = mbi.estimation.MirrorDescent()
        start = _start_of_mbi(mbi, domain, draft)
        fitted = estimator.estimate(
            domain,
            linear,
            known_total=draft.total,
            constraints=constraints,
            iters=steps,
            warm_start=start,
        )
        # mbi names columns by texts: back to numbers, in the order of its cliques.
        potentials = {
            tuple(int(name) for name in clique): np.asarray(
                fitted.potentials[clique].datavector(), np.float64
            )
            for clique in fitted.potentials.cliques
        }
    return Model(draft.sizes, _sort_columns(draft.sizes, potentials), draft.total, draft.zeros)


def _name(clique: Clique) -> tuple[str, ...]:
    return tuple(str(column) for column in clique)


def _start_of_mbi(mbi: Any, domain: Any, draft: Model) -> Any:
    """Return the potentials of a draft as mbi has them."""
    # Flat values first, then in the clique's shape, as mbi has them.
    arrays = {
        _name(clique): mbi.Factor(domain.project(_name(clique)), potential.reshape(-1).copy())
        for clique, potential in draft.potentials.items()
    }
    arrays = {
        clique: mbi.Factor(factor.domain, np.reshape(factor.values, factor.domain.shape))
        for clique, factor in arrays.items()
    }
    return mbi.CliqueVector(domain, list(arrays), arrays)


def _sort_columns(
    sizes: tuple[int, ...], potentials: Mapping[Clique, Floats]
) -> dict[Clique, Floats]:
    """Return potentials over columns in increasing order."""
    ordered = {}
    for clique, potential in potentials.items():
        # mbi may order a clique's columns otherwise than by number.
        array = potential.reshape([sizes[column] for column in clique])
        order = np.argsort(clique)
        ordered[tuple(clique[axis] for axis in order)] = array.transpose(order).ravel()
    return ordered
