"""Gains of accuracy that individual budgets had where measured, by the noise of the training."""

import json
import math
from dataclasses import dataclass
from importlib import resources

from apiece import _check
from apiece._types import Json


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """What Sample gained in the measured trainings whose noise under Uniform was alike.

    Make one with `measured_gain`. Gains are points of test accuracy; each range holds the middle
    four fifths of the trainings.

    Attributes:
        noise: From which relative noise of a training to which; see `relative_noise`.
        trainings: How many cells, each of five seeds and with every strategy tuned by itself.
        over_uniform: The range of gains over the strictest budget for all.
        over_one_budget: The range over the better of Uniform and Threshold.

    Example:
        >>> from apiece.assignment.gains import MeasuredGain
        >>> MeasuredGain((0.01, 0.03), 12, (0.4, 1.3), (0.0, 0.5)).trainings
        12
    """

    noise: tuple[float, float]
    trainings: int
    over_uniform: tuple[float, float]
    over_one_budget: tuple[float, float]


def relative_noise(noise_over_signal: float, steps: int, parameters: int) -> float:
    """Return the noise of a training over its signal, as expected norms.

    T steps add noise of norm S·√(d·T) to a sum that is at most T·Σ q_i·c_i long, so that it is
    the noise over signal of a step times √(d / T), for d parameters.

    Args:
        noise_over_signal: Of one step, S / Σ q_i·c_i.
        steps: T.
        parameters: d, of the part of the model that is trained.

    Raises:
        InputError: For no step or no parameter, and for noise that is not positive and finite.

    Example:
        >>> from apiece.assignment.gains import relative_noise
        >>> relative_noise(0.003, 900, 10_000)
        0.01
    """
    parameters = _check.count("parameters", parameters)
    steps = _check.count("steps", steps)
    noise = _check.positive("noise_over_signal", noise_over_signal)
    return noise * math.sqrt(parameters / steps)


def measured_gain(noise: float) -> MeasuredGain | None:
    """Return the gains that were measured at about this noise; None where there are none.

    The experiment `when-it-pays` of the repository measured them and wrote this table.

    Args:
        noise: `relative_noise` of the plan of Uniform at the strictest budget.

    Example:
        >>> from apiece.assignment.gains import measured_gain
        >>> measured_gain(0.05).trainings > 0
        True
    """
    # Rows are intervals of noise that follow one another, each without its upper end.
    for row in _read_results()["rows"]:
        low, high = row["noise"]
        if low <= noise < high:
            return MeasuredGain(
                noise=(low, high),
                trainings=row["trainings"],
                over_uniform=tuple(row["over uniform"]),
                over_one_budget=tuple(row["over one budget"]),
            )
    return None


@dataclass(frozen=True, slots=True)
class PredictedGain:
    """A prediction of the accuracy gained over Uniform; make one with `predicted_gain`.

    Attributes:
        points: Of test accuracy.
        error: The mean absolute error of such predictions on data sets that were held back.
        error_of_none: The same of the prediction that nothing is gained.

    Example:
        >>> from apiece.assignment.gains import PredictedGain
        >>> PredictedGain(1.5, 3.2, 4.4).error < PredictedGain(1.5, 3.2, 4.4).error_of_none
        True
    """

    points: float
    error: float
    error_of_none: float


def predicted_gain(uniform: float, own: float, classes: int) -> PredictedGain | None:
    """Return the predicted gain of accuracy of a strategy over Uniform, from public numbers.

    Accuracy falls with the noise by a logistic curve in its logarithm, which was fitted to the
    experiment `when-it-pays`; its height is one for two classes and one for more. None where the
    fit did not err less than "no gain" on data sets that it had not seen.

    Args:
        uniform: `relative_noise` of the plan of Uniform at the strictest budget.
        own: That of the strategy's plan.
        classes: How many the labels have.

    Raises:
        InputError: For fewer than two classes, and for noise that is not positive and finite.

    Example:
        >>> from apiece.assignment.gains import predicted_gain
        >>> predicted_gain(0.1, 0.1, classes=10).points
        0.0
    """
    classes = _check.count("classes", classes, least=2)
    own = _check.positive("own", own)
    uniform = _check.positive("uniform", uniform)
    curve = _read_results()["curve"]
    if curve is None:
        return None
    two_class_height, height = curve["heights"]
    if classes == 2:
        height = two_class_height

    def predict_accuracy(noise: float) -> float:
        return float(height / (1 + (noise / curve["middle"]) ** curve["power"]))

    points = predict_accuracy(own) - predict_accuracy(uniform)
    return PredictedGain(points, curve["error"], curve["error of no gain"])


def _read_results() -> Json:
    """Return the table and the curve that the experiment `when-it-pays` wrote."""
    text = (resources.files(__package__) / "gains.json").read_text(encoding="utf-8")
    results: Json = json.loads(text)
    return results
