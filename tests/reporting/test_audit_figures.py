"""Figures show the values that they are given."""

from pathlib import Path

import numpy as np
import pytest

from apiece.audit.membership import roc
from apiece.errors import InputError
from apiece.reporting import save
from refusals import refused
from research.experiments import audit_figures as figures


def test_roc_figure_draws_each_group_and_the_diagonal(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    member = generator.random(200) < 0.5
    curve = roc(generator.normal(size=200) + member, member)
    figure = figures.roc_figure({"all": curve, "weak": curve})
    axes = figure.axes[0]
    assert len(axes.lines) == 3
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), curve.tpr)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "weak" in axes.get_legend().get_texts()[1].get_text()
    save(figure, tmp_path / "roc.png")
    assert (tmp_path / "roc.png").read_bytes().startswith(b"\x89PNG")


def test_share_figure() -> None:
    figure = figures.share_figure([0.2, 0.8], {"strict": [0.1, 0.2], "weak": [0.3, 0.4]})
    assert figure.axes[0].lines[1].get_ydata().tolist() == [0.3, 0.4]
    floored = figures.share_figure([0.2, 0.8], {"strict": [0.1, 0.2]}, floor=0.07)
    assert set(floored.axes[0].lines[1].get_ydata()) == {0.07}
    with pytest.raises(InputError, match="means of strict"):
        figures.share_figure([0.2, 0.8], {"strict": [0.1]})


def test_spaghetti_colours_the_targets_that_rise() -> None:
    scores = [[0.1, 0.5], [0.4, 0.2]]
    figure = figures.spaghetti_figure([32.0, 4.0], scores)
    lines = figure.axes[0].lines
    assert len(lines) == 3
    assert lines[0].get_ydata().tolist() == [0.5, 0.1]
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_label() == "more vulnerable at 4 (1 of 2)"
    assert lines[2].get_ydata().tolist() == pytest.approx([0.35, 0.25])
    with refused(InputError, "scores"):
        figures.spaghetti_figure([1.0], scores)


def test_theory_beside_measurement() -> None:
    bounds = {"as asked": 0.3, "at most 1": 0.6}
    axes = figures.theory_figure(bounds, {"as asked": 0.1, "at most 1": 0.2}).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.3, 0.6]
    assert axes.lines[0].get_ydata().tolist() == [0.1, 0.2]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(bounds)
    assert len(figures.theory_figure(bounds).axes[0].lines) == 0
    with pytest.raises(InputError, match="measured"):
        figures.theory_figure(bounds, {"as asked": 0.1})


@pytest.mark.parametrize("count", [0, 8])
def test_too_few_or_too_many(count: int) -> None:
    curve = roc([1.0, 0.0], [1, 0])
    with pytest.raises(InputError, match=f"{count}; draw 1 to 7"):
        figures.roc_figure({str(i): curve for i in range(count)})
