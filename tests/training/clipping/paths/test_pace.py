"""How many records are worked on at a time: a function of the model and of one record's shape."""

import sys

import pytest
import torch
from torch import nn

from apiece.training.clipping.paths import pace


def test_a_part_leaves_as_much_behind_as_the_cache_holds():
    model = nn.Sequential(nn.Linear(4, 1000), nn.ReLU())
    assert pace.most_at_a_time(model, torch.randn(3, 4)) == pace._CACHE // 2000


def test_many_parameters_want_wide_parts():
    model = nn.Sequential(nn.Linear(4, 1000), nn.ReLU())
    model.table = nn.Parameter(torch.empty(pace._CACHE), requires_grad=False)  # read, if frozen
    most = pace.most_at_a_time(model, torch.randn(3, 4))
    assert most == pace._WORTH * (pace._CACHE + 5000) // 2000


def test_many_layers_want_wide_parts():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))
    assert pace.most_at_a_time(model, torch.randn(3, 8)) == 50 * pace._EACH // 400


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("short", [0, 1, 5])
def test_parts_are_as_even_as_they_can_be(parts, short):
    model, inputs = nn.Linear(4, 5000), torch.randn(2, 4)
    most = pace.most_at_a_time(model, inputs)
    size = parts * most - short
    width = pace.records_at_a_time(model, inputs, size)
    assert width <= most
    assert -(-size // width) == parts


def test_a_wide_record_is_a_part():
    wide = nn.Sequential(nn.Linear(1, 1), nn.Upsample(scale_factor=5_000_000))
    assert pace.records_at_a_time(wide, torch.randn(3, 1, 1), 3) == 1


def test_on_an_accelerator_the_batch_is_one_part():
    inputs = torch.empty(10, 4, device="meta")
    assert pace.most_at_a_time(nn.Linear(4, 4), inputs) == sys.maxsize
    assert pace.records_at_a_time(nn.Linear(4, 4), inputs, 10) == 10


def test_finding_out_draws_nothing():
    state = torch.get_rng_state()
    pace.records_at_a_time(nn.Dropout(0.5), torch.randn(3, 4, generator=torch.Generator()), 3)
    assert torch.equal(torch.get_rng_state(), state)
