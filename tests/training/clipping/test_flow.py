"""Attacks on single operators: none lets a record, its place or their number reach another."""

import struct

import pytest
import torch
from torch.nn import functional

from apiece.training.clipping import proof, table
from apiece.training.clipping.graphs import FEW_RECORDS, Uncaptured, check_agreement
from apiece.training.clipping.table import SHARED, Records, Unproved

from .test_table import HINT, check, laid_out, rows, traced

aten = torch.ops.aten
W = torch.linspace(0.1, 1, 4096)
FEW = 6  # of many cases, one is fast


def lay(function):
    """Return the layouts of what a function makes of six values a record, and shared ones.

    Both captures that an engine makes must agree before.
    """
    graph, sizes = traced(function, [rows(6)], [W])
    other, _ = traced(function, [rows(6)], [W], FEW_RECORDS)
    check_agreement(graph, other, HINT)
    return laid_out(graph, sizes, 1)


NAN = float("nan")
INF = float("inf")
LARGEST = torch.finfo(torch.float32).max


def agree(function, other_function):
    """Return whether a capture of a function agrees with another capture of another one."""
    graph, _ = traced(function, [rows(6)], [W])
    other, _ = traced(other_function, [rows(6)], [W], FEW_RECORDS)
    try:
        check_agreement(graph, other, HINT)
    except Uncaptured:
        return False
    return True


@pytest.mark.parametrize(
    ("value", "other"),
    [(NAN, 0.0), (INF, LARGEST), (-INF, -LARGEST), (0.0, -0.0), (1.0, 1 + 2**-23)],
)
def test_constants_of_other_bits_are_other_constants(value, other):
    def times(number, kind):
        return lambda x, w: x[:, :2] * torch.tensor([1.0, number], dtype=kind)

    for kind in (torch.float64, torch.float32, torch.complex64):
        assert agree(times(value, kind), times(value, kind))
        assert agree(times(other, kind), times(other, kind))
        assert not agree(times(value, kind), times(other, kind))


def test_constants_of_another_form_are_other_constants():
    def times(*numbers, kind=torch.int64):
        return lambda x, w: x[:, : len(numbers)] * torch.tensor(numbers, dtype=kind)

    assert agree(times(2, 3), times(2, 3))
    assert agree(times(), times())
    assert not agree(times(2, 3), times(2, 4))
    assert not agree(times(2, 3), times(2, 3, kind=torch.int32))


def test_nan_of_any_bits_is_nan():
    def times(number):
        return lambda x, w: x * torch.tensor([number], dtype=torch.float64)

    bits = (0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000)
    first, *others = (struct.unpack("<d", number.to_bytes(8, "little"))[0] for number in bits)
    assert all(agree(times(first), times(other)) for other in others)


@pytest.mark.parametrize(
    ("value", "other"), [(0.0, -0.0), (1, 1.0), (True, 1), (True, 1.0), (NAN, 0.0), (INF, LARGEST)]
)
def test_numbers_that_are_only_equal_are_other_numbers(value, other):
    def add(number):
        return lambda x, w: torch.full_like(x, number) + x

    assert agree(add(value), add(value))
    assert agree(add(other), add(other))
    assert not agree(add(value), add(other))


def some(cases):
    """Return cases of which most are slow."""
    return [
        name if k % FEW == 0 else pytest.param(name, marks=pytest.mark.slow)
        for k, name in enumerate(cases)
    ]


@torch.library.custom_op("apiece_tests::neg", mutates_args=())
def named_as_one_of_torch(x: torch.Tensor) -> torch.Tensor:
    """An operator of somebody's library, which mixes the records."""
    return x.mean(0) - x


@named_as_one_of_torch.register_fake
def _(x):
    return torch.empty_like(x)


def bags_of_others(x, w):
    """A backward of bags whose indices are turned about before."""
    index = (x > 0).long().t().reshape(-1)
    none = torch.zeros(0, dtype=torch.long)
    return aten._embedding_bag_dense_backward(
        x, index, none, none, none, 9, False, 0, index.float()
    )


ATTACKS = {
    # a value of one record is a boundary, a place or a size for another
    "boundaries": lambda x, w: x * torch.bucketize(x[:, 0], x[:, 1]).unsqueeze(1),
    "places filled": lambda x, w: x.index_fill(1, (x[:, 0] > 0).long(), 0.0),
    "norms over columns": lambda x, w: aten.renorm(x, 2, 1, 0.5),
    "mean of draws": lambda x, w: torch.normal(x.sum(0), torch.ones_like(x)),
    "deviation of draws": lambda x, w: torch.normal(torch.zeros_like(x), x.sum(0).exp()),
    "a name of torch's": lambda x, w: named_as_one_of_torch(x),
    "a name of torch's, shared": lambda x, w: x * named_as_one_of_torch(w[:6]),
    "one hot of counts": lambda x, w: x * aten.one_hot((x > 0).sum(0), 6).sum(0),
    "counts looked up": lambda x, w: x * torch.searchsorted(w, x.sum(0)),
    "strides": lambda x, w: aten.as_strided(x, [x.shape[0], 6], [0, 1]),
    "strides of a view": lambda x, w: aten._reshape_alias(x, [x.shape[0], 6], [0, 1]),
    "entries in one place": lambda x, w: torch.empty_strided((x.shape[0], 6), (1, 1)).copy_(x) + x,
    "bags of others": bags_of_others,
    # the records' own places, made other ones
    "numbers as values": lambda x, w: x * torch.arange(x.shape[0]).unsqueeze(1),
    "numbers below the diagonal": lambda x, w: x[
        torch.arange(x.shape[0])[None].tril()[0:1].squeeze(0)
    ],
    "numbers above": lambda x, w: x[torch.arange(x.shape[0])[None].triu(1).squeeze(0)],
    "numbers padded": lambda x, w: x[
        functional.pad(torch.arange(x.shape[0])[None], [0, 0, 1, -1])[0:].squeeze(0)
    ],
    "numbers searched": lambda x, w: x[torch.searchsorted(w[:1], torch.arange(x.shape[0]).float())],
    "every other number": lambda x, w: x[torch.arange(x.shape[0]).unfold(0, 1, 2).squeeze(1)],
    "numbers in a slice": lambda x, w: x[
        aten.slice_backward(torch.arange(x.shape[0])[None], [2, x.shape[0]], 0, 1, 2, 1)[
            :1
        ].squeeze(0)
    ],
    "one hot numbers": lambda x, w: x[aten.one_hot(torch.arange(x.shape[0]), 9)[:, 0]],
    # the number of records becomes a value
    "size as an order": lambda x, w: x * w.norm(p=x.shape[0]),
    "size as a correction": lambda x, w: x * torch.var(w, correction=x.shape[0]),
    "size as an end": lambda x, w: x * w[: x.shape[0]].sum(),
    "size as a start": lambda x, w: x * w[x.shape[0] :].sum(),
    "size as an end within": lambda x, w: x[:, : x.shape[0]].cumsum(1),
    "size as a shift": lambda x, w: x * w.roll(x.shape[0])[0],
    "size as a shift within": lambda x, w: x.roll(x.shape[0], 1),
    "size as a diagonal": lambda x, w: x * torch.ones(6, 6).triu(x.shape[0] // 1009)[0],
    "size as a padding": lambda x, w: x * functional.pad(w, [x.shape[0], -x.shape[0]])[0],
    "size as a rank": lambda x, w: x * w.kthvalue(x.shape[0]).values,
    "size as a count": lambda x, w: x * w.topk(x.shape[0]).values.sum(),
    "size as an index": lambda x, w: x * w.select(0, x.shape[0]),
    "size as a factor": lambda x, w: torch.add(x, x, alpha=x.shape[0]),
    "size as a filling": lambda x, w: x + torch.full((6,), x.shape[0]),
    "size as an exponent": lambda x, w: x.abs().pow(x.shape[0]),
    "size as a power of a distance": lambda x, w: aten._cdist_forward(
        x[:, None], x[:, None], x.shape[0], 1
    ),
}


@pytest.mark.parametrize("name", some(ATTACKS))
def test_an_attack_is_not_proved(name):
    with pytest.raises((Unproved, Uncaptured)):
        lay(ATTACKS[name])


def test_what_an_attack_looks_like_is_fine_in_a_record():
    def fine(x, w):
        few = w[:5]
        a = torch.bucketize(x, few) + torch.searchsorted(few, x)
        b = aten.renorm(x, 2, 0, 0.5) + x.index_fill(1, torch.ones_like(few).long(), 2.0)
        own = x[torch.arange(x.shape[0]), torch.ones_like(x[:, 0], dtype=torch.long)]
        return a + b + own.unsqueeze(1) + w[:6].roll(2) + x[0 : x.shape[0]]

    check(fine, [rows(6)], [W])


UNWRITTEN = {
    "copied from": lambda x, w: torch.zeros_like(x).copy_(torch.empty_like(x)),
    "dropped out of": lambda x, w: torch.native_dropout(torch.empty_like(x), 0.5, True)[0],
    "chances": lambda x, w: aten.bernoulli(x, torch.empty_like(x)),
    "mean": lambda x, w: torch.normal(torch.empty_like(x), torch.ones_like(x)),
    "added": lambda x, w: x + torch.empty_like(x),
}


@pytest.mark.parametrize("name", some(UNWRITTEN))
def test_memory_that_nobody_has_written_is_not_read(name):
    with pytest.raises(Unproved):
        lay(UNWRITTEN[name])


# Rules made wrong: the laws that hold of every operator find what the rule would let through.
WRONG = {
    "mul": (lambda call: Records(0), lambda x, w: x * x.sum(0)),
    "_softmax": (lambda call: SHARED, lambda x, w: x.softmax(1)),
    "argmax": (lambda call: SHARED, lambda x, w: x.argmax(0)),
    "relu": (lambda call: SHARED, lambda x, w: x.sum(0).relu() * x),
    "pow": (lambda call: call.of(call.argument("self")), lambda x, w: x.pow(x.shape[0])),
    "add": (lambda call: call.of(call.argument("self")), lambda x, w: torch.arange(x.shape[0]) + 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_is_caught(name, monkeypatch):
    rule, function = WRONG[name]
    monkeypatch.setitem(table.RULES, name, rule)
    with pytest.raises(Unproved):
        lay(function)


def test_the_laws_name_operators_that_have_rules():
    named = {
        *proof._PLACES,
        *proof._PICKING,
        *proof._LENGTHS,
        *proof._SLICES,
        *proof._WITH_SHARED_OUTPUT,
    }
    assert named <= table.RULES.keys()
