"""Torch's generators are put back after a trial, and seeded for a step."""

import pytest
import torch

from apiece.training.clipping.ambient import model_randomness, put_back, states, trial

CPU = [torch.device("cpu")]


def test_a_trial_draws_nothing_of_the_run_s():
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    with trial(CPU):
        torch.rand(9)
    with pytest.raises(ZeroDivisionError), trial(CPU):
        _ = torch.rand(9) / (1 // 0)
    assert torch.equal(torch.rand(4), wanted)


def test_states_are_put_back():
    before = states(CPU)
    first = torch.rand(4)
    put_back(before)
    assert torch.equal(torch.rand(4), first)


def test_a_step_draws_by_its_seed_alone():
    def drawn(seed):
        torch.rand(3)
        with model_randomness(seed, CPU):
            return torch.rand(4)

    before = torch.get_rng_state()
    with model_randomness(1, CPU):
        torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn(7), drawn(7))
    assert not torch.equal(drawn(7), drawn(8))
