"""The short way for linear layers at one position: norms, sums, shared and frozen parameters."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.clipped import slack
from apiece.training.clipping.paths.chain import Link
from apiece.training.clipping.paths.dense import clip_dense, is_dense
from apiece.training.clipping.records import Batch

B = 6


def made(*, frozen=()):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 7), nn.Linear(7, 3, bias=False), nn.Linear(3, 300)]
    model = nn.Sequential(*layers)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    links = [
        Link(layer, torch.randn(B, layer.in_features), torch.randn(B, layer.out_features), True)
        for layer in layers
    ]
    return model, links


def batch_of(model, bounds):
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Batch(model, parameters, None, torch.zeros(B, 4), torch.zeros(B), bounds)


def loop(model, links, bounds):
    """Return the sum and norms in double precision, record by record."""
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for p, name in names.items()}
    norms = []
    for i in range(B):
        own = {}
        for layer, right, left, _ in links:
            if layer.weight in names:
                own[names[layer.weight]] = torch.outer(left[i].double(), right[i].double())
            if layer.bias is not None and layer.bias in names:
                own[names[layer.bias]] = left[i].double()
        norm = torch.sqrt(sum(g.square().sum() for g in own.values()))
        norms.append(norm)
        for name, g in own.items():
            sums[name] += g * min(1.0, float(bounds[i]) / float(norm))
    return sums, torch.stack(norms)


@pytest.mark.parametrize("frozen", [(), ("0.weight",), ("2.bias", "1.weight"), ("0.bias",)])
def test_is_the_loop(frozen):
    model, links = made(frozen=frozen)
    bounds = torch.linspace(0.1, 500, B).double()
    wanted, norms = loop(model, links, bounds)
    found = clip_dense([link._replace(left=link.left.clone()) for link in links],
                       batch_of(model, bounds), torch.zeros(B))  # fmt: skip
    torch.testing.assert_close(found.norms.double(), norms, rtol=1e-5, atol=0)
    assert found.gradients.keys() == wanted.keys()
    for name, value in wanted.items():
        room = 10 * slack(torch.float32) * float(value.abs().max())
        torch.testing.assert_close(found.gradients[name].double(), value, rtol=0, atol=room)


def test_gradients_that_are_not_ours_are_left_as_they_are():
    model, links = made()
    links = [link._replace(ours=False) for link in links]
    before = [link.left.clone() for link in links]
    clip_dense(links, batch_of(model, torch.full((B,), 0.1).double()), torch.zeros(B))
    assert all(torch.equal(link.left, was) for link, was in zip(links, before, strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_record_that_is_not_finite_adds_nothing(bad):
    model, links = made()
    bounds = torch.full((B,), 0.1).double()
    links[1].right[2, 0] = bad
    found = clip_dense(links, batch_of(model, bounds), torch.zeros(B))
    assert found.rejected == 1
    assert all(bool(torch.isfinite(g).all()) for g in found.gradients.values())


def test_rows_of_no_record_add_nothing():
    model, links = made()
    bounds = torch.full((B,), 0.1).double()
    more = [Link(u.layer, torch.cat([u.right, u.right]), torch.cat([u.left, 0 * u.left]), False)
            for u in links]  # fmt: skip
    one = clip_dense([u._replace(ours=False) for u in links], batch_of(model, bounds),
                     torch.zeros(B))  # fmt: skip
    other = clip_dense(more, batch_of(model, bounds), torch.zeros(B))
    assert len(other) == B
    for name, value in one.gradients.items():
        torch.testing.assert_close(other.gradients[name], value)


def test_shared_parameters_are_for_another_way():
    layer = nn.Linear(3, 3)
    link = Link(layer, torch.zeros(1, 3), torch.zeros(1, 3), True)
    assert is_dense([link])
    assert not is_dense([link, link])
    assert not is_dense([])
