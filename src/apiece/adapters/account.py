"""An account of several fits on the same people, such as those of a cross-validation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from apiece._text import align_columns, rounded_up
from apiece._types import Ids, Integers
from apiece.accounting import privacy_curve
from apiece.budgets import BudgetGroups
from apiece.errors import StateError
from apiece.mechanisms import Composed, Mechanism, Repeated
from apiece.plan import BoundPlan, Plan

# ε and δ that a record allows each fit; then, of groups of one plan that have both alike, Δ̄, and
# of those that have that alike as well the name. Otherwise these are 1 and "".
Budget = tuple[float, float, float, str]

# The (fit, group of its plan) pairs that a record was in, by the number of the fit.
History = tuple[tuple[int, int], ...]

# Histories of one budget that are composed each by itself; of more, one that holds them all is.
_MOST_HISTORIES = 20

# Groups for which the total is stated.
_MOST_GROUPS = 12


@dataclass(frozen=True, slots=True)
class Spending:
    """The spending of the members of one budget group in all fits together.

    Args:
        name: The group's name.
        epsilon: The ε that they allow each fit.
        delta: The δ that they allow each fit, at which `epsilon_spent` is given.
        fits: The most fits that one of them took part in.
        epsilon_spent: The ε of all fits together, if everything that comes of them is released.

    Guarantee:
        `epsilon_spent` is rounded up.

    Example:
        >>> from apiece.adapters.account import Spending
        >>> Spending("strict", 1.0, 1e-5, fits=4, epsilon_spent=2.6).fits
        4
    """

    name: str
    epsilon: float
    delta: float
    fits: int
    epsilon_spent: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Fit:
    """One fit: its public plan, and the group of each person, where the fit named people."""

    plan: Plan
    ids: Ids | None = field(repr=False)
    group_index: Integers | None = field(repr=False)


class Account:
    """An account of all that the fits of an estimator and of its clones spend together.

    Give one to `PrivateClassifier(account=)` or `PrivateRegressor(account=)`. It notes every fit
    before its first step, also those of the copies that scikit-learn makes (`cross_val_score`,
    `GridSearchCV`). It counts in one process alone, and so refuses to be pickled: run with
    n_jobs=None, and set account=None before you save a model.

    Guarantee:
        Whoever sees all models of these fits, or anything computed from them, learns of a record
        no more than `together` says, for splits that do not depend on rows: the neighbour lacks
        the record wherever it was, and is split alike. Where every fit named its people, each is
        counted in the fits that they were in; else everybody is taken to be in all of them, with
        the same budget. Scores on held-out rows have no noise, and no ε covers them.

    Example:
        >>> from apiece.adapters.account import Account
        >>> account = Account()
        >>> account.table()
        'no fits'
    """

    def __init__(self) -> None:
        self._fits: list[_Fit] = []

    def note(self, plan: BoundPlan, *, named: bool) -> None:
        """Note a fit that is about to begin.

        Args:
            plan: The plan that it runs.
            named: Whether the plan's ids are those of persons, the same in every fit.
        """
        # Only a fit that named its people tells who was in it.
        if named:
            fit = _Fit(plan.public(), plan.ids, plan.group_index)
        else:
            fit = _Fit(plan.public(), None, None)
        self._fits.append(fit)

    def __len__(self) -> int:
        return len(self._fits)

    def together(self) -> tuple[Spending, ...]:
        """Return the spending of each group in all fits together, the strictest first.

        Of many groups some are given, from the strictest to the loosest.

        Raises:
            StateError: Where fits that named nobody had different budgets, so that it is unknown
                who was in which.
        """
        histories = self._collect_histories()
        # By ε, then δ, then Δ̄: the strictest first.
        budgets = sorted(histories)
        count = min(len(budgets), _MOST_GROUPS)
        # Spread evenly from the strictest to the loosest.
        chosen = np.linspace(0, len(budgets) - 1, count).round().astype(int)
        spendings = []
        for position in chosen.tolist():
            budget = budgets[position]
            spendings.append(self._compute_spending(budget, histories[budget]))
        return tuple(spendings)

    def _collect_histories(self) -> dict[Budget, list[History]]:
        """Return the different histories that people of each budget have."""
        named = [
            (fit.ids, fit.group_index)
            for fit in self._fits
            if fit.ids is not None and fit.group_index is not None
        ]
        if len(named) == len(self._fits):
            rows = _tabulate_groups(named)
        else:
            rows = self._tabulate_budgets()
        budgets_by_fit = [_list_budgets(fit.plan.budget_groups) for fit in self._fits]
        histories: dict[Budget, list[History]] = {}
        for row in rows:
            # Only fits that a person was in; −1 stands for none.
            history = tuple((fit, group) for fit, group in enumerate(row) if group >= 0)
            fit, group = history[0]
            histories.setdefault(budgets_by_fit[fit][group], []).append(history)
        return histories

    def _tabulate_budgets(self) -> list[list[int]]:
        """Return one row a budget, which all fits must have: its group in each fit."""
        groups_by_budget: list[dict[Budget, int]] = []
        for fit in self._fits:
            listed = _list_budgets(fit.plan.budget_groups)
            groups_by_budget.append({budget: group for group, budget in enumerate(listed)})
        budgets = groups_by_budget[0].keys()
        if any(groups.keys() != budgets for groups in groups_by_budget):
            raise StateError(
                "account: its fits had different budgets and did not all name people, so that "
                "nobody can tell who was in which; give fit people="
            )
        return [[groups[budget] for groups in groups_by_budget] for budget in budgets]

    def _compute_spending(self, budget: Budget, histories: list[History]) -> Spending:
        """Return the most that a record of this budget spends in one of the histories."""
        fits = max(map(len, histories))
        if len(histories) > _MOST_HISTORIES:
            # One that holds them all spends no less than any of them.
            histories = [tuple(sorted({entry for history in histories for entry in history}))]
        fit, group = histories[0][0]
        epsilon, delta, _, _ = budget
        name = str(self._fits[fit].plan.budget_groups.name[group])
        epsilon_spent = max(self._compute_epsilon(history, delta) for history in histories)
        return Spending(name, epsilon, delta, fits, epsilon_spent)

    def _compute_epsilon(self, history: History, delta: float) -> float:
        """Return an upper bound on the ε of all fits of a history together."""
        # Equal mechanisms are composed as one repeated: the curve of a repetition is cheap.
        counts: Counter[Mechanism] = Counter(
            self._fits[fit].plan.mechanism_for(group) for fit, group in history
        )
        parts = [
            mechanism if times == 1 else Repeated(mechanism, times)
            for mechanism, times in counts.items()
        ]
        mechanism = parts[0] if len(parts) == 1 else Composed(*parts)
        # In one composition for all fits, and not as a sum of ε.
        return float(privacy_curve(mechanism, method="pld").epsilon(delta).upper)

    def __repr__(self) -> str:
        return f"Account({len(self)} fits)"

    def table(self) -> str:
        """Return `together` as text.

        Raises:
            StateError: As it does.
        """
        if not self._fits:
            return "no fits"
        rows = [["group", "ε asked of each", "fits with one record", "ε of all together", "δ"]]
        for spending in self.together():
            row = [
                spending.name,
                f"{spending.epsilon:g}",
                str(spending.fits),
                rounded_up(spending.epsilon_spent),
                f"{spending.delta:g}",
            ]
            rows.append(row)
        title = f"{len(self)} fits; if all that comes of them is released:"
        return "\n".join([title, *align_columns(rows)])

    def __sklearn_clone__(self) -> Account:
        """Return this account: the clones of an estimator share it."""
        return self

    def __deepcopy__(self, memo: object) -> Account:
        return self

    def __reduce__(self) -> NoReturn:
        raise StateError(
            "account: counts the fits of one process, and a copy elsewhere would miss some; leave "
            "n_jobs out, and set_params(account=None) before a model is saved"
        )


def _list_budgets(groups: BudgetGroups) -> list[Budget]:
    """Return the budget of each group of a plan, no two the same."""
    bounds = np.ones(len(groups)) if groups.excess is None else groups.excess
    pairs = list(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    triples = list(zip(pairs, bounds.tolist(), strict=True))
    with_pair = Counter(pairs)
    with_triple = Counter(triples)
    budgets: list[Budget] = []
    for pair, bound, name in zip(pairs, bounds.tolist(), groups.name.tolist(), strict=True):
        is_bound_needed = with_pair[pair] > 1
        is_name_needed = with_triple[pair, bound] > 1
        budgets.append((*pair, bound if is_bound_needed else 1.0, name if is_name_needed else ""))
    return budgets


def _tabulate_groups(fits: list[tuple[Ids, Integers]]) -> list[list[int]]:
    """Return the different rows of people × fits: the group that a person was in, or −1.

    fits: of each its people's ids and groups.
    """
    if not fits:
        return []
    # People are in no fit until one of them names them: −1.
    people = np.unique(np.concatenate([ids for ids, _ in fits]))
    table = np.full((people.size, len(fits)), -1, dtype=np.int64)
    # Fill the fit's column in the rows of its people.
    for fit, (ids, groups) in enumerate(fits):
        table[np.searchsorted(people, ids), fit] = groups
    return [[int(group) for group in row] for row in np.unique(table, axis=0)]
