"""One normal form: equal for equal multisets of steps, whatever tree describes them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from apiece.mechanisms import Composed, Finite, Gaussian, Mechanism, Repeated, Sampled
from apiece.mechanisms.algebra import atoms_of, flatten

from .random_trees import laws, mechanisms


@laws
@given(mechanisms)
def test_flatten_is_a_normal_form(mechanism: Mechanism) -> None:
    steps = flatten(mechanism)
    assert flatten(Composed(*(Repeated(step, times) for step, times in steps))) == steps
    assert len({step for step, _ in steps}) == len(steps)
    assert sum(isinstance(step, Gaussian) for step, _ in steps) <= 1


@laws
@given(mechanisms, st.integers(1, 5))
def test_repeating_is_composing_copies(mechanism: Mechanism, times: int) -> None:
    repeated, copies = (
        flatten(Repeated(mechanism, times)),
        flatten(Composed(*[mechanism] * times)),
    )
    assert len(repeated) == len(copies)
    for (one, n), (other, k) in zip(repeated, copies, strict=True):
        assert n == k
        if isinstance(one, Gaussian):
            assert isinstance(other, Gaussian)
            assert math.isclose(one.noise_multiplier, other.noise_multiplier, rel_tol=1e-14)
        else:
            assert one == other


def test_identities() -> None:
    step = Sampled(Gaussian(1.0), 0.1)
    assert flatten(Composed()) == flatten(Sampled(Gaussian(1.0), 0.0)) == ()
    assert flatten(Sampled(Gaussian(2.0), 1.0)) == ((Gaussian(2.0), 1),)
    assert flatten(Composed(step, Composed(), step)) == flatten(Repeated(step, 2)) == ((step, 2),)
    assert flatten(Composed(Gaussian(1.0), Gaussian(1.0))) == ((Gaussian(1 / math.sqrt(2)), 1),)
    assert flatten(Sampled(Repeated(Gaussian(2.0), 4), 0.5)) == ((Sampled(Gaussian(1.0), 0.5), 1),)


def test_two_independent_coins_are_one() -> None:
    nested = Sampled(Repeated(Sampled(Gaussian(1.0), 0.5), 1), 0.25)
    assert flatten(nested) == ((Sampled(Gaussian(1.0), 0.125), 1),)


def test_a_coin_before_several_steps_stays_one_coin() -> None:
    nested = Sampled(Repeated(Sampled(Gaussian(1.0), 0.5), 3), 0.25)
    assert flatten(nested) == ((nested, 1),)


def test_atoms_of_a_step_are_those_behind_its_coin() -> None:
    inner = Finite([0.75, 0.25], [0.5, 0.5])
    (step, _), *rest = flatten(Sampled(inner, 0.5))
    atoms = atoms_of(step)
    assert not rest
    assert atoms is not None
    assert [round(math.exp(x), 12) for x in atoms.log_ratio] == [0.75, 1.25]
    assert atoms.mass.tolist() == [0.5, 0.5]
    assert atoms_of(Sampled(Gaussian(1.0), 0.5)) is None
