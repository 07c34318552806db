"""What a promise means, as two fields of a thousand people."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apiece._text import shown
from apiece.contract import Explanation

_WIDE, _PEOPLE = 50, 1_000
_RIGHT, _MORE, _WRONG = "#4C5B6B", "#C2571A", "#D5DADF"


def promise(explanation: Explanation) -> Figure:
    """Return two fields of 1,000 people: about whom an attacker is right, without and with.

    Half of them took part. Dark are those about whom a blind guess is right, orange those about
    whom the result gives more away, at most.

    Args:
        explanation: Of `contract.explain`.

    Guarantee:
        The count is that of the explanation, rounded up.

    Example:
        >>> from apiece.contract import explain
        >>> [axes.get_title() for axes in promise(explain(1.0, 1e-5)).axes]
        ['without the result: 500 of 1,000', 'with it: at most 732 of 1,000']
    """
    right = explanation.frequencies.right
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    left, other = figure.subplots(1, 2)
    _field(left, _PEOPLE // 2, f"without the result: {_PEOPLE // 2} of {_PEOPLE:,}")
    _field(other, right, f"with it: at most {right:,} of {_PEOPLE:,}")
    figure.suptitle(
        "About how many people an attacker is right: "
        f"ε = {shown(explanation.epsilon)}, δ = {shown(explanation.delta)}"
    )
    return figure


def _field(axes: Axes, right: int, title: str) -> None:
    numbers = np.arange(_PEOPLE)
    blind = _PEOPLE // 2
    colours = np.where(numbers < blind, _RIGHT, np.where(numbers < right, _MORE, _WRONG))
    axes.scatter(numbers % _WIDE, -(numbers // _WIDE), c=colours.tolist(), s=13, linewidths=0)
    axes.set_title(title, fontsize=11)
    axes.set_aspect("equal")
    axes.set_axis_off()
