"""Trees of tensors with the records first."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import ClippedSum, records
from apiece.training.clipping.records import add_up, clip_factors, slack

Pair = namedtuple("Pair", "left right")
TREES = [
    torch.arange(6.0).view(3, 2),
    (torch.ones(3), [torch.zeros(3, 2), 5]),
    {"x": torch.ones(3, 1), "y": {"z": torch.zeros(3)}},
    Pair(torch.ones(3), torch.zeros(3)),
]


@pytest.mark.parametrize("tree", TREES, ids=lambda t: type(t).__name__)
def test_trees_keep_their_form(tree):
    same = records.tree_map(lambda t: t, tree)
    assert type(same) is type(tree)
    tensors = records.leaves(tree)
    doubled = records.fill(tree, [2 * t for t in tensors])
    for one, two in zip(tensors, records.leaves(doubled), strict=True):
        assert torch.equal(2 * one, two)
    assert all(len(t) == 2 for t in records.leaves(records.select(tree, slice(0, 2))))
    assert records.count(tree, torch.zeros(3)) == 3


def test_a_mapping_gives_keywords_and_a_tuple_positions():
    def model(*args, **kwargs):
        return args, kwargs

    one = torch.ones(1)
    assert records.call(model, {"a": one}) == ((), {"a": one})
    assert records.call(model, (one, 2)) == ((one, 2), {})
    assert records.call(model, one) == ((one,), {})


REFUSED = {
    "other lengths": ((torch.ones(3), torch.ones(2)), InputError, "one record per first"),
    "no dimension": (torch.tensor(1.0), InputError, "one record per first"),
    "no tensor": ({"a": 3}, InputError, "no tensor"),
    "sparse": (torch.eye(3).to_sparse(), UnsupportedError, "sparse_coo"),
    "sparse inside": ({"a": [torch.eye(3).to_sparse()]}, UnsupportedError, "sparse_coo"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_are_refused(name):
    tree, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        records.count(tree, torch.ones(3))


@pytest.mark.parametrize(
    ("losses", "words"),
    [(torch.tensor(1.0), "one loss a record"), (torch.ones(2), "3 records"),
     (torch.ones(3, dtype=torch.complex64), "must be real"), (3.0, "returned float")],
)  # fmt: skip
def test_losses_that_are_refused(losses, words):
    with pytest.raises(InputError, match=words):
        records.check_losses(losses, 3, nn.MSELoss())


def test_parts_cover_the_batch():
    batch = records.Batch(nn.Linear(1, 1), {}, None, torch.arange(5.0), torch.zeros(5),
                          torch.arange(5.0))  # fmt: skip
    parts = list(batch.parts(2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert torch.cat([part.inputs for part in parts]).tolist() == [0, 1, 2, 3, 4]


def of(*values):
    bounds = torch.tensor([1.0] * len(values)).double()
    norms = torch.tensor(values)
    return ClippedSum({"w": norms.nansum(0, keepdim=True)}, norms, norms, bounds)


def test_sums_add_up_by_record():
    total = of(1.0, 2.0) + of(4.0)
    assert total.gradients["w"].item() == 7
    assert len(total) == 3
    assert total.clip_norms.shape == (3,)
    again = add_up([of(1.0, 2.0), of(4.0)])
    assert again.gradients["w"].item() == 7
    assert again.norms.tolist() == [1.0, 2.0, 4.0]
    one = of(1.0)
    assert add_up([one]) is one


def test_rejected_are_those_that_are_not_finite():
    assert of(1.0, float("nan"), float("inf")).rejected == 2


def test_sums_of_other_models_do_not_add():
    other = ClippedSum({"v": torch.ones(1)}, *[torch.ones(1)] * 3)
    with pytest.raises(InputError, match="different parameters"):
        of(1.0) + other
    with pytest.raises(TypeError):
        of(1.0) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_leave_the_slack(dtype):
    torch.manual_seed(0)
    norms = (10 ** torch.empty(20_000, dtype=torch.float64).uniform_(-15, 15)).to(dtype)
    bounds = 10 ** torch.empty(20_000, dtype=torch.float64).uniform_(-12, 3)
    factors = clip_factors(norms, bounds)
    assert factors.dtype == dtype
    assert bool((factors.double() * norms.double() <= bounds * (1 - slack(dtype) / 2)).all())
    assert bool((factors <= 1).all())
    few = factors < 1
    exact = bounds / norms.double()
    assert bool((factors.double() >= exact * (1 - 1.1 * slack(dtype)))[few].all())
    assert bool((bounds * (1 - slack(dtype)) <= norms.double() * (1 + 1e-6))[few].all())


def test_factors_of_what_has_no_norm_or_no_bound():
    norms = torch.tensor([[torch.nan, torch.inf, 0.0], [0.0, 3.0, 3.0]])
    bounds = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 6.0]])
    assert clip_factors(norms, bounds).tolist() == [[0, 0, 1], [0, 0, 1]]
    assert bounds[0, 0] == 1  # what was given is left as it is
