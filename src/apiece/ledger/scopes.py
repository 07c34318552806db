"""Scopes: who asks, what for, of which source and period; quotas and permits for each of them.

One account a person is the filter that makes everything sound, whoever asks: budgets of single
askers alone are not, once these adapt to one another (arXiv 2506.05290). Quotas, and the shares
that askers are sure of, are policy: they say who may spend it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from apiece._identifiers import PERIODS, find_period, name_period, require_canonical
from apiece._json import toml_table
from apiece._text import plain
from apiece._types import Integers, Json, Mask
from apiece.budgets.consents import permitted
from apiece.errors import InputError
from apiece.ledger import codec
from apiece.ledger.codec import BLOCK

Scope: TypeAlias = Mapping[str, str | Sequence[str]]

WHOLE: Final = 2**30  # shares are whole numbers of this, so that parts of accounts are exact
DIMENSIONS: Final[tuple[str, ...]] = ("querier", "purpose", "source")
POOL: Final = "pool"
_NAME: Final = re.compile(r"[\w][\w .:/-]{0,63}")
# How ledgers before this rule wrote periods; `find_period` says how they are written.
_OLDER_PERIODS: Final = {
    "day": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "week": r"\d{4}-W(0[1-9]|[1-4]\d|5[0-3])",
    "month": r"\d{4}-(0[1-9]|1[0-2])",
    "quarter": r"\d{4}-Q[1-4]",
    "year": r"\d{4}",
}


class Ceiling(NamedTuple):
    """What a charge may bring one balance to; own: of whose share only the excess counts."""

    scope: str
    share: int
    own: tuple[str, int] | None = None


ACCOUNT: Final = (Ceiling("", WHOLE),)


class Quota(NamedTuple):
    """What one name may spend of each account, and is sure of, of `WHOLE`."""

    most: int = WHOLE
    sure: int = 0
    renews: bool = False


def part(limits: Integers, share: int) -> Integers:
    """Return shares of accounts in whole units, rounded down."""
    return np.asarray((limits >> 30) * share + ((limits & (WHOLE - 1)) * share >> 30))


def takings(
    ceilings: Sequence[Ceiling], limits: Integers, spent: Mapping[str, Integers], charges: Integers
) -> list[tuple[str, Integers, Mask]]:
    """Return by scope what charges take of each balance, and whom they bring over the ceiling.

    All but the mask are (people, 2); spent: before the charges, of every ceiling's scope.
    """
    result = []
    for scope, share, own in ceilings:
        taken = charges
        if own is not None:  # of what the charges add to, only what is beyond the asker's own share
            before, sure = spent[own[0]], part(limits, own[1])
            taken = np.maximum(before + charges - sure, 0) - np.maximum(before - sure, 0)
        over = spent[scope] + taken > (limits if share == WHOLE else part(limits, share))
        over &= taken > 0  # of a pool that a lowered budget leaves nothing of, nothing is taken
        result.append((scope, taken, over[:, 0] | over[:, 1]))
    return result


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of scopes, as its TOML says; without one an account is all there is.

    Attributes:
        version: Each change of a ledger's policy has a higher one.
        unit: "person", whose account never renews, or "person-period": an account of a person for
            each period of data.
        every: How long a period is: "day", "week", "month", "quarter", "year", or None.
        quotas: By dimension ("querier", "purpose", "source") and name; "*" is everybody else.

    Example:
        >>> from apiece.ledger import Policy
        >>> text = '''version = 1
        ... [querier.clinic]
        ... sure = 0.2
        ... [querier."*"]
        ... quota = 0.1'''
        >>> policy = Policy.from_toml(text)
        >>> [ceiling.scope for ceiling in policy.ceilings({"querier": "clinic"}, "2026-05-01")]
        ['', 'querier=clinic', 'pool']
    """

    version: int = 0
    unit: str = "person"
    every: str | None = None
    quotas: Mapping[str, Mapping[str, Quota]] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, text: str) -> Policy:
        """Return the policy in a text.

        Args:
            text: TOML: `version`, `unit`, `every`, and tables [querier.NAME], [purpose.NAME] and
                [source.NAME] with `quota`, `sure` (queriers only) and `renews`.

        Raises:
            InputError: For anything else, and for a name that could be written in another way.
        """
        policy = cls.from_history(text)
        for kind, quotas in policy.quotas.items():
            for name in quotas:
                require_canonical(f"policy: [{kind}] name", name)
        return policy

    @classmethod
    def from_history(cls, text: str) -> Policy:
        """Return a policy that a ledger holds: its names may be as they once were allowed.

        Args:
            text: As of `from_toml`.

        Raises:
            InputError: For what is no policy.
        """
        known = {"version", "unit", "every", *DIMENSIONS}
        table = toml_table(text, "policy", known, "version, unit, every, querier")
        version, unit, every = table.get("version"), table.get("unit", "person"), table.get("every")
        if type(version) is not int or not 0 < version < 2**31:
            raise InputError(f"policy: version = {version!r}; give a whole number from 1 on")
        if unit not in ("person", "person-period"):
            raise InputError(f"policy: unit = {unit!r}; give 'person' or 'person-period'")
        if (every is not None and every not in PERIODS) or (unit != "person" and every is None):
            raise InputError(f"policy: every = {every!r}; give one of {', '.join(PERIODS)}")
        quotas = {name: _quotas(name, table[name], every) for name in DIMENSIONS if name in table}
        policy = cls(version, unit, every, quotas)
        if policy.pool < 0:
            raise InputError("policy: the sure shares are more than a whole account; lower them")
        return policy

    @property
    def sure(self) -> dict[str, int]:
        """Return the queriers that are sure of a share, and their shares."""
        return {name: q.sure for name, q in self.quotas.get("querier", {}).items() if q.sure}

    @property
    def pool(self) -> int:
        """Return the share that nobody is sure of: what askers take beyond their own."""
        return WHOLE - sum(self.sure.values())

    @property
    def protects(self) -> str:
        """The sentence for every statement: what a budget protects."""
        if self.unit == "person":
            return "Each budget protects a person over all periods: it never renews."
        return (
            f"Each budget protects a person's data of one {self.every}, and there is one for each "
            f"{self.every}: over k of them a person's budget is that of k analyses of the whole."
        )

    def ceilings(self, scope: Scope | None, at: str) -> list[Ceiling]:
        """Return all that a charge in a scope has to stay under.

        Args:
            scope: A name for each dimension that the policy declares, as {"querier": "clinic"};
                `period`, one or several, where the unit is a person's period.
            at: When it is charged, ISO 8601 in UTC.

        Raises:
            InputError: For a scope that the policy does not have, and for a name or a period that
                could be written in another way.
        """
        scope = checked_scope(scope)
        require_canonical_scope(scope)
        if self.unit == "person-period":
            _periods(self, scope, period_of(at, self.every))
        return self.ceilings_in_history(scope, at)

    def ceilings_in_history(self, scope: Scope | None, at: str) -> list[Ceiling]:
        """Return what a charge had to stay under: its names may be as they once were allowed.

        Args:
            scope: As of `ceilings`.
            at: When it was charged.

        Raises:
            InputError: For a scope that the policy does not have.
        """
        scope = checked_scope(scope)
        now, after = period_of(at, self.every), [""]
        if self.unit == "person-period":
            after = [f"@{each}" for each in _older_periods(self, scope, now)]
        elif "period" in scope:
            raise InputError("scope: a period is chosen where the policy's unit is person-period")
        ceilings = [Ceiling(each, WHOLE) for each in after]
        for kind in DIMENSIONS:
            quotas, name = self.quotas.get(kind), scope.get(kind)
            if quotas is None:
                continue
            if name is None or (name not in quotas and "*" not in quotas):
                known = ", ".join(quotas)
                raise InputError(f"scope: {kind} = {name!r}; this ledger's policy has {known}")
            own = str(name) if name in quotas else "*"
            ceilings += self._of(kind, own, after, now)
        return ceilings

    def _of(self, kind: str, name: str, after: list[str], now: str) -> list[Ceiling]:
        quota, result = self.quotas[kind][name], []
        for each in after:
            key = f"{kind}={name}"
            renews = quota.renews and not each
            if quota.sure or (quota.most < WHOLE and not renews):
                result.append(Ceiling(key + each, WHOLE if renews else quota.most))
            if renews and quota.most < WHOLE:
                result.append(Ceiling(f"{key}@{now}", quota.most))
            if kind == "querier" and self.sure:
                own = (key + each, quota.sure) if quota.sure else None
                result.append(Ceiling(POOL + each, self.pool, own))
        return result


NO_POLICY: Final = Policy()


def pools(policy: Policy, limits: Integers, spent: Mapping[str, Integers]) -> dict[str, Integers]:
    """Return what was taken of what nobody is sure of, as this policy begins; spent: by scope."""
    result, whole = {}, "" if policy.unit == "person" else "@"
    for key, account in spent.items() if policy.sure else ():
        if key[:1] == whole:
            taken = account.copy()
            for name, share in policy.sure.items():
                own = spent.get(f"querier={name}{key}", taken[:0])
                taken[: len(own)] -= np.minimum(own, part(limits[: len(own)], share))
            result[POOL + key] = taken
    return result


def account_of(policy: Policy, scope: Scope, at: str) -> str:
    """Return which balance is the account: of a period (the present one by default), or all."""
    if policy.unit == "person":
        return ""
    now = period_of(at, policy.every)
    return f"@{(_periods(policy, scope, now) if 'period' in scope else [now])[0]}"


def accounts_of(policy: Policy, scope: Scope | None) -> list[str]:
    """Return which balances a charge in a scope was taken from: of all, or of some periods."""
    if policy.unit == "person":
        return [""]
    given = checked_scope(scope)["period"]
    return [f"@{each}" for each in ([given] if isinstance(given, str) else set(given))]


@dataclass(frozen=True, slots=True)
class Permits:
    """Who consents to which scope until when, by their places; held to by all charges.

    One entry says it of everybody: whoever is not in it, or came later, permits nothing.

    until: (people,) each one's last day, as `date.toordinal`; 0 of those who permit nothing.
    allowed: (people, queriers, purposes).
    """

    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    until: Integers = field(repr=False)
    allowed: Mask = field(repr=False)

    @classmethod
    def read(cls, body: Json, blocks: Mapping[int, bytes], people: int) -> Permits:
        """Return what an entry and its arrays say of so many people."""
        queriers, purposes = tuple(body["queriers"]), tuple(body["purposes"])
        cells = len(queriers) * len(purposes)
        until, allowed = np.zeros(people, np.int64), np.zeros((people, cells), dtype=bool)
        for block, data in blocks.items():
            mask, rest = codec.unpack_mask(data)
            places, size = codec.places(block, mask), int(mask.sum())
            until[places] = np.frombuffer(rest[: 4 * size], "<u4")
            bits = np.unpackbits(np.frombuffer(rest[4 * size :], np.uint8), count=size * cells)
            allowed[places] = bits.reshape(size, cells)
        shape = (people, len(queriers), len(purposes))
        return cls(queriers, purposes, until, allowed.reshape(shape))

    def pack(self, block: int) -> bytes:
        """Return what is stored of one block; `read` is the inverse."""
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        mask = self.until[part] > 0
        until, bits = self.until[part][mask].astype("<u4"), np.packbits(self.allowed[part][mask])
        return codec.pack_mask(mask, until.tobytes() + bits.tobytes())

    def hold(self, scope: Scope, at: str, people: int) -> Mask:
        """Return which of the first people permit all that a scope leaves open, at an ISO time."""
        own = permitted(self.allowed[:people], self.queriers, self.purposes, scope)
        result = np.zeros(people, dtype=bool)
        result[: own.size] = own & (self.until[:people] >= date.fromisoformat(at[:10]).toordinal())
        return result


def _periods(policy: Policy, scope: Scope, now: str) -> list[str]:
    """Return the periods of a scope, none of which begins after `now`, each once."""
    named = _named_periods(scope)
    every = str(policy.every)
    for each in named:
        if find_period(each, every) is None or not each <= now:
            raise _odd_periods(policy, scope, now)
    if not named:
        raise _odd_periods(policy, scope, now)
    return named


def _older_periods(policy: Policy, scope: Scope, now: str) -> list[str]:
    """Return the periods of a charge in the history, as they once could be written."""
    named = _named_periods(scope)
    form = re.compile(_OLDER_PERIODS[str(policy.every)])
    if not named or not all(form.fullmatch(each) and each <= now for each in named):
        raise _odd_periods(policy, scope, now)
    return named


def _named_periods(scope: Scope) -> list[str]:
    names = scope.get("period", ())
    return [names] if isinstance(names, str) else sorted(set(names))


def _odd_periods(policy: Policy, scope: Scope, now: str) -> InputError:
    named = scope.get("period", ())
    shown = plain(named) if isinstance(named, str) else plain(", ".join(named))
    return InputError(
        f"scope: period = '{shown}'; name the {policy.every} of the data that is read, as it is "
        f"in the calendar, written as {now}, which is the last"
    )


def _quotas(kind: str, table: object, every: str | None) -> dict[str, Quota]:
    if not isinstance(table, dict) or not table:
        raise InputError(f"policy: [{kind}]: give a table for each name, as [{kind}.name]")
    result = {}
    for name, own in table.items():
        where = f"policy: [{kind}.{name}]"
        known = {"quota", "renews"} | ({"sure"} if kind == "querier" and name != "*" else set())
        if not isinstance(own, dict) or own.keys() - known or not (name == "*" or _fits(name)):
            raise InputError(f"{where}: a name of up to 64 letters may have {sorted(known)}")
        shares = [own.get("quota", 1), own.get("sure", 0)]
        for share in shares:
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise InputError(f"{where}: {share!r} is no share; give one from 0 to 1")
        most, sure = (int(share * WHOLE + 1e-6) for share in shares)
        renews = own.get("renews", False)
        if type(renews) is not bool or (renews and every is None):
            raise InputError(f"{where}: renews = {renews!r}; true needs `every` beside `version`")
        if sure > most and not renews:
            raise InputError(f"{where}: sure of more than the quota; raise the quota")
        result[name] = Quota(most, sure, renews)
    return result


def _fits(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def checked_scope(scope: Scope | None) -> Json:
    """Return a scope as it is kept. Raises `InputError` for what is none."""
    kept = {} if scope is None else dict(scope)
    for kind, name in kept.items():
        names = [name] if isinstance(name, str) else name
        several = kind == "period" and isinstance(names, list | tuple)
        if kind not in (*DIMENSIONS, "period") or not (several or isinstance(name, str)):
            raise InputError(f"scope: {kind!r} = {name!r}; give querier, purpose, source, period")
        if not all(_fits(each) for each in names):
            raise InputError(f"scope: {kind} = {name!r}; give up to 64 letters and digits")
        kept[kind] = list(names) if several else name
    return kept


def read_scope(text: str) -> Json:
    """Return the scope in a text such as "querier=clinic,purpose=research"."""
    pairs = [each.partition("=") for each in text.split(",")]
    kept: dict[str, str | list[str]] = {}
    for kind, sign, name in ((k.strip(), s, n.strip()) for k, s, n in pairs):
        if not sign or (kind in kept and kind != "period"):
            raise InputError(f"scope = {text!r}; give it as querier=NAME,purpose=NAME")
        kept[kind] = [*kept.get("period", []), name] if kind == "period" else name
    return checked_scope(kept)


def require_canonical_scope(scope: Scope) -> None:
    """Raise `InputError` for a name in a scope that could be written in another way."""
    for kind, names in scope.items():
        for each in [names] if isinstance(names, str) else names:
            require_canonical(f"scope: {kind}", each)


def period_of(at: str, every: str | None) -> str:
    """Return the period of a moment, so that later ones sort after it; "" where there are none."""
    day = datetime.fromisoformat(at).astimezone(UTC).date() if "T" in at else date.fromisoformat(at)
    return "" if every is None else name_period(day, every)
