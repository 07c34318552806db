"""Mechanisms as JSON: both ways, and nothing else is believed."""

import pytest
from hypothesis import given

from apiece import mechanisms as mechanisms_of_apiece
from apiece.errors import InputError, OptionError
from apiece.mechanisms import Mechanism, from_json
from apiece.mechanisms.algebra import from_dict, to_dict, to_json

from .random_trees import laws, mechanisms


@laws
@given(mechanisms)
def test_json_and_repr_both_ways(mechanism: Mechanism) -> None:
    assert from_json(to_json(mechanism)) == mechanism
    assert from_dict(to_dict(mechanism)) == mechanism
    assert eval(repr(mechanism), vars(mechanisms_of_apiece)) == mechanism
    assert hash(from_json(to_json(mechanism))) == hash(mechanism)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"gaussian": {"noise_multiplier": 1, "noise_multiplier": 2}}',
        "[" * 100_000,
        '{"repeated": {"times": ' + "9" * 5000 + "}}",
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
