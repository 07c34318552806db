"""A run killed at any moment and resumed ends in the same parameters, bit by bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINEE = Path(__file__).with_name("trainee.py")


def killed(kills, steps, folder, path="proved"):
    done = subprocess.run(
        [sys.executable, str(TRAINEE), str(kills), str(steps), "7", str(folder), path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["identical"]
    assert found["journals_equal"]
    assert found["keys_deleted"]
    return found


@pytest.mark.slow
def test_killed_a_few_times(tmp_path):
    assert killed(5, 200, tmp_path)["killed"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["proved", "alone"])
def test_killed_thirty_times(tmp_path, path):
    found = killed(30, 1200, tmp_path, path)
    assert found["killed"] == 30
    assert found["steps_made_again"] > 0


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path):
    found = killed(100, 4000, tmp_path)
    assert found["killed"] == 100
    assert found["steps_made_again"] > 0
