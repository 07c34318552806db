"""Choices written by hand, for pages: nothing is planned."""

from apiece.accounting import privacy_curve
from apiece.contract import Choices, explain
from apiece.contract.choices import Outcome
from apiece.mechanisms import Gaussian

BUDGETS = {1.0: 20.0, 8.0: 1.0}  # ε and a noise multiplier that spends less of it


def sample_choices(
    names: tuple[str, str], strategies: tuple[str, ...], *, moves: bool = True
) -> Choices:
    """Return choices of two budgets, each outcome with counts of its own where others move it."""
    outcomes = []
    for s, strategy in enumerate(strategies):
        for budget, (epsilon, noise) in enumerate(BUDGETS.items()):
            for k, others in enumerate((None, 0, 1)):
                curve = privacy_curve(
                    Gaussian(noise * (1 + 0.1 * k * moves + 0.05 * s)), method="gdp"
                )
                explanation = explain(epsilon, 1e-5, curve=curve)
                excess = 0.001 * (k * moves + s)
                outcomes.append(
                    Outcome(budget, strategy, others, 0.9 * epsilon, excess, explanation)
                )
    return Choices(
        names=names,
        shares=(0.6, 0.4),
        promises=tuple(explain(epsilon, 1e-5) for epsilon in BUDGETS),
        references=(515, 690),
        bounded=(535, 710),
        bound=0.02,
        records=1000,
        outcomes=tuple(outcomes),
    )
