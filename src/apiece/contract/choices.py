"""Budgets on offer: what each means, as the others choose and by strategy, from plans alone.

For whoever offers budgets, before anyone has chosen: no data are needed, and nobody's choice is in
the result. With Sample a contributor's whole curve moves with the others' budgets, though (ε, δ)
is kept (Kaiser et al. 2026); what does not move is what (ε, δ) itself allows, and what the bound Δ̄
adds to the reference.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import NamedTuple, TypeAlias

from apiece import _check
from apiece._text import count_up
from apiece._types import Json
from apiece.accounting import noise_multipliers, privacy_curve
from apiece.assignment import Allocate, Correlated, Epochs, Hybrid, Sample, Scale, Strategy
from apiece.assignment.correlated import ONE_GAUSSIAN
from apiece.assignment.front import make_plan
from apiece.budgets import Budgets
from apiece.budgets.groups import refuse_absurd
from apiece.contract.explain import (
    PEOPLE,
    Explanation,
    Participation,
    count_participation,
    explain,
)
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.mechanisms import Mechanism
from apiece.plan import BoundPlan
from apiece.plan.parts import Reference
from apiece.plan.verification import compute_excess

# Name, epsilon and expected share.
Offer: TypeAlias = tuple[str, float, float]
# The explanations by mechanism and ε, with the excess: equal ones are explained once.
_Explained: TypeAlias = dict[
    tuple[Mechanism | None, float, Participation | None], tuple[float, Explanation]
]
# The largest number of budgets on offer; people choose among few.
MAX_OFFERS = 6


class _Population(NamedTuple):
    """Budgets of all people, as the others may choose."""

    # The position of the budget that all others choose; None where they choose as expected.
    others: int | None
    budgets: Budgets
    # The names of the budgets on offer whose outcome is read.
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one budget on offer means under a strategy, if the others choose in a certain way.

    Guarantee:
        `epsilon_spent` and `excess` are upper bounds.
    """

    # Position of the budget on offer.
    budget: int
    strategy: str
    # Position of the budget that all others choose; None where they choose as expected.
    others: int | None
    epsilon_spent: float
    # Δ towards more vulnerable, from the reference of this budget.
    excess: float
    explanation: Explanation

    @property
    def more(self) -> int:
        """About how many more of 1,000 people an attacker judges rightly than in the reference."""
        return count_up(self.excess, PEOPLE)

    @property
    def unspent(self) -> int | None:
        """Per cent of ε, at least, that a whole number of steps leaves; else None."""
        participation = self.explanation.taking_part
        if participation is None or not participation.is_drawn:
            return None
        share = 1 - self.epsilon_spent / self.explanation.epsilon
        return math.floor(100 * max(share, 0.0))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Those of the explanation, and what a whole number of steps leaves unspent."""
        if self.unspent is None:
            return self.explanation.sentences
        sentence = (
            f"A whole number of steps leaves at least {self.unspent} % of your ε unused. That "
            "makes the result less accurate; nobody learns more of you."
        )
        return (*self.explanation.sentences, sentence)

    def to_dict(self) -> Json:
        """Return the outcome as JSON types."""
        return {
            "budget": self.budget,
            "strategy": self.strategy,
            "others": self.others,
            "epsilon_spent": self.epsilon_spent,
            "excess": self.excess,
            "more": self.more,
            "unspent": self.unspent,
            "explanation": self.explanation.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Choices:
    """The budgets on offer and what each means; public numbers alone.

    Attributes:
        names: Of the budgets on offer, strictest first.
        shares: Of people who are expected to choose each.
        promises: What each promises by itself, whatever is done with the data.
        references: About how many of 1,000 people an attacker is right at most, if everybody had
            chosen that budget.
        bounded: The same, whatever the others choose, where the excess is bounded by `bound`; what
            the promise alone allows without one.
        bound: Δ̄, the bound on the excess; None where none was given.
        records: How many people are expected.
        outcomes: For every budget, strategy and choice of the others.
        left_out: Why a default strategy is not among them.

    Example:
        >>> from apiece import Scale
        >>> from apiece.contract import choices
        >>> offered = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]
        >>> offers = choices(offered, records=100, delta=1e-5, steps=1, expected_batch_size=10,
        ...                 bound=0.02, strategies=[Scale()])
        >>> offers.names, len(offers.outcomes)
        (('strict', 'weak'), 6)
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    promises: tuple[Explanation, ...]
    references: tuple[int, ...]
    bounded: tuple[int, ...]
    bound: float | None
    records: int
    outcomes: tuple[Outcome, ...]
    left_out: tuple[str, ...] = ()

    @property
    def most(self) -> int | None:
        """About how many more of 1,000 people the bound Δ̄ lets an attacker judge rightly."""
        return None if self.bound is None else count_up(self.bound, PEOPLE)

    def guaranteed(self, budget: int, strategy: str) -> int:
        """Return `right` at most, whatever the others choose.

        Args:
            budget: Position of the budget on offer.
            strategy: Name of a strategy. Scale and Epochs do not move with the others, Hybrid by no
                more than the bound; of all others the promise alone is known to hold.
        """
        if strategy in (Scale.name, Epochs.name):
            return self.references[budget]
        if strategy == Hybrid.name:
            return self.bounded[budget]
        return self.promises[budget].frequencies.right

    def to_dict(self) -> Json:
        """Return all of it as JSON types."""
        return {
            "names": list(self.names),
            "shares": list(self.shares),
            "promises": [promise.to_dict() for promise in self.promises],
            "right_in_reference": list(self.references),
            "right_bounded": list(self.bounded),
            "bound": self.bound,
            "records": self.records,
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
            "left_out": list(self.left_out),
        }


def choices(
    offered: Sequence[tuple[str, float, float]],
    *,
    records: int,
    delta: float,
    steps: int,
    expected_batch_size: float,
    bound: float | None = None,
    strategies: Sequence[Strategy] | None = None,
    noise: Correlated | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Choices:
    """Return what each budget on offer means, under each strategy, as the others choose.

    The others choose as expected, or all of them one of the budgets on offer. One budget shared by
    all is as bad as any mixture for Sample and Hybrid (see `contract.budget_manipulation`), and
    those at the ends bound the noise of all mixtures.

    Args:
        offered: (name, epsilon, expected share) of two to six budgets; shares sum to 1.
        records: How many people are expected, at least 10 a budget.
        delta: Of everyone.
        steps: As of `assign`.
        expected_batch_size: As of `assign`.
        bound: Δ̄ for Hybrid, in [0, 1]; None without Hybrid.
        strategies: Scale, Sample, Hybrid with `bound` where it is given and Allocate unless given;
            Allocate is left out, which is said, where a budget does not allow a single step. With
            correlated noise Scale and Epochs unless given.
        noise: Correlated noise with fixed steps, in place of sampling.
        progress: Called with (plans made, of how many).

    Raises:
        BudgetError: For fewer or more budgets, and the same ε twice.
        InputError: As `assign`, and for Hybrid with another bound.

    Guarantee:
        Counts and excess are upper bounds.

    References:
        Boenisch et al. 2023, App. A; Kaiser et al. 2026, Def. 8 and §VII.

    Example:
        >>> from apiece import Sample
        >>> from apiece.contract import choices
        >>> offered = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]
        >>> offers = choices(offered, records=100, delta=1e-5, steps=1, expected_batch_size=10,
        ...                 bound=0.02, strategies=[Sample()])
        >>> among_strict, alike = (o.excess for o in offers.outcomes[2:] if o.budget == 1)
        >>> among_strict > alike  # who asks for more than all others is taken more often
        True
    """
    offers = _check_offers(offered, records)
    if bound is not None:
        bound = _check.probability("bound", bound)
    # Of strategies that the caller chose none may be missing in silence.
    skip_allocate = strategies is None
    if strategies is None and noise is not None:
        strategies = [Scale(), Epochs()]
    elif strategies is None:
        strategies = [Scale(), Sample(), Allocate()]
        if bound is not None:
            strategies.insert(2, Hybrid(bound))
    for strategy in strategies:
        if isinstance(strategy, Hybrid) and strategy.excess != bound:
            raise InputError(
                f"strategies: Hybrid({strategy.excess}) keeps another bound than bound = {bound}, "
                f"which is said to hold; give Hybrid({bound}), or bound={strategy.excess}"
            )
    # By (ε, δ) alone, whatever is run.
    promises = tuple(explain(epsilon, delta) for _, epsilon, _ in offers)
    outcomes, left_out = _compute_outcomes(
        _make_populations(offers, records, delta),
        strategies,
        steps=steps,
        expected_batch_size=expected_batch_size,
        noise=noise,
        progress=progress,
        skip_allocate=skip_allocate,
    )
    # What each would face if all had chosen as they did: the yardstick of Δ.
    reference = Reference(expected_batch_size / records, steps)
    if noise is not None:
        reference = ONE_GAUSSIAN
    references = []
    bounded = []
    for (_, epsilon, _), promise in zip(offers, promises, strict=True):
        multiplier = noise_multipliers(epsilon=epsilon, delta=delta, **asdict(reference))
        curve = privacy_curve(reference.mechanism(float(multiplier)))
        # The greatest share of right guesses where everybody has this budget.
        right = float(curve.success(0.5).upper)
        references.append(count_up(right, PEOPLE))
        # Δ̄ bounds what the others' choice adds to any test's advantage; (ε, δ) holds besides.
        added = 1.0 if bound is None else bound
        bounded.append(min(count_up(right + added, PEOPLE), promise.frequencies.right))
    return Choices(
        names=tuple(name for name, _, _ in offers),
        shares=tuple(share for _, _, share in offers),
        promises=promises,
        references=tuple(references),
        bounded=tuple(bounded),
        bound=bound,
        records=records,
        outcomes=tuple(outcomes),
        left_out=tuple(left_out),
    )


def _check_offers(offered: Sequence[Offer], records: int) -> list[Offer]:
    """Return the budgets on offer, strictest first; raise where nobody could choose among them."""
    offers = []
    for name, epsilon, share in offered:
        epsilon = refuse_absurd(_check.positive(f"epsilon of {name}", epsilon))
        offers.append((str(name), epsilon, float(share)))
    offers.sort(key=lambda offer: offer[1])
    names = {name for name, _, _ in offers}
    epsilons = {epsilon for _, epsilon, _ in offers}
    # Equal names or equal ε would be one choice under two labels.
    if not 2 <= len(offers) == len(epsilons) == len(names) <= MAX_OFFERS:
        raise BudgetError(
            f"budgets: {len(offers)} on offer, {len(epsilons)} of them with an epsilon of their "
            f"own; offer 2 to {MAX_OFFERS}, each with its own name and epsilon"
        )
    _check.count("records", records, least=10 * len(offers))
    return offers


def _make_populations(offers: list[Offer], records: int, delta: float) -> list[_Population]:
    """Return the population that is expected, then those in which all but one person agree."""
    # The expected population stands first: its names are those of all offers, in their order.
    expected = Budgets.from_groups(offers, records, delta)
    populations = [_Population(None, expected, tuple(name for name, _, _ in offers))]
    for common_offer, (name, epsilon, _) in enumerate(offers):
        # One person's own budget against that of all others; where both agree all are alike.
        for own_name, own_epsilon, _ in offers:
            groups = [(name, epsilon, records)]
            if own_name != name:
                groups = [(own_name, own_epsilon, 1), (name, epsilon, records - 1)]
            budgets = Budgets.from_groups(groups, records, delta)
            populations.append(_Population(common_offer, budgets, (own_name,)))
    return populations


def _compute_outcomes(
    populations: list[_Population],
    strategies: Sequence[Strategy],
    *,
    steps: int,
    expected_batch_size: float,
    noise: Correlated | None,
    progress: Callable[[int, int], None] | None,
    skip_allocate: bool,
) -> tuple[list[Outcome], list[str]]:
    """Return the outcome of every budget, strategy and population, and why one was left out.

    With `skip_allocate`, Allocate is left out where a budget does not allow a single step.
    """
    names = populations[0].names
    outcomes: list[Outcome] = []
    left_out: list[str] = []
    # Under some strategies a budget's mechanism is the same in every population.
    explained: _Explained = {}
    for number, (strategy, population) in enumerate(product(strategies, populations)):
        # Left out for one population, it is left out for all.
        if left_out and isinstance(strategy, Allocate):
            continue
        try:
            plan = make_plan(
                population.budgets,
                strategy,
                steps=steps,
                expected_batch_size=expected_batch_size,
                clip_norm=1.0,
                noise=noise,
            )
        except InfeasibleError as error:
            if not skip_allocate or not isinstance(strategy, Allocate):
                raise
            left_out.append(f"{strategy.name} is left out: {error}")
            # What it did for earlier populations would be no comparison.
            outcomes = [outcome for outcome in outcomes if outcome.strategy != strategy.name]
            continue
        for name in population.names:
            budget = names.index(name)
            outcomes.append(_make_outcome(plan, name, budget, population.others, explained))
        if progress is not None:
            progress(number + 1, len(strategies) * len(populations))
    return outcomes, left_out


def _make_outcome(
    plan: BoundPlan, name: str, budget: int, others: int | None, explained: _Explained
) -> Outcome:
    """Return what a person of the group called `name` faces; adds to `explained`."""
    groups = plan.budget_groups
    group = groups.name.tolist().index(name)
    epsilon = float(groups.epsilon[group])
    delta = float(groups.delta[group])
    # Two populations with one mechanism and one ε explain alike.
    mechanism = plan.mechanism_for(group)
    participation = count_participation(plan, group)
    key = (mechanism, epsilon, participation)
    if key not in explained:
        curve = plan.curve(group, method="pld")
        excess = float(compute_excess(plan, group, curve).forward.upper)
        explanation = explain(epsilon, delta, curve=curve, taking_part=participation)
        explained[key] = (excess, explanation)
    excess, explanation = explained[key]
    spent = float(plan.epsilon_spent[group])
    return Outcome(budget, plan.strategy, others, spent, excess, explanation)
