"""apiece risk --each: what it prints, and one line for every mistake."""

import json

import pytest

from apiece.cli import run as main

from .options import instead

EACH = [
    *("risk", "--each", "--records", "200", "--epsilon", "8", "--delta", "1e-6", "--others", "1,4"),
    *("--batch-size", "20", "--steps", "60", "--strategy", "scale"),
]


def test_each_population_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    document = json.loads(said(*EACH, "--json"))
    assert document["attack"] == "budget manipulation"
    assert [row["others"] for row in document["rows"]] == ["as asked", "at most 1", "at most 4"]
    for row in document["rows"]:
        assert row["epsilon_spent"] <= 8 * (1 + 1e-9)
        assert 0 < row["advantage"] < 1
    assert "as asked" in said(*EACH)
    shares = json.loads(said(*EACH, "--shares", "0.5,1", "--json"))
    assert shares["attack"] == "collusion"
    assert len(shares["rows"]) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--others", "two"], "--others"),
        (["--others", "-1"], "decoy"),
        (["--strategy", "scael"], "did you mean 'scale'"),
        (["--shares", "2"], "share"),
        (["--shares", "0.5", "--seed", "-1"], "--seed = -1"),
        (["--records", "1"], "--records"),
        (["--strategy", "hybrid"], "--excess: missing"),
        (["--excess", "0.02"], "--excess: scale keeps no bound"),
        (["--method", "rdp"], "--method: goes without --each"),
    ],
)
def test_each_mistakes(change: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(instead(EACH, *change)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_each_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from apiece.cli import run\n"
        f"status = run([*{EACH!r}, '--json'])\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
