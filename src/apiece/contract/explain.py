"""Explanations of (ε, δ): counts and sentences for the person to whom it is promised."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from apiece import _check
from apiece._text import count_up, guess, plain, shown
from apiece._types import Floats, Json
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting.curve import RELATION
from apiece.budgets.groups import refuse_absurd
from apiece.errors import BudgetError
from apiece.mechanisms import Finite
from apiece.plan import Plan

# Of how many people most counts are.
PEOPLE = 1_000
# Of how many people the count `harmed` is.
CASES = 100_000
# Of how many people the count `picked` is.
CROWD = 1_000_000
# How many of 1,000 who did not take part are named wrongly: see `Frequencies.found`.
ACCUSED = 10
# How many of 100,000 are harmed though they stay out: see `Frequencies.harmed`.
HARMED = 100
# How many of the crowd took part: see `Frequencies.picked`.
MEMBERS = 1_000
# How much likelier than δ it may be that the bound on beliefs fails.
_EXCEPTION_FACTOR = 10.0
# Odds whose logarithm is larger make any belief a certainty: their exponential would overflow.
_MAX_LOG_ODDS = math.log(1e300)


@dataclass(frozen=True, slots=True)
class Frequencies:
    """What an attacker can do at most, who knows everything but whether one person took part.

    Attributes:
        right: Of 1,000 people, half of whom took part, about how many the guess is right; 500
            without the result.
        found: Of 1,000 people who took part, how many are named as such by an attacker who names 10
            of 1,000 who did not; 10 without.
        harmed: Of 100,000 people who take part, to how many happens what would have happened to 100
            of them had they stayed out.
        picked: Where 1,000 of 1,000,000 people took part and the 1,000 most suspect are named, how
            many of those took part; 1 without.
        belief: Who thought it as likely as not that a person took part holds it for so likely
            afterwards, of 1,000.
        rare_belief: The same of who held it for 1 in 1,000.
        surprise: Both beliefs may be larger in 1 of so many cases; None where in none.

    Guarantee:
        Counts of what an attacker achieves are never below what the best one achieves on average;
        `surprise` is never above the truth.
    """

    right: int
    found: int
    harmed: int
    picked: int
    belief: int
    rare_belief: int
    surprise: int | None

    def to_dict(self) -> dict[str, int | None]:
        """Return the counts as JSON types."""
        return asdict(self)


def promised_curve(epsilon: float, delta: float) -> PrivacyCurve:
    """Return the curve of the worst mechanism that is (ε, δ)-differentially private.

    With chance δ it says the truth and that it is so; else it answers by randomized response. It
    dominates every (ε, δ) mechanism, and reaches each bound that follows from (ε, δ) alone.

    Args:
        epsilon: Above 0, at most 1000.
        delta: In [0, 1).

    Raises:
        InputError: For values out of bounds.

    References:
        Kairouz, Oh, Viswanath 2017.

    Example:
        >>> from apiece.contract.explain import promised_curve
        >>> round(promised_curve(1.0, 1e-5).advantage().upper, 5)
        0.46212
    """
    refuse_absurd(_check.positive("epsilon", epsilon, error=BudgetError))
    delta = _check.probability("delta", delta, high_open=True)
    # Randomized response tells the truth with e^ε times the chance of the lie.
    odds = math.exp(-epsilon)
    lie = odds / (1 + odds)
    responses = np.array([1 - lie, lie]) * (1 - delta)
    # Outcomes: surely with the record, the two responses, surely without it.
    with_record = [delta, *responses, 0.0]
    without_record = [0.0, *responses[::-1], delta]
    return privacy_curve(Finite(with_record, without_record))


def promised_right(epsilon: float, delta: float) -> int:
    """Return for how many of 1,000 people a guess is right at most, by (ε, δ) alone."""
    return count_up(promised_curve(epsilon, delta).success(0.5).upper)


def frequencies(curve: PrivacyCurve, epsilon: float, delta: float) -> Frequencies:
    """Return what a curve allows an attacker, as counts of people."""
    # Each x with δ(x) gives a bound. The promise itself, (ε, δ), is known without the curve.
    # The last level is ε, where δ is what was promised, however loose the curve's bound.
    levels = np.append(np.linspace(0.0, max(2 * epsilon, 15.0), 400), epsilon)
    deltas = np.append(curve.delta(levels[:-1]).upper, delta)
    minimize = partial(_minimize_bound, curve, levels, deltas)
    power = minimize(partial(_bound_power, ACCUSED / PEOPLE))
    harmed = minimize(partial(_bound_power, HARMED / CASES))
    picked = minimize(partial(_bound_share_found, MEMBERS / CROWD))
    # Beliefs may exceed their bound with ten times the chance δ, which `surprise` tells.
    log_odds = _bound_log_odds(curve, epsilon, delta)
    exception = _EXCEPTION_FACTOR * delta
    return Frequencies(
        right=count_up(curve.success(0.5).upper, PEOPLE),
        found=count_up(power, PEOPLE),
        harmed=count_up(harmed, CASES),
        picked=count_up(picked, MEMBERS),
        belief=count_up(_update_belief(log_odds, 0.5), PEOPLE),
        rare_belief=count_up(_update_belief(log_odds, MEMBERS / CROWD), PEOPLE),
        surprise=count_cases(1 / min(exception, 1.0)) if exception > 0 else None,
    )


def count_cases(cases: float) -> int:
    """Return the count of cases, rounded down; what misses a whole number by rounding is it.

    >>> count_cases(1 / 1e-5), count_cases(2.9)
    (100000, 2)
    """
    return math.floor(cases * (1 + 1e-12))


def _update_belief(log_odds: float, prior: float) -> float:
    """Return the belief in [0, 1] when the odds of `prior` become larger by e^log_odds."""
    if log_odds > _MAX_LOG_ODDS:
        return 1.0
    # Odds are multiplied by e^t at most: prior·e^t stands against 1 − prior.
    raised = prior * math.exp(log_odds)
    return raised / (1 - prior + raised)


def _minimize_bound(
    curve: PrivacyCurve, levels: Floats, deltas: Floats, bound: Callable[[Floats, Floats], Floats]
) -> float:
    """Return about the least of a bound that holds for each x with δ(x).

    It is looked for at `levels`, then on a finer grid around the least of these. Any value of the
    bound is valid, so that a minimum that is missed costs only tightness.
    """
    with np.errstate(over="ignore"):
        rough = bound(levels, deltas)
        best = levels[int(rough.argmin())]
        # Levels begin at 0 and are evenly spread.
        spacing = levels[1]
        fine_levels = np.linspace(max(best - spacing, 0.0), best + spacing, 129)
        fine = bound(fine_levels, np.asarray(curve.delta(fine_levels).upper))
        return float(min(rough.min(), fine.min()))


def _bound_power(alpha: float, x: Floats, delta: Floats) -> Floats:
    """Return bounds on the true-positive rate of a test whose false-positive rate is `alpha`."""
    # The first holds for the test, the second for its complement with the worlds exchanged.
    direct = np.exp(x) * alpha + delta
    mirror = 1 - np.exp(-x) * (1 - delta - alpha)
    return np.minimum(direct, mirror)


def _bound_share_found(share: float, x: Floats, delta: Floats) -> Floats:
    """Return bounds on the true-positive rate T of who names as many people as took part."""
    # They are a `share` of all, so that share·T + (1 − share)·α = share: the bounds of
    # `_bound_power` at this α, solved for T.
    odds = share / (1 - share)
    # With α = odds·(1 − T) both bounds are linear in T.
    direct = 1 - (1 - delta) / (1 + np.exp(x) * odds)
    shrink = np.exp(-x)
    mirror = (1 - shrink * (1 - delta - odds)) / (1 + shrink * odds)
    return np.minimum(direct, mirror)


def _bound_log_odds(curve: PrivacyCurve, epsilon: float, delta: float) -> float:
    """Return t such that the privacy loss L exceeds t with chance at most 10·δ."""
    # Where L > t the chance with the record is more than e^t times that without, so that P(L >
    # t)·(1 − e^{x − t}) ≤ δ(x) for every x < t. Each x with δ(x) below the chance gives a t.
    chance = _EXCEPTION_FACTOR * delta
    # With δ = 0 no loss exceeds ε; with a chance of 1 or more nothing is bounded.
    if chance == 0:
        return epsilon
    if not 0 < chance < 1:
        return math.inf
    levels: Floats = np.append(np.linspace(0.0, 1.0, 100) * epsilon, epsilon)
    deltas = np.append(curve.delta(levels[:-1]).upper, delta)
    usable = deltas < chance
    # Solved for t: x − log(1 − δ(x)/chance).
    bounds = levels[usable] - np.log1p(-deltas[usable] / chance)
    return float(bounds.min()) * (1 + 1e-12)


LIMITS = (
    "What the result says about people in general it says about you too, whether you take part "
    "or not.",
    "It holds for this result. Results that use your data again add up; a ledger keeps the sum.",
    "If several rows are about you, it holds for you only where one budget covers all of them.",
    "It does not protect the data from those who hold them; it bounds what the released result "
    "tells.",
)


class Participation(NamedTuple):
    """How often a person takes part: in k of T steps, drawn in secret or fixed beforehand.

    passes: over the data, where steps are fixed; a person takes part once in a pass at most.
    """

    # In how many of the steps; then whether by secret draw, and over how many passes.
    times: int
    steps: int
    is_drawn: bool = True
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a person is promised, as counts and in sentences.

    Attributes:
        epsilon: Of the promise.
        delta: Of the promise.
        frequencies: What an attacker can do at most.
        promised: The count `right` that (ε, δ) alone allows, where `frequencies` are of the
            mechanism that is run, which may allow less; else None.
        relation: Between the worlds that are compared.
        taking_part: How often, where a person takes part in k of T steps; else None.

    Guarantee:
        No count that an attacker reaches is below what the best attacker reaches on average.

    Example:
        >>> from apiece.contract import explain
        >>> print(explain(1.0, 1e-5).sentences[0])
        Of 1,000 people like you, 500 of whom took part, an attacker who guesses for each whether \
they did is right about at most 732; who has not seen the result, about 500.
    """

    epsilon: float
    delta: float
    frequencies: Frequencies
    promised: int | None = None
    relation: str = RELATION
    taking_part: Participation | None = None

    @property
    def tighter(self) -> bool:
        """Whether the counts are of the mechanism that is run."""
        return self.promised is not None

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each count, and what is sure of how often a person takes part."""
        counts = self.frequencies
        article = "A"
        if counts.surprise is not None:
            article = f"Except in at most 1 of {counts.surprise:,} cases, a"
        sentences = [
            guess(counts.right, self.promised),
            f"An attacker who wrongly names {ACCUSED} of {PEOPLE:,} people who did not take part "
            f"names rightly at most {counts.found:,} of {PEOPLE:,} who did. Without the result it "
            f"would be {ACCUSED}.",
            f"If {MEMBERS:,} of {CROWD:,} people took part, and an attacker names the {MEMBERS:,} "
            f"they suspect most, at most {counts.picked:,} of those did. Without the result it "
            f"would be {MEMBERS * MEMBERS // CROWD}.",
            f"Whatever may follow for you from the result: what happens to {HARMED} of {CASES:,} "
            f"people like you if they stay out happens to at most {counts.harmed:,} of {CASES:,} "
            "if they take part.",
            f"{article} belief of {PEOPLE // 2} in {PEOPLE:,} that you took part becomes at most "
            f"{counts.belief:,} in {PEOPLE:,}, and a belief of 1 in {PEOPLE:,} at most "
            f"{counts.rare_belief:,} in {PEOPLE:,}.",
        ]
        # Counts by (ε, δ) alone are of the worst mechanism, which tells all with chance δ.
        if not self.tighter and self.delta > 0:
            cases = count_cases(1 / self.delta)
            sentences.append(
                f"With a chance of at most δ, 1 in {cases:,}, a result that keeps "
                "this promise may give you away altogether. The counts above include that."
            )
        if self.taking_part is not None:
            times, steps, is_drawn, passes = self.taking_part
            if is_drawn:
                sentences.append(
                    f"Your record takes part in exactly {times:,} of {steps:,} steps, drawn at "
                    "random. Which ones stays secret, and the counts above rest on that."
                )
            else:
                sentences.append(
                    f"You take part in at most {times:,} of {max(passes, times):,} passes over the "
                    f"data: in at most {times:,} of {steps:,} steps, fixed beforehand. The counts "
                    "above hold even if everybody knows which ones."
                )
        return tuple(sentences)

    @property
    def limits(self) -> tuple[str, ...]:
        """What the promise does not cover."""
        return LIMITS

    def consent(self, purpose: str | None = None) -> str:
        """Return a text for a consent form.

        Args:
            purpose: What the result is for; a gap to be filled in unless given.
        """
        goal = "[what the result is for]" if purpose is None else plain(purpose)
        lines = [
            f"I agree that my data are used for {goal}, with a privacy budget of "
            f"ε = {shown(self.epsilon)} and δ = {shown(self.delta)}.",
            "",
            "This means, for an attacker who knows everything about everyone else:",
            *(f"- {sentence}" for sentence in self.sentences),
            "",
            "What it does not cover:",
            *(f"- {limit}" for limit in self.limits),
            "",
            "I can choose a smaller budget, or none; the smaller, the less can be learnt about me.",
        ]
        return "\n".join(lines)

    def to_dict(self) -> Json:
        """Return the promise, counts and sentences as JSON types."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "of": "the mechanism" if self.tighter else "epsilon and delta",
            "promised": self.frequencies.right if self.promised is None else self.promised,
            "frequencies": self.frequencies.to_dict(),
            "sentences": list(self.sentences),
            "limits": list(self.limits),
            "taking_part": None if self.taking_part is None else list(self.taking_part[:2]),
        }


def count_participation(plan: Plan, group: int) -> Participation | None:
    """Return how often a group's records take part, where that is a number of steps."""
    total = 0
    passes = 0
    is_drawn = False
    for stage in plan.stages:
        # Where coins decide in any stage no number of steps is sure.
        if stage.times is None:
            return None
        total += int(stage.times[group])
        # Who takes part most often does so in each pass.
        passes += int(stage.times.max())
        is_drawn |= not stage.has_fixed_steps
    return Participation(total, plan.steps, is_drawn, passes) if total else None


def explain(
    epsilon: float,
    delta: float,
    *,
    curve: PrivacyCurve | None = None,
    taking_part: tuple[int, int] | Participation | None = None,
) -> Explanation:
    """Return what a budget promises a person, as counts and in sentences.

    Without a curve the counts are exact for (ε, δ): the worst mechanism that keeps it reaches each.

    Args:
        epsilon: Of the promise, above 0, at most 1000.
        delta: Of the promise, in [0, 1); above 0 with a curve.
        curve: Of the mechanism that is run, which allows less than (ε, δ) does.
        taking_part: (k, T) of a plan by `Allocate`, 1 <= k <= T, or what `count_participation`
            found of a plan: it is said in a sentence.

    Raises:
        InputError: For values out of bounds, and a curve that spends more than (ε, δ).

    References:
        Kairouz, Oh, Viswanath 2017; Nanayakkara et al. 2023 on telling people by frequencies.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.contract import explain
        >>> from apiece.mechanisms import Gaussian
        >>> explain(1.0, 1e-5).frequencies.right
        732
        >>> explain(1.0, 1e-5, curve=privacy_curve(Gaussian(4.0))).frequencies.right
        550
    """
    if taking_part is not None:
        _check.count("taking_part: k", taking_part[0], least=1)
        _check.count("taking_part: T", taking_part[1], least=taking_part[0])
    participation = None if taking_part is None else Participation(*taking_part)
    if curve is None:
        counts = frequencies(promised_curve(epsilon, delta), epsilon, delta)
        return Explanation(float(epsilon), float(delta), counts, taking_part=participation)
    # Said beside what the mechanism allows, which may be less.
    promised = promised_right(epsilon, delta)
    spent = float(curve.epsilon(delta).upper)
    if not spent <= epsilon * (1 + 1e-9):
        raise BudgetError(
            f"curve: spends epsilon = {spent:g} at delta = {delta:g}, more than {epsilon:g}; "
            "explain it by what it spends"
        )
    counts = frequencies(curve, epsilon, delta)
    return Explanation(float(epsilon), float(delta), counts, promised, taking_part=participation)
