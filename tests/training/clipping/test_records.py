"""Trees of tensors with the records first."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import records

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


def test_one_record_is_lifted_to_a_batch():
    assert records.lift({"x": torch.ones(2)})["x"].shape == (1, 2)


def test_arguments():
    one = torch.ones(1)
    assert records.arguments({"a": one}) == ((), {"a": one})
    assert records.arguments((one, 2)) == ((one, 2), {})
    assert records.arguments(one) == ((one,), {})


REFUSED = {
    "other lengths": ((torch.ones(3), torch.ones(2)), InputError, "one record per first"),
    "no dimension": (torch.tensor(1.0), InputError, "one record per first"),
    "no tensor": ({"a": 3}, InputError, "no tensor"),
    "sparse": (torch.eye(3).to_sparse(), UnsupportedError, "sparse_coo"),
    "sparse inside": ({"a": [torch.eye(3).to_sparse()]}, UnsupportedError, "sparse_coo"),
    "packed": (
        nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]),
        UnsupportedError,
        "PackedSequence",
    ),
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
