"""An account of several fits on the same people, such as those of a cross-validation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from apiece._text import aligned, rounded_up
from apiece._types import Ids, Integers
from apiece.accounting import privacy_curve
from apiece.errors import StateError
from apiece.mechanisms import Composed, Mechanism, Repeated
from apiece.plan import BoundPlan, Plan

Budget = tuple[float, float]  # ε and δ that a record allows each fit
History = tuple[tuple[int, int], ...]  # (fit, group of its plan) that somebody was in
_HISTORIES = 20  # of one budget, composed each by itself
_GROUPS = 12  # for which the total is stated


@dataclass(frozen=True, slots=True)
class Spending:
    """What the members of one budget group spend in all fits together.

    Args:
        name: The group's name.
        epsilon: The ε that they allow each fit.
        delta: The δ that they allow each fit, at which `epsilon_spent` is given.
        fits: The most fits that one of them took part in.
        epsilon_spent: The ε of all fits together, if everything that comes of them is released.

    Guarantee:
        `epsilon_spent` is rounded up.

    Example:
        >>> from apiece.adapters import Spending
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
    """One fit: its public plan, and who was in which group, where that was said."""

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
        >>> from apiece.adapters import Account
        >>> account = Account()
        >>> account.table()
        'no fits'
    """

    def __init__(self) -> None:
        self._fits: list[_Fit] = []

    def note(self, plan: BoundPlan, *, named: bool) -> None:
        """Note a fit that is about to begin.

        Args:
            plan: That it runs.
            named: Whether the plan's ids are those of persons, the same in every fit.
        """
        ids, index = (plan.ids, plan.group_index) if named else (None, None)
        self._fits.append(_Fit(plan.public(), ids, index))

    def __len__(self) -> int:
        return len(self._fits)

    def together(self) -> tuple[Spending, ...]:
        """Return what each group spends in all fits together, the strictest first.

        Of many groups, what some of them spend, from the strictest to the loosest.

        Raises:
            StateError: Where fits that named nobody had different budgets, so that it is unknown
                who was in which.
        """
        histories = self._histories()
        budgets = sorted(histories)
        chosen = np.linspace(0, len(budgets) - 1, min(len(budgets), _GROUPS)).round().astype(int)
        return tuple(self._spending(budgets[i], histories[budgets[i]]) for i in chosen.tolist())

    def _histories(self) -> dict[Budget, list[History]]:
        """Return the different histories that people of each budget have."""
        named = [(f.ids, f.group_index) for f in self._fits]
        rows = _rows([(i, g) for i, g in named if i is not None and g is not None])
        if any(ids is None for ids, _ in named):
            rows = self._by_budget()
        histories: dict[Budget, list[History]] = {}
        for row in rows:
            history = tuple((fit, group) for fit, group in enumerate(row) if group >= 0)
            histories.setdefault(self._asked(*history[0]), []).append(history)
        return histories

    def _by_budget(self) -> list[list[int]]:
        """Return one row a budget, which all fits must have: its group in each fit."""
        groups = [
            {self._asked(fit, g): g for g in range(len(noted.plan.budget_groups))}
            for fit, noted in enumerate(self._fits)
        ]
        if any(each.keys() != groups[0].keys() for each in groups):
            raise StateError(
                "account: its fits had different budgets and did not all name people, so that "
                "nobody can tell who was in which; give fit people="
            )
        return [[each[budget] for each in groups] for budget in groups[0]]

    def _asked(self, fit: int, group: int) -> Budget:
        asked = self._fits[fit].plan.budget_groups
        return float(asked.epsilon[group]), float(asked.delta[group])

    def _spending(self, budget: Budget, histories: list[History]) -> Spending:
        fits = max(map(len, histories))
        if len(histories) > _HISTORIES:  # one that holds them all spends no less
            histories = [tuple(sorted({part for history in histories for part in history}))]
        fit, group = histories[0][0]
        epsilon, delta = budget
        name = str(self._fits[fit].plan.budget_groups.name[group])
        spent = max(self._spent(history, delta) for history in histories)
        return Spending(name, epsilon, delta, fits, spent)

    def _spent(self, history: History, delta: float) -> float:
        counted: Counter[Mechanism] = Counter(
            self._fits[fit].plan.mechanism_for(group) for fit, group in history
        )
        every = [m if times == 1 else Repeated(m, times) for m, times in counted.items()]
        whole = every[0] if len(every) == 1 else Composed(*every)
        return float(privacy_curve(whole, method="pld").epsilon(delta).upper)

    def __repr__(self) -> str:
        return f"Account({len(self)} fits)"

    def table(self) -> str:
        """Return `together` as text.

        Raises:
            StateError: As it does.
        """
        if not self._fits:
            return "no fits"
        head = ["group", "ε asked of each", "fits with one record", "ε of all together", "δ"]
        rows = [head] + [
            [s.name, f"{s.epsilon:g}", str(s.fits), rounded_up(s.epsilon_spent), f"{s.delta:g}"]
            for s in self.together()
        ]
        first = f"{len(self)} fits; if all that comes of them is released:"
        return "\n".join([first, *aligned(rows)])

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


def _rows(named: list[tuple[Ids, Integers]]) -> list[list[int]]:
    """Return the different rows of people × fits: the group that a person was in, or −1."""
    if not named:
        return []
    people = np.unique(np.concatenate([ids for ids, _ in named]))
    table = np.full((people.size, len(named)), -1, dtype=np.int64)
    for fit, (ids, index) in enumerate(named):
        table[np.searchsorted(people, ids), fit] = index
    return [[int(group) for group in row] for row in np.unique(table, axis=0)]
