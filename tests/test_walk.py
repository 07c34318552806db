"""A budget goes down through the packages, from the table to the plan, and is not passed up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("strategy", ["scale", pytest.param("sample", marks=pytest.mark.slow)])
def test_a_budget_climbs_only_where_a_solver_asks_back(strategy: str) -> None:
    words = [sys.executable, "benchmarks/walk.py", "--strategy", strategy, "--json"]
    found = subprocess.run(words, cwd=ROOT, env=os.environ, capture_output=True, check=True)
    walk = json.loads(found.stdout)
    assert {"budgets", "datasets", "assignment", "plan", "accounting"} <= set(walk["rooms"])
    assert len(walk["between"]) <= 2
    assert all(caller.startswith("numerics.") for caller, _, _ in walk["climbs"])
    assert all("<locals>" in entered for _, _, entered in walk["climbs"])  # handed down
