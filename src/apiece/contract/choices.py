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
from typing import TypeAlias

from apiece import _check
from apiece._text import count_up
from apiece._types import Json
from apiece.accounting import noise_multipliers, privacy_curve
from apiece.assignment import Allocate, Hybrid, Sample, Scale, Strategy
from apiece.assignment.front import make_plan
from apiece.budgets import Budgets
from apiece.budgets.groups import refuse_absurd
from apiece.contract.explain import PEOPLE, Explanation, explain, taking_part
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.mechanisms import Mechanism
from apiece.plan import BoundPlan, Reference
from apiece.plan.verification import compute_excess

Offer: TypeAlias = tuple[str, float, float]  # name, epsilon, expected share
Population: TypeAlias = tuple[int | None, Budgets, tuple[str, ...]]
_Told: TypeAlias = tuple[Mechanism, float]  # what is run, and the ε of who is asked
MOST = 6  # budgets on offer; people choose among few


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one budget on offer means under a strategy, if the others choose in a certain way.

    Guarantee:
        `epsilon_spent` and `excess` are upper bounds.
    """

    budget: int
    strategy: str
    others: int | None
    epsilon_spent: float
    excess: float
    explanation: Explanation

    @property
    def more(self) -> int:
        """Of 1,000 people, about how many more an attacker is right than in the reference."""
        return count_up(self.excess, PEOPLE)

    @property
    def unspent(self) -> int | None:
        """Per cent of ε, at least, that a whole number of steps leaves; None with other ways."""
        if self.explanation.taking_part is None:
            return None
        return math.floor(100 * max(1 - self.epsilon_spent / self.explanation.epsilon, 0.0))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Those of the explanation, and what a whole number of steps leaves unspent."""
        if self.unspent is None:
            return self.explanation.sentences
        rest = (
            f"A whole number of steps leaves at least {self.unspent} % of your ε unused. That "
            "makes the result less accurate; nobody learns more of you."
        )
        return (*self.explanation.sentences, rest)

    def to_dict(self) -> Json:
        """Return it as JSON types."""
        names = ("budget", "strategy", "others", "epsilon_spent", "excess", "more", "unspent")
        own = {name: getattr(self, name) for name in names}
        return own | {"explanation": self.explanation.to_dict()}


@dataclass(frozen=True, slots=True)
class Choices:
    """The budgets on offer and what each means; public numbers alone.

    Attributes:
        names: Of the budgets on offer, strictest first.
        shares: Of people who are expected to choose each.
        promises: What each promises by itself, whatever is done with the data.
        references: About how many of 1,000 people an attacker is right at most, if everybody had
            chosen that budget.
        bounded: The same, whatever the others choose, where the excess is bounded.
        bound: Δ̄, the bound on the excess.
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
    bound: float
    records: int
    outcomes: tuple[Outcome, ...]
    left_out: tuple[str, ...] = ()

    @property
    def most(self) -> int:
        """Of 1,000 people, about how many more the bound Δ̄ lets an attacker be right."""
        return count_up(self.bound, PEOPLE)

    def guaranteed(self, budget: int, strategy: str) -> int:
        """Return `right` at most, whatever the others choose.

        Args:
            budget: Position of the budget on offer.
            strategy: Name of a strategy. Scale does not move with the others, Hybrid by no more
                than the bound; of all others the promise alone is known to hold.
        """
        known = {Scale.name: self.references, Hybrid.name: self.bounded}
        if strategy in known:
            return known[strategy][budget]
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
    bound: float,
    strategies: Sequence[Strategy] | None = None,
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
        bound: Δ̄ for Hybrid, in [0, 1].
        strategies: Scale, Sample, Hybrid with `bound` and Allocate unless given; Allocate is left
            out, which is said, where a budget does not allow a single step.
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
    rows = _checked(offered, records)
    bound = _check.probability("bound", bound)
    own: Sequence[Strategy] = [Scale(), Sample(), Hybrid(bound), Allocate()]
    schemes = own if strategies is None else strategies
    for scheme in schemes:
        if isinstance(scheme, Hybrid) and scheme.excess != bound:
            raise InputError(
                f"strategies: Hybrid({scheme.excess}) keeps another bound than {bound:g}, which "
                f"is said to hold; give Hybrid({bound:g})"
            )
    promises = tuple(explain(epsilon, delta) for _, epsilon, _ in rows)
    names = tuple(name for name, _, _ in rows)
    asked = _populations(rows, records, delta)
    outcomes: list[Outcome] = []
    left_out: list[str] = []
    told: dict[_Told, tuple[float, Explanation]] = {}
    for number, (scheme, (others, budgets, whose)) in enumerate(product(schemes, asked)):
        if left_out and isinstance(scheme, Allocate):
            continue
        try:
            plan = make_plan(
                budgets, scheme, steps=steps, expected_batch_size=expected_batch_size, clip_norm=1.0
            )
        except InfeasibleError as error:
            if strategies is not None or not isinstance(scheme, Allocate):
                raise
            left_out.append(f"{scheme.name} is left out: {error}")
            outcomes = [outcome for outcome in outcomes if outcome.strategy != scheme.name]
            continue
        outcomes += [_outcome(plan, name, names.index(name), others, told) for name in whose]
        if progress is not None:
            progress(number + 1, len(schemes) * len(asked))
    reference, references, bounded = Reference(expected_batch_size / records, steps), [], []
    for (_, epsilon, _), promise in zip(rows, promises, strict=True):
        noise = noise_multipliers(epsilon=epsilon, delta=delta, **asdict(reference))
        # the greatest share of right guesses where everybody has this budget
        right = float(privacy_curve(reference.mechanism(float(noise))).success(0.5).upper)
        references.append(count_up(right, PEOPLE))
        bounded.append(min(count_up(right + bound, PEOPLE), promise.frequencies.right))
    shares = tuple(share for _, _, share in rows)
    known = names, shares, promises, tuple(references), tuple(bounded), bound, records
    return Choices(*known, tuple(outcomes), tuple(left_out))


def _checked(offered: Sequence[Offer], records: int) -> list[Offer]:
    """Return the budgets on offer, strictest first."""
    rows = sorted(
        (
            (str(name), refuse_absurd(_check.positive(f"epsilon of {name}", epsilon)), float(share))
            for name, epsilon, share in offered
        ),
        key=lambda row: row[1],
    )
    epsilons, names = {row[1] for row in rows}, {row[0] for row in rows}
    if not 2 <= len(rows) == len(epsilons) == len(names) <= MOST:
        raise BudgetError(
            f"budgets: {len(rows)} on offer, {len(epsilons)} of them with an epsilon of their own; "
            f"offer 2 to {MOST}, each with its own name and epsilon"
        )
    _check.count("records", records, least=10 * len(rows))
    return rows


def _populations(rows: list[Offer], records: int, delta: float) -> list[Population]:
    """Return (what the others choose, budgets, whose outcome to read) of every population."""
    expected = Budgets.from_groups(rows, records, delta)
    populations: list[Population] = [(None, expected, tuple(name for name, _, _ in rows))]
    for others, (name, epsilon, _) in enumerate(rows):
        for one, asks, _ in rows:
            groups = [(name, epsilon, records)]
            if one != name:
                groups = [(one, asks, 1), (name, epsilon, records - 1)]
            populations.append((others, Budgets.from_groups(groups, records, delta), (one,)))
    return populations


def _outcome(
    plan: BoundPlan,
    name: str,
    budget: int,
    others: int | None,
    told: dict[_Told, tuple[float, Explanation]],
) -> Outcome:
    """Return what a person of the group called `name` faces; equal mechanisms are told of once."""
    groups = plan.budget_groups
    group = [str(each) for each in groups.name].index(name)
    epsilon, delta = float(groups.epsilon[group]), float(groups.delta[group])
    mechanism = plan.mechanism_for(group)
    if (mechanism, epsilon) not in told:
        curve = plan.curve(group, method="pld")
        excess = float(compute_excess(plan, group, curve).forward.upper)
        sure = taking_part(plan, group)
        told[mechanism, epsilon] = excess, explain(epsilon, delta, curve=curve, taking_part=sure)
    spent = float(plan.epsilon_spent[group])
    return Outcome(budget, plan.strategy, others, spent, *told[mechanism, epsilon])
