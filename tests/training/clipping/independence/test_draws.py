"""What one record draws is given to all, in any company."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from apiece.training.clipping.independence.draws import Draws

DRAWING = {
    "dropout": nn.Dropout(0.5),
    "dropout of channels": nn.Dropout1d(0.5),
    "alpha dropout": nn.AlphaDropout(0.5),
    "noise": lambda x: x + torch.randn_like(x),
    "noise by shape": lambda x: x + torch.rand(x.shape),
    "noise in place": lambda x: x + torch.empty_like(x).normal_(),
    "coins": lambda x: x * torch.bernoulli(torch.full_like(x, 0.4)),
    "coins in place": lambda x: x * torch.empty_like(x).bernoulli_(torch.full_like(x, 0.4)),
    "leaky": nn.RReLU().train(),
    "python": lambda x: x * random.random(),
    "numpy": lambda x: x * float(np.random.rand()),  # noqa: NPY002
    "one for all": lambda x: x * torch.rand(()),
}


@pytest.mark.parametrize("name", DRAWING)
def test_company_draws_what_one_drew(name):
    function, x = DRAWING[name], torch.ones(6, 5, 4)
    draws = Draws()
    with draws.first():
        alone = function(x[:1])
    for size in (1, 6):
        with draws.again():
            together = function(x[:size])
        for row in together:
            torch.testing.assert_close(row, alone[0])
    assert not draws.strayed


def test_a_run_s_generators_are_left_alone():
    states = random.getstate(), torch.get_rng_state()
    draws = Draws()
    with draws.first():
        torch.rand(3)
        random.random()
    with draws.again():
        torch.rand(3)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


@pytest.mark.parametrize(
    "function",
    [lambda x: x + torch.poisson(x.abs()), lambda x: x + torch.rand(len(x) + 1, 1)[:1],
     lambda x: x + (torch.rand(3) if len(x) > 1 else torch.rand(1, 3))],
)  # fmt: skip
def test_what_cannot_be_given_again_is_said(function):
    draws = Draws()
    with draws.first():
        function(torch.ones(1, 3))
    with draws.again():
        function(torch.ones(4, 3))
    assert draws.strayed


def test_another_number_of_draws_is_said():
    draws = Draws()
    with draws.first():
        torch.rand(1, 3)
    with draws.again():
        torch.rand(4, 3), torch.rand(4, 3)
    assert draws.strayed
