"""What sections show: numbers of the plan, of held-out people, of declared columns."""

from dataclasses import replace

import numpy as np
import pytest

from apiece import Budgets, Sample, assign, report
from apiece.jobs.trained import Accuracies, Interval, Level
from apiece.reporting import sections
from apiece.reporting.sections import subject_of
from sample_runs import sample_plan, sample_run

TESTED = Accuracies(
    Interval(0.8, 0.7, 0.9),
    (Interval(0.75, 0.6, 0.9), None),
    ((0.75, 0.25), None),
    (Interval(0.9, 0.8, 0.95), Interval(0.5, 0.4, 0.6)),
    ((2, 0.6), (4, 0.8)),
)
COLUMNS = {
    "age": {"kind": "numeric", "lower": 0.0, "upper": 99.5, "scale": "log", "missing": ["?"]},
    "town": {"kind": "categorical", "values": ["A", "<b>"], "missing": []},
    "born": {"kind": "date", "lower": "1900-01-01", "upper": "2010-12-31", "missing": []},
}


def test_influence_is_of_people_rates_and_norms() -> None:
    budgets = Budgets([1.0] * 300 + [4.0] * 100, 1e-3)
    plan = assign(budgets, Sample(), steps=4, expected_batch_size=40, clip_norm=1.0)
    told = sections.influence(subject_of(plan, []))
    assert told is not None
    people, joining, pull = np.array([row[1:] for row in told["rows"]]).T
    assert people.tolist() == [0.75, 0.25]
    assert joining.sum() == pytest.approx(1)
    assert joining[0] < 0.75  # the strict join less
    assert pull == pytest.approx(joining)  # Sample has one clip norm


def test_a_contract_is_kept_as_the_check_says() -> None:
    from apiece import contract

    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-3, excess=[0.5] * 50 + [1e-9] * 50)
    plan = assign(budgets, Sample(), steps=4, expected_batch_size=20, clip_norm=1.0)
    verdict = contract.check(plan)
    told = sections.contract(subject_of(plan, []))["clauses"]
    assert [row[-1] for row in told] == [clause.kept for clause in verdict] == [True, False]
    assert [row[2] for row in told] == pytest.approx([c.forward for c in verdict])


def test_accuracy_by_class_and_group_is_on_the_page() -> None:
    run = replace(sample_run(), tested=TESTED)
    page = report(run).html
    for words in ("80.0 % [70.0, 90.0]", "75.0 % [60.0, 90.0]", "nobody", "taken for a"):
        assert words in page
    assert "50.0 % [40.0, 60.0]" in page.split('id="fit"')[1]
    assert "The learning curve" in page
    public = report(run, edition="public").html
    assert "80.0 %" not in public
    assert "taken for" not in public


def test_declared_columns_are_on_both_pages() -> None:
    run = replace(sample_run(), data=replace(sample_run().data, columns=COLUMNS))
    for edition in ("internal", "public"):
        page = report(run, edition=edition).html
        for words in ("number from 0 to 99.5, on a logarithmic scale", "one of A, &lt;b&gt;"):
            assert words in page
        assert "date from 1900-01-01 to 2010-12-31" in page


def test_fingerprints_are_for_the_steward() -> None:
    data = replace(sample_run().data, fingerprints={"people.csv": "ab" * 32})
    run = replace(sample_run(), data=data)
    assert "ab" * 32 in report(run).html
    assert "ab" * 32 not in report(run, edition="public").html
    assert "people.csv" not in report(run, edition="public").html


def test_levels_say_what_they_mean_of_1000_people() -> None:
    run = replace(sample_run(), levels=(Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3)))
    page = report(run, edition="public").html
    assert "732 of 1,000" in page
    assert "whether anybody took it is not told" in page
    assert "were not declared" in report(sample_run(), edition="public").html


def test_a_plan_of_several_stages_has_no_one_rate() -> None:
    plan = assign(
        Budgets([1.0] * 50 + [3.0] * 50, 1e-3), "rounds", steps=4, expected_batch_size=20,
        clip_norm=1.0,
    )  # fmt: skip
    assert len(plan.stages) > 1
    assert sections.influence(subject_of(plan, [])) is None
    assert sections.rates(subject_of(plan, [])) is None
    assert "What was promised" in report(plan).html


def test_small_groups_are_warned_of() -> None:
    plan = assign(
        Budgets([1.0] * 91 + [3.0] * 9, 1e-3), "scale", steps=4, expected_batch_size=20,
        clip_norm=1.0,
    )  # fmt: skip
    assert "have fewer than 10 people" in report(plan).html
    assert "have fewer than 10 people" not in report(sample_plan("scale")).html
