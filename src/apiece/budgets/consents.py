"""Consents as people gave them: what is permitted on a day, to whom and for what, and at which ε.

A consent becomes a `Rule` by a declared `ConsentMapping`. What is not understood is refused and
counted, never guessed; where two readings are left, the one that permits less is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from apiece import _check
from apiece._identifiers import find_flaw
from apiece._json import toml_table
from apiece._text import plain
from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.budgets.levels import Levels
from apiece.errors import DataError, InputError

# Every querier, or purpose, that the mapping does not name.
OTHERS: Final = "*"
# The first and last day of a period, both in it, as `date.toordinal`.
Days: TypeAlias = tuple[int, int]
ALWAYS: Final = (date.min.toordinal(), date.max.toordinal())
# Queriers or purposes; None is every one.
Names: TypeAlias = frozenset[str] | None
SOURCES: Final = ("fhir", "csv", "dpv")
# How many codes a warning names.
MOST_CODES: Final = 20
# How many characters of a code a warning shows.
LONGEST_CODE: Final = 120


class OddError(DataError):
    """A consent that is not understood: its kind, and the codes that the mapping lacks."""

    def __init__(self, kind: str, codes: Sequence[str] = ()) -> None:
        super().__init__(kind)
        self.codes = tuple(codes)


class Meaning(NamedTuple):
    """What a code stands for; where it has none of these it is understood, and limits nothing."""

    level: float | None = None
    querier: str | None = None
    purpose: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Rule:
    """One decision of one person, with exceptions that decide the other way.

    A date may be vague ("2026-05"). So that a doubt never permits, a permit counts on the days on
    which it certainly holds, a denial on all days on which it could.
    """

    permit: bool
    # The ε of a permit; 0 of a denial.
    level: float = 0.0
    queriers: Names = None
    purposes: Names = None
    # The days on which the decision certainly holds.
    sure: Days = ALWAYS
    # The days on which it could hold; they include those of `sure`.
    maybe: Days = ALWAYS
    exceptions: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsentMapping:
    """What the codes of consents stand for, as its TOML says.

    Attributes:
        source: "fhir" (R4 and R5 Consent, a Bundle), "csv" or "dpv" (JSON-LD).
        levels: What people could choose.
        default: The level of a permit that names none, or None where that is not understood.
        codes: By code, written "system|code".
        decisions: Of a code: whether it permits.
        about: Whether consents of a FHIR scope or category are about this data.
        columns: Of a CSV: person, level, and where there are such from, until, purpose, querier.
        provisions: What provisions of R5 are: "exceptions" to its decision, or "limits" of it.

    Example:
        >>> from apiece.budgets import ConsentMapping
        >>> mapping = ConsentMapping.from_toml('''
        ... source = "csv"
        ... levels = { low = 1, high = 8 }
        ... decision = { withdrawn = "deny" }
        ... columns = { person = "who", level = "said", until = "until" }
        ... ''')
        >>> mapping.levels
        Levels(low=1, high=8)
    """

    source: str
    levels: Levels
    default: float | None
    codes: Mapping[str, Meaning] = field(repr=False)
    decisions: Mapping[str, bool] = field(repr=False)
    about: Mapping[str, bool] = field(repr=False)
    columns: Mapping[str, str] = field(repr=False)
    provisions: str | None = None

    @classmethod
    def from_toml(cls, text: str) -> ConsentMapping:
        """Return the mapping in a text.

        Args:
            text: TOML: `source`, `levels`, `default`, `provisions`, and tables from codes: [level],
                [purpose], [querier], [decision] ("permit" or "deny"), [about] (true or false), a
                list `anything` of codes that limit nothing, and [columns] of a CSV.

        Raises:
            InputError: For anything else.
        """
        tables = ("level", "purpose", "querier", "decision", "about", "columns")
        known = {"source", "levels", "default", "provisions", "anything", *tables}
        table = toml_table(text, "mapping", known, "source, levels, purpose")
        source = table.get("source")
        if source not in SOURCES:
            raise InputError(f"mapping: source = {source!r}; give one of {', '.join(SOURCES)}")
        provisions = table.get("provisions")
        if provisions not in (None, "exceptions", "limits"):
            raise InputError(f"mapping: provisions = {provisions!r}; give exceptions or limits")
        levels = Levels(table.get("levels", {}))
        values_of = {name: _require_table(name, table.get(name, {})) for name in tables}
        columns = values_of["columns"]
        _check_columns(source, columns)
        _check_code_values(values_of, tuple(levels))
        default = table.get("default")
        # A tuple: a default that is a list is looked for in it without a TypeError.
        if default is not None and default not in tuple(levels):
            raise InputError(f"mapping: default = {default!r}; give one of {', '.join(levels)}")
        about = values_of["about"]
        if not all(isinstance(value, bool) for value in about.values()):
            raise InputError("mapping: [about]: give true or false for each code")
        anything = table.get("anything", [])
        if not isinstance(anything, list) or not all(isinstance(code, str) for code in anything):
            raise InputError(f"mapping: anything = {anything!r}; give a list of codes")
        # Understood, and limiting nothing.
        codes = {code: Meaning() for code in [*anything, *values_of["decision"], *about]}
        level_names = values_of["level"]
        queriers = values_of["querier"]
        purposes = values_of["purpose"]
        # A code may stand for several of them at once.
        for code in level_names.keys() | queriers.keys() | purposes.keys():
            level = levels[level_names[code]] if code in level_names else None
            codes[code] = Meaning(level, queriers.get(code), purposes.get(code))
        decisions = {code: value == "permit" for code, value in values_of["decision"].items()}
        default_level = None if default is None else levels[default]
        return cls(source, levels, default_level, codes, decisions, about, columns, provisions)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return all queriers or purposes that codes stand for, sorted, then `OTHERS`.

        Args:
            kind: "querier" or "purpose".
        """
        names = {getattr(meaning, kind) for meaning in self.codes.values()} - {None}
        return (*sorted(names), OTHERS)


# What a column of a CSV may hold.
COLUMNS: Final = ("person", "level", "from", "until", "purpose", "querier")


def _require_table(name: str, value: object) -> Json:
    """Return a table of the mapping, from codes to what they stand for."""
    if not isinstance(value, dict):
        raise InputError(f"mapping: [{name}]: give a table from codes to what they mean")
    return dict(value)


def _check_columns(source: str, columns: Json) -> None:
    """Check the columns of a mapping: those of a CSV, at least of person and level."""
    if (source == "csv") != bool(columns) or not columns.keys() <= set(COLUMNS):
        raise InputError(f"mapping: [columns] is of a CSV, and may have {', '.join(COLUMNS)}")
    if not all(isinstance(column, str) for column in columns.values()):
        raise InputError("mapping: [columns]: give the name of each column as a text")
    if columns and not {"person", "level"} <= columns.keys():
        raise InputError("mapping: [columns]: name at least those of person and level")


def _check_code_values(values_of: Mapping[str, Json], level_names: tuple[str, ...]) -> None:
    """Check what codes stand for: a declared level, a name, or a decision."""
    for table in ("level", "purpose", "querier", "decision"):
        for code, value in values_of[table].items():
            if table == "level":
                fits = value in level_names
            elif table == "decision":
                fits = value in ("permit", "deny")
            else:
                fits = isinstance(value, str) and find_flaw(value) is None and value != OTHERS
            if not fits:
                raise InputError(f"mapping: [{table}] {code!r} = {value!r}; see the guide")


@dataclass(frozen=True, slots=True)
class Standing:
    """The permits of all people on one day, and how long each lasts. Data about people.

    Attributes:
        day: The day for which all of this holds.
        ids: (people,) The people who permit anything.
        epsilon: (people,) For each, the strictest of all levels that hold.
        until: (people,) The last day on which it surely still holds, as `date.toordinal`.
        queriers: Names, the last of which stands for all others.
        purposes: Names, the last of which stands for all others.
        allowed: (people, queriers, purposes) What each permits.
        aside: How many consents say nothing, by reason.

    Example:
        >>> from datetime import date
        >>> import numpy as np
        >>> from apiece.budgets.consents import Standing
        >>> one, allowed = np.ones(1), np.array([[[True, False]]])
        >>> purposes = ("research", "*")
        >>> standing = Standing(date(2026, 5, 1), ["ann"], one, one, ("*",), purposes, allowed)
        >>> standing.permits({"purpose": "research"}).tolist(), standing.permits({}).tolist()
        ([True], [False])
    """

    day: date
    ids: Ids = field(repr=False)
    epsilon: Floats = field(repr=False)
    until: Integers = field(repr=False)
    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    allowed: Mask = field(repr=False)
    aside: Mapping[str, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.ids.size

    def permits(self, scope: Mapping[str, object]) -> Mask:
        """Return whether each person permits a scope, and all of a dimension that it leaves open.

        Args:
            scope: Such as {"querier": "lab", "purpose": "research"}.
        """
        return find_permitting(self.allowed, self.queriers, self.purposes, scope)


def find_permitting(
    allowed: Mask, queriers: Sequence[str], purposes: Sequence[str], scope: Mapping[str, object]
) -> Mask:
    """Return whether each person permits a scope, (people,).

    allowed: (people, queriers, purposes).
    """
    rows = _find_index(queriers, scope.get("querier"))
    columns = _find_index(purposes, scope.get("purpose"))
    return np.asarray(allowed[:, rows][:, :, columns].all(axis=(1, 2)))


def _find_index(names: Sequence[str], name: object) -> slice | list[int]:
    """Return the index of a name, the last for a name that is not declared, all for None."""
    if name is None:
        return slice(None)
    # The last name stands for all that are not declared.
    return [names.index(str(name)) if name in names else -1]


@dataclass(slots=True)
class ConsentRecords:
    """The rules that each person's consents set, and the consents that were not understood.

    Args:
        mapping: What codes stand for.
        what: The name of their source, in messages.
        rules: Person → rules.
        odd: Person ("" where unknown) → the kind of each consent that was not understood.
        aside: How many consents say nothing, by reason.
        unknown: How often each code occurs that the mapping lacks. For the keeper of the consents.

    Example:
        >>> from apiece.budgets import ConsentMapping
        >>> from apiece.budgets.consents import ConsentRecords
        >>> from apiece.budgets.consents import Rule
        >>> mapping = ConsentMapping.from_toml("source = 'dpv'\\nlevels = { low = 1 }")
        >>> ConsentRecords(mapping, rules={"ann": [Rule(True, 1.0)]}).on().epsilon.tolist()
        [1.0]
    """

    mapping: ConsentMapping
    what: str = "consents"
    rules: dict[str, list[Rule]] = field(default_factory=dict, repr=False)
    odd: dict[str, list[str]] = field(default_factory=dict, repr=False)
    aside: Counter[str] = field(default_factory=Counter, repr=False)
    unknown: Counter[str] = field(default_factory=Counter, repr=False)

    def on(self, day: date | None = None, *, leave_out: bool = False) -> Standing:
        """Return who permits what on a day.

        Args:
            day: By default today, in UTC.
            leave_out: Whether people of whom a consent is not understood permit nothing; where
                nobody knows whose it is, all is refused.

        Raises:
            DataError: For consents that are not understood; it counts them and names their kinds;
                `name_unknown_codes` says which codes the mapping lacks.

        Guarantee:
            Nobody has more than the least level of their permits that surely hold on this day, nor
            a scope that any denial could hold for. Neither depends on the order of consents, and a
            further denial raises neither.
        """
        standing_day = datetime.now(UTC).date() if day is None else day
        queriers = self.mapping.names("querier")
        purposes = self.mapping.names("purpose")
        # Many people have the same rules, which are combined once.
        outcomes: dict[tuple[Rule, ...], _Outcome] = {}
        # Those who permit anything at all.
        permitting: dict[str, _Outcome] = {}
        odd = {person: list(kinds) for person, kinds in self.odd.items()}
        for person, person_rules in self.rules.items():
            rules = tuple(person_rules)
            if rules not in outcomes:
                outcomes[rules] = _combine_rules(
                    rules, standing_day.toordinal(), queriers, purposes
                )
            outcome = outcomes[rules]
            if outcome.odd is not None:
                odd.setdefault(person, []).append(str(outcome.odd))
            elif outcome.allowed.any():
                permitting[person] = outcome
        self._refuse_odd(odd, leave_out)
        # Who has a consent that is not understood permits nothing, whatever others of theirs say.
        people = sorted(permitting.keys() - odd.keys())
        standing = [permitting[person] for person in people]
        allowed = np.array([outcome.allowed for outcome in standing], dtype=bool)
        return Standing(
            # A date even where a datetime was given.
            date.fromordinal(standing_day.toordinal()),
            _check.ids(f"{self.what}: persons", people),
            np.array([outcome.level for outcome in standing], dtype=np.float64),
            np.array([outcome.until for outcome in standing], dtype=np.int64),
            queriers,
            purposes,
            # A shape of its own where there are no people.
            allowed.reshape((len(people), len(queriers), len(purposes))),
            dict(self.aside),
        )

    def _refuse_odd(self, odd: Mapping[str, list[str]], leave_out: bool) -> None:
        """Raise `DataError` for consents that are not understood; those of "" are nobody's."""
        counts = Counter(kind for kinds in odd.values() for kind in kinds)
        if not counts or (leave_out and "" not in odd):
            return
        shown = ", ".join(f"{count} with {kind}" for kind, count in sorted(counts.items()))
        remedy = "say whose they are" if "" in odd else "leave these people out with --leave-out"
        raise DataError(
            f"{self.what}: {counts.total()} consents are not understood: {shown}; mend them, "
            f"declare in the mapping what they mean, or {remedy}"
        )

    def name_unknown_codes(self) -> list[str]:
        """Return a line with the most frequent codes that the mapping lacks; none where it has all.

        They are as they are in the source, so the line is for the keeper of the consents alone.
        """
        if not self.unknown:
            return []
        by_frequency = sorted(self.unknown.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"'{plain(code)[:LONGEST_CODE]}' ({count})" for code, count in by_frequency]
        hidden = len(shown) - MOST_CODES
        suffix = f", and {hidden} more" if hidden > 0 else ""
        codes = ", ".join(shown[:MOST_CODES])
        return [f"{self.what}: codes that the mapping lacks: {codes}{suffix}"]


@dataclass(frozen=True, slots=True, repr=False)
class _Outcome:
    """One person's rules combined for a day.

    until: the last day on which the outcome surely holds. odd: why the rules are not understood.
    """

    level: float
    until: int
    allowed: Mask
    odd: str | None = None


def _combine_rules(
    rules: Sequence[Rule], day: int, queriers: Sequence[str], purposes: Sequence[str]
) -> _Outcome:
    """Return the least level in force, and what is permitted, by querier and purpose."""
    # (queriers, purposes) each; the last row and column stand for all names not declared.
    allowed = np.zeros((len(queriers), len(purposes)), dtype=bool)
    denied = allowed.copy()
    level = np.full(allowed.shape, np.inf)
    odd = None
    until = ALWAYS[1]

    def select_cells(rule: Rule) -> Mask:
        rows = [rule.queriers is None or name in rule.queriers for name in queriers]
        columns = [rule.purposes is None or name in rule.purposes for name in purposes]
        return np.outer(rows, columns)

    for rule in rules:
        # The earliest of the rules' own days after which one may decide otherwise.
        until = min([until, *(end for end in _list_changes(rule) if end >= day)])
        rule_cells = select_cells(rule)
        permitted = np.zeros_like(allowed)
        # Permits: the rule itself, or the exceptions of a denial.
        for permit in (rule,) if rule.permit else rule.exceptions:
            # A permit counts where it surely holds, and so does what an exception permits.
            if not (_contains(rule.sure, day) and _contains(permit.sure, day)):
                continue
            cells = select_cells(permit) & rule_cells
            # Two levels for one querier and purpose: which of them was meant is not for us to say.
            if (np.isfinite(level[cells]) & (level[cells] != permit.level)).any():
                odd = "several levels in force at once"
            level[cells] = np.minimum(level[cells], permit.level)
            permitted |= cells
        allowed |= permitted
        # Denials: the exceptions of a permit, or all of a denial but what its exceptions permit.
        # A denial counts wherever it could hold.
        if rule.permit:
            for denial in rule.exceptions:
                if _contains(rule.maybe, day) and _contains(denial.maybe, day):
                    denied |= select_cells(denial) & rule_cells
        elif _contains(rule.maybe, day):
            denied |= rule_cells & ~permitted
    # ∞ where nothing is permitted on this day.
    return _Outcome(float(level.min()), until, allowed & ~denied, odd)


def _contains(days: Days, day: int) -> bool:
    return days[0] <= day <= days[1]


def _list_changes(rule: Rule) -> Iterable[int]:
    """Yield the days after which a rule may decide otherwise."""
    start, end = rule.sure if rule.permit else rule.maybe
    yield end
    yield start - 1
    # A denial's exceptions permit only while it surely holds, so that the sure days count too.
    if rule.exceptions:
        yield from (rule.sure[1], rule.maybe[0] - 1, rule.sure[0] - 1)
    for exception in rule.exceptions:
        yield from _list_changes(exception)
