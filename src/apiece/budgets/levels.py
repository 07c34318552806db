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

# Texts of a cell, in lower case, by which a person sets no limit.
NO_LIMIT = frozenset({"inf", "+inf", "infinity", "∞", "no limit", "unlimited"})

# Levels as a caller writes them: name → ε, numbers, or a text such as "low=1,high=8".
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
        for written_name, epsilon in _split_pairs(offered):
            name = str(written_name).strip()
            if not name or plain(name) != name or name in levels:
                raise BudgetError(
                    f"levels: {written_name!r} is empty, has control characters or is given twice; "
                    "give each level one name, as in low=1,high=8"
                )
            levels[name] = _check.positive(f"level {name}", epsilon, error=BudgetError)
        distinct = set(levels.values())
        if len(distinct) < len(levels) or not levels:
            raise BudgetError(
                f"levels = {levels}: give at least one, each with an epsilon of its own"
            )
        # Strictest first, by which `names_of` finds a name.
        self._epsilon = dict(sorted(levels.items(), key=lambda level: level[1]))

    def __getitem__(self, name: str) -> float:
        return self._epsilon[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._epsilon)

    def __len__(self) -> int:
        return len(self._epsilon)

    def __repr__(self) -> str:
        pairs = [f"{name}={epsilon:g}" for name, epsilon in self.items()]
        return f"Levels({', '.join(pairs)})"

    @property
    def titles(self) -> tuple[str, ...]:
        """The names as papers show them, in order: "ε = 2" where a name is a number."""
        titles = []
        for name, epsilon in self.items():
            titles.append(f"ε = {name}" if parse_number(name) == epsilon else name)
        return tuple(titles)

    def names_of(self, epsilon: npt.ArrayLike) -> npt.NDArray[np.str_]:
        """Return the titles of levels, (…), by their ε.

        Args:
            epsilon: (…) Of declared levels.
        """
        # Levels ascend in ε, and each ε here is one of theirs.
        positions = np.searchsorted(list(self.values()), epsilon)
        return np.array(self.titles)[positions]

    def epsilons(self, words: npt.ArrayLike) -> Floats:
        """Return the ε of words, in their shape.

        Args:
            words: (…) Names of declared levels.

        Raises:
            BudgetError: For other words, saying how many.
        """
        # As objects: among texts numpy would make texts of numbers, in a form of its own.
        array = np.asarray(words, dtype=object)
        cells = read_texts(array.ravel().tolist())
        return self.read(cells, "epsilon").reshape(array.shape)

    def read(
        self,
        cells: Texts,
        what: str,
        *,
        decimal: str = ".",
        no_limit_cap: float | None = None,
        rows: Integers | None = None,
    ) -> Floats:
        """Return the ε that each cell names, (n,).

        Args:
            cells: (n,) Texts, as `read_texts` returns them.
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
        # Levels that are called by their ε: a cell may write such a number in another way.
        numbers = {epsilon for name, epsilon in self.items() if parse_number(name) == epsilon}

        def read_cell(cell: str) -> float:
            """Return the ε of a cell; NaN where it names no level."""
            # By name, then as no limit, then as a number that is a name written otherwise.
            if cell in self._epsilon:
                return self._epsilon[cell]
            if no_limit_cap is not None and cell.lower() in NO_LIMIT:
                return no_limit_cap
            number = parse_number(cell, decimal)
            return number if number in numbers else math.nan

        texts = cells.tolist()
        # People choose from few levels: each distinct text is read once.
        epsilon_of_text = {text: read_cell(text) for text in dict.fromkeys(texts)}
        epsilon = np.array([epsilon_of_text[text] for text in texts], dtype=np.float64)
        undeclared = np.isnan(epsilon)
        if undeclared.any():
            # Rows are counted, not texts: a text may stand for many.
            counts = np.ones(len(texts), int) if rows is None else rows
            rows_of_text = Counter[str]()
            bad_cells = zip(cells[undeclared].tolist(), counts[undeclared].tolist(), strict=True)
            for text, count in bad_cells:
                rows_of_text[text] += count
            message = self._describe_undeclared(rows_of_text, int(counts.sum()))
            raise BudgetError(f"{what}: {message}")
        return epsilon

    def _describe_undeclared(self, rows_of_text: Counter[str], rows: int) -> str:
        """Return how many of all rows name no declared level, and the level that they may mean.

        rows_of_text: The number of rows of each text that names no level.
        """
        folded_names = {name.casefold() for name in self}
        wrong_case = 0
        for text, count in rows_of_text.items():
            if text.casefold() in folded_names:
                wrong_case += count
        details = []
        for reason, count in (("empty", rows_of_text[""]), ("but for their case", wrong_case)):
            if count:
                details.append(f"{count} of them {reason}")
        detail = f" ({', '.join(details)})" if details else ""
        # An empty cell resembles no level: the hint is for the most frequent other text.
        frequent = max(rows_of_text, key=lambda text: (text != "", rows_of_text[text]))
        similar = difflib.get_close_matches(frequent, list(self), n=1)
        hint = f", of which {similar[0]!r} is the nearest" if similar else ""
        return (
            f"{rows_of_text.total()} of {rows} rows name no declared level{detail}; "
            f"declared: {', '.join(self)}{hint}; mend or leave out these rows, or declare all that "
            "people could choose"
        )


def _split_pairs(offered: Offered) -> list[tuple[str, object]]:
    """Return the name and ε of each level, unchecked and in the caller's order."""
    if isinstance(offered, str):
        return [_split_pair(text) for text in offered.split(",")]
    if isinstance(offered, Mapping):
        return list(offered.items())
    if not isinstance(offered, Iterable):
        raise BudgetError(f"levels = {offered!r}: give names and numbers, as in low=1,high=8")
    pairs: list[tuple[str, object]] = []
    for number in offered:
        epsilon = _check.positive("levels", number, error=BudgetError)
        short = f"{epsilon:g}"
        # Six digits where they are the number, all digits where they are not.
        pairs.append((short if float(short) == epsilon else repr(epsilon), epsilon))
    return pairs


def _split_pair(text: str) -> tuple[str, object]:
    """Return the name and ε in name=ε; a number alone is its own name."""
    name, equals, number = text.rpartition("=")
    epsilon = parse_number(number.strip())
    if math.isnan(epsilon):
        raise BudgetError(f"levels: {text!r} is not name=epsilon, as in low=1,high=8")
    return (name if equals else number), epsilon


def parse_levels(offered: Offered | None) -> Levels | None:
    """Return the levels on offer, or None where none were declared."""
    return offered if offered is None or isinstance(offered, Levels) else Levels(offered)


def parse_epsilons(epsilon: npt.ArrayLike, levels: Offered | None) -> npt.ArrayLike:
    """Return ε itself, or the ε of level names where levels were declared."""
    if levels is not None:
        return Levels(levels).epsilons(epsilon)
    if any(isinstance(value, str) for value in np.asarray(epsilon).flat[:1]):
        raise BudgetError(
            "epsilon: words; declare what they stand for, as in levels={'low': 1, 'high': 8}"
        )
    return epsilon
