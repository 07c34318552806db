"""The algebra of mechanisms: what is done to one record, described as small frozen values.

A mechanism is a description: accountants, planners, trainers and reports interpret it. The
algebra is closed: `Sampled`, `Repeated` and `Composed` take any mechanism.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TypeAlias, get_args

from apiece import _check, _json
from apiece._types import Json
from apiece.errors import InputError, RangeError, unknown
from apiece.mechanisms.allocated import Allocated
from apiece.mechanisms.atoms import Atoms, Finite, behind_coin
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.mechanisms.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from apiece.mechanisms.runs import Runs
from apiece.mechanisms.stated import Concentrated, Stated

# A new mechanism is a file beside this one and a name in this line.
Primitive: TypeAlias = (
    Gaussian
    | Allocated
    | Laplace
    | DiscreteGaussian
    | DiscreteLaplace
    | Finite
    | MixtureOfGaussians
    | Concentrated
    | Stated
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """`mechanism`, run on a record that joins with `probability` by a coin that stays secret.

    The dominating pair (P, Q) becomes ((1−q)Q + qP, Q). One coin covers the whole of `mechanism`:
    `Sampled(Repeated(m, k), q)` tosses once, `Repeated(Sampled(m, q), k)` tosses k times.
    Probability 0 is the mechanism that never sees the record; probability 1 is `mechanism`.

    Args:
        mechanism: What is run if the coin shows heads; not itself a `Sampled`.
        probability: The chance of heads, in [0, 1].

    Raises:
        InputError: For a probability outside [0, 1], what is no mechanism, and a `Sampled`
            directly inside a `Sampled`: with one coin it would amplify twice, and two
            independent coins are one coin of probability p·q.

    References:
        Balle, Barthe, Gaboardi 2018.

    Example:
        >>> from apiece import Gaussian, Sampled
        >>> Sampled(Gaussian(1.0), 0.01)
        Sampled(mechanism=Gaussian(noise_multiplier=1.0), probability=0.01)
    """

    mechanism: Mechanism
    probability: float

    def __post_init__(self) -> None:
        require_mechanism("Sampled", self.mechanism)
        if isinstance(self.mechanism, Sampled):
            raise InputError(
                f"Sampled(Sampled(…, {self.mechanism.probability!r}), {self.probability!r}): one "
                "coin amplifies once; if the coins are independent, multiply their probabilities"
            )
        _check.put(self, probability=_check.probability)


@dataclass(frozen=True, slots=True)
class Repeated:
    """`mechanism`, run `times` times with independent randomness, possibly adaptively.

    Args:
        mechanism: What is run each time.
        times: How often, at least 1.

    Raises:
        InputError: Where `times` is no whole number of at least 1, or `mechanism` no mechanism.

    Example:
        >>> from apiece import Gaussian, Repeated
        >>> Repeated(Gaussian(10.0), 100)
        Repeated(mechanism=Gaussian(noise_multiplier=10.0), times=100)
    """

    mechanism: Mechanism
    times: int

    def __post_init__(self) -> None:
        require_mechanism("Repeated", self.mechanism)
        _check.put(self, times=_check.count)


@dataclass(frozen=True, slots=True, init=False)
class Composed:
    """Several mechanisms with independent randomness; with none of them, nothing is released.

    Args:
        *mechanisms: The parts; their order does not change a privacy curve.

    Raises:
        InputError: Where a part is no mechanism.

    Example:
        >>> from apiece import Composed, Gaussian, Laplace
        >>> Composed(Gaussian(2.0), Laplace(1.0)).mechanisms
        (Gaussian(noise_multiplier=2.0), Laplace(scale=1.0))
    """

    mechanisms: tuple[Mechanism, ...]

    def __init__(self, *mechanisms: Mechanism) -> None:
        for mechanism in mechanisms:
            require_mechanism("Composed", mechanism)
        object.__setattr__(self, "mechanisms", mechanisms)

    def __repr__(self) -> str:
        return f"Composed({', '.join(map(repr, self.mechanisms))})"


@dataclass(frozen=True, slots=True)
class Selected:
    """The best output of a random number of runs, by a score that is part of each output.

    Each run draws one of `mechanisms` at random, by chances that are public, and runs it; which one
    is part of its output. Only the best output is released: not how many runs there were, nor any
    other output or score. A score that is computed from records must be released by the mechanism
    itself, with noise.

    Args:
        mechanisms: What a run may be; one where all runs are alike.
        runs: The law of their number.

    Raises:
        InputError: Where there is none, or a part is no mechanism.

    References:
        Liu and Talwar 2019; Papernot and Steinke 2022.

    Example:
        >>> from apiece import Gaussian
        >>> from apiece.mechanisms import Runs, Selected
        >>> Selected((Gaussian(4.0),), Runs(10))
        Selected(mechanisms=(Gaussian(noise_multiplier=4.0),), runs=Runs(mean=10.0, shape=1.0))
    """

    mechanisms: tuple[Mechanism, ...]
    runs: Runs

    def __post_init__(self) -> None:
        for mechanism in self.mechanisms:
            require_mechanism("Selected", mechanism)
        if not self.mechanisms or not isinstance(self.runs, Runs):
            raise InputError(
                "Selected: give a tuple of mechanisms and Runs(mean), such as "
                "Selected((Gaussian(4.0),), Runs(10))"
            )


Mechanism: TypeAlias = Primitive | Sampled | Repeated | Composed | Selected


def require_mechanism(where: str, value: object) -> None:
    """Raise unless `value` is a mechanism."""
    if not isinstance(value, get_args(Mechanism)):
        raise InputError(f"{where}: {value!r} is not a mechanism; give Gaussian(…), Sampled(…), …")


NormalForm: TypeAlias = tuple[tuple[Mechanism, int], ...]
"""Independent steps in normal form, each so many times."""

MOST_STEPS = 10**15
"""Counts up to here are exact as floating-point numbers."""


def flatten(mechanism: Mechanism) -> NormalForm:
    """Return an equivalent multiset of independent steps, as (step, times) pairs.

    Nested `Repeated` and `Composed` are multiplied out; steps that never see the record are
    dropped, coins that always show heads are removed, and equal steps are counted together. All
    plain Gaussians become one (1/z² adds up, exactly), also below a coin. What is left under
    `Sampled` is in the same form. The order of composition does not change a privacy curve, so
    every accountant may read this form instead of the tree.

    A coin before another coin is one coin, with the product of their probabilities.

    Args:
        mechanism: Any tree of mechanisms.

    Raises:
        RangeError: For more than 10¹⁵ steps in all.

    Guarantee:
        It costs a record no less than `mechanism`: a product of coins that is no floating-point
        number is rounded up (`flatten_below` rounds it down).

    Example:
        >>> from apiece import Composed, Gaussian, Repeated, Sampled
        >>> from apiece.mechanisms import Laplace
        >>> from apiece.mechanisms.algebra import flatten
        >>> flatten(Repeated(Composed(Sampled(Gaussian(1.0), 0.1), Laplace(2.0)), 3))
        ((Sampled(mechanism=Gaussian(noise_multiplier=1.0), probability=0.1), 3),
         (Laplace(scale=2.0), 3))
        >>> flatten(Repeated(Gaussian(10.0), 100))
        ((Gaussian(noise_multiplier=1.0), 1),)
    """
    return _normal_form(mechanism, upward=True)


def flatten_below(mechanism: Mechanism) -> NormalForm:
    """Return `flatten`, with products of coins rounded down: what costs a record no more.

    It is equal to `flatten` where no product of coins is rounded.

    >>> nested = Sampled(Repeated(Sampled(Gaussian(1.0), 0.1), 1), 0.1)
    >>> [steps[0][0].probability for steps in (flatten_below(nested), flatten(nested))]
    [0.01, 0.010000000000000002]
    """
    return _normal_form(mechanism, upward=False)


def _normal_form(mechanism: Mechanism, *, upward: bool) -> NormalForm:
    """Return the normal form, with products of coins rounded up or down."""
    # Equal steps are one key: a dictionary counts them, in the order of first appearance.
    counts: dict[Mechanism, int] = {}
    gaussians: list[tuple[float, int]] = []
    for step, times in _list_steps(mechanism, 1, upward):
        if isinstance(step, Gaussian):
            gaussians.append((step.noise_multiplier, times))
        else:
            counts[step] = counts.get(step, 0) + times
    steps = sum(counts.values()) + sum(times for _, times in gaussians)
    if not steps <= MOST_STEPS:
        raise RangeError(f"mechanism: more than {MOST_STEPS:g} steps in all; use fewer")
    if not gaussians:
        return tuple(counts.items())
    if len(gaussians) == 1 and gaussians[0][1] == 1:
        # As it is given, to the bit.
        merged = Gaussian(gaussians[0][0])
    else:
        # Σ 1/z² adds up; in units of the largest term, which stays within range.
        smallest = min(z for z, _ in gaussians)
        total = math.fsum(times * (smallest / z) ** 2 for z, times in gaussians)
        merged = Gaussian(smallest / math.sqrt(total))
    return (merged, 1), *counts.items()


def _list_steps(mechanism: Mechanism, times: int, upward: bool) -> Iterator[tuple[Mechanism, int]]:
    """Yield the independent steps of a tree, each with how often it is run."""
    match mechanism:
        # Independent parts, at whatever depth: times multiply on the way down.
        case Composed(mechanisms):
            for part in mechanisms:
                yield from _list_steps(part, times, upward)
        case Repeated(inner, repeats):
            yield from _list_steps(inner, times * repeats, upward)
        case Sampled(inner, probability):
            # A coin that always shows heads is none; one that never does hides all behind it.
            if probability == 1:
                yield from _list_steps(inner, times, upward)
            elif probability > 0:
                # The inside of a coin is brought to normal form by itself: one coin covers all of
                # it.
                steps = _normal_form(inner, upward=upward)
                yield from _put_behind_coin(steps, probability, times, upward)
        # Exactly one of one step is that step.
        case Allocated(z, 1):
            yield Gaussian(z), times
        case _:
            yield mechanism, times


def _put_behind_coin(
    steps: NormalForm, probability: float, times: int, upward: bool
) -> Iterator[tuple[Mechanism, int]]:
    """Put a coin below 1 before flattened steps; a coin before one other coin is one coin."""
    match steps:
        case ():
            return
        # A coin directly before one other coin, each tossed once: both must show heads.
        case ((Sampled(inner, inner_probability), 1),):
            coin = _product(probability, inner_probability, upward=upward)
            # Rounded to an end, it is no coin any more.
            if coin == 1:
                yield from _list_steps(inner, times, upward)
            elif coin > 0:
                yield Sampled(inner, coin), times
        case ((only, 1),):
            yield Sampled(only, probability), times
        # Several steps behind one coin stay behind one: they share its outcome.
        case _:
            parts = [step if count == 1 else Repeated(step, count) for step, count in steps]
            run = parts[0] if len(parts) == 1 else Composed(*parts)
            yield Sampled(run, probability), times


def _product(one: float, other: float, *, upward: bool) -> float:
    """Return the product of two chances, rounded up or down.

    More is told the larger a coin is: with a chance of q/r between two coins q ≤ r, what is behind
    r can be replaced by what is seen of a record that takes no part, and is then behind q.
    """
    # Floats are fractions: their exact product says which way the rounded one lies.
    product = one * other
    exact = Fraction(one) * Fraction(other)
    if upward and product < exact:
        return math.nextafter(product, math.inf)
    if not upward and product > exact:
        return math.nextafter(product, 0.0)
    return product


def atoms_of(step: Mechanism) -> Atoms | None:
    """Return the atoms of a discrete step, its coin included; None for any other step."""
    # A mechanism on finitely many outcomes has a method `atoms`: by it every accountant takes it.
    if isinstance(step, Sampled):
        atoms = atoms_of(step.mechanism)
        return None if atoms is None else behind_coin(atoms, step.probability)
    return step.atoms() if hasattr(step, "atoms") else None


# Names in JSON: those of the classes, in lower case, with "_" between words.
_KINDS: dict[str, type] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(Mechanism)
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_dict(mechanism: Mechanism) -> Json:
    """Return `mechanism` as nested dictionaries of JSON types, read back by `from_dict`."""

    def to_plain(value: object) -> object:
        if isinstance(value, tuple):
            return [to_plain(part) for part in value]
        if isinstance(value, Runs):
            return {"mean": value.mean, "shape": value.shape}
        return to_dict(value) if isinstance(value, get_args(Mechanism)) else value

    values = {field.name: to_plain(getattr(mechanism, field.name)) for field in fields(mechanism)}
    return {_NAMES[type(mechanism)]: values}


def from_dict(data: object) -> Mechanism:
    """Return the mechanism that `to_dict` described."""
    if not isinstance(data, dict) or len(data) != 1:
        raise InputError(f"mechanism: {data!r} is not of the form {{kind: fields}}")
    ((name, values),) = data.items()
    if name not in _KINDS:
        raise unknown("mechanism", name, _KINDS)
    kind = _KINDS[name]
    # Just the fields: one more or less would be another mechanism than the one that was written.
    names = {field.name for field in fields(kind)}
    if not isinstance(values, dict) or set(values) != names:
        raise InputError(f"mechanism {name}: {values!r} must have just {sorted(names)}")
    if kind is Composed or kind is Selected:
        parts = values["mechanisms"]
        if not isinstance(parts, list):
            raise InputError(f"mechanism {name}: 'mechanisms' must be a list")
        mechanisms = tuple(map(from_dict, parts))
        if kind is Composed:
            return Composed(*mechanisms)
        return Selected(mechanisms, read_runs(values["runs"]))
    # The one kind of field that is a mechanism itself.
    if "mechanism" in values:
        values = values | {"mechanism": from_dict(values["mechanism"])}
    mechanism: Mechanism = kind(**values)
    return mechanism


def read_runs(value: object) -> Runs:
    """Return the law of a number of runs in JSON types."""
    if not isinstance(value, dict) or set(value) != {"mean", "shape"}:
        raise InputError(f"runs: {value!r} must have just mean and shape")
    return Runs(**value)


def to_json(mechanism: Mechanism) -> str:
    """Return `mechanism` as one line of JSON."""
    return json.dumps(to_dict(mechanism), allow_nan=False)


def from_json(text: str) -> Mechanism:
    """Return the mechanism in a JSON text.

    Args:
        text: What `to_json` returned.

    Raises:
        InputError: Where it is no JSON, gives a field twice, or describes no mechanism.

    Example:
        >>> from apiece.mechanisms import from_json
        >>> from_json('{"laplace": {"scale": 2.0}}')
        Laplace(scale=2.0)
    """
    return from_dict(_json.loads(text, "mechanism"))
