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

OTHERS: Final = "*"  # every querier, or purpose, that the mapping does not name
ALWAYS: Final = (date.min.toordinal(), date.max.toordinal())
Days: TypeAlias = tuple[int, int]
Names: TypeAlias = frozenset[str] | None  # None is everyone, everything
SOURCES: Final = ("fhir", "csv", "dpv")
# Codes that a warning names, and characters of each.
MOST_CODES: Final = 20
LONGEST_CODE: Final = 120


class OddError(DataError):
    """A consent that is not understood, and of which kind it is; codes: those that are unknown."""

    def __init__(self, kind: str, codes: Sequence[str] = ()) -> None:
        super().__init__(kind)
        self.codes = tuple(codes)


class Meaning(NamedTuple):
    """What a code says: of none of these it is understood, and limits nothing."""

    level: float | None = None
    querier: str | None = None
    purpose: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Rule:
    """One decision of one person, and exceptions of the other decision; level: of a permit.

    sure, maybe: the days on which it certainly holds, as permits count, and could, as denials do.
    """

    permit: bool
    level: float = 0.0
    queriers: Names = None
    purposes: Names = None
    sure: Days = ALWAYS
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
        source, provisions = table.get("source"), table.get("provisions")
        if source not in SOURCES:
            raise InputError(f"mapping: source = {source!r}; give one of {', '.join(SOURCES)}")
        if provisions not in (None, "exceptions", "limits"):
            raise InputError(f"mapping: provisions = {provisions!r}; give exceptions or limits")
        levels, default = Levels(table.get("levels", {})), table.get("default")
        names = tuple(levels)  # in which a list is looked for without an error
        own = {name: _pairs(name, table.get(name, {})) for name in tables}
        columns = own["columns"]
        if (source == "csv") != bool(columns) or not columns.keys() <= set(COLUMNS):
            raise InputError(f"mapping: [columns] is of a CSV, and may have {', '.join(COLUMNS)}")
        if not all(isinstance(each, str) for each in columns.values()):
            raise InputError("mapping: [columns]: give the name of each column as a text")
        if columns and not {"person", "level"} <= columns.keys():
            raise InputError("mapping: [columns]: name at least those of person and level")
        for name in ("level", "purpose", "querier", "decision"):
            offered = names if name == "level" else ("permit", "deny")
            for code, value in own[name].items():
                fits = value in offered if name in ("level", "decision") else _is_name(value)
                if not fits:
                    raise InputError(f"mapping: [{name}] {code!r} = {value!r}; see the guide")
        if default is not None and default not in names:
            raise InputError(f"mapping: default = {default!r}; give one of {', '.join(names)}")
        if not all(isinstance(each, bool) for each in own["about"].values()):
            raise InputError("mapping: [about]: give true or false for each code")
        anything = table.get("anything", [])
        if not isinstance(anything, list) or not all(isinstance(e, str) for e in anything):
            raise InputError(f"mapping: anything = {anything!r}; give a list of codes")
        codes = {code: Meaning() for code in [*anything, *own["decision"], *own["about"]]}
        for code in own["level"].keys() | own["querier"].keys() | own["purpose"].keys():
            level = levels[own["level"][code]] if code in own["level"] else None
            codes[code] = Meaning(level, own["querier"].get(code), own["purpose"].get(code))
        decisions = {code: value == "permit" for code, value in own["decision"].items()}
        whole = None if default is None else levels[default]
        return cls(source, levels, whole, codes, decisions, own["about"], columns, provisions)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return all that codes stand for of a kind, and `OTHERS`.

        Args:
            kind: "querier" or "purpose".
        """
        named = {getattr(meaning, kind) for meaning in self.codes.values()} - {None}
        return (*sorted(named), OTHERS)


COLUMNS: Final = ("person", "level", "from", "until", "purpose", "querier")


@dataclass(frozen=True, slots=True)
class Standing:
    """The permits of all people on one day, and how long each lasts. Data about people.

    Attributes:
        day: The day for which all of this holds.
        ids: (people,) The people who permit anything.
        epsilon: (people,) For each, the strictest of all levels that hold.
        until: (people,) The last day on which it surely still holds, as `date.toordinal`.
        queriers: Names, the last of which stands for all others.
        purposes: The same.
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
        """Return who permits a scope: in a dimension that it leaves open, all of it.

        Args:
            scope: Such as {"querier": "lab", "purpose": "research"}.
        """
        return find_permitting(self.allowed, self.queriers, self.purposes, scope)


def find_permitting(
    allowed: Mask, queriers: Sequence[str], purposes: Sequence[str], scope: Mapping[str, object]
) -> Mask:
    """Return who permits a scope, of (people, queriers, purposes)."""
    asked = scope.get("querier"), scope.get("purpose")
    rows, columns = (
        slice(None) if name is None else [names.index(str(name)) if name in names else -1]
        for name, names in zip(asked, (queriers, purposes), strict=True)
    )
    return np.asarray(allowed[:, rows][:, :, columns].all(axis=(1, 2)))


@dataclass(slots=True)
class ConsentRecords:
    """The rules that each person's consents set, and the consents that were not understood.

    Args:
        mapping: What codes stand for.
        what: The name of their source, in messages.
        rules: Person → rules.
        odd: Person ("" where unknown) → the kind of each consent that was not understood.
        aside: How many consents say nothing, by reason.
        unknown: How often each code occurs that the mapping lacks. For who keeps the consents.

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
        at = (datetime.now(UTC).date() if day is None else day).toordinal()
        names = self.mapping.names("querier"), self.mapping.names("purpose")
        known: dict[tuple[Rule, ...], _Held] = {}
        permitting: dict[str, _Held] = {}
        odd = {person: list(kinds) for person, kinds in self.odd.items()}
        for person, own in self.rules.items():
            rules = tuple(own)
            if rules not in known:
                known[rules] = _held(rules, at, *names)
            if known[rules].odd is not None:
                odd.setdefault(person, []).append(str(known[rules].odd))
            elif known[rules].allowed.any():
                permitting[person] = known[rules]
        self._refuse(odd, leave_out)
        people = sorted(permitting.keys() - odd.keys())
        held = [permitting[person] for person in people]
        shape = (len(people), len(names[0]), len(names[1]))
        return Standing(
            date.fromordinal(at),
            _check.ids(f"{self.what}: persons", people),
            np.array([each.level for each in held], dtype=np.float64),
            np.array([each.until for each in held], dtype=np.int64),
            *names,
            np.array([each.allowed for each in held], dtype=bool).reshape(shape),
            dict(self.aside),
        )

    def _refuse(self, odd: Mapping[str, list[str]], leave_out: bool) -> None:
        """Raise `DataError` for what was not understood; "" is nobody's."""
        kinds = Counter(kind for each in odd.values() for kind in each)
        if not kinds or (leave_out and "" not in odd):
            return
        said = ", ".join(f"{many} with {kind}" for kind, many in sorted(kinds.items()))
        out = "say whose they are" if "" in odd else "leave these people out with --leave-out"
        raise DataError(
            f"{self.what}: {kinds.total()} consents are not understood: {said}; mend them, declare "
            f"in the mapping what they mean, or {out}"
        )

    def name_unknown_codes(self) -> list[str]:
        """Return a line with the most frequent codes that the mapping lacks; none where it has all.

        They are as they are in the source, so the line is for who keeps the consents alone.
        """
        if not self.unknown:
            return []
        named = [
            f"'{plain(code)[:LONGEST_CODE]}' ({many})"
            for code, many in sorted(self.unknown.items(), key=lambda it: (-it[1], it[0]))
        ]
        left = len(named) - MOST_CODES
        more = f", and {left} more" if left > 0 else ""
        return [f"{self.what}: codes that the mapping lacks: {', '.join(named[:MOST_CODES])}{more}"]


@dataclass(frozen=True, slots=True, repr=False)
class _Held:
    """What one person's rules come to on a day."""

    level: float
    until: int
    allowed: Mask
    odd: str | None = None


def _held(
    rules: Sequence[Rule], at: int, queriers: Sequence[str], purposes: Sequence[str]
) -> _Held:
    allowed = np.zeros((len(queriers), len(purposes)), dtype=bool)
    denied, level = allowed.copy(), np.full(allowed.shape, np.inf)
    odd, until = None, ALWAYS[1]

    def cells(rule: Rule) -> Mask:
        rows = [rule.queriers is None or name in rule.queriers for name in queriers]
        columns = [rule.purposes is None or name in rule.purposes for name in purposes]
        return np.outer(rows, columns)

    for rule in rules:
        until = min([until, *(last for last in _changes(rule) if last >= at)])
        where = cells(rule)
        own = np.zeros_like(allowed)
        for each in rule.exceptions if not rule.permit else (rule,):
            if not (_in(at, rule.sure) and _in(at, each.sure)):
                continue
            here = cells(each) & where
            if (np.isfinite(level[here]) & (level[here] != each.level)).any():
                odd = "several levels in force at once"
            level[here] = np.minimum(level[here], each.level)
            own |= here
        allowed |= own
        if rule.permit:
            for each in rule.exceptions:
                denied |= cells(each) & where & (_in(at, rule.maybe) and _in(at, each.maybe))
        elif _in(at, rule.maybe):
            denied |= where & ~own
    return _Held(float(level.min()), until, allowed & ~denied, odd)


def _in(day: int, days: Days) -> bool:
    return days[0] <= day <= days[1]


def _changes(rule: Rule) -> Iterable[int]:
    """Yield each day after which a rule may say something else."""
    yield rule.sure[1] if rule.permit else rule.maybe[1]
    yield (rule.sure if rule.permit else rule.maybe)[0] - 1
    if rule.exceptions:  # of a denial the inner end counts too: its permits end with it
        yield from (rule.sure[1], rule.maybe[0] - 1, rule.sure[0] - 1)
    for each in rule.exceptions:
        yield from _changes(each)


def _pairs(name: str, table: object) -> Json:
    if not isinstance(table, dict):
        raise InputError(f"mapping: [{name}]: give a table from codes to what they mean")
    return dict(table)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and find_flaw(value) is None and value != OTHERS
