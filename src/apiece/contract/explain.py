"""explain: what (ε, δ) promises, in sentences for the person to whom it is promised."""

from __future__ import annotations

from dataclasses import dataclass

from apiece._text import plain, shown
from apiece._types import Json
from apiece.accounting import RELATION, PrivacyCurve
from apiece.contract.frequencies import (
    ACCUSED,
    CASES,
    CROWD,
    FEW,
    HARMED,
    PEOPLE,
    Frequencies,
    frequencies,
    promised_curve,
    whole,
)
from apiece.errors import BudgetError

LIMITS = (
    "What the result says about people in general it says about you too, whether you take part "
    "or not.",
    "It holds for this result. Results that use your data again add up; a ledger keeps the sum.",
    "If several rows are about you, it holds for you only where the budget is one for all of them.",
    "It does not protect the data from those who hold them; it bounds what the released result "
    "tells.",
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a person is promised, as counts and in sentences.

    Attributes:
        epsilon: Of the promise.
        delta: Of the promise.
        frequencies: What an attacker can do at most.
        tighter: Whether they are of the mechanism that is run, which may allow less than (ε, δ).
        relation: Between the worlds that are compared.

    Guarantee:
        No count that an attacker reaches is below what the best attacker reaches on average.

    Example:
        >>> print(explain(1.0, 1e-5).sentences[0])
        Of 1,000 people like you, 500 of whom took part, an attacker who guesses for each of them \
whether they did is right about at most 732. Who has not seen the result is right about 500.
    """

    epsilon: float
    delta: float
    frequencies: Frequencies
    tighter: bool
    relation: str = RELATION

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each count."""
        n = self.frequencies
        return (
            f"Of {PEOPLE:,} people like you, {PEOPLE // 2} of whom took part, an attacker who "
            f"guesses for each of them whether they did is right about at most {n.right:,}. Who "
            f"has not seen the result is right about {PEOPLE // 2}.",
            f"An attacker who wrongly names {ACCUSED} of {PEOPLE:,} people who did not take part "
            f"names rightly at most {n.found:,} of {PEOPLE:,} who did. Without the result it would "
            f"be {ACCUSED}.",
            f"If {FEW:,} of {CROWD:,} people took part, and an attacker names the {FEW:,} whom he "
            f"suspects most, at most {n.picked:,} of those did. Without the result it would be "
            f"{FEW * FEW // CROWD}.",
            f"Whatever may follow for you from the result: what happens to {HARMED} of {CASES:,} "
            f"people like you if they stay out happens to at most {n.harmed:,} of {CASES:,} if "
            "they take part.",
            self._of_beliefs(),
            *([] if self.tighter or self.delta == 0 else [self._of_delta()]),
        )

    def _of_beliefs(self) -> str:
        n = self.frequencies
        often = "" if n.surprise is None else f", except in at most 1 of {n.surprise:,} cases"
        return (
            f"Someone who thought before, with a chance of {PEOPLE // 2} in {PEOPLE:,}, that you "
            f"took part thinks so afterwards with at most {n.belief:,} in {PEOPLE:,}; who thought "
            f"so with 1 in {PEOPLE:,}, with at most {n.rare_belief:,} in {PEOPLE:,}{often}."
        )

    def _of_delta(self) -> str:
        return (
            f"With a chance of at most δ, 1 in {whole(1 / self.delta):,}, a result that keeps "
            "this promise may give you away altogether. The counts above include that."
        )

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
        first = (
            f"I agree that my data are used for {goal}, with a privacy budget of "
            f"ε = {shown(self.epsilon)} and δ = {shown(self.delta)}."
        )
        means = "This means, for an attacker who knows everything about everyone else:"
        facts = [f"- {sentence}" for sentence in self.sentences]
        limits = [f"- {limit}" for limit in self.limits]
        last = "I can choose a smaller budget, or none; the smaller, the less can be learnt of me."
        return "\n".join(
            [first, "", means, *facts, "", "What it does not cover:", *limits, "", last]
        )

    def to_dict(self) -> Json:
        """Return the promise, counts and sentences as JSON types."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation,
            "of": "the mechanism" if self.tighter else "epsilon and delta",
            "frequencies": self.frequencies.to_dict(),
            "sentences": list(self.sentences),
            "limits": list(self.limits),
        }


def explain(epsilon: float, delta: float, *, curve: PrivacyCurve | None = None) -> Explanation:
    """Return what a budget promises a person, as counts and in sentences.

    Without a curve the counts are exact for (ε, δ): the worst mechanism that keeps it reaches each.

    Args:
        epsilon: Of the promise, above 0.
        delta: Of the promise, in [0, 1).
        curve: Of the mechanism that is run, which allows less than (ε, δ) does.

    Raises:
        InputError: For values out of bounds, and a curve that spends more than (ε, δ).

    References:
        Kairouz, Oh, Viswanath 2017; Nanayakkara et al. 2023 on telling people by frequencies.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> explain(1.0, 1e-5).frequencies.right
        732
        >>> explain(1.0, 1e-5, curve=privacy_curve(Gaussian(4.0))).frequencies.right
        550
    """
    promised = promised_curve(epsilon, delta)
    if curve is not None:
        spent = float(curve.epsilon(delta).upper)
        if not spent <= epsilon * (1 + 1e-9):
            raise BudgetError(
                f"curve: spends epsilon = {spent:g} at delta = {delta:g}, more than {epsilon:g}; "
                "explain it by what it spends"
            )
    counts = frequencies(promised if curve is None else curve, epsilon, delta)
    return Explanation(float(epsilon), float(delta), counts, tighter=curve is not None)
