"""A layer rule beside a loop of one record at a time in double precision."""

import copy

import torch
from torch.autograd.graph import get_gradient_edge

from apiece.training.clipping.rules import LayerUse, rule_for

RECORDS = 5


def doubled(tree):
    if isinstance(tree, torch.Tensor):
        return tree.double() if tree.is_floating_point() else tree
    return tree


def one_at_a_time(layer, inputs, gradients, call):
    """Return each record's gradients, name → (B, *shape), by autograd in double precision."""
    layer = copy.deepcopy(layer).double()
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    rows = []
    for i in range(len(inputs)):
        outputs = call(layer, doubled(inputs[i : i + 1]), slice(i, i + 1))
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
        made = [o for o, _ in pairs]
        given = [doubled(g[:, i : i + 1] if g.dim() != o.dim() or len(g) != len(inputs)
                         else g[i : i + 1]) for o, g in pairs]  # fmt: skip
        of = [layer.get_parameter(name) for name in names]
        rows.append(torch.autograd.grad(made, of, given))
    return {name: torch.stack(rows_) for name, rows_ in zip(names, zip(*rows, strict=True),
                                                            strict=True)}  # fmt: skip


def plainly(layer, values, _where):
    return (layer(values),)


def hold(layer, inputs, *, call=plainly, kwargs=None, states=False, tolerance=1e-4):
    """Hold the rule's contributions to the loop: squares, sums, one by one, without some."""
    torch.manual_seed(1)
    rule = rule_for(layer)
    assert rule is not None
    with torch.enable_grad():
        outputs = [o for o in call(layer, inputs, slice(None)) if o.requires_grad]
    assert all(get_gradient_edge(o) for o in outputs)
    gradients = [torch.randn_like(o) for o in outputs]
    if not states:
        gradients[1:] = [None] * len(gradients[1:])
    wanted = one_at_a_time(layer, inputs, gradients, call)
    kept = outputs[0].detach() if rule.remakes else None
    use = LayerUse("layer", inputs.detach(), gradients, kwargs or {}, kept)
    with torch.no_grad():
        found = rule.gives(layer, use)
    assert found.keys() == wanted.keys()
    weights = torch.rand(len(inputs), dtype=torch.float64)
    bad = torch.zeros(len(inputs), dtype=torch.bool)
    bad[1] = True
    for name, part in found.items():
        exact = wanted[name]
        scale = float(exact.abs().max()) + 1e-30
        squares = exact.flatten(1).square().sum(1)
        room = tolerance * float(squares.max() + 1e-30)
        torch.testing.assert_close(
            part.per_record().double(), exact, rtol=0, atol=tolerance * scale
        )
        torch.testing.assert_close(part.squares().double(), squares, rtol=0, atol=room)
        assert bool((part.squares().double() >= squares * (1 - 2.0**-17) - 1e-30).all())
        torch.testing.assert_close(part.smooth_squares().double(), squares, rtol=0, atol=room)
        total = torch.einsum("b,b...->...", weights, exact)
        some = part.weighted(weights.to(inputs_type(use)))
        torch.testing.assert_close(some.double(), total, rtol=0, atol=5 * tolerance * scale)
        without = part.without(bad).per_record()
        assert not without[1].any()
        torch.testing.assert_close(without[0], part.per_record()[0])
    return found


def inputs_type(use):
    return next(g.dtype for g in use.gradients if g is not None)


def frozen(layer, *names):
    for name in names:
        layer.get_parameter(name).requires_grad_(False)
    return layer


def smooth(layer, inputs):
    """Hold the derivative of the rule's squared norms, by the input, to finite differences."""
    layer, inputs = layer.double(), inputs.double().requires_grad_()
    rule = rule_for(layer)

    def squares(values):
        out = layer(values)
        (error,) = torch.autograd.grad(out.square().sum(), out, create_graph=True)
        parts = rule.gives(layer, LayerUse("layer", values, [error], {}))
        return sum(part.smooth_squares() for part in parts.values()).sum()

    assert torch.autograd.gradcheck(squares, [inputs], atol=1e-5)
