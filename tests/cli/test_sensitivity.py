"""apiece sensitivity: the golden query, JSON for machines, one-line errors, whole files."""

import json
import math

import pytest

from apiece.cli import run

GOLDEN = ["sensitivity", "a**2 + exp(2*b - a)", "--range", "a=1:2", "--range", "b=.5:3"]


def answer(capsys, *arguments):
    assert run([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_golden_query(capsys):
    found = answer(capsys, *GOLDEN)
    assert found["lipschitz_constant"]["value"] == pytest.approx(330.972319594, rel=1e-11)
    assert found["lipschitz_constant"]["location"] == {"a": 1, "b": 3}
    assert found["lipschitz_constant"]["certified"] is True
    assert found["global_sensitivity"]["add_remove"]["value"] == pytest.approx(1 + math.exp(5))
    assert sum(found["loss_share"].values()) == pytest.approx(1)
    assert "sqrt" in found["gradient_norm"]["latex"]


def test_mean_of_five(capsys):
    found = answer(capsys, *GOLDEN, "--mean-of", "5")
    assert found["lipschitz_constant"]["upper"] == pytest.approx(66.19446391885754, rel=1e-13)


def test_loss_of_a_gaussian_release(capsys):
    found = answer(capsys, *GOLDEN, "--noise-stddev", "100", "--order", "8")
    worst = found["global_sensitivity"]["add_remove"]["upper"]
    assert found["gaussian"]["rdp"]["add_remove"] == pytest.approx(8 * worst**2 / 2e4)


def test_a_record_and_a_zero_gradient(capsys):
    found = answer(capsys, *GOLDEN, "--at", "a=1,b=3")["at"][0]
    assert found["gradient_norm"] == pytest.approx(330.972319594)
    assert found["raw"]["b"] > 0 > found["raw"]["a"]
    flat = ["sensitivity", "a**2", "--range", "a=-1:1", "--at", "a=0"]
    zero = answer(capsys, *flat)["at"][0]
    assert zero["zero"] is True
    assert zero["raw"] == {"a": 0}
    assert run(flat) == 0
    assert "defined as 0" in capsys.readouterr().out


def test_text_names_value_bound_and_place(capsys):
    assert run([*GOLDEN, "--noise-stddev", "10"]) == 0
    text = capsys.readouterr().out
    assert "330.972319594 at a=1, b=3; at most 330.9723195942" in text
    assert "∂‖∇f‖/∂b" in text
    assert "Rényi loss of order 2" in text


def test_figure_is_written_whole(capsys, tmp_path):
    path = tmp_path / "surface.svg"
    assert run([*GOLDEN, "--figure", str(path)]) == 0
    assert path.read_text().rstrip().endswith("</svg>")
    assert [p.name for p in tmp_path.iterdir()] == ["surface.svg"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["a + c", "--range", "a=1:2"],
        ["a", "--range", "a=1"],
        ["a", "--range", "a=1:x"],
        ["a", "--range", "a=0:inf"],
        ["a", "--range", "a=2:1"],
        ["a", "--range", "nonsense"],
        ["a"],
        ["abs(a)", "--range", "a=-1:1"],
        ["log(a)", "--range", "a=-1:1"],
        ["__import__('os')", "--range", "a=0:1"],
        ["a +", "--range", "a=0:1"],
        ["a", "--range", "a=0:1", "--at", "a=2"],
        ["a", "--range", "a=0:1", "--at", "b=2"],
        ["a", "--range", "a=0:1", "--at", "a:2"],
        ["a", "--range", "a=0:1", "--mean-of", "0"],
        ["a", "--range", "a=0:1", "--noise-stddev", "-1"],
        ["a", "--range", "a=0:1", "--noise-stddev", "1", "--order", "1"],
        ["a", "--range", "a=0:1", "--figure", "x.png"],
        ["a*b", "--range", "a=0:1", "--range", "b=0:1", "--figure", "x.bmp"],
        ["a*b", "--range", "a=0:1", "--range", "b=0:1", "--figure", "/proc/no/x.png"],
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert run(["sensitivity", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("apiece sensitivity: ")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_range_given_twice_is_refused(capsys):
    assert run(["sensitivity", "a", "--range", "a=0:1", "--range", "a=0:2"]) == 2
    assert "twice" in capsys.readouterr().err


@pytest.mark.parametrize("noise", ["1e-160", "1e-200", "1e-300", "5e-324"])
def test_a_loss_past_floating_point_numbers_is_refused_in_a_line(capsys, noise):
    for form in ([], ["--json"]):
        assert run([*GOLDEN, "--noise-stddev", noise, *form]) == 2
        assert capsys.readouterr().err.count("\n") == 1
