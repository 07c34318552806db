"""A use of a parameter that nobody noted is found on the graph, whatever its gradient."""

import torch

from apiece.training.clipping.paths.complete import missed


def made(gate=1.0):
    """Return x → layer → scale, with the graph's nodes at the layer and at its input."""
    weight, scale = (torch.ones(3, requires_grad=True) for _ in range(2))
    given = torch.ones(3, requires_grad=True) * 2
    layer = given * weight
    return weight, scale, given, layer, (layer * (gate * scale)).sum()


def test_what_is_noted_is_not_missed():
    weight, _, given, layer, loss = made()
    trained = {id(weight)}
    assert missed([loss.grad_fn], {}, trained) == id(weight)
    assert missed([loss.grad_fn], {layer.grad_fn: (given.grad_fn,)}, trained) is None


def test_a_use_beside_what_is_noted_is_missed_even_with_a_gradient_of_zero():
    weight, scale, given, layer, loss = made(gate=0.0)
    stops = {layer.grad_fn: (given.grad_fn,)}
    assert missed([loss.grad_fn], stops, {id(weight), id(scale)}) == id(scale)
    again = (loss + weight.sum() * 0).sum()
    assert missed([again.grad_fn], stops, {id(weight)}) == id(weight)


def test_the_walk_goes_on_behind_what_is_noted():
    early = torch.ones(3, requires_grad=True)
    given = early * 2
    layer = given * torch.ones(3, requires_grad=True)
    stops = {layer.grad_fn: (given.grad_fn,)}
    assert missed([layer.sum().grad_fn], stops, {id(early)}) == id(early)
    assert missed([layer.sum().grad_fn], {layer.grad_fn: ()}, {id(early)}) is None
