"""A run that is shorter than a capture takes its records alone, and says so."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import SlowPathWarning
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer
from apiece.training.clipping import cache, tracing

N = 40


def squares(outputs, targets):
    return (outputs[:, 0] - targets).square()


def train(steps, method="auto", layers=40):
    """Return a trainer after steps of four records of a graph of some 20 operators a layer."""
    budgets = Budgets([1.0] * N, 1e-5)
    stage = Stage(steps, 4.0, 1.0, np.array([4 / N]), np.ones(1), None)
    plan = Plan("test", 1.0, budgets.groups, (stage,)).bind(budgets)
    torch.manual_seed(0)
    blocks = [part for _ in range(layers) for part in (nn.Linear(3, 3), nn.Tanh())]
    model = nn.Sequential(*blocks, nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(N, 3), torch.randn(N)
    run = Trainer(model, optimizer, squares, plan, data, seed=0, method=method)
    run.fit()
    return run


def test_few_records_of_a_large_graph_run_alone():
    with pytest.warns(SlowPathWarning, match="costs less .a graph of more than 512 operators"):
        run = train(steps=2)
    assert not run.proof.proved
    assert "the 8 records of the run" in run.proof.why


@pytest.mark.parametrize(("steps", "method", "layers"), [(2, "proved", 40), (2, "auto", 2)])
def test_a_graph_is_captured_where_it_pays_or_is_asked_for(steps, method, layers):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        assert train(steps, method, layers).proof.proved


def test_a_model_that_ran_alone_is_captured_by_who_asks_for_a_proof():
    with pytest.warns(SlowPathWarning):
        run = train(steps=1)
    rows = torch.randn(4, 3), torch.randn(4)
    from apiece.training import clip_and_sum

    clip_and_sum(run.model, squares, *rows, 1.0, method="proved")
    assert cache.proof_of(run.model).proved


def test_the_limit_ends_with_its_context():
    with tracing.limit_graphs(1, "too large"), pytest.raises(tracing.TooLarge, match="too large"):
        tracing.trace(lambda x: [x.exp().sin().cos()], fake())
    assert len(tracing.trace(lambda x: [x.exp().sin().cos()], fake()).graph.nodes) == 5


def fake():
    from apiece.training.clipping.capture import make_fakes

    (tensor,) = make_fakes([torch.zeros(2)], [False], 2)
    return tensor
