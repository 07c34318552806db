"""The closing table: every group of every strategy, ε rounded up, and what may be said of gains."""

import re
from dataclasses import replace

import pytest

from apiece._text import rounded_up
from apiece.reporting.closing import accuracy_text, closing_table, gains, release_title
from sample_runs import sample_run


def test_every_strategy_has_a_column_and_every_group_a_row() -> None:
    run = sample_run()
    lines = closing_table(run).splitlines()
    assert lines[0].split()[-len(run.strategies) :] == [s.strategy for s in run.strategies]
    for g, group in enumerate(run.strategies[0].promises):
        (line,) = [line for line in lines if line.strip().startswith(group.name)]
        spent = [rounded_up(s.promises[g].epsilon_spent) for s in run.strategies]
        assert re.sub(r"\([^)]*\)", "", line).split()[-len(spent) :] == spent


@pytest.mark.parametrize(
    ("spent", "shown"),
    [(0.99991, "1"), (1.00001, "1.001"), (12.3456, "12.35"), (0.0012341, "0.001235")],
)
def test_what_is_spent_is_never_shown_smaller(spent: float, shown: str) -> None:
    assert rounded_up(spent) == shown
    assert float(shown) >= spent


def test_gains_are_over_uniform_and_need_a_spread() -> None:
    run = sample_run()
    names = [s.strategy for s in run.strategies]
    uniform = replace(run.strategies[0], strategy="uniform", test_accuracy=(0.5, 0.6))
    other = replace(run.strategies[0], strategy="scale", test_accuracy=(0.7, 0.8))
    (gain,) = gains(replace(run, strategies=(uniform, other), strategy="scale"))
    assert (gain.strategy, gain.gain) == ("scale", pytest.approx(0.2))
    assert gain.spread == pytest.approx(0.1)
    alone = replace(uniform, test_accuracy=(0.5,))
    assert gains(replace(run, strategies=(alone, other), strategy="scale")) == []
    assert names


def test_the_verdict_is_that_of_the_checklist() -> None:
    run = sample_run()
    assert f"{release_title(run.release)}:" in closing_table(run)
    assert accuracy_text([]) == "not tested"
