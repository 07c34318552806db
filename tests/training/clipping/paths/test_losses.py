"""Cross-entropy by hand is autograd's to the bit; every other loss goes through autograd."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError
from apiece.training.clipping.paths import losses


def by_autograd(loss_fn, outputs, targets):
    outputs = outputs.clone().requires_grad_()
    found = loss_fn(outputs, targets)
    return found.detach(), torch.autograd.grad(found.sum(), outputs)[0]


PLAIN = nn.CrossEntropyLoss(reduction="none")
LOSSES = {
    "plain": PLAIN,
    "one class ignored": nn.CrossEntropyLoss(reduction="none", ignore_index=2),
    "weights": nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 0.5, 1.0])),
    "smoothed": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
    "function": lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_is_autograd_to_the_bit(name):
    torch.manual_seed(0)
    outputs, targets = 5 * torch.randn(64, 4), torch.randint(0, 4, (64,))
    wanted = by_autograd(LOSSES[name], outputs, targets)
    found = losses.with_gradient(LOSSES[name], outputs.clone(), targets)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not found[0].requires_grad


def test_what_is_done_by_hand():
    outputs, classes = torch.randn(3, 4), torch.tensor([0, 1, 3])
    taken = {n: losses._is_plain(f, outputs, classes) for n, f in LOSSES.items()}
    assert taken == {n: n in ("plain", "one class ignored") for n in LOSSES}
    assert not losses._is_plain(PLAIN, outputs, torch.rand(3, 4))  # chances, not classes
    assert not losses._is_plain(nn.CrossEntropyLoss(), outputs, classes)
    hooked = nn.CrossEntropyLoss(reduction="none")
    hooked.register_forward_hook(lambda *_: None)
    assert not losses._is_plain(hooked, outputs, classes)


def test_a_class_that_is_not_there_is_an_error():
    with pytest.raises((IndexError, RuntimeError)):
        losses.with_gradient(PLAIN, torch.randn(3, 4), torch.tensor([0, 1, 4]))


def test_reduced_and_constant_losses():
    outputs, classes = torch.randn(3, 4), torch.tensor([0, 1, 3])
    with pytest.raises(InputError, match="reduction is 'mean'"):
        losses.with_gradient(nn.CrossEntropyLoss(), outputs, classes)
    assert losses.with_gradient(lambda o, t: torch.zeros(3), outputs, classes)[1] is None
