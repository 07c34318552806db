"""What a setting of a job is: read from a config, from a flag or from Python, checked the same way.

Each part of a job (`apiece.jobs.parts`) is a frozen dataclass whose fields are made by `setting`.
The TOML file, the flags of `apiece train`, the checks and the config that a run folder keeps are
all derived from these fields; nothing else lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Protocol

from apiece import _check
from apiece.assignment import STRATEGIES
from apiece.errors import BudgetError, InputError, unknown
from apiece.pate import VOTERS
from apiece.plan import Schedule

# Takes a setting's name and value; returns the value checked and frozen, or raises `InputError`.
Reader = Callable[[str, Any], Any]


class Part(Protocol):
    """A dataclass whose fields are settings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is read, and the flag of `apiece train` that gives it.

    Attributes:
        read: Takes the setting's name and value; returns the value checked and frozen, or raises.
        value: Its default; None stands for a setting that is left out, and is not read.
        help: Of the flag; a setting without it has none.
        flag: Its name, where that is not the field's.
        kind: What a flag's text is.
        repeatable: Whether the flag can be given several times.
        default: What the help says is taken otherwise, where that is not `value`.
        tuned: Whether a strategy in a comparison may have its own.

    Example:
        >>> Setting(_check.count, value=1).read("seeds", 3)
        3
    """

    read: Reader
    value: Any = None
    help: str | None = None
    flag: str | None = None
    kind: type = str
    repeatable: bool = False
    default: str | None = None
    tuned: bool = False


def setting(
    read: Reader,
    *,
    value: Any = None,
    factory: Callable[[], Any] | None = None,
    required: bool = False,
    secret: bool = False,
    **how: Any,
) -> Any:
    """Return the dataclass field of a setting.

    factory: what makes a default that can change. required: it has no default. secret: kept out
    of reprs. value, how: of `Setting`.
    """
    metadata = {"setting": Setting(read, value, **how)}
    if factory is not None:
        return field(default_factory=factory, repr=not secret, metadata=metadata)
    return field(default=MISSING if required else value, repr=not secret, metadata=metadata)


def settings_of(part: Part | type[Part]) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a part, in order, by the name of their fields.

    Args:
        part: A part of a job, or its class.

    Example:
        >>> from apiece.jobs.parts import Output
        >>> [name for name, _ in settings_of(Output)]
        ['seed', 'out', 'ledger', 'analysis', 'purpose']
    """
    for entry in fields(part):
        yield entry.name, entry.metadata["setting"]


def check(part: Part) -> None:
    """Put every setting of a new part into its checked form; raise `InputError` for a bad one."""
    for entry in fields(part):
        value = getattr(part, entry.name)
        if not (value is None and entry.default is None):
            found = entry.metadata["setting"].read(entry.name, value)
            object.__setattr__(part, entry.name, found)


def plain(value: Any) -> Any:
    """Return a setting as TOML and JSON hold it."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, Schedule | Share):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    return value


@dataclass(frozen=True, slots=True)
class Share:
    """One group of a simulated population: its name, its ε, and its share of the records."""

    name: str
    epsilon: float
    share: float


def text(name: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a text; put it in quotes")
    return value


def below_one(name: str, value: Any) -> float:
    """Return a number in [0, 1)."""
    return _check.probability(name, value, high_open=True)


def seed(name: str, value: Any) -> int:
    """Return a whole number of at least 0."""
    return _check.count(name, value, least=0)


def delta(name: str, value: Any) -> float | str:
    """Return a δ in (0, 1), or the name of a column."""
    if isinstance(value, str):
        return value
    number = _check.finite(name, value, error=BudgetError)
    return float(_check.positive_array(name, number, below=1.0, error=BudgetError))


def ledger(name: str, value: Any) -> str:
    """Return a ledger's address, after a look before anything repeats it or writes it down."""
    from apiece.ledger import check_address

    check_address(text(name, value))
    return str(value)


METHODS: Mapping[str, Collection[str]] = {"dp-sgd": STRATEGIES, "pate": VOTERS}


def method(name: str, value: Any) -> str:
    """Return the name of a method of training."""
    if text(name, value) not in METHODS:
        raise unknown(name, value, METHODS)
    return str(value)


def strategy(name: str, value: Any) -> str:
    """Return the name of a strategy of any method."""
    known = {each for strategies in METHODS.values() for each in strategies}
    if text(name, value) not in known:
        raise unknown(name, value, known)
    return str(value)


def strategies(name: str, value: Any) -> tuple[str, ...]:
    """Return several names of strategies."""
    return tuple(strategy("strategy", each) for each in listed(name, value))


def yes_or_no(name: str, value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {value!r}: must be true or false")
    return value


def share(name: str, value: Any) -> float:
    """Return a number in (0, 1)."""
    return _check.probability(name, value, low_open=True, high_open=True)


def counts(name: str, value: Any) -> tuple[int, ...]:
    """Return several whole numbers of at least 1."""
    return tuple(_check.count(name, each) for each in listed(name, value))


def rows(name: str, value: Any) -> int | str:
    """Return a whole number of at least 1, or "all"."""
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise InputError(f"{name} = {value!r}: must be a whole number of at least 1, or all")
    return _check.count(name, value)


def levels(name: str, value: Any) -> tuple[float, ...]:
    """Return several different ε, in order."""
    found = tuple(_check.positive(name, each, error=BudgetError) for each in listed(name, value))
    if len(set(found)) < len(found):
        raise BudgetError(f"{name} = {list(found)}: one occurs twice; give each once")
    return tuple(sorted(found))


def shares(name: str, value: Any) -> tuple[Share, ...]:
    """Return the groups of a simulated population."""
    return tuple(_share(each) for each in listed(name, value))


def _share(group: Any) -> Share:
    if isinstance(group, Share):
        return group
    if not isinstance(group, Mapping) or set(group) != {"name", "epsilon", "share"}:
        raise InputError(f"groups: {group!r} must have just name, epsilon and share")
    return Share(str(group["name"]), group["epsilon"], group["share"])


def schedule(name: str, value: Any) -> Schedule:
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


def held_schedule(name: str, value: Any) -> Schedule:
    """Return a schedule that stays at each point up to the next."""
    found = schedule(name, value)
    if found.between != "hold" and len(found.points) > 1:
        raise InputError(
            f"{name}: between = {found.between!r}, but the noise of a stage is one "
            'number; give between = "hold" and a point for each stage'
        )
    return found


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} = {value!r}: must be a list")
    return tuple(value)
