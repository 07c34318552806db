"""Levels of consent: what a form lets people choose from, by name. Who chose what is private."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._text import plain
from apiece._types import Floats, Integers
from apiece.datasets.cells import Texts, parse_number, read_texts
from apiece.errors import BudgetError

NO_LIMIT = frozenset({"inf", "+inf", "infinity", "∞", "no limit", "unlimited"})


Offered: TypeAlias = Mapping[str, float] | Iterable[float] | str


class Levels(Mapping[str, float]):
    """The levels of consent on offer: name → ε, strictest first.

    Names go on to plans, reports and statements. A level that nobody chose has no group in a plan,
    but stands in a statement. A cell may write a name that is a number another way: 2.0 for 2.

    Args:
        offered: Name → ε; or numbers, which are their own names; or a text of either, as on the
            command line.

    Raises:
        BudgetError: For none, a name that is empty or given twice, an ε outside (0, ∞), and two
            names of one ε.

    Example:
        >>> from apiece.budgets.levels import Levels
        >>> Levels("low=1,medium=3,high=8")
        Levels(low=1, medium=3, high=8)
        >>> Levels([2, 1]) == Levels({"2": 2.0, "1": 1.0})
        True
    """

    __slots__ = ("_epsilon",)

    def __init__(self, offered: Offered) -> None:
        levels: dict[str, float] = {}
        for given, epsilon in _pairs(offered):
            name = str(given).strip()
            if not name or plain(name) != name or name in levels:
                raise BudgetError(
                    f"levels: {given!r} is empty, has control characters or is given twice; give "
                    "each level one name, as in low=1,high=8"
                )
            levels[name] = _check.positive(f"level {name}", epsilon, error=BudgetError)
        if len(set(levels.values())) < len(levels) or not levels:
            raise BudgetError(
                f"levels = {levels}: give at least one, each with an epsilon of its own"
            )
        self._epsilon = dict(sorted(levels.items(), key=lambda level: level[1]))

    def __getitem__(self, name: str) -> float:
        return self._epsilon[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._epsilon)

    def __len__(self) -> int:
        return len(self._epsilon)

    def __repr__(self) -> str:
        return f"Levels({', '.join(f'{name}={epsilon:g}' for name, epsilon in self.items())})"

    @property
    def titles(self) -> tuple[str, ...]:
        """The names as papers show them, in order: "ε = 2" where a name is a number."""
        return tuple(f"ε = {name}" if parse_number(name) == self[name] else name for name in self)

    def names_of(self, epsilon: npt.ArrayLike) -> npt.NDArray[np.str_]:
        """Return the titles of levels, (…), by their ε.

        Args:
            epsilon: (…) Of declared levels.
        """
        places = np.searchsorted(list(self.values()), epsilon)
        return np.array(self.titles)[places]

    def epsilons(self, words: npt.ArrayLike) -> Floats:
        """Return the ε of each of these words, or of the one.

        Args:
            words: (…) Names of declared levels.

        Raises:
            BudgetError: For other words, saying how many.
        """
        import pandas as pd

        given = np.asarray(words, dtype=object)
        return self.read(read_texts(pd.Series(given.ravel())), "epsilon").reshape(given.shape)

    def read(
        self,
        cells: Texts,
        what: str,
        *,
        decimal: str = ".",
        no_limit_cap: float | None = None,
        rows: Integers | None = None,
    ) -> Floats:
        """Return the ε that each cell names, by itself.

        Args:
            cells: (n,) As `texts` returns them.
            what: Their name in a message.
            decimal: The decimal mark of numbers.
            no_limit_cap: The level's ε that "no limit" and inf are read as.
            rows: (n,) How many rows each cell stands for; one each if not given.

        Raises:
            BudgetError: For cells that are no declared level. It says how many, and no row's value.
        """
        if no_limit_cap is not None and no_limit_cap not in self.values():
            raise BudgetError(
                f"no_limit_cap = {no_limit_cap:g}: no level has this epsilon; declare one that "
                'has, or a level of the name "no limit"'
            )
        numbers = {e for name, e in self.items() if parse_number(name) == e}

        def named(cell: str) -> float:
            if cell in self._epsilon:
                return self._epsilon[cell]
            if no_limit_cap is not None and cell.lower() in NO_LIMIT:
                return no_limit_cap
            number = parse_number(cell, decimal)
            return number if number in numbers else math.nan

        given = cells.tolist()
        known = {cell: named(cell) for cell in dict.fromkeys(given)}
        epsilon = np.array([known[cell] for cell in given], dtype=np.float64)
        if (bad := np.isnan(epsilon)).any():
            strange, count = Counter[str](), np.ones(len(given), int) if rows is None else rows
            for cell, many in zip(cells[bad].tolist(), count[bad].tolist(), strict=True):
                strange[cell] += many
            raise BudgetError(f"{what}: {self._undeclared(strange, int(count.sum()))}")
        return epsilon

    def _undeclared(self, cells: Counter[str], rows: int) -> str:
        """Say how many rows name no level; cells: how many there are of each that is none."""
        alike = {name.casefold() for name in self}
        cased = sum(many for cell, many in cells.items() if cell.casefold() in alike)
        parts = {"empty": cells[""], "but for their case": cased}
        said = ", ".join(f"{many} of them {how}" for how, many in parts.items() if many)
        most = max(cells, key=lambda cell: (cell != "", cells[cell]))
        near = difflib.get_close_matches(most, list(self), n=1)
        hint = f", of which {near[0]!r} is the nearest" if near else ""
        return (
            f"{cells.total()} of {rows} rows name no declared level{f' ({said})' if said else ''}; "
            f"declared: {', '.join(self)}{hint}; mend or leave out these rows, or declare all that "
            "people could choose"
        )


def _pairs(offered: Offered) -> list[tuple[str, object]]:
    """Return name and ε of each level as it was given."""
    if isinstance(offered, str):
        parts = [part.rpartition("=") for part in offered.split(",")]
        for part, number in zip(offered.split(","), parts, strict=True):
            if math.isnan(parse_number(number[2].strip())):
                raise BudgetError(f"levels: {part!r} is not name=epsilon, as in low=1,high=8")
        return [(name if equals else e, parse_number(e.strip())) for name, equals, e in parts]
    if isinstance(offered, Mapping):
        return list(offered.items())
    if not isinstance(offered, Iterable):
        raise BudgetError(f"levels = {offered!r}: give names and numbers, as in low=1,high=8")
    numbers = [_check.positive("levels", each, error=BudgetError) for each in offered]
    return [(f"{e:g}" if float(f"{e:g}") == e else repr(e), e) for e in numbers]


def parse_levels(offered: Offered | None) -> Levels | None:
    """Return the levels on offer, or None where none were declared."""
    return offered if offered is None or isinstance(offered, Levels) else Levels(offered)


def parse_epsilons(epsilon: npt.ArrayLike, levels: Offered | None) -> npt.ArrayLike:
    """Return ε as it is, or where levels were declared that of its words."""
    if levels is not None:
        return Levels(levels).epsilons(epsilon)
    if any(isinstance(each, str) for each in np.asarray(epsilon).flat[:1]):
        raise BudgetError(
            "epsilon: words; declare what they stand for, as in levels={'low': 1, 'high': 8}"
        )
    return epsilon
