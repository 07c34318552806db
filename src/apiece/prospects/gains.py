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
        >>> from apiece.prospects.gains import MeasuredGain
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
        >>> from apiece.prospects.gains import relative_noise
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
        >>> from apiece.prospects.gains import measured_gain
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
        low: The lower end of an interval for the points.
        high: Its upper end.
        level: The chance, at least, that the interval holds the gain on another data set, as far as
            that is a draw like the ones measured. None for plans of another kind than those that
            it was made from, on which it was only tried.
        data_sets: How many data sets the interval rests on.
        inside: How many trainings it held where it was not fitted.
        trainings: Of how many.
        error: The mean absolute error of such predictions on data sets that were held back.
        error_of_none: The same of the prediction that nothing is gained.

    Example:
        >>> from apiece.prospects.gains import PredictedGain
        >>> gain = PredictedGain(1.5, -0.1, 6.0, 0.8, 7, 215, 224, error=3.2, error_of_none=4.4)
        >>> gain.low < gain.points < gain.high
        True
    """

    points: float
    low: float
    high: float
    level: float | None
    data_sets: int
    inside: int
    trainings: int
    error: float
    error_of_none: float


def predicted_gain(
    uniform: float, own: float, classes: int, *, strategy: str = "sample"
) -> PredictedGain | None:
    """Return the predicted gain of accuracy of a strategy over Uniform, from public numbers.

    Accuracy falls with the noise by a logistic curve in its logarithm, which was fitted to the
    experiment `when-it-pays`; its height is one for two classes and one for more. The interval is
    conformal over data sets: it reaches from the lowest to the highest of the curves that were
    fitted without one of the data sets, and beyond by the error that such curves had on the data
    set left out, on a scale that is logarithmic beyond one point.

    Args:
        uniform: `relative_noise` of the plan of Uniform at the strictest budget.
        own: That of the strategy's plan.
        classes: How many the labels have.
        strategy: Its name, as `apiece.assignment.compare` lists it.

    Returns:
        None for a strategy on which the curve was not tried, or on which it did not hold: where it
        erred no less than "no gain" on what it had not seen, or the interval missed its level.

    Raises:
        InputError: For fewer than two classes, and for noise that is not positive and finite.

    References:
        Barber et al. 2021, theorem 3 (jackknife-minmax), with whole data sets left out, and the
        weights of Lee, Barber and Willett 2023 for values within a data set.

    Example:
        >>> from apiece.prospects.gains import predicted_gain
        >>> gain = predicted_gain(0.1, 0.05, classes=10)
        >>> gain.low < gain.points < gain.high
        True
    """
    classes = _check.count("classes", classes, least=2)
    own = _check.positive("own", own)
    uniform = _check.positive("uniform", uniform)
    results = _read_results()
    if strategy not in results["reach"]:
        return None
    reach = results["reach"][strategy]
    errors = results["errors"][strategy]
    points = [_follow_curve(curve, uniform, own, classes) for curve in results["curves"]]
    return PredictedGain(
        points=_follow_curve(results["curve"], uniform, own, classes),
        low=math.sinh(math.asinh(min(points)) - reach),
        high=math.sinh(math.asinh(max(points)) + reach),
        level=results["level"] if errors["fitted"] else None,
        data_sets=len(points),
        inside=errors["inside"],
        trainings=errors["trainings"],
        error=errors["of the curve"],
        error_of_none=errors["of no gain"],
    )


def explain_missing(strategy: str) -> str:
    """Return why `predicted_gain` is None for a strategy."""
    errors = _read_results()["errors"].get(strategy)
    if errors is None:
        return "its gains were not measured"
    return (
        f"in {errors['trainings']} trainings the curve erred by {errors['of the curve']:.1f} points"
        f" and “no gain” by {errors['of no gain']:.1f}, and the interval held "
        f"{errors['inside']} of {errors['trainings']}"
    )


def _follow_curve(curve: Json, uniform: float, own: float, classes: int) -> float:
    """Return the points between two noises on a curve."""
    two_class_height, height = curve["heights"]
    if classes == 2:
        height = two_class_height

    def predict_accuracy(noise: float) -> float:
        return float(height / (1 + (noise / curve["middle"]) ** curve["power"]))

    return predict_accuracy(own) - predict_accuracy(uniform)


def _read_results() -> Json:
    """Return the table and the curves that the experiment `when-it-pays` wrote."""
    text = (resources.files(__package__) / "gains.json").read_text(encoding="utf-8")
    results: Json = json.loads(text)
    return results
