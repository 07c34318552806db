"""Mechanisms are values with an algebra: equality, hashing, JSON both ways, one normal form."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import InputError, OptionError
from apiece.mechanisms import (
    Composed,
    Gaussian,
    Laplace,
    Mechanism,
    Repeated,
    Sampled,
    flatten,
    from_dict,
    from_json,
    to_dict,
    to_json,
)

noise = st.floats(0.1, 100.0)
leaves = st.one_of(st.builds(Gaussian, noise), st.builds(Laplace, noise))


def _grow(inner: st.SearchStrategy[Mechanism]) -> st.SearchStrategy[Mechanism]:
    uncoined = inner.filter(lambda m: not isinstance(m, Sampled))
    return st.one_of(
        st.builds(Sampled, uncoined, st.floats(0.0, 1.0)),
        st.builds(Repeated, inner, st.integers(1, 1000)),
        st.lists(inner, max_size=3).map(lambda ms: Composed(*ms)),
    )


mechanisms = st.recursive(leaves, _grow, max_leaves=6)
laws = settings(max_examples=60, derandomize=True, deadline=None)


@laws
@given(mechanisms)
def test_json_and_repr_both_ways(mechanism: Mechanism) -> None:
    assert from_json(to_json(mechanism)) == mechanism
    assert from_dict(to_dict(mechanism)) == mechanism
    assert eval(repr(mechanism)) == mechanism
    assert hash(from_json(to_json(mechanism))) == hash(mechanism)


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


def test_double_amplification_by_one_coin_raises() -> None:
    with pytest.raises(InputError, match="one coin amplifies once"):
        Sampled(Sampled(Gaussian(1.0), 0.1), 0.1)


@pytest.mark.parametrize("z", [0, -1, math.nan, math.inf, "1", True, None])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_bad_noise_is_rejected(kind: type[Gaussian], z: object) -> None:
    with pytest.raises(InputError, match="noise_multiplier"):
        kind(z)  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, "x"])
def test_bad_probability_is_rejected(q: object) -> None:
    with pytest.raises(InputError, match="probability"):
        Sampled(Gaussian(1.0), q)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [0, -1, 1.5, math.nan, "2", True])
def test_bad_times_are_rejected(times: object) -> None:
    with pytest.raises(InputError, match="times"):
        Repeated(Gaussian(1.0), times)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"gaussian": {}}',
        '{"gaussian": {"noise_multiplier": NaN}}',
        '{"gaussian": {"noise_multiplier": 1, "q": 2}}',
        '{"composed": {"mechanisms": 3}}',
        '{"sampled": {"mechanism": 1, "probability": 0.1}}',
    ],
)
def test_bad_json_is_rejected(text: str) -> None:
    with pytest.raises(InputError):
        from_json(text)


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'gaussian'"):
        from_json('{"gausian": {"noise_multiplier": 1}}')


def test_only_mechanisms_compose() -> None:
    for wrong in (lambda: Sampled(1, 0.5), lambda: Repeated("m", 2), lambda: Composed(None)):
        with pytest.raises(InputError, match="not a mechanism"):
            wrong()  # type: ignore[no-untyped-call]
