"""A setting of a job: read from a config, an option or Python alike, checked, and written back."""

# Annotations are kept as types, not as texts: they say how a setting is read.
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import UTC, date, datetime
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Protocol, get_args, get_origin

from apiece import _check, _json
from apiece.errors import BudgetError, DataError, InputError, unknown
from apiece.plan import Schedule

# Takes a setting's name and value; returns the value checked and frozen, or raises `InputError`.
Reader = Callable[[str, object], Any]


class JobSection(Protocol):
    """A dataclass whose fields are settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is read, and the option of `apiece train` that gives it."""

    # read: takes name and value; returns the value checked and frozen, or raises. kind: the type of
    # one value; object for a number or a text. repeatable: whether it is a list. value: its
    # default; None stands for a setting that is left out, and is not read. help: of the option; a
    # setting without it has none. flag: the option's name, where it is not the field's. default:
    # what the help names as default, where that is not `value`. tuned: whether a strategy in a
    # comparison may have its own.

    read: Reader
    kind: type
    repeatable: bool
    value: object = None
    help: str | None = None
    flag: str | None = None
    default: str | None = None
    tuned: bool = False


def setting(
    help_: str | None = None,
    *,
    read: Reader | None = None,
    value: object = None,
    factory: Callable[[], object] | None = None,
    required: bool = False,
    secret: bool = False,
    **how: object,
) -> Any:
    """Return the dataclass field of a setting, which is read by its type or as `read` does."""
    # factory: makes a default that can change. required: there is no default. secret: not in reprs.
    metadata = {"read": read, "how": {"value": value, "help": help_, **how}}
    if factory is not None:
        return field(default_factory=factory, repr=not secret, metadata=metadata)
    return field(default=MISSING if required else value, repr=not secret, metadata=metadata)


def settings_of(part: JobSection | type[JobSection]) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a part of a job, or of its class, in order, by name."""
    for entry in fields(part):
        types = [each for each in get_args(entry.type) if each is not NoneType]
        kind: Any = entry.type
        repeatable = get_origin(kind) is tuple
        if types:
            kind = types[0] if repeatable or len(types) == 1 else object
        read = entry.metadata["read"]
        if read is None:
            read = several(_BY_TYPE[kind]) if repeatable else _BY_TYPE[kind]
        yield entry.name, Setting(read, kind, repeatable, **entry.metadata["how"])


def check(part: JobSection) -> None:
    """Put every setting of a new part into its checked form; raise `InputError` for a bad one."""
    for entry, (name, how) in zip(fields(part), settings_of(part), strict=True):
        value = getattr(part, name)
        if value is not None or entry.default is not None:
            object.__setattr__(part, name, how.read(name, value))


def stored(how: Setting) -> _json.Reader[Any]:
    """Return the reader of a setting in a run's files; it raises `DataError`."""

    def read(value: object, where: str) -> object:
        try:
            return how.read(where, value)
        except InputError as error:
            raise DataError(str(error)) from None

    return read


@dataclass(frozen=True, slots=True)
class Share:
    """One group of a simulated population: its name, its ε, and its share of the records."""

    name: str
    epsilon: float
    share: float


def unread(name: str, value: object) -> object:
    """Return what is checked later, with what stands beside it."""
    return value


def text(name: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a text; put it in quotes")
    return value


def day(name: str, value: object) -> str:
    """Return a day, written as 2026-01-31."""
    with suppress(ValueError):
        if (given := text(name, value)) == date.fromisoformat(given).isoformat():
            return given
    raise InputError(f"{name} = {value!r}: must be a day, as 2026-01-31")


def refuse_past(name: str, value: str | None) -> None:
    """Raise `InputError` for a day before today, by universal time."""
    today = datetime.now(UTC).date().isoformat()
    if value is not None and value < today:
        raise InputError(
            f"{name} = {value!r}: is past; give a day from {today} on, or leave it out"
        )


def yes_or_no(name: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {value!r}: must be true or false")
    return value


def listed(name: str, value: object) -> tuple[Any, ...]:
    """Return a list as a tuple."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} = {value!r}: must be a list")
    return tuple(value)


def several(read: Reader) -> Reader:
    """Return a reader of lists of what `read` reads."""
    return lambda name, value: tuple(read(name, each) for each in listed(name, value))


_BY_TYPE: dict[type, Reader] = {
    str: text, bool: yes_or_no, int: _check.count, float: _check.positive
}  # fmt: skip


below_one = partial(_check.probability, high_open=True)
inside_one = partial(_check.probability, low_open=True, high_open=True)
natural = partial(_check.count, least=0)


def delta_or_column(name: str, value: object) -> float | str:
    """Return a δ in (0, 1), or the name of a column."""
    if isinstance(value, str):
        return value
    number = _check.finite(name, value, error=BudgetError)
    return float(_check.positive_array(name, number, below=1.0, error=BudgetError))


def rows_or_all(name: str, value: object) -> int | str:
    """Return a whole number of at least 1, or "all"."""
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a whole number of at least 1, or all")
    return _check.count(name, value)


def address(name: str, value: object) -> str:
    """Return a ledger's address, after a look before anything repeats it or writes it down."""
    from apiece.ledger.database import check_address

    check_address(text(name, value))
    return str(value)


def charged_scope(name: str, value: object) -> str:
    """Return the text of a ledger's scope, after a look."""
    from apiece.ledger.scopes import read_scope

    read_scope(text(name, value))
    return str(value)


def strategies_of(method: str) -> Collection[str]:
    """Return the names of a method's strategies."""
    if method == "dp-sgd":
        from apiece.assignment.front import STRATEGIES

        return STRATEGIES
    from apiece.pate.strategies import VOTERS

    return VOTERS


METHODS = ("dp-sgd", "pate")


def one_of(names: Callable[[], Collection[str]]) -> Reader:
    """Return a reader of one of some names, which are loaded when a value is read."""

    def read(name: str, value: object) -> str:
        if text(name, value) not in names():
            raise unknown(name, value, names())
        return str(value)

    return read


method_name = one_of(lambda: METHODS)
strategy_name = one_of(lambda: {each for method in METHODS for each in strategies_of(method)})


def shares(name: str, value: object) -> tuple[Share, ...]:
    """Return the groups of a simulated population."""
    groups = listed(name, value)
    for group in groups:
        good = isinstance(group, Mapping) and set(group) == {"name", "epsilon", "share"}
        if not (good or isinstance(group, Share)):
            raise InputError(f"groups: {group!r} must have just name, epsilon and share")
    return tuple(
        group if isinstance(group, Share) else Share(**{**group, "name": str(group["name"])})
        for group in groups
    )


def schedule(name: str, value: object) -> Schedule:
    """Return a schedule by step."""
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, Mapping) or not {"points"} <= set(value) <= {"points", "between"}:
        raise InputError(
            f"{name} = {value!r}: must have points, and may say between; as in "
            f'{name} = {{ points = [[0, 1], [500, 0.1]], between = "hold" }}'
        )
    try:
        return Schedule(listed("points", value["points"]), value.get("between", "linear"))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def held_schedule(name: str, value: object) -> Schedule:
    """Return a schedule that stays at each point up to the next."""
    noise = schedule(name, value)
    if noise.between != "hold" and len(noise.points) > 1:
        raise InputError(
            f"{name}: between = {noise.between!r}, but the noise of a stage is one "
            'number; give between = "hold" and a point for each stage'
        )
    return noise
