"""What is done to one record, described as small frozen values.

A mechanism is a description: accountants, planners, trainers and reports interpret it. The
algebra is closed: `Sampled`, `Repeated` and `Composed` take any mechanism.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from apiece import _check
from apiece.errors import InputError, unknown


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A sum over records plus Gaussian noise, seen from one record.

    noise_multiplier: noise standard deviation over the record's ℓ2 bound; positive, finite.

    Raises `InputError` where it is not. Source: Dwork and Roth 2014, App. A; Kaiser et al. 2026
    Def. 2.

    >>> Gaussian(1.5)
    Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "noise_multiplier", _check.positive("noise_multiplier", self.noise_multiplier)
        )


@dataclass(frozen=True, slots=True)
class Laplace:
    """A sum over records plus Laplace noise, seen from one record.

    noise_multiplier: the Laplace scale over the record's ℓ1 bound; positive, finite. Pure
    ε = 1/noise_multiplier.

    >>> Laplace(2.0)
    Laplace(noise_multiplier=2.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "noise_multiplier", _check.positive("noise_multiplier", self.noise_multiplier)
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """`mechanism`, run on a record that joins with `probability` by a coin that stays secret.

    The dominating pair (P, Q) becomes ((1−q)Q + qP, Q). One coin covers the whole of `mechanism`:
    `Sampled(Repeated(m, k), q)` tosses once, `Repeated(Sampled(m, q), k)` tosses k times.

    Edge cases: probability 0 is the mechanism that never sees the record; probability 1 is
    `mechanism`. A `Sampled` directly inside a `Sampled` raises `InputError`: with one coin it
    would amplify twice; two independent coins are one coin of probability p·q.

    Source: Balle, Barthe, Gaboardi 2018.

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
        object.__setattr__(self, "probability", _check.probability("probability", self.probability))


@dataclass(frozen=True, slots=True)
class Repeated:
    """`mechanism`, run `times` times with independent randomness, possibly adaptively.

    >>> Repeated(Gaussian(10.0), 100)
    Repeated(mechanism=Gaussian(noise_multiplier=10.0), times=100)
    """

    mechanism: Mechanism
    times: int

    def __post_init__(self) -> None:
        require_mechanism("Repeated", self.mechanism)
        object.__setattr__(self, "times", _check.count("times", self.times))


@dataclass(frozen=True, slots=True, init=False)
class Composed:
    """Several mechanisms with independent randomness; with none of them, nothing is released.

    >>> Composed(Gaussian(2.0), Laplace(1.0)).mechanisms
    (Gaussian(noise_multiplier=2.0), Laplace(noise_multiplier=1.0))
    """

    mechanisms: tuple[Mechanism, ...]

    def __init__(self, *mechanisms: Mechanism) -> None:
        for mechanism in mechanisms:
            require_mechanism("Composed", mechanism)
        object.__setattr__(self, "mechanisms", mechanisms)

    def __repr__(self) -> str:
        return f"Composed({', '.join(map(repr, self.mechanisms))})"


Mechanism: TypeAlias = Gaussian | Laplace | Sampled | Repeated | Composed


def require_mechanism(where: str, value: object) -> None:
    """Raise `InputError`, naming the place `where`, unless `value` is a mechanism."""
    if not isinstance(value, (Gaussian, Laplace, Sampled, Repeated, Composed)):
        raise InputError(f"{where}: {value!r} is not a mechanism; give Gaussian(…), Sampled(…), …")


def flatten(mechanism: Mechanism) -> tuple[tuple[Mechanism, int], ...]:
    """Return an equivalent multiset of independent steps, as (step, times) pairs.

    Nested `Repeated` and `Composed` are multiplied out; steps that never see the record are
    dropped, coins that always show heads are removed, and equal steps are counted together. All
    plain Gaussians become one (1/z² adds up, exactly), also below a coin. What is left under
    `Sampled` is in the same form. The order of composition does not change a privacy curve, so
    every accountant may read this form instead of the tree.

    >>> flatten(Repeated(Composed(Sampled(Gaussian(1.0), 0.1), Laplace(2.0)), 3))
    ((Sampled(mechanism=Gaussian(noise_multiplier=1.0), probability=0.1), 3), \
(Laplace(noise_multiplier=2.0), 3))
    >>> flatten(Repeated(Gaussian(10.0), 100))
    ((Gaussian(noise_multiplier=1.0), 1),)
    """
    counts: dict[Mechanism, int] = {}
    precision: list[tuple[float, int]] = []
    for step, times in _steps(mechanism, 1):
        if isinstance(step, Gaussian):
            precision.append((step.noise_multiplier, times))
        else:
            counts[step] = counts.get(step, 0) + times
    if len(precision) == 1 and precision[0][1] == 1:
        return (Gaussian(precision[0][0]), 1), *counts.items()
    if precision:
        smallest = min(z for z, _ in precision)
        total = math.fsum(times * (smallest / z) ** 2 for z, times in precision)
        return (Gaussian(smallest / math.sqrt(total)), 1), *counts.items()
    return tuple(counts.items())


def _steps(mechanism: Mechanism, times: int) -> Iterator[tuple[Mechanism, int]]:
    match mechanism:
        case Composed(mechanisms):
            for part in mechanisms:
                yield from _steps(part, times)
        case Repeated(inner, repeats):
            yield from _steps(inner, times * repeats)
        case Sampled(inner, probability):
            if probability == 1:
                yield from _steps(inner, times)
            elif probability > 0 and (steps := flatten(inner)):
                yield _sampled(steps, probability), times
        case _:
            yield mechanism, times


def _sampled(steps: tuple[tuple[Mechanism, int], ...], probability: float) -> Mechanism:
    """Put a coin before flattened steps; a coin before one other coin is one coin."""
    (first, once), *rest = steps
    if not rest and once == 1:
        if isinstance(first, Sampled):
            return Sampled(first.mechanism, probability * first.probability)
        return Sampled(first, probability)
    parts = [step if times == 1 else Repeated(step, times) for step, times in steps]
    return Sampled(parts[0] if not rest else Composed(*parts), probability)


def to_dict(mechanism: Mechanism) -> dict[str, Any]:
    """Return `mechanism` as nested dictionaries of JSON types, read back by `from_dict`.

    >>> to_dict(Sampled(Gaussian(1.0), 0.5))
    {'sampled': {'mechanism': {'gaussian': {'noise_multiplier': 1.0}}, 'probability': 0.5}}
    """
    match mechanism:
        case Gaussian(noise_multiplier):
            return {"gaussian": {"noise_multiplier": noise_multiplier}}
        case Laplace(noise_multiplier):
            return {"laplace": {"noise_multiplier": noise_multiplier}}
        case Sampled(inner, probability):
            return {"sampled": {"mechanism": to_dict(inner), "probability": probability}}
        case Repeated(inner, times):
            return {"repeated": {"mechanism": to_dict(inner), "times": times}}
        case Composed(mechanisms):
            return {"composed": {"mechanisms": [to_dict(m) for m in mechanisms]}}


def from_dict(data: Any) -> Mechanism:
    """Return the mechanism that `to_dict` described; raise `InputError` where it is none."""
    if not isinstance(data, dict) or len(data) != 1:
        raise InputError(f"mechanism: {data!r} is not of the form {{kind: fields}}")
    ((kind, fields),) = data.items()
    expected = {
        "gaussian": {"noise_multiplier"},
        "laplace": {"noise_multiplier"},
        "sampled": {"mechanism", "probability"},
        "repeated": {"mechanism", "times"},
        "composed": {"mechanisms"},
    }
    if kind not in expected:
        raise unknown("mechanism", kind, expected)
    if not isinstance(fields, dict) or set(fields) != expected[kind]:
        raise InputError(f"mechanism {kind}: {fields!r} must have just {sorted(expected[kind])}")
    match kind:
        case "gaussian":
            return Gaussian(**fields)
        case "laplace":
            return Laplace(**fields)
        case "sampled":
            return Sampled(from_dict(fields["mechanism"]), fields["probability"])
        case "repeated":
            return Repeated(from_dict(fields["mechanism"]), fields["times"])
        case _:
            if not isinstance(fields["mechanisms"], list):
                raise InputError("mechanism composed: 'mechanisms' must be a list")
            return Composed(*map(from_dict, fields["mechanisms"]))


def to_json(mechanism: Mechanism) -> str:
    """Return `mechanism` as one line of JSON."""
    return json.dumps(to_dict(mechanism), allow_nan=False)


def from_json(text: str) -> Mechanism:
    """Return the mechanism in a JSON `text`; raise `InputError` where it holds none."""
    try:
        return from_dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(f"mechanism: not JSON ({error}); give what to_json wrote") from None
