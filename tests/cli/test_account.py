"""apiece account: flags, JSON on stdin and plan files in; JSON, a table and a figure out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from apiece.accounting import privacy_curve
from apiece.assignment import Scale, assign
from apiece.budgets import Budgets
from apiece.cli import run as main
from apiece.cli.account import command
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import Gaussian, Laplace, Repeated, Sampled
from apiece.mechanisms.algebra import to_dict

FLAGS = ["--noise-multiplier", "1.0", "--sampling-probability", "0.02", "--steps", "1465"]


def run(*arguments: str, stdin: str | None = None) -> str:
    result = CliRunner().invoke(command, arguments, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_mechanism_by_flags() -> None:
    document: dict[str, Any] = json.loads(run(*FLAGS, "--delta", "1e-5", "--json"))
    mechanism = Repeated(Sampled(Gaussian(1.0), 0.02), 1465)
    curve = privacy_curve(mechanism)
    assert document == {
        "epsilon": curve.epsilon(1e-5)._asdict(),
        "delta": 1e-5,
        "advantage": curve.advantage().upper,
        # A coin lowers no ρ: 1465 steps of 1/2 each.
        "rho": pytest.approx(732.5, rel=1e-12),
        "relation": "add_remove",
        "method": "pld",
        "mechanism": to_dict(mechanism),
    }


def test_words_for_people() -> None:
    text = run("--noise-multiplier", "2", "--delta", "1e-5")
    assert "at most 1.99" in text
    assert "Of 1,000 people like you" in text


@pytest.mark.parametrize("method", ["pld", "rdp", "gdp", "best"])
def test_every_method(method: str) -> None:
    document = json.loads(
        run("--noise-multiplier", "4", "--steps", "3", "--delta=1e-6", "--json", "--method", method)
    )
    exact = privacy_curve(Repeated(Gaussian(4.0), 3), method="gdp").epsilon(1e-6)
    assert document["method"] == method
    assert document["epsilon"]["lower"] <= exact.upper
    assert exact.lower <= document["epsilon"]["upper"]


def test_list_on_stdin() -> None:
    mechanisms = [Gaussian(2.0), Laplace(3.0), Repeated(Sampled(Gaussian(1.0), 0.1), 7)]
    document = json.loads(
        run("-", "--delta", "1e-6", "--json", stdin=json.dumps(list(map(to_dict, mechanisms))))
    )
    for result, mechanism in zip(document["results"], mechanisms, strict=True):
        assert result["mechanism"] == to_dict(mechanism)
        assert result["epsilon"] == privacy_curve(mechanism).epsilon(1e-6)._asdict()


def test_single_object_on_stdin() -> None:
    document = json.loads(
        run("-", "--delta", "1e-6", "--json", stdin=json.dumps(to_dict(Gaussian(2.0))))
    )
    assert document["mechanism"] == to_dict(Gaussian(2.0))


def test_plan_file(tmp_path: Path) -> None:
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 100, 1e-5)
    plan = assign(budgets, Scale(), steps=10, expected_batch_size=20, clip_norm=1.0)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    results = json.loads(run(str(path), "--json"))["results"]
    for result, group in zip(results, plan.groups, strict=True):
        assert (result["name"], result["epsilon_asked"]) == (group.name, group.epsilon)
        assert result["epsilon"]["upper"] <= group.epsilon
    table = run(str(path)).splitlines()
    assert table[2].startswith("strict")
    assert "epsilon_asked" not in json.loads(run(str(path), "--delta=1e-9", "--json"))["results"][0]


def test_plot_is_a_png_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    run(*FLAGS, "--delta", "1e-5", "--figure", str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--delta", "1e-5"], "--noise-multiplier: missing"),
        (["--noise-multiplier", "1"], "--delta: missing"),
        (["--noise-multiplier", "0", "--delta", "1e-5"], "noise_multiplier = 0"),
        (["--noise-multiplier", "nan", "--delta", "1e-5"], "noise_multiplier = nan"),
        ([*FLAGS, "--delta", "0"], "delta = 0"),
        ([*FLAGS, "--delta", "nan"], "delta = nan"),
        (["--noise-multiplier", "1", "--steps", "0", "--delta", "1e-5"], "--steps = 0"),
        (
            ["--noise-multiplier", "1", "--sampling-probability", "2", "--delta", "1e-5"],
            "--sampling-probability = 2",
        ),
        ([*FLAGS, "--delta", "1e-5", "--method", "rpd"], "did you mean 'rdp'"),
        (["missing.json"], "missing.json: cannot be read"),
        (["-", *FLAGS], "given twice"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["account", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("apiece account: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "stdin", ["", "[]", "3", "[{}]", '[{"gaussian": {"noise_multiplier": 0}}]']
)
def test_bad_stdin(stdin: str) -> None:
    with pytest.raises(InputError):
        run("-", "--delta", "1e-5", stdin=stdin)


def test_which_of_many_is_named() -> None:
    data = json.dumps([to_dict(Gaussian(1.0)), to_dict(Laplace(1.0))])
    with pytest.raises(UnsupportedError, match=r"mechanism 1: .*Laplace"):
        run("-", "--delta", "1e-5", "--method", "gdp", stdin=data)


def test_starts_without_heavy_imports() -> None:
    code = (
        "import sys; from apiece.cli import run; run(['account', '--help']); "
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"
