"""Figures of privacy curves: the privacy profile δ(ε) and the trade-off of a membership test."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apiece._text import figure_text
from apiece.accounting import PrivacyCurve
from apiece.errors import InputError, RangeError

# Distinguishable with any colour vision (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LEAST_DELTA = 1e-12
MOST_CURVES = len(_COLOURS)


def privacy_curves(curves: Mapping[str, PrivacyCurve]) -> Figure:
    """Return one figure of up to seven labelled curves: profile left, trade-off right.

    Left: δ at each ε, down to 1e-12, with the band to the lower bound shaded where the method has
    one. Right: the true-positive rate of any membership test against its false-positive rate, both
    from 1e-6 on logarithmic axes; blind guessing is the dotted diagonal.

    Args:
        curves: By label.

    Raises:
        InputError: For none or more than seven curves.

    Guarantee:
        Both lines are upper bounds.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> len(privacy_curves({"z = 1": privacy_curve(Gaussian(1.0))}).axes)
        2
    """
    if not 0 < len(curves) <= MOST_CURVES:
        raise InputError(f"plot: {len(curves)} curves; draw 1 to {MOST_CURVES} in one figure")
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    reach = max(_reach(curve) for curve in curves.values())
    for colour, (label, curve) in zip(_COLOURS, curves.items(), strict=False):
        _profile(left, curve, reach, label, colour)
        _power(right, curve, label, colour)
    _dress(left, right, reach)
    if len(curves) > 1:
        left.legend(frameon=False, loc="upper right")
    return figure


def png(figure: Figure) -> bytes:
    """Return `figure` as the bytes of a PNG file.

    Args:
        figure: Of matplotlib.

    Example:
        >>> from matplotlib.figure import Figure
        >>> png(Figure())[1:4]
        b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _reach(curve: PrivacyCurve) -> float:
    """Return the ε up to which the profile is drawn."""
    for delta in (_LEAST_DELTA, 1e-9, 1e-6, 1e-3):
        try:
            return max(float(curve.epsilon(delta).upper), 1e-3)
        except RangeError:
            continue
    return 10.0


def _profile(ax: Axes, curve: PrivacyCurve, reach: float, label: str, colour: str) -> None:
    epsilon = np.linspace(0.0, reach, 120)
    lower, upper = curve.delta(epsilon)
    shown = upper >= _LEAST_DELTA / 10
    ax.plot(epsilon[shown], upper[shown], color=colour, label=figure_text(label))
    two_sided = shown & (lower > 0)
    ax.fill_between(
        epsilon[two_sided],
        lower[two_sided],
        upper[two_sided],
        color=colour,
        alpha=0.25,
        linewidth=0,
    )


def _power(ax: Axes, curve: PrivacyCurve, label: str, colour: str) -> None:
    alpha = np.geomspace(1e-6, 1.0, 100)
    ax.plot(alpha, curve.true_positive_rate(alpha), color=colour, label=figure_text(label))


def _dress(left: Axes, right: Axes, reach: float) -> None:
    left.set(
        xlabel="ε", ylabel="δ(ε), upper bound", title="Privacy profile", yscale="log",
        xlim=(0, reach), ylim=(_LEAST_DELTA, 1.5),
    )  # fmt: skip
    right.plot([1e-6, 1], [1e-6, 1], color="0.5", linestyle=":", linewidth=1)
    right.annotate(
        "blind guessing", (1e-3, 1e-3), xytext=(4, -10), textcoords="offset points", color="0.4",
        fontsize="small",
    )  # fmt: skip
    right.set(
        xlabel="false-positive rate", ylabel="true-positive rate, upper bound",
        title="Trade-off of any membership test", xscale="log", yscale="log", xlim=(1e-6, 1),
        ylim=(1e-6, 1.5),
    )  # fmt: skip
    for ax in (left, right):
        ax.grid(visible=True, which="major", color="0.9", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
