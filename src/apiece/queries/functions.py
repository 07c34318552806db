"""Functions of derived columns: each total, with its SQL and what its values can be.

A function has SQL that cannot fail on any arguments, and a rule that gives bounds of its values
from bounds of its arguments. Sums, differences, products and quotients of doubles are rounded
correctly, so they rise and fall as the exact ones do, and bounds computed with the same operations
hold to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from apiece.errors import InputError
from apiece.queries.expressions import (
    FIRST,
    LARGEST,
    LAST,
    VALUES,
    Domain,
    Value,
    join_domains,
    number_domain,
    whole_domain,
)

# Domains of the arguments → the domain of the value, before it ends at ±1e60.
Rule = Callable[[Sequence[Domain]], Domain]
# SQL of the arguments → SQL of the value.
Writer = Callable[[Sequence[str]], str]
_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
# Microseconds of a day.
DAY: Final = 86_400_000_000
# Part of a date → its function in SQL, and the least and largest of its values.
PARTS: Final[dict[str, tuple[str, int, int]]] = {
    "year": ("year", 1, 9999),
    "quarter": ("quarter", 1, 4),
    "month": ("month", 1, 12),
    "week": ("weekofyear", 1, 53),
    "day": ("day", 1, 31),
    "dayofyear": ("dayofyear", 1, 366),
    "weekday": ("dayofweek", 0, 6),
    "isoweekday": ("isodow", 1, 7),
    "hour": ("hour", 0, 23),
    "minute": ("minute", 0, 59),
}
# Units to which dates are cut, and in which they are subtracted.
UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute")


@dataclass(frozen=True, slots=True)
class Function:
    """A total function of a derived column."""

    # Kinds of the arguments; the last one may repeat where `variadic`. "any" is any kind.
    kinds: tuple[str, ...]
    sql: Writer
    rule: Rule
    # Numbers of arguments that have to be constants.
    constants: tuple[int, ...] = ()
    variadic: bool = False
    # Whether a null argument makes the value null.
    strict: bool = True
    # Whether an argument is written several times in the SQL, so that it is computed before.
    repeats: bool = False


def moment(value: float) -> datetime:
    """Return the moment of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=min(max(int(value), FIRST), LAST))


def microseconds(value: datetime) -> int:
    """Return the microseconds from the beginning of 1970 to a moment."""
    return (value - _EPOCH) // _MICROSECOND


def _corners(operate: Callable[[float, float], float]) -> Rule:
    """Return the rule of an operation that is monotone in each argument: ends are at corners."""

    def find_ends(domains: Sequence[Domain]) -> Domain:
        # A function that is monotone in each argument, in whatever direction, has its extremes at
        # the corners of the box of arguments.
        left, right = domains
        corners = [
            operate(first, second)
            for first in (left.low, left.high)
            for second in (right.low, right.high)
        ]
        # Sums, differences and products of whole numbers are whole, and stay so when a double
        # rounds them.
        whole = left.whole and right.whole
        return number_domain(min(corners), max(corners), whole=whole)

    return find_ends


def _divide(domains: Sequence[Domain]) -> Domain:
    numerator, denominator = domains
    if denominator.low <= 0 <= denominator.high:
        # Near to zero a denominator makes any number.
        return number_domain(-LARGEST, LARGEST)
    corners = [
        top / bottom
        for top in (numerator.low, numerator.high)
        for bottom in (denominator.low, denominator.high)
    ]
    return number_domain(min(corners), max(corners))


def _modulo(domains: Sequence[Domain]) -> Domain:
    dividend, divisor = domains
    # The remainder has the dividend's sign, and is no larger than either.
    largest = max(abs(divisor.low), abs(divisor.high))
    low = max(min(dividend.low, 0.0), -largest)
    high = min(max(dividend.high, 0.0), largest)
    if not (dividend.whole and divisor.whole):
        return number_domain(low, high)
    # Of whole numbers the remainder is less than the divisor by one.
    return whole_domain(max(low, 1 - largest), min(high, max(largest - 1, 0)))


def _rising(
    operate: Callable[[float], float], *, lowest: float = -LARGEST, whole: bool = False
) -> Rule:
    """Return the rule of a function that rises; it is null below `lowest`."""

    def find_ends(domains: Sequence[Domain]) -> Domain:
        (domain,) = domains
        low = operate(max(domain.low, lowest))
        high = operate(max(domain.high, lowest))
        if whole:
            return whole_domain(low, high)
        return number_domain(low, high)

    return find_ends


def _round_half_away(value: float) -> float:
    """Return a number rounded to a whole one, ties away from zero, as engines do."""
    size = abs(value)
    whole = math.floor(size)
    # Not floor(size + 0.5), in which the sum may be rounded up.
    return math.copysign(whole + (size - whole >= 0.5), value)


def _round_digits(domains: Sequence[Domain]) -> Domain:
    number, digits = domains
    if not (digits.whole and -15 <= digits.low <= 15):
        raise InputError("query: round(x, digits): give whole digits from -15 to 15")
    # A number moves by half a step at most; a step more takes in what roundings do.
    step = 10.0**-digits.low
    low = number.low if number.low >= LARGEST else number.low - step
    high = number.high + step
    # Rounding to tens and more gives whole numbers, which are listed where they are few.
    if digits.low <= 0 and (high - low) / step < VALUES:
        first = math.ceil(low / step)
        last = math.floor(high / step)
        return number_domain(
            low, high, whole=True, values=[float(k * int(step)) for k in range(first, last + 1)]
        )
    return number_domain(low, high)


def _absolute(domains: Sequence[Domain]) -> Domain:
    (domain,) = domains
    # An interval around 0 has the least size 0, any other has it at one of its ends.
    ends = abs(domain.low), abs(domain.high)
    low = 0.0 if domain.low <= 0 <= domain.high else min(ends)
    if domain.whole:
        return whole_domain(low, max(ends))
    return number_domain(low, max(ends))


def _least(domains: Sequence[Domain]) -> Domain:
    """A null is passed over, as engines do, so only what is never null surely bounds the least."""
    certain = [domain.high for domain in domains if not domain.nullable]
    high = min(certain) if certain else max(domain.high for domain in domains)
    whole = all(domain.whole for domain in domains)
    return number_domain(min(domain.low for domain in domains), high, whole=whole)


def _greatest(domains: Sequence[Domain]) -> Domain:
    certain = [domain.low for domain in domains if not domain.nullable]
    low = max(certain) if certain else min(domain.low for domain in domains)
    whole = all(domain.whole for domain in domains)
    return number_domain(low, max(domain.high for domain in domains), whole=whole)


def _clamp(domains: Sequence[Domain]) -> Domain:
    number, low, high = domains
    if not low.low < high.low:
        raise InputError(
            f"query: clamp(x, {low.low:g}, {high.low:g}): the first bound must be below the second"
        )
    ends = [min(max(end, low.low), high.low) for end in (number.low, number.high)]
    whole = number.whole and low.whole and high.whole
    return whole_domain(*ends) if whole else number_domain(*ends)


def _bucket(domains: Sequence[Domain]) -> Domain:
    number, low, high, count = domains
    # The constants of a function have a domain of one value each, so that `low` is the value.
    if not (count.whole and 1 <= count.low <= VALUES and low.low < high.low):
        raise InputError(
            f"query: width_bucket(x, low, high, count): give low < high and a whole count from 1 "
            f"to {VALUES:,}"
        )
    # Values below the bounds are in bucket 0, those from the upper one on in bucket count + 1.
    first = 0 if number.low < low.low else 1
    last = int(count.low) + (1 if number.high >= high.low else 0)
    return whole_domain(first, last)


def _power(domains: Sequence[Domain]) -> Domain:
    base, exponent = domains
    if not (exponent.whole and 0 <= exponent.low <= 20):
        raise InputError("query: power(x, exponent): give a whole exponent from 0 to 20")
    power = int(exponent.low)
    # An odd power rises; an even one falls to 0 and rises from there.
    ends = [_raise(base.low, power), _raise(base.high, power)]
    if power % 2 == 0 and base.low <= 0 <= base.high:
        ends.append(0.0)
    # The engine's power is not rounded correctly: a little more than its error is added.
    slack = max(map(abs, ends)) * 2.0**-40
    low = 0.0 if power % 2 == 0 else min(ends) - slack
    return number_domain(low, max(ends) + slack, whole=base.whole)


def _raise(base: float, power: int) -> float:
    try:
        return base**power
    except OverflowError:
        return math.copysign(LARGEST, base) if power % 2 else LARGEST


def _logarithm(domains: Sequence[Domain]) -> Domain:
    (domain,) = domains
    # Near 0 a logarithm has no lower bound. Engines do not round it correctly: 1e-9 is far more
    # than they are off by, as no value is beyond ±139.
    if domain.low <= 0:
        return number_domain(-LARGEST, LARGEST)
    return number_domain(math.log(domain.low) - 1e-9, math.log(domain.high) + 1e-9)


def _logarithm_of_ten(domains: Sequence[Domain]) -> Domain:
    (domain,) = domains
    if domain.low <= 0:
        return number_domain(-LARGEST, LARGEST)
    return number_domain(math.log10(domain.low) - 1e-9, math.log10(domain.high) + 1e-9)


def _exponential(domains: Sequence[Domain]) -> Domain:
    (domain,) = domains
    # e^138 is just below 1e60, where numbers end.
    ends = [
        math.exp(min(end, 138.0)) if end < 138.0 else LARGEST for end in (domain.low, domain.high)
    ]
    return number_domain(ends[0] * (1 - 1e-9), ends[1] * (1 + 1e-9))


def _part_rule(name: str) -> Rule:
    """Return the rule of a part of a date, the year's from declared dates."""
    _, low, high = PARTS[name]

    def find_ends(domains: Sequence[Domain]) -> Domain:
        (domain,) = domains
        if name != "year":
            return whole_domain(low, high)
        # Without declared dates a year is bounded by the calendar, and not listed.
        if not (domain.low > FIRST or domain.high < LAST):
            return number_domain(low, high, whole=True)
        return whole_domain(moment(domain.low).year, moment(domain.high).year)

    return find_ends


def cut_moment(unit: str, value: datetime) -> datetime:
    """Return the beginning of the unit of time in which a moment lies."""
    day = value.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "minute":
            return value.replace(second=0, microsecond=0)
        case "hour":
            return value.replace(minute=0, second=0, microsecond=0)
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return day.replace(month=1, day=1)
    return day


def _next_unit(unit: str, begin: datetime) -> datetime:
    """Return the beginning of the next unit of time."""
    days = {"year": 366, "quarter": 92, "month": 31, "week": 7, "day": 1}
    if unit in days:
        # A few days beyond the end of the unit lie in the next one.
        return cut_moment(unit, begin + timedelta(days=days[unit]))
    return begin + (timedelta(hours=1) if unit == "hour" else timedelta(minutes=1))


def _cut_rule(unit: str) -> Rule:
    """Return the rule of a date that is cut to a unit, with all values between declared dates."""

    def find_ends(domains: Sequence[Domain]) -> Domain:
        (domain,) = domains
        # The calendar's first week cannot be cut to a Monday, and a unit of its last year may have
        # no next one: then the values are not listed.
        low = max(domain.low, FIRST + 7 * DAY)
        first = cut_moment(unit, moment(low))
        last = cut_moment(unit, moment(domain.high))
        values: list[Value] | None = []
        begin = first
        while begin <= last and values is not None:
            values.append(microseconds(begin))
            if len(values) > VALUES or begin.year > 9998:
                values = None
                break
            begin = _next_unit(unit, begin)
        listed = None if values is None else tuple(values)
        return Domain("date", microseconds(first), microseconds(last), True, True, listed)

    return find_ends


def count_units(unit: str, first: datetime, last: datetime) -> int:
    """Return how many beginnings of a unit lie between two moments, as DATE_DIFF counts them."""
    match unit:
        case "year":
            return last.year - first.year
        case "quarter":
            quarters = [value.year * 4 + (value.month - 1) // 3 for value in (first, last)]
            return quarters[1] - quarters[0]
        case "month":
            return (last.year - first.year) * 12 + last.month - first.month
    # Units of one length: what lies between the beginnings is a whole number of them.
    span = cut_moment(unit, last) - cut_moment(unit, first)
    lengths = {
        "week": timedelta(weeks=1),
        "day": timedelta(days=1),
        "hour": timedelta(hours=1),
        "minute": timedelta(minutes=1),
    }
    return span // lengths[unit]


def _difference_rule(unit: str) -> Rule:
    def find_ends(domains: Sequence[Domain]) -> Domain:
        # The difference rises with the last date and falls with the first.
        first, last = domains
        # Away from the calendar's first week, which cannot be cut to a Monday.
        begin = moment(max(first.low, FIRST + 7 * DAY))
        low = count_units(unit, moment(first.high), moment(max(last.low, FIRST + 7 * DAY)))
        high = count_units(unit, begin, moment(last.high))
        if first.low <= FIRST or last.low <= FIRST or last.high >= LAST or first.high >= LAST:
            # Without declared dates there are no bounds to speak of.
            return number_domain(-LARGEST, LARGEST, whole=True)
        return whole_domain(low, high)

    return find_ends


def _shift(domains: Sequence[Domain]) -> Domain:
    dates, days = domains
    # Days are a constant, so that both ends move by the same; a date that leaves the calendar is
    # null.
    low = max(dates.low + days.low * DAY, FIRST)
    high = min(dates.high + days.high * DAY, LAST)
    return Domain("date", low, high, True)


def _text(_domains: Sequence[Domain]) -> Domain:
    return Domain("text")


def _length(_domains: Sequence[Domain]) -> Domain:
    return number_domain(0, LARGEST, whole=True)


def _number_of_text(_domains: Sequence[Domain]) -> Domain:
    return number_domain(-LARGEST, LARGEST)


def _coalesce(domains: Sequence[Domain]) -> Domain:
    joined = join_domains(domains, "coalesce")
    # A null is passed over, so that one argument which is never null is enough.
    nullable = all(domain.nullable for domain in domains)
    return Domain(joined.kind, joined.low, joined.high, joined.whole, nullable, joined.values)


def _null_if(domains: Sequence[Domain]) -> Domain:
    first, _ = domains
    return Domain(first.kind, first.low, first.high, first.whole, True, first.values)


def _join(sign: str) -> Writer:
    return lambda arguments: f"({f' {sign} '.join(arguments)})"


def _call(name: str) -> Writer:
    return lambda arguments: f"{name}({', '.join(arguments)})"


def _clamp_sql(arguments: Sequence[str]) -> str:
    number, low, high = arguments
    return (
        f"(CASE WHEN {number} < {low} THEN {low} WHEN {number} > {high} THEN {high} "
        f"ELSE {number} END)"
    )


def _bucket_sql(arguments: Sequence[str]) -> str:
    number, low, high, count = arguments
    inner = f"floor(({number} - {low}) * {count} / ({high} - {low})) + 1.0"
    # Roundings may lift a value below the upper bound to the next bucket.
    return (
        f"(CASE WHEN {number} IS NULL THEN NULL WHEN {number} < {low} THEN 0.0 "
        f"WHEN {number} >= {high} THEN {count} + 1.0 ELSE least({inner}, {count}) END)"
    )


def _whole_text_sql(arguments: Sequence[str]) -> str:
    (number,) = arguments
    # Beyond 2^53 a double has no whole number of its own.
    return (
        f"(CASE WHEN abs({number}) <= 9007199254740992.0 AND {number} = floor({number}) "
        f"THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) END)"
    )


def _text_number_sql(arguments: Sequence[str]) -> str:
    (text,) = arguments
    # DuckDB reads 1_000 as a number and the text nan as one; declared columns do neither. An
    # infinite one ends at ±1e60.
    number = f"TRY_CAST({text} AS DOUBLE)"
    return f"(CASE WHEN NOT contains({text}, '_') AND NOT isnan({number}) THEN {number} END)"


def _date_text_sql(arguments: Sequence[str]) -> str:
    (date,) = arguments
    return f"strftime(make_timestamp({date}), '%Y-%m-%d')"


def _shift_sql(arguments: Sequence[str]) -> str:
    date, days = arguments
    moved = f"(CAST({date} AS DOUBLE) + {days} * {float(DAY)!r})"
    # A double is exact to a microsecond until the year 2255, and to 32 of them in the year 9999.
    return (
        f"(CASE WHEN {moved} BETWEEN {float(FIRST)!r} AND {float(LAST - 1000)!r} "
        f"THEN {date} + CAST(round({days} * {float(DAY)!r}) AS BIGINT) END)"
    )


def _part_sql(name: str) -> Writer:
    function, _, _ = PARTS[name]
    return lambda arguments: f"CAST({function}(make_timestamp({arguments[0]})) AS DOUBLE)"


def _cut_sql(unit: str) -> Writer:
    return lambda arguments: f"epoch_us(date_trunc('{unit}', make_timestamp({arguments[0]})))"


def _difference_sql(unit: str) -> Writer:
    if unit == "week":
        # The engine's own count of weeks is one less over the beginning of 1970.
        return lambda arguments: (
            f"(CAST(date_diff('day', date_trunc('week', make_timestamp({arguments[0]})), "
            f"date_trunc('week', make_timestamp({arguments[1]}))) AS DOUBLE) / 7.0)"
        )
    return lambda arguments: (
        f"CAST(date_diff('{unit}', make_timestamp({arguments[0]}), "
        f"make_timestamp({arguments[1]})) AS DOUBLE)"
    )


_NUMBER: Final = ("numeric",)
_TWO_NUMBERS: Final = ("numeric", "numeric")

# Name → function. Names are those of canonical texts, which a user reads.
FUNCTIONS: Final[dict[str, Function]] = {
    "+": Function(_TWO_NUMBERS, _join("+"), _corners(lambda a, b: a + b)),
    "-": Function(_TWO_NUMBERS, _join("-"), _corners(lambda a, b: a - b)),
    "*": Function(_TWO_NUMBERS, _join("*"), _corners(lambda a, b: a * b)),
    "/": Function(_TWO_NUMBERS, lambda a: f"({a[0]} / nullif({a[1]}, 0.0))", _divide),
    "%": Function(_TWO_NUMBERS, lambda a: f"({a[0]} % nullif({a[1]}, 0.0))", _modulo),
    "abs": Function(_NUMBER, _call("abs"), _absolute),
    "sign": Function(
        _NUMBER,
        lambda a: f"CAST(sign({a[0]}) AS DOUBLE)",
        _rising(lambda x: float((x > 0) - (x < 0)), whole=True),
    ),
    "floor": Function(_NUMBER, _call("floor"), _rising(math.floor, whole=True)),
    "ceil": Function(_NUMBER, _call("ceil"), _rising(math.ceil, whole=True)),
    "trunc": Function(_NUMBER, _call("trunc"), _rising(math.trunc, whole=True)),
    "round": Function(_NUMBER, _call("round"), _rising(_round_half_away, whole=True)),
    "round_digits": Function(
        _TWO_NUMBERS,
        lambda a: f"round({a[0]}, CAST({a[1]} AS INTEGER))",
        _round_digits,
        constants=(1,),
    ),
    "sqrt": Function(
        _NUMBER,
        lambda a: f"sqrt(CASE WHEN {a[0]} >= 0 THEN {a[0]} END)",
        _rising(math.sqrt, lowest=0.0),
        repeats=True,
    ),
    "ln": Function(
        _NUMBER, lambda a: f"ln(CASE WHEN {a[0]} > 0 THEN {a[0]} END)", _logarithm, repeats=True
    ),
    "log10": Function(
        _NUMBER,
        lambda a: f"log10(CASE WHEN {a[0]} > 0 THEN {a[0]} END)",
        _logarithm_of_ten,
        repeats=True,
    ),
    "exp": Function(_NUMBER, _call("exp"), _exponential),
    "power": Function(_TWO_NUMBERS, _call("pow"), _power, constants=(1,)),
    "least": Function(_NUMBER, _call("least"), _least, variadic=True, strict=False),
    "greatest": Function(_NUMBER, _call("greatest"), _greatest, variadic=True, strict=False),
    "clamp": Function(("numeric",) * 3, _clamp_sql, _clamp, constants=(1, 2), repeats=True),
    "width_bucket": Function(
        ("numeric",) * 4, _bucket_sql, _bucket, constants=(1, 2, 3), repeats=True
    ),
    "coalesce": Function(("any",), _call("coalesce"), _coalesce, variadic=True, strict=False),
    "nullif": Function(("any", "any"), _call("nullif"), _null_if),
    "lower": Function(("text",), _call("lower"), _text),
    "upper": Function(("text",), _call("upper"), _text),
    "trim": Function(("text",), _call("trim"), _text),
    "substr": Function(
        ("text", "numeric", "numeric"),
        lambda a: f"substr({a[0]}, CAST({a[1]} AS BIGINT), CAST({a[2]} AS BIGINT))",
        _text,
        constants=(1, 2),
    ),
    "replace": Function(("text",) * 3, _call("replace"), _text, constants=(1, 2)),
    "||": Function(("text", "text"), _join("||"), _text),
    "length": Function(("text",), lambda a: f"CAST(length({a[0]}) AS DOUBLE)", _length),
    "text": Function(_NUMBER, _whole_text_sql, _text, repeats=True),
    "text_of_date": Function(("date",), _date_text_sql, _text),
    "number": Function(("text",), _text_number_sql, _number_of_text, repeats=True),
    "add_days": Function(("date", "numeric"), _shift_sql, _shift, constants=(1,), repeats=True),
    **{name: Function(("date",), _part_sql(name), _part_rule(name)) for name in PARTS},
    **{
        f"date_trunc_{unit}": Function(("date",), _cut_sql(unit), _cut_rule(unit)) for unit in UNITS
    },
    **{
        f"date_diff_{unit}": Function(
            ("date", "date"), _difference_sql(unit), _difference_rule(unit)
        )
        for unit in UNITS
    },
}
