"""apiece plan: flags and files in, JSON and a table out."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from apiece import cli
from apiece.cli.plan import command, format_budget
from apiece.errors import ApieceError, DataError, InputError
from apiece.plan import Plan

from .options import instead

FLAGS = [
    "--records",
    "1000",
    "--groups",
    "strict:1:0.4,weak:3:0.6",
    "--delta",
    "1e-5",
    "--batch-size",
    "100",
    "--steps",
    "10",
    "--clip-norm",
    "0.5",
]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_is_one_document_of_the_plan() -> None:
    plan = json.loads(run(*FLAGS, "--strategy", "scale", "--json"))
    assert plan["strategy"] == "scale"
    assert [g["name"] for g in plan["groups"]] == ["strict", "weak"]
    for group in plan["groups"]:
        assert group["epsilon_spent"] <= group["epsilon"]


def test_table_for_people() -> None:
    text = run(*FLAGS, "--strategy", "uniform", "--option", "budget=loosest")
    assert "BROKEN" in text
    assert "NOT FOR RELEASE" in text
    assert "strict" in run(*FLAGS, "--strategy", "threshold", "--option", "epsilon=3")


def test_the_table_shows_who_spends_more_and_nobody_else() -> None:
    """ε spent is printed rounded up, above ε asked just where it is above."""
    for seed in range(200):
        r = np.random.default_rng(seed)
        asked = float(round(r.uniform(0.01, 20), int(r.integers(0, 17)))) or 0.5
        spent = asked * (1 + float(r.choice([-1, 1])) * 10 ** r.uniform(-16, -1))
        for one in (spent, asked, float(np.nextafter(asked, 0)), float(np.nextafter(asked, 99))):
            asks, spends = map(float, format_budget(asked, one))
            assert (spends > asks) == (one > asked), (seed, asked, one)
            assert spends >= one, (seed, asked, one)
            assert asks == pytest.approx(asked, rel=1e-3), (seed, asked, one)


def test_a_plan_that_keeps_its_promises_never_prints_more_than_was_asked() -> None:
    """Half of it, asked of many groups: rounding up .49991 to four digits gives .5, not .5001."""
    epsilon = [0.5, 0.50004, 0.4999, 0.123456, 9.99999, 1 / 3]
    groups = ",".join(f"g{i}:{e!r}:100" for i, e in enumerate(epsilon))
    flags = ["--records", "600", "--groups", groups, "--delta", "1e-5", "--batch-size", "60"]
    text = run(*flags, "--steps", "5", "--strategy", "scale")
    lines = [line.split() for line in text.splitlines() if line.startswith("g")]
    names, *rows = [line for line in lines if line[0] != "g"]
    assert [names[0], *names[2:4]] == ["group", "asked", "spent"]
    assert len(rows) == 6
    assert all(float(cells[3]) <= float(cells[2]) for cells in rows)
    assert max(map(len, text.splitlines())) <= 80


def test_out_and_from(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    printed = run(*FLAGS, "--strategy", "scale", "--json", "--out", str(path))
    assert json.loads(path.read_text()) == json.loads(printed)
    assert json.loads(run("--from", str(path), "--json")) == json.loads(printed)
    data = json.loads(printed)
    data["noise_stddev"] /= 3
    path.write_text(json.dumps(data))
    with pytest.raises(ApieceError, match="claims noise_multiplier"):
        run("--from", str(path))
    for group in data["groups"]:
        group["noise_multiplier"] /= 3
    path.write_text(json.dumps(data))
    with pytest.raises(ApieceError, match="spends epsilon"):
        run("--from", str(path))
    path.write_text("[" * 100_000)
    with pytest.raises(ApieceError, match="not JSON"):
        run("--from", str(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json"]


def test_data_with_a_budget_column(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    rows = "".join(f"{i},{1 + i % 2}\n" for i in range(50))
    path.write_text("id,consent\n" + rows)
    flags = ["--data", str(path), "--delta", "1e-5", "--batch-size", "5", "--steps", "4"]
    plan = json.loads(
        run(*flags, "--epsilon", "consent", "--ids", "id", "--strategy", "scale", "--json")
    )
    assert [g["records"] for g in plan["groups"]] == [25, 25]
    with pytest.raises(DataError, match="did you mean 'consent'"):
        run(*flags, "--epsilon", "consnt")
    with pytest.raises(InputError, match="--epsilon: missing"):
        run(*flags)


def test_a_table_of_visits_is_planned_by_person(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    rows = "".join(f"p{i % 40},{1 + i % 2}\n" for i in range(100))
    path.write_text("who,consent\n" + rows)
    flags = ["--data", str(path), "--delta", "1e-5", "--batch-size", "5", "--steps", "4"]
    flags += ["--epsilon", "consent", "--strategy", "scale"]
    plan = json.loads(run(*flags, "--person", "who", "--json"))
    assert [g["records"] for g in plan["groups"]] == [20, 20]
    assert plan["unit"] == "person"
    shown = run(*flags, "--person", "who")
    assert "scale: 40 persons, 4 steps" in shown
    assert "records" not in shown
    with pytest.raises(InputError, match="a column of --data"):
        run(*FLAGS, "--person", "who")
    with pytest.raises(InputError, match="ids, person: both"):
        run(*flags, "--person", "who", "--ids", "who")
    path.write_text("who,consent\n" + rows + "p3,7\n")
    with pytest.raises(DataError, match="1 of 40 persons"):
        run(*flags, "--person", "who")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--strategy", "sampel"], "did you mean 'sample'"),
        (["--option", "nois=mean"], "did you mean 'noise'"),
        (["--option", "noise"], "not name=value"),
        (["--groups", "strict:1"], "not name:epsilon:share"),
        (["--groups", "strict:one:1"], "with two numbers"),
        (["--groups", "strict:nan:1"], "epsilon of strict"),
        (["--delta", "1"], "delta"),
        (["--batch-size", "1001"], "there are 1000 records"),
        (["--steps", "0"], "steps = 0"),
        (["--data", "x.csv"], "given twice"),
        (["--from", "nowhere.json"], "has its own; leave it out"),
    ],
)
def test_bad_input_is_a_typed_error(flags: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(*instead(FLAGS, *flags))


def test_nothing_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(DataError, match="cannot be written"):
        run(*FLAGS, "--strategy", "scale", "--out", str(tmp_path / "file" / "plan.json"))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


INFEASIBLE = {
    "steps": ["--strategy", "sequential", "--steps", "1"],
    "rounds": ["--strategy", "rounds", "--steps", "2"],
    "threshold": ["--strategy", "threshold", "--option", "epsilon=9"],
    "empty group": ["--groups", "a:1:0.9999,b:2:0.0001"],
    "shares": ["--groups", "a:1:0.5,b:2:0.6"],
    "no budget": ["--groups", "a:0:1"],
    "bound": ["--strategy", "hybrid"],
}


@pytest.mark.parametrize("case", INFEASIBLE)
def test_infeasible_from_the_command_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert cli.run(["plan", *FLAGS, *INFEASIBLE[case], "--out", str(out), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("apiece plan: ")
    assert list(tmp_path.iterdir()) == []


def test_strategies_side_by_side() -> None:
    text = run(*FLAGS, "--strategy", "scale", "--compare", "--parameters", "10")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:4] == ["strategy", "over", "signal", "uniform"]
    names = [line.split()[0] for line in lines[3:8]]
    assert names == ["uniform", "scale", "sample", "hybrid", "threshold"]
    whole = json.loads(run(*FLAGS, "--compare", "--parameters", "10", "--classes", "2", "--json"))
    told, base = whole["strategies"], whole["strategies"][0]["noise_over_signal"]
    assert whole["relative_noise"] == pytest.approx(base * (10 / 10) ** 0.5)
    for each in told:
        assert each["below_uniform"] == pytest.approx(base / each["noise_over_signal"])
    assert told[2]["below_uniform"] > told[0]["below_uniform"] == 1
    low, high = whole["measured_gain"]["over_uniform"]
    assert f"sample gained {low:+.1f} to {high:+.1f}" in " ".join(text.split())
    predicted = whole["predicted_gain"]
    assert predicted.keys() == set(names) - {"uniform"}
    assert predicted["hybrid"] is None  # was not measured
    assert predicted["sample"]["low"] < predicted["sample"]["points"] < predicted["sample"]["high"]
    assert [each["strategy"] for each in told] == names
    alone = json.loads(run(*FLAGS, "--strategy", "scale", "--json"))
    assert told[1]["excess"] == max(group["excess_forward"] for group in alone["groups"])
    with pytest.raises(InputError, match="leave --from and --out out"):
        run(*FLAGS, "--compare", "--out", "p.json")
    with pytest.raises(InputError, match="--gaussian: prints one plan"):
        run(*FLAGS, "--compare", "--gaussian")
    with pytest.raises(InputError, match="are for --compare"):
        run(*FLAGS, "--parameters", "10")


def test_a_prediction_is_told_with_its_interval_or_not_at_all() -> None:
    flags = [*FLAGS, "--compare", "--parameters", "10", "--classes", "2"]
    gain = json.loads(run(*flags, "--json"))["predicted_gain"]["sample"]
    text = " ".join(run(*flags).split())
    assert f"{gain['points']:+.1f} points over uniform; {gain['low']:+.1f} to" in text
    assert f"to {gain['high']:+.1f} with a chance of 80 % or more" in text
    cyclic = " ".join(run(*flags, "--noise", "cyclic").split())
    assert "No prediction for sample, cyclic: its gains were not measured." in cyclic
    correlated = json.loads(run(*flags, "--noise", "correlated", "--json"))["predicted_gain"]
    assert correlated["threshold, correlated"] is None
    assert "scale, correlated" in " ".join(run(*flags, "--noise", "correlated").split())


def test_nothing_is_gained_is_an_answer() -> None:
    groups = ["--groups", "strict:1:0.01,weak:3:0.99"]  # leaving out a hundredth costs nothing
    text = run(*instead(FLAGS, *groups), "--compare", "--parameters", "10")
    assert text.splitlines()[-1].startswith("Nothing here")


SAMPLED = [
    *["--records", "200", "--groups", "strict:1:0.5,weak:3:0.5", "--delta", "1e-5"],
    *["--batch-size", "20", "--steps", "40", "--clip-norm", "1"],
]
REQUEST = [*SAMPLED, "--noise", "correlated"]


def test_a_plan_without_sampling_from_flags(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    text = run(*REQUEST, "--strategy", "epochs", "--out", str(out))
    assert "joined" in text
    assert "correlated noise" in text
    plan = Plan.from_json(out.read_text())
    assert plan.stages[0].correlated is not None
    assert plan.stages[0].times is not None
    assert plan.stages[0].times.tolist() == [1, 4]
    assert "correlated noise" in run("--from", str(out))


def test_correlated_noise_stands_beside_sampling() -> None:
    rows = json.loads(run(*REQUEST, "--compare", "--json"))["strategies"]
    names = [row["strategy"] for row in rows]
    assert "scale" in names
    assert "scale, correlated" in names


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--noise", "pink"], "correlated"),
        (["--bands", "3"], "--noise correlated"),
        (["--noise", "correlated", "--strategy", "sample"], "epochs"),
        (["--noise", "correlated", "--momentum", "1"], "momentum"),
    ],
)
def test_what_correlated_noise_cannot_be_is_refused(flags: list[str], fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        run(*SAMPLED, *flags)
