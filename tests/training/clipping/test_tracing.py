"""A trace notes all that is done to a tensor, and takes nothing unseen for a constant."""

import pytest
import torch

from apiece.training.clipping import torch_internals
from apiece.training.clipping.table import name_of
from apiece.training.clipping.tracing import current_tracer, trace

MODE = torch_internals.fake_mode()


def fake(*shape, **options):
    return MODE.from_tensor(torch.zeros(*shape, **options))


def names(function, *tensors):
    graph = trace(function, *tensors).graph
    return [name_of(node) for node in graph.nodes if node.op == "call_function"]


def test_operators_stand_in_the_order_in_which_they_run_and_run_as_they_did():
    def function(x, y):
        top, bottom = (x @ y).exp().split(1)
        return [top.sin() + 2 * bottom, x.relu()]

    graph = trace(function, fake(2, 3), fake(3, 4))
    calls = [name_of(node) for node in graph.graph.nodes if node.op == "call_function"]
    assert calls[:3] == ["mm", "exp", "split"]
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    for found, wanted in zip(graph(x, y), function(x, y), strict=True):
        assert torch.equal(found, wanted)


def test_gradients_are_nodes_too():
    def function(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(x.tanh().square().sum(), [x])
        return [gradient]

    graph = trace(function, fake(5))
    x = torch.randn(5)
    assert torch.equal(graph(x)[0], function(x)[0])
    assert "tanh_backward" in names(function, fake(5))


def test_what_is_written_in_place_is_read_from_there_on():
    def function(x):
        y = x.clone()
        y.add_(1).t_()
        return [y * 2]

    graph = trace(function, fake(2, 3))
    x = torch.randn(2, 3)
    assert torch.equal(graph(x)[0], (x + 1).t() * 2)
    clone = next(node for node in graph.graph.nodes if name_of(node) == "clone")
    assert tuple(clone.meta["val"].shape) == (2, 3)  # as it was, though it is turned later


def test_tensors_with_values_are_constants():
    held = torch.arange(3.0)
    graph = trace(lambda x: [x + held + torch.tensor(2.0)], fake(3))
    held_values = torch.arange(3.0)
    assert torch.equal(graph(torch.ones(3))[0], held_values + 3)
    assert sum(node.op == "get_attr" for node in graph.graph.nodes) == 2


def test_a_tensor_without_values_from_elsewhere_is_no_constant():
    """It would be the same for every record, whatever record it was made of."""
    elsewhere = fake(3)
    with pytest.raises(RuntimeError, match="no operator of torch is seen"):
        trace(lambda x: [x + elsewhere], fake(3))


def test_a_tracer_is_the_current_one_within_a_trace_alone():
    found = []
    trace(lambda x: [found.append(current_tracer()) or x.exp()], fake(2))
    assert found[0] is not None
    assert current_tracer() is None
    with pytest.raises(ZeroDivisionError):
        trace(lambda x: [1 / 0], fake(2))
    assert current_tracer() is None


def test_operators_with_a_kernel_of_their_own_stay_whole():
    """Autograd would not write them in others: `silu` and its backward are two operators."""

    def function(x):
        x = x.detach().requires_grad_()
        return list(torch.autograd.grad(torch.nn.functional.silu(x).sum(), [x]))

    found = names(function, fake(4))
    assert "silu" in found
    assert "silu_backward" in found
