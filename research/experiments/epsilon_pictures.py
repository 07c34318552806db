"""The pictures of docs/epsilon.md: what ε means, by counts of people and by tests.

    python -m research.experiments.epsilon_pictures

Nothing is measured: all of it is computed from (ε, δ).
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from apiece.accounting import EpsilonBudget, calibrate, privacy_curve
from apiece.contract import explain
from apiece.contract.explain import promised_curve
from apiece.mechanisms import Gaussian
from apiece.reporting import promise, save

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
DELTA = 1e-5
BUDGETS = {0.1: "#009E73", 1.0: "#0072B2", 3.0: "#E69F00", 8.0: "#D55E00"}


def tests_drawn() -> Figure:
    """Return what any test reaches: at most by (ε, δ), and on a Gaussian that keeps it."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    alpha = np.linspace(0, 1, 400)
    left, right = figure.subplots(1, 2)
    for epsilon, colour in BUDGETS.items():
        promised = promised_curve(epsilon, DELTA)
        gaussian = privacy_curve(
            Gaussian(
                calibrate(EpsilonBudget(epsilon, DELTA), sampling_probability=1, steps=1).value
            )
        )
        for axes, rates in ((left, alpha), (right, np.geomspace(1e-5, 1, 200))):
            axes.plot(
                rates, promised.true_positive_rate(rates), color=colour, label=f"ε = {epsilon:g}"
            )
            axes.plot(rates, gaussian.true_positive_rate(rates), color=colour, linestyle="--")
    right.set(xscale="log", yscale="log", xlim=(1e-5, 1), ylim=(1e-5, 1.3))
    for axes in (left, right):
        axes.plot([1e-5, 1], [1e-5, 1], color="0.5", linestyle=":", linewidth=1)
        axes.set(xlabel="named wrongly, of those who did not take part")
        axes.spines[["top", "right"]].set_visible(False)
    left.set(ylabel="named rightly, of those who did", xlim=(0, 1), ylim=(0, 1))
    left.legend(frameon=False, loc="lower right")
    left.set_title("the most that any test reaches", fontsize=10)
    right.set_title("the same, where few are named", fontsize=10)
    return figure


def counts_drawn() -> Figure:
    """Return of how many of 1,000 people an attacker is right, against ε."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    epsilons = np.geomspace(0.05, 20, 60)
    axes.plot(epsilons, [explain(e, DELTA).frequencies.right for e in epsilons], color="#D55E00",
              label="allowed by (ε, 1e-5)")  # fmt: skip
    gaussian = []
    for epsilon in epsilons:
        noise = calibrate(
            EpsilonBudget(float(epsilon), DELTA), sampling_probability=1, steps=1
        ).value
        gaussian.append(1000 * privacy_curve(Gaussian(noise)).success().upper)
    axes.plot(epsilons, gaussian, color="#0072B2", linestyle="--", label="a Gaussian mechanism")
    axes.axhline(500, color="0.5", linestyle=":", linewidth=1)
    axes.annotate("blind guessing", (8.5, 508), color="0.4", fontsize="small")
    axes.set(xscale="log", xlabel="ε", ylabel="right, of 1,000 people", ylim=(480, 1010))
    axes.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    return figure


if __name__ == "__main__":
    save(promise(explain(1.0, DELTA)), FIGURES / "epsilon_people.png")
    save(counts_drawn(), FIGURES / "epsilon_counts.png")
    save(tests_drawn(), FIGURES / "epsilon_tests.png")
