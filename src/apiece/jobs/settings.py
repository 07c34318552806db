"""A setting of a job: read from a config, an option or Python alike, checked, and written back.

Readers of a library were tried for the sections of data and of training: with a translator of its
errors into these one-line messages msgspec took 71 lines and pydantic 40 where 35 stand here, and a
start took 37 and 186 ms more. `_json`, which the core imports, could not have followed: the core
runs on NumPy, SciPy and click alone.
"""

# Annotations are kept as types, not as texts: they say how a setting is read.
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import UTC, date, datetime
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Final, Protocol, get_args, get_origin

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

    read: Reader
    # The type of one value; object for a number or a text.
    kind: type
    # Whether it is a list.
    repeatable: bool
    # The default; None stands for a setting that is left out, and is not read.
    value: object = None
    # Help of the option; a setting without it has none.
    help: str | None = None
    # The option's name, where it is not the field's.
    flag: str | None = None
    # What the help names as default, where that is not `value`.
    default: str | None = None
    # Whether a strategy in a comparison may have its own.
    tuned: bool = False


def setting(
    help_: str | None = None,
    *,
    read: Reader | None = None,
    value: object = None,
    factory: Callable[[], object] | None = None,
    required: bool = False,
    secret: bool = False,
    **options: object,
) -> Any:
    """Return the dataclass field of a setting, which is read by its type or as `read` does.

    `factory` makes a default that can change. A `required` setting has no default, and a `secret`
    one is in no repr. `options` are other fields of `Setting`.
    """
    metadata = {"read": read, "options": {"value": value, "help": help_, **options}}
    if factory is not None:
        return field(default_factory=factory, repr=not secret, metadata=metadata)
    return field(default=MISSING if required else value, repr=not secret, metadata=metadata)


def settings_of(section: JobSection | type[JobSection]) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a section of a job, or of its class, in order, by name."""
    for entry in fields(section):
        kind: Any = entry.type
        # Kinds of annotation: `T`, `T | None`, `tuple[T, ...]`, and a union of a number and a text.
        arguments = [argument for argument in get_args(kind) if argument is not NoneType]
        repeatable = get_origin(kind) is tuple
        if arguments:
            # Of a union of two types a value is a number or a text.
            kind = arguments[0] if repeatable or len(arguments) == 1 else object
        read = entry.metadata["read"]
        if read is None:
            read = _READER_BY_TYPE[kind]
            if repeatable:
                read = list_reader(read)
        yield entry.name, Setting(read, kind, repeatable, **entry.metadata["options"])


def check(section: JobSection) -> None:
    """Put the settings of a new section into their checked form; raise for a bad one."""
    for entry, (name, setting_) in zip(fields(section), settings_of(section), strict=True):
        # None stands for what is left out, but where a setting has another default.
        value = getattr(section, name)
        if value is not None or entry.default is not None:
            object.__setattr__(section, name, setting_.read(name, value))


def stored_reader(setting_: Setting) -> _json.Reader[Any]:
    """Return the reader of a setting in a run's files; it raises `DataError`."""

    def read_stored(value: object, where: str) -> object:
        try:
            return setting_.read(where, value)
        except InputError as error:
            raise DataError(str(error)) from None

    return read_stored


@dataclass(frozen=True, slots=True)
class Share:
    """One group of a simulated population: its name, its ε, and its share of the records."""

    name: str
    epsilon: float
    share: float


def pass_through(name: str, value: object) -> object:
    """Return a value that is checked later, with its neighbours."""
    return value


def read_text(name: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a text; put it in quotes")
    return value


def read_day(name: str, value: object) -> str:
    """Return a day, written as 2026-01-31."""
    with suppress(ValueError):
        text = read_text(name, value)
        # Python reads other forms too, such as 20260131.
        if text == date.fromisoformat(text).isoformat():
            return text
    raise InputError(f"{name} = {value!r}: must be a day, as 2026-01-31")


def refuse_past(name: str, value: str | None) -> None:
    """Raise `InputError` for a day before today, by universal time."""
    today = datetime.now(UTC).date().isoformat()
    if value is not None and value < today:
        raise InputError(
            f"{name} = {value!r}: is past; give a day from {today} on, or leave it out"
        )


def read_flag(name: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {value!r}: must be true or false")
    return value


def read_list(name: str, value: object) -> tuple[Any, ...]:
    """Return a list as a tuple."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} = {value!r}: must be a list")
    return tuple(value)


def list_reader(read: Reader) -> Reader:
    """Return a reader of lists of what `read` reads."""
    return lambda name, values: tuple(read(name, value) for value in read_list(name, values))


# How a setting without a reader of its own is read.
_READER_BY_TYPE: Final[dict[type, Reader]] = {
    str: read_text,
    bool: read_flag,
    int: _check.count,
    float: _check.positive,
}
# In [0, 1).
read_below_one: Final = partial(_check.probability, high_open=True)
# In (0, 1).
read_inside_one: Final = partial(_check.probability, low_open=True, high_open=True)
# A whole number of at least 0.
read_natural: Final = partial(_check.count, least=0)


def read_delta(name: str, value: object) -> float | str:
    """Return a δ in (0, 1), or the name of a column."""
    if isinstance(value, str):
        return value
    number = _check.finite(name, value, error=BudgetError)
    return float(_check.positive_array(name, number, below=1.0, error=BudgetError))


def read_row_limit(name: str, value: object) -> int | str:
    """Return a whole number of at least 1, or "all"."""
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a whole number of at least 1, or all")
    return _check.count(name, value)


def read_address(name: str, value: object) -> str:
    """Return a ledger's address, checked before anything repeats it or writes it down."""
    from apiece.ledger.database import check_address

    check_address(read_text(name, value))
    return str(value)


def read_scope_text(name: str, value: object) -> str:
    """Return the text of a ledger's scope, checked."""
    from apiece.ledger.scopes import read_scope

    read_scope(read_text(name, value))
    return str(value)


# Training methods.
METHODS: Final = ("dp-sgd", "pate")


def list_strategies(method: str) -> Collection[str]:
    """Return the names of a method's strategies."""
    if method == "dp-sgd":
        from apiece.assignment.front import STRATEGIES

        return STRATEGIES
    from apiece.pate.strategies import VOTERS

    return VOTERS


def _list_all_strategies() -> set[str]:
    return {name for method in METHODS for name in list_strategies(method)}


def name_reader(list_names: Callable[[], Collection[str]]) -> Reader:
    """Return a reader of one of some names, which are loaded when a value is read."""

    def read_name(name: str, value: object) -> str:
        names = list_names()
        if read_text(name, value) not in names:
            raise unknown(name, value, names)
        return str(value)

    return read_name


def _list_noises() -> Collection[str]:
    from apiece.assignment.request import NOISES

    return NOISES


read_method: Final = name_reader(lambda: METHODS)
read_noise: Final = name_reader(_list_noises)
read_strategy: Final = name_reader(_list_all_strategies)


def read_shares(name: str, value: object) -> tuple[Share, ...]:
    """Return the groups of a simulated population."""
    groups = read_list(name, value)
    for group in groups:
        is_table = isinstance(group, Mapping) and set(group) == {"name", "epsilon", "share"}
        if not is_table and not isinstance(group, Share):
            raise InputError(f"groups: {group!r} must have just name, epsilon and share")
    return tuple(map(_make_share, groups))


def _make_share(group: Share | Mapping[str, Any]) -> Share:
    if isinstance(group, Share):
        return group
    return Share(**{**group, "name": str(group["name"])})


def read_schedule(name: str, value: object) -> Schedule:
    """Return a schedule by step."""
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, Mapping) or not {"points"} <= set(value) <= {"points", "between"}:
        raise InputError(
            f"{name} = {value!r}: must have points, and may say between; as in "
            f'{name} = {{ points = [[0, 1], [500, 0.1]], between = "hold" }}'
        )
    try:
        points = read_list("points", value["points"])
        return Schedule(points, value.get("between", "linear"))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def read_held_schedule(name: str, value: object) -> Schedule:
    """Return a schedule that stays at each point up to the next."""
    noise = read_schedule(name, value)
    if noise.between != "hold" and len(noise.points) > 1:
        raise InputError(
            f"{name}: between = {noise.between!r}, but the noise of a stage is one "
            'number; give between = "hold" and a point for each stage'
        )
    return noise
