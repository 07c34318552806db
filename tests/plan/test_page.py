"""A plan in a notebook: what is public of it, escaped; small groups are counted and not shown."""

import re

import numpy as np
import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.plan import BoundPlan


def plan(epsilon: object, labels: object = None, strategy: str = "scale") -> BoundPlan:
    budgets = Budgets(epsilon, 1e-4, labels=labels)  # type: ignore[arg-type]
    return assign(budgets, strategy, steps=4, expected_batch_size=10, clip_norm=1.0)


def test_the_groups_are_a_table() -> None:
    page = plan([1.0] * 50 + [2.0] * 50)._repr_html_()
    assert page.count("<tr>") == 3
    assert "100 records, 4 steps" in page
    asked = re.findall(r"<td>50</td><td>(\d)</td><td>0.0001</td><td>([\d.]+)</td>", page)
    assert [a for a, _ in asked] == ["1", "2"]
    assert all(float(spent) <= float(a) for a, spent in asked)


def test_small_groups_are_counted_and_not_shown() -> None:
    page = plan([1.0] * 50 + [1.2345] * 9 + [1.2346] * 10)._repr_html_()
    assert "1.2345" not in page
    assert "1.2346" in page.replace("1.235", "1.2346")
    assert "1 groups of fewer than 10 records are not shown" in page


@pytest.mark.slow
def test_of_many_groups_twenty_are_shown() -> None:
    page = plan(np.repeat(np.linspace(1, 2, 25), 10))._repr_html_()
    assert page.count("<tr>") == 21
    assert "5 more groups are not shown" in page


def test_names_do_nothing() -> None:
    name = "<script>x</script>\x1b[31m"
    page = plan([1.0] * 50, [name] * 50)._repr_html_()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_what_must_not_be_released_says_so() -> None:
    page = plan([1.0] * 50 + [2.0] * 50, strategy="published_rounds")._repr_html_()
    assert "Not for release" in page


@pytest.mark.parametrize("many", [1, 3])
def test_stages_are_named_as_such(many: int) -> None:
    page = plan([1.0] * 50 + [2.0] * 50, strategy="scale" if many == 1 else "sequential")
    assert ("by stage" in page._repr_html_()) == (len(page.stages) > 1)
