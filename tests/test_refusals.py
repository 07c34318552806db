"""The comparison of errors by the facts that they name sees an error of the same type."""

import pytest

from apiece.errors import BudgetError, DataError, InputError
from refusals import refused, unnamed_facts

MESSAGE = "batch_size = 1,200: must be at most 1000.5, or use --all ('x[1]' is 3e-05)"


@pytest.mark.parametrize(
    ("facts", "lacking"),
    [
        (("batch_size", 1200, 1000.5, "--all", "x[1]", 3e-5), []),
        (("batch", "size", "all"), ["batch", "size"]),
        ((120, 200, 1000, 5), [120, 200, 1000, 5]),
        (("at most 1000.5", "x[2]"), ["x[2]"]),
    ],
)
def test_facts_are_whole_words_and_numbers(facts: tuple[str, ...], lacking: list[str]) -> None:
    assert unnamed_facts(MESSAGE, facts) == lacking


def test_another_error_of_the_type_is_seen() -> None:
    with refused(InputError, "steps", 3) as caught:
        raise InputError("steps = 3: must be below 2")
    assert "must be" in str(caught.value)
    with pytest.raises(AssertionError, match="does not name"), refused(InputError, "steps", 3):
        raise InputError("steps = 4: must be below 2")
    with pytest.raises(BudgetError), refused(DataError, "steps"):
        raise BudgetError("steps = 3")
    with pytest.raises(pytest.fail.Exception), refused(InputError, "steps"):
        pass
