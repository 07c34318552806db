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
from apiece.budgets.consents import find_permitting
from apiece.errors import InputError
from apiece.ledger import codec
from apiece.ledger.codec import BLOCK

Scope: TypeAlias = Mapping[str, str | Sequence[str]]

# A whole account: shares are whole numbers of this, so that parts of accounts are exact.
WHOLE: Final = 2**30
# A charge counts against one name of each.
DIMENSIONS: Final[tuple[str, ...]] = ("querier", "purpose", "source")
# The balance of what askers take beyond the shares that they are sure of.
POOL: Final = "pool"
# Added to a share before it is rounded down, so that 0.1 of an account is not one unit less.
_SHARE_TOLERANCE: Final = 1e-6
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
    """The highest balance to which a charge may bring one scope."""

    scope: str
    # Of `WHOLE`: the part of each account that may be spent in this scope.
    share: int
    # Of an asker who is sure of a share: their balance and that share. What they charge within it
    # does not count here.
    own: tuple[str, int] | None = None


# Without a policy there is the whole account alone.
ACCOUNT: Final = (Ceiling("", WHOLE),)


class Quota(NamedTuple):
    """What one name may spend of each account, and is sure of, of `WHOLE`."""

    most: int = WHOLE
    sure: int = 0
    renews: bool = False


def is_account(key: str) -> bool:
    """Return whether a balance is that of accounts: of all that was charged, or of one period."""
    return key[:1] in ("", "@")


def take_share(limits: Integers, share: int) -> Integers:
    """Return shares of accounts in whole units, rounded down."""
    # limits · share may need 91 bits, and so is computed in two parts: that of the high digits in
    # base 2³⁰, which is exact, and that of the last digit, which alone is rounded.
    high = (limits >> 30) * share
    low = (limits & (WHOLE - 1)) * share >> 30
    return np.asarray(high + low)


def compute_takings(
    ceilings: Sequence[Ceiling], limits: Integers, spent: Mapping[str, Integers], charges: Integers
) -> list[tuple[str, Integers, Mask]]:
    """Return by scope what charges take of each balance, and whom they bring over the ceiling.

    All but the mask are (people, 2) units; `spent` is what every ceiling's scope has before the
    charges.
    """
    takings = []
    for ceiling in ceilings:
        taking = charges
        if ceiling.own is not None:
            # Of what the asker has charged, only what is beyond their own share counts here.
            asker, sure_share = ceiling.own
            asker_spent = spent[asker]
            sure = take_share(limits, sure_share)
            excess_before = np.maximum(asker_spent - sure, 0)
            taking = np.maximum(asker_spent + charges - sure, 0) - excess_before
        is_whole = ceiling.share == WHOLE
        highest = limits if is_whole else take_share(limits, ceiling.share)
        over = spent[ceiling.scope] + taking > highest
        # A pool may be over its ceiling after a budget was lowered; who takes nothing of it may
        # still charge.
        over &= taking > 0
        takings.append((ceiling.scope, taking, over[:, 0] | over[:, 1]))
    return takings


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
        # The names of a new policy have one spelling each; those of the history are taken as they
        # are.
        policy = cls.from_history(text)
        for dimension, quotas in policy.quotas.items():
            for name in quotas:
                require_canonical(f"policy: [{dimension}] name", name)
        return policy

    @classmethod
    def from_history(cls, text: str) -> Policy:
        """Return a policy that a ledger holds: its names may be as they once were allowed.

        Args:
            text: TOML; see `from_toml`.

        Raises:
            InputError: For what is no policy.
        """
        known = {"version", "unit", "every", *DIMENSIONS}
        table = toml_table(text, "policy", known, "version, unit, every, querier")
        version = table.get("version")
        unit = table.get("unit", "person")
        every = table.get("every")
        if type(version) is not int or not 0 < version < 2**31:
            raise InputError(f"policy: version = {version!r}; give a whole number from 1 on")
        if unit not in ("person", "person-period"):
            raise InputError(f"policy: unit = {unit!r}; give 'person' or 'person-period'")
        is_unknown = every is not None and every not in PERIODS
        is_missing = unit != "person" and every is None
        if is_unknown or is_missing:
            raise InputError(f"policy: every = {every!r}; give one of {', '.join(PERIODS)}")
        quotas = {
            dimension: _read_quotas(dimension, table[dimension], every)
            for dimension in DIMENSIONS
            if dimension in table
        }
        policy = cls(version, unit, every, quotas)
        # What is sure for some cannot be taken by others: together it is at most an account.
        if policy.pool < 0:
            raise InputError("policy: the sure shares are more than a whole account; lower them")
        return policy

    @property
    def sure(self) -> dict[str, int]:
        """Return the queriers that are sure of a share, and their shares."""
        queriers = self.quotas.get("querier", {})
        return {name: quota.sure for name, quota in queriers.items() if quota.sure}

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
        scope = normalize_scope(scope)
        require_canonical_scope(scope)
        if self.unit == "person-period":
            # New charges name periods in the one way; those of the history are read below.
            _list_periods(self, scope, find_period_at(at, self.every))
        return self.ceilings_in_history(scope, at)

    def ceilings_in_history(self, scope: Scope | None, at: str) -> list[Ceiling]:
        """Return the ceilings of a charge in the history: its names may be as once allowed.

        Args:
            scope: A name for each dimension that the policy declares; see `ceilings`.
            at: When it was charged.

        Raises:
            InputError: For a scope that the policy does not have.
        """
        scope = normalize_scope(scope)
        present = find_period_at(at, self.every)
        # Each period of data has an account of its own, and a charge that reads several pays each
        # in full.
        accounts = [""]
        if self.unit == "person-period":
            accounts = [f"@{period}" for period in _list_older_periods(self, scope, present)]
        elif "period" in scope:
            raise InputError("scope: a period is chosen where the policy's unit is person-period")
        ceilings = [Ceiling(account, WHOLE) for account in accounts]
        for dimension in DIMENSIONS:
            quotas = self.quotas.get(dimension)
            if quotas is None:
                continue
            name = scope.get(dimension)
            if name is None or (name not in quotas and "*" not in quotas):
                known = ", ".join(quotas)
                raise InputError(f"scope: {dimension} = {name!r}; this ledger's policy has {known}")
            quota_name = str(name) if name in quotas else "*"
            ceilings += self._list_ceilings(dimension, quota_name, accounts, present)
        return ceilings

    def _list_ceilings(
        self, dimension: str, name: str, accounts: list[str], present: str
    ) -> list[Ceiling]:
        """Return the ceilings of one name, for each account; `present` is the present period."""
        quota = self.quotas[dimension][name]
        scope = f"{dimension}={name}"
        ceilings = []
        for account in accounts:
            renews = quota.renews and not account
            # A quota that renews is one balance for each period of time, beside the whole account;
            # one that does not is a balance of the account. A sure share needs the asker's balance
            # in any case, from which the pool's follows.
            if quota.sure or (quota.most < WHOLE and not renews):
                ceilings.append(Ceiling(scope + account, WHOLE if renews else quota.most))
            if renews and quota.most < WHOLE:
                ceilings.append(Ceiling(f"{scope}@{present}", quota.most))
            if dimension == "querier" and self.sure:
                sure_share = (scope + account, quota.sure) if quota.sure else None
                ceilings.append(Ceiling(POOL + account, self.pool, sure_share))
        return ceilings


NO_POLICY: Final = Policy()


def compute_pools(
    policy: Policy, limits: Integers, spent: Mapping[str, Integers]
) -> dict[str, Integers]:
    """Return the spending of each shared pool when a policy starts, (people, 2) units by scope.

    A pool has what accounts have spent beyond the shares of which queriers are sure; `spent` is
    by scope, and may be of fewer people in scopes of queriers.
    """
    pools: dict[str, Integers] = {}
    if not policy.sure:
        return pools
    account_mark = "" if policy.unit == "person" else "@"
    # In each account the pool is account − Σ min(asker's spending, sure share) over the askers who
    # are sure of one.
    for key, account in spent.items():
        if key[:1] != account_mark:
            continue
        pool = account.copy()
        for name, share in policy.sure.items():
            # A scope of a querier may hold fewer people: who came after its last charge has spent
            # nothing.
            querier_spent = spent.get(f"querier={name}{key}", pool[:0])
            people = len(querier_spent)
            sure = take_share(limits[:people], share)
            pool[:people] -= np.minimum(querier_spent, sure)
        pools[POOL + key] = pool
    return pools


def name_account(policy: Policy, scope: Scope, at: str) -> str:
    """Return which balance is the account: of a period (the present one by default), or all."""
    if policy.unit == "person":
        return ""
    present = find_period_at(at, policy.every)
    if "period" not in scope:
        return f"@{present}"
    # A balance that is shown is of one account: of several periods the first.
    return f"@{_list_periods(policy, scope, present)[0]}"


def list_accounts(policy: Policy, scope: Scope | None) -> list[str]:
    """Return which balances a charge in a scope was taken from: of all, or of some periods."""
    if policy.unit == "person":
        return [""]
    # A period that is named twice is charged once.
    periods = normalize_scope(scope)["period"]
    return [f"@{period}" for period in ([periods] if isinstance(periods, str) else set(periods))]


@dataclass(frozen=True, slots=True)
class Permits:
    """Who consents to which scope until when, by their places; held to by all charges.

    One entry says it of everybody: whoever is not in it, or came later, permits nothing.
    """

    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    # (people,) The last day of each person's consent, as `date.toordinal`; 0 where they permit
    # nothing.
    until: Integers = field(repr=False)
    # (people, queriers, purposes) Whether a person permits it.
    allowed: Mask = field(repr=False)

    @classmethod
    def unpack(
        cls,
        queriers: tuple[str, ...],
        purposes: tuple[str, ...],
        blocks: Mapping[int, bytes],
        people: int,
    ) -> Permits:
        """Return the permits of so many people in an entry's arrays."""
        cells = len(queriers) * len(purposes)
        until = np.zeros(people, np.int64)
        allowed = np.zeros((people, cells), dtype=bool)
        for block, data in blocks.items():
            mask, packed = codec.unpack_mask(data)
            places = codec.find_places(block, mask)
            size = int(mask.sum())
            days = packed[: 4 * size]
            # A block's bytes: the mask of who is in it, four bytes a person for the last day, and
            # then a bit for each querier and purpose, person by person.
            until[places] = np.frombuffer(days, "<u4")
            bits = np.frombuffer(packed[4 * size :], np.uint8)
            allowed[places] = np.unpackbits(bits, count=size * cells).reshape(size, cells)
        shape = (people, len(queriers), len(purposes))
        return cls(queriers, purposes, until, allowed.reshape(shape))

    def pack(self, block: int) -> bytes:
        """Return the permits of one block as bytes; `unpack` is the inverse."""
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        # Whoever permits nothing is left out of the block.
        mask = self.until[part] > 0
        days = self.until[part][mask].astype("<u4")
        bits = np.packbits(self.allowed[part][mask])
        return codec.pack_mask(mask, days.tobytes() + bits.tobytes())

    def hold(self, scope: Scope, at: str, people: int) -> Mask:
        """Return which of the first people permit all that a scope leaves open, at an ISO time."""
        # Times are written in UTC, and today is the day of UTC.
        today = date.fromisoformat(at[:10]).toordinal()
        in_scope = find_permitting(self.allowed[:people], self.queriers, self.purposes, scope)
        # Who came after the consents were read is beyond these arrays, and permits nothing.
        result = np.zeros(people, dtype=bool)
        result[: in_scope.size] = in_scope & (self.until[:people] >= today)
        return result


def _list_periods(policy: Policy, scope: Scope, present: str) -> list[str]:
    """Return the periods of a scope, none of which begins after the present one, each once."""
    periods = _read_periods(scope)
    every = str(policy.every)
    for period in periods:
        if find_period(period, every) is None or not period <= present:
            raise _report_periods(policy, scope, present)
    if not periods:
        raise _report_periods(policy, scope, present)
    return periods


def _list_older_periods(policy: Policy, scope: Scope, present: str) -> list[str]:
    """Return the periods of a charge in the history, as they once could be written."""
    periods = _read_periods(scope)
    form = re.compile(_OLDER_PERIODS[str(policy.every)])
    for period in periods:
        if not form.fullmatch(period) or not period <= present:
            raise _report_periods(policy, scope, present)
    if not periods:
        raise _report_periods(policy, scope, present)
    return periods


def _read_periods(scope: Scope) -> list[str]:
    periods = scope.get("period", ())
    return [periods] if isinstance(periods, str) else sorted(set(periods))


def _report_periods(policy: Policy, scope: Scope, present: str) -> InputError:
    """Return the error for periods that cannot be charged."""
    periods = scope.get("period", ())
    shown = plain(periods) if isinstance(periods, str) else plain(", ".join(periods))
    return InputError(
        f"scope: period = '{shown}'; name the {policy.every} of the data that is read, as it is "
        f"in the calendar, written as {present}, which is the last"
    )


def _read_quotas(dimension: str, table: object, every: str | None) -> dict[str, Quota]:
    if not isinstance(table, dict) or not table:
        raise InputError(
            f"policy: [{dimension}]: give a table for each name, as [{dimension}.name]"
        )
    return {name: _read_quota(dimension, name, entry, every) for name, entry in table.items()}


def _read_quota(dimension: str, name: str, table: object, every: str | None) -> Quota:
    where = f"policy: [{dimension}.{name}]"
    known = {"quota", "renews"}
    if dimension == "querier" and name != "*":
        known.add("sure")
    has_name = name == "*" or _is_name(name)
    if not isinstance(table, dict) or table.keys() - known or not has_name:
        raise InputError(f"{where}: a name of up to 64 letters may have {sorted(known)}")
    shares = [table.get("quota", 1), table.get("sure", 0)]
    for share in shares:
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise InputError(f"{where}: {share!r} is no share; give one from 0 to 1")
    highest, sure = (int(share * WHOLE + _SHARE_TOLERANCE) for share in shares)
    renews = table.get("renews", False)
    if type(renews) is not bool or (renews and every is None):
        raise InputError(f"{where}: renews = {renews!r}; true needs `every` beside `version`")
    # A quota that renews holds for each period of time, and a sure share for the whole account:
    # there the share may be the larger.
    if sure > highest and not renews:
        raise InputError(f"{where}: sure of more than the quota; raise the quota")
    return Quota(highest, sure, renews)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def normalize_scope(scope: Scope | None) -> Json:
    """Return a scope as the ledger keeps it. Raises `InputError` for what is none."""
    result = {} if scope is None else dict(scope)
    for dimension, value in result.items():
        names = [value] if isinstance(value, str) else value
        several = dimension == "period" and isinstance(names, list | tuple)
        is_known = dimension in (*DIMENSIONS, "period")
        if not is_known or not (several or isinstance(value, str)):
            raise InputError(
                f"scope: {dimension!r} = {value!r}; give querier, purpose, source, period"
            )
        if not all(_is_name(name) for name in names):
            raise InputError(f"scope: {dimension} = {value!r}; give up to 64 letters and digits")
        result[dimension] = list(names) if several else value
    return result


def read_scope(text: str) -> Json:
    """Return the scope in a text such as "querier=clinic,purpose=research"."""
    scope: dict[str, str | list[str]] = {}
    for pair in text.split(","):
        dimension, sign, name = (part.strip() for part in pair.partition("="))
        if not sign or (dimension in scope and dimension != "period"):
            raise InputError(f"scope = {text!r}; give it as querier=NAME,purpose=NAME")
        if dimension == "period":
            scope[dimension] = [*scope.get("period", []), name]
        else:
            scope[dimension] = name
    return normalize_scope(scope)


def require_canonical_scope(scope: Scope) -> None:
    """Raise `InputError` for a name in a scope that could be written in another way."""
    for dimension, value in scope.items():
        for name in [value] if isinstance(value, str) else value:
            require_canonical(f"scope: {dimension}", name)


def find_period_at(at: str, every: str | None) -> str:
    """Return the period of a moment, so that later ones sort after it; "" where there are none."""
    if "T" in at:
        day = datetime.fromisoformat(at).astimezone(UTC).date()
    else:
        day = date.fromisoformat(at)
    return "" if every is None else name_period(day, every)
