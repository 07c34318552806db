"""What is done to one record, described as small frozen values.

A mechanism is a description: accountants, planners, trainers and reports interpret it. The
algebra is closed: `Sampled`, `Repeated` and `Composed` take any mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from apiece import _check
from apiece.errors import InputError
from apiece.mechanisms.discrete_gaussian import DiscreteGaussian
from apiece.mechanisms.discrete_laplace import DiscreteLaplace
from apiece.mechanisms.finite import Finite
from apiece.mechanisms.gaussian import Gaussian
from apiece.mechanisms.laplace import Laplace
from apiece.mechanisms.mixture import MixtureOfGaussians

# A new mechanism is a file beside this one and a name in this line.
Primitive: TypeAlias = (
    Gaussian | Laplace | DiscreteGaussian | DiscreteLaplace | Finite | MixtureOfGaussians
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """`mechanism`, run on a record that joins with `probability` by a coin that stays secret.

    The dominating pair (P, Q) becomes ((1−q)Q + qP, Q). One coin covers the whole of `mechanism`:
    `Sampled(Repeated(m, k), q)` tosses once, `Repeated(Sampled(m, q), k)` tosses k times.
    Probability 0 is the mechanism that never sees the record; probability 1 is `mechanism`.

    Args:
        mechanism: What is run if the coin shows heads; itself no `Sampled`.
        probability: The chance of heads, in [0, 1].

    Raises:
        InputError: Where the probability is not in [0, 1], `mechanism` is none, or a `Sampled`
            stands directly inside a `Sampled`: with one coin it would amplify twice, and two
            independent coins are one coin of probability p·q.

    References:
        Balle, Barthe, Gaboardi 2018.

    Example:
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

    Args:
        mechanism: What is run each time.
        times: How often, at least 1.

    Raises:
        InputError: Where `times` is no whole number of at least 1, or `mechanism` is none.

    Example:
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

    Args:
        *mechanisms: The parts; their order does not change a privacy curve.

    Raises:
        InputError: Where a part is no mechanism.

    Example:
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


Mechanism: TypeAlias = Primitive | Sampled | Repeated | Composed


def require_mechanism(where: str, value: object) -> None:
    """Raise unless `value` is a mechanism.

    Args:
        where: What is being made, for the message.
        value: Anything.

    Raises:
        InputError: Where `value` is no mechanism.

    Example:
        >>> require_mechanism("Sampled", Gaussian(1.0))
    """
    if not isinstance(value, get_args(Mechanism)):
        raise InputError(f"{where}: {value!r} is not a mechanism; give Gaussian(…), Sampled(…), …")
