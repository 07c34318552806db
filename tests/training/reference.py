"""What the engine must equal: one record at a time, in double precision, in plain PyTorch."""

import copy

import torch

from apiece.training import records


def one_at_a_time(model, loss_fn, inputs, targets, clip_norms):
    """Return (gradients, norms) of the clipped sum, record by record, in float64."""
    model = copy.deepcopy(model).double()
    wide = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    inputs, targets = records.tree_map(wide, inputs), records.tree_map(wide, targets)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    norms = []
    for i in range(len(clip_norms)):
        one = slice(i, i + 1)
        outputs = records.call(model, records.select(inputs, one))
        loss = loss_fn(outputs, records.select(targets, one)).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        found = [
            torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)
        ]
        norm = torch.sqrt(sum(g.square().sum() for g in found))
        factor = min(1.0, float(clip_norms[i]) / float(norm)) if norm > 0 else 1.0
        norms.append(norm)
        for sum_, g in zip(total, found, strict=True):
            sum_ += factor * g
    return dict(zip(names, total, strict=True)), torch.stack(norms).detach()


def assert_same(clipped, model, loss_fn, inputs, targets, tolerance=3e-5):
    """Assert that `clipped` equals the loop, relative to the size of the sum."""
    gradients, norms = one_at_a_time(model, loss_fn, inputs, targets, clipped.clip_norms)
    assert clipped.gradients.keys() == gradients.keys()
    scale = torch.sqrt(sum(g.square().sum() for g in gradients.values()))
    for name, expected in gradients.items():
        error = (clipped.gradients[name].double() - expected).norm() / scale
        assert error < tolerance, f"{name}: relative error {float(error):.2e}"
    torch.testing.assert_close(clipped.norms.double(), norms, rtol=tolerance, atol=1e-7)
