"""What each record gives where a shared tensor meets the records, against autograd alone."""

import pytest
import torch

from apiece.training.clipping.paths import meeting
from apiece.training.clipping.rules.rule import NotBookable

B, T, D = 3, 4, 5


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(B, T, D, dtype=torch.float64)


def alone(function, shared, x, back):
    """Return each record's gradient of the shared tensor."""
    return torch.stack([
        torch.autograd.grad(function(shared, x[k : k + 1]), shared, back[k : k + 1])[0]
        for k in range(B)
    ])  # fmt: skip


@pytest.mark.parametrize("shape", [(D,), (T, D), (1, T, D), (), (T, 1), (1, 1, 1)])
def test_broadcasts(x, shape):
    shared = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    full, back = shared.expand(B, T, D), torch.randn_like(x)
    found = meeting.broadcast(shared, full, B).gives(back).per_record()
    assert torch.allclose(found, alone(lambda s, v: s.expand_as(v), shared, x, back))


def test_a_first_dimension_that_is_not_the_records_is_refused(x):
    shared = torch.randn(D, requires_grad=True)
    with pytest.raises(NotBookable, match="not the records"):
        meeting.broadcast(shared, shared.expand(T, D), B)
    with pytest.raises(NotBookable, match="not the records"):
        meeting.broadcast(torch.randn(B, D, requires_grad=True), torch.ones(B, D) * shared, B)


def test_matrices_and_tables(x):
    weight = torch.randn(2, D, dtype=torch.float64, requires_grad=True)
    out, back = x @ weight.T, torch.randn(B, T, 2, dtype=torch.float64)
    found = meeting.linear(weight, out, x, B).gives(back).per_record()
    assert torch.allclose(found, alone(lambda w, v: v @ w.T, weight, x, back))
    turned = weight.detach().T.clone().requires_grad_()
    found = meeting.linear(turned, x @ turned, x, B, turned=True).gives(back).per_record()
    assert torch.allclose(found, alone(lambda w, v: v @ w, turned, x, back))
    table = torch.randn(7, D, dtype=torch.float64, requires_grad=True)
    index, back = torch.randint(0, 7, (B, T)), torch.randn_like(x)
    use = meeting.lookup(table, table[index], index, B, skip=None)
    wanted = torch.stack([
        torch.autograd.grad(table[index[k]], table, back[k])[0] for k in range(B)
    ])  # fmt: skip
    assert torch.allclose(use.gives(back).per_record(), wanted)


def test_any_function_record_by_record(x):
    shared = torch.randn(T, D, dtype=torch.float64, requires_grad=True)
    out, back = torch.atan2(x, shared), torch.randn_like(x)
    (use,) = meeting.apart(torch.atan2, (x, shared), {}, out, [shared], B)
    found = use.gives(back).per_record()
    assert torch.allclose(found, alone(lambda s, v: torch.atan2(v, s), shared, x, back))


def test_records_that_are_overwritten_after_the_meeting_are_refused(x):
    shared = torch.randn(D, dtype=torch.float64, requires_grad=True)
    use = meeting.broadcast(shared, x * shared, B, [x])
    use.check()
    x.mul_(2)
    with pytest.raises(NotBookable, match="in place"):
        use.check()
