"""Cells of a lattice of log-ratios: nothing is lost, means are kept, atoms lie on the lattice."""

import math

import numpy as np
import pytest

from apiece.accounting.exact import log_ratio
from apiece.accounting.lattice.discretise import (
    align_step,
    build_dominating,
    cut_cells,
    cut_window,
    lowest_end,
    lowest_mean,
    measure_jump,
    shift_rho,
)
from apiece.accounting.lattice.pairs import GaussianPair, LaplacePair, Pair

PAIRS: tuple[Pair, ...] = (
    GaussianPair(1.3),
    GaussianPair(0.8, 0.05),
    LaplacePair(2.0),
    LaplacePair(1.5, 0.1),
)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_both_masses_are_kept_to_the_two_ends_of_each_cell(pair: Pair) -> None:
    window = pair.window(1e-12)
    lattice = build_dominating(pair, window, 0.03, cut_cells(pair, window, 0.03))
    ratio = np.exp(lattice.offset + lattice.step * np.arange(lattice.mass.size))
    assert (lattice.mass >= 0).all()
    assert math.fsum(lattice.mass) == pytest.approx(1, abs=1e-11)
    assert math.fsum(lattice.mass * ratio) == pytest.approx(1, abs=1e-11)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_a_cut_makes_all_above_it_a_jump(pair: Pair) -> None:
    window, q = pair.window(1e-12), pair.probability
    loss = 0.6 * log_ratio(window.high, q)
    less = cut_window(pair, window, loss)
    assert log_ratio(less.high, q) == pytest.approx(loss)
    rare = measure_jump(pair, less)
    lattice = build_dominating(pair, less, 0.03, cut_cells(pair, less, 0.03))
    assert math.fsum(lattice.mass) + rare.q == pytest.approx(1, abs=1e-11)
    assert rare.p >= rare.q * math.exp(rare.loss) * (1 - 1e-9)
    assert measure_jump(pair, window) == (0.0, 0.0, math.inf)
    assert cut_window(pair, window, 2 * log_ratio(window.high, q)) == window


@pytest.mark.parametrize("probability", [1.0, 0.4, 1e-6])
def test_inner_inverts_the_loss_behind_a_coin(probability: float) -> None:
    offsets = np.array([0.0, 1e-9, 0.3, 5.0, 80.0])
    rho = shift_rho(-2.0, offsets, probability)
    start = log_ratio(-2.0, probability)
    found = [log_ratio(float(each), probability) - start for each in rho]
    assert found == pytest.approx(offsets.tolist(), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("pair", PAIRS[2:], ids=repr)
def test_an_aligned_step_puts_both_atoms_on_the_lattice(pair: Pair) -> None:
    window, q = pair.window(0.0), pair.probability
    step = align_step(pair, window, 0.031)
    start = lowest_mean(pair, window, lowest_end(pair, window, step))
    steps = (log_ratio(window.high, q) - log_ratio(start, q)) / step
    assert 0 < step <= 0.031
    assert steps == pytest.approx(round(steps), abs=1e-6)
