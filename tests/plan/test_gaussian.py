"""A plan's promise as one number that composes."""

import json
from typing import Any

import pytest

from apiece import Budgets, assign
from apiece.cli import run
from apiece.numerics.gaussian import gaussian_epsilon_above
from apiece.plan import Plan


def made() -> Plan:
    budgets = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
    return assign(budgets, "sample", steps=200, expected_batch_size=50, clip_norm=1.0)


def test_the_gaussian_of_a_group_says_hardly_more_than_its_epsilon() -> None:
    plan = made()
    for g, epsilon in enumerate(plan.epsilon_spent):
        found = plan.gaussian(g)
        assert found.slack == pytest.approx(1e-6)
        rest = (1e-5 - found.slack) / (1 - found.slack)
        assert epsilon <= gaussian_epsilon_above(found.mu, rest) <= 1.01 * epsilon
        assert 0 <= found.regret < 0.02
        assert plan.gaussian(g, slack=1e-8).mu > found.mu


def test_the_command_prints_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(made().to_json())
    words = ["plan", "--from", str(tmp_path / "plan.json"), "--gaussian"]
    assert run([*words, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["mu"] for group in groups] == [made().gaussian(g).mu for g in (0, 1)]
    assert run(words) == 0
    assert "regret" in capsys.readouterr().out
