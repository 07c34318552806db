"""The sentences say the counts, and what is no budget has none."""

import math
import re

import pytest

from apiece.accounting import privacy_curve
from apiece.contract import explain
from apiece.errors import BudgetError, InputError
from apiece.mechanisms import Gaussian, Repeated, Sampled


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_sentences_say_the_counts(delta: float) -> None:
    explanation = explain(1.5, delta)
    said = {
        int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", " ".join(explanation.sentences))
    }
    assert {v for v in explanation.frequencies.to_dict().values() if v is not None} <= said
    assert ("give you away" in " ".join(explanation.sentences)) == (delta > 0)
    consent = explanation.consent("a study\x1b[31m")
    assert all(sentence in consent for sentence in explanation.sentences + explanation.limits)
    assert "\x1b" not in consent
    assert "[what the result is for]" in explanation.consent()


def test_beliefs_before_and_after_are_told_of_the_same_crowd() -> None:
    explanation = explain(1.5, 1e-6)
    n = explanation.frequencies
    assert re.findall(r"(\d[\d,]*) (?:in|of) ([\d,]*\d)", explanation.sentences[4]) == [
        ("1", f"{n.surprise:,}"),
        ("500", "1,000"),
        (f"{n.belief}", "1,000"),
        ("1", "1,000"),
        (f"{n.rare_belief}", "1,000"),
    ]


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 1e-5),
        (-1.0, 1e-5),
        (math.nan, 1e-5),
        (math.inf, 1e-5),
        (2000.0, 1e-5),
        (1.0, -1e-9),
        (1.0, 1.0),
        (1.0, math.nan),
        (1.0, "x"),
        ("x", 1e-5),
    ],
)
def test_what_is_no_budget_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError):
        explain(epsilon, delta)


def test_a_curve_that_spends_more_is_refused() -> None:
    curve = privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.01), 1000))
    with pytest.raises(BudgetError, match="more than 1"):
        explain(1.0, 1e-5, curve=curve)
