"""All that a call receives is guarded: tensors, and values that nobody can change."""

import collections
import dataclasses
import enum
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Scale, assign
from apiece.errors import UnsupportedError
from apiece.training import Trainer, clip_and_sum
from apiece.training.clipping import guards, records
from apiece.training.sources import source_of

SIZE = 6


def squares(out, y):
    y = y["y"] if isinstance(y, dict) else y
    return (out - y.unsqueeze(1)).square().sum(1)


class Box:
    """An object with an attribute that one record sets and the next reads."""

    def __init__(self):
        self.scale = 1.0


class SlotBox:
    __slots__ = ("scale",)


class Reads(nn.Module):
    """Scales by what the object beside the records holds, and leaves something of each there."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, held):
        out = self.layer(x) * getattr(held, "scale", 1.0)
        if hasattr(held, "scale"):
            held.scale = 1 + abs(float(out.detach().sum()))
        return out


@dataclasses.dataclass
class WholeBatch:
    x: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float


class Level(enum.IntEnum):
    ONE = 1


class Mode(enum.StrEnum):
    SUM = "sum"


class Text(str):
    pass


class Count(int):
    pass


class Extended(list):
    pass


class OpenPair(collections.namedtuple("OpenPair", "x y")):  # with a __dict__ of its own
    pass


class Tagged(torch.Tensor):
    pass


def cache():
    transformers = pytest.importorskip("transformers")
    return transformers.DynamicCache()


def slot_box():
    box = SlotBox()
    box.scale = 1.0
    return box


def within_itself():
    whole = [torch.ones(SIZE, 3)]
    whole.append(whole)
    return whole


# what is refused, and words of its message
REFUSED = {
    "an object": (Box, "test_received.Box is neither"),
    "slots": (slot_box, "SlotBox is neither"),
    "a namespace": (lambda: types.SimpleNamespace(scale=1.0), "types.SimpleNamespace"),
    "a class": (lambda: Box, "type is neither"),
    "a module": (lambda: types, "module is neither"),
    "a layer": (lambda: nn.Linear(1, 1), "Linear is neither"),
    "a function": (lambda: lambda: 1, "function is neither"),
    "a dataclass with the batch": (lambda: WholeBatch(torch.randn(SIZE, 3)), "in a dict"),
    "a frozen dataclass": (lambda: Frozen(1.0), "in a dict"),
    "a cache": (cache, "DynamicCache is neither"),
    "a NumPy number": (lambda: np.float64(1.0), r"float64 is neither.*\.item"),
    "a NumPy integer": (lambda: np.int64(1), r"\.item"),
    "a NumPy truth": (lambda: np.bool_(True), r"\.item"),
    "a NumPy text": (lambda: np.str_("sum"), r"\.item"),
    "a NumPy array": (lambda: np.ones(3), "torch.as_tensor"),
    "an array of objects": (lambda: np.array([Box()], dtype=object), "torch.as_tensor"),
    "a generator": (lambda: (k for k in range(3)), "generator is neither"),
    "an iterator": (lambda: iter([1, 2]), "list_iterator is neither"),
    "a range": (lambda: range(3), "range is neither"),
    "a set": (lambda: {1, 2}, "set is neither"),
    "bytes": (lambda: bytearray(b"1"), "bytearray is neither"),
    "an integer of an enum": (lambda: Level.ONE, r"\.value"),
    "a text of an enum": (lambda: Mode.SUM, r"\.value"),
    "a text of its own": (lambda: Text("sum"), r"str\(\.\.\.\)"),
    "an integer of its own": (lambda: Count(1), r"int\(\.\.\.\)"),
    "a complex number": (lambda: 1j, "complex is neither"),
    "a type of numbers": (lambda: torch.float32, "dtype is neither"),
    "a device": (lambda: torch.device("cpu"), "device is neither"),
    "a stream": (torch.Generator, "Generator is neither"),
    "a tensor of its own": (lambda: torch.ones(SIZE).as_subclass(Tagged), "as_subclass"),
    "a list of its own": (lambda: Extended([torch.ones(SIZE)]), "Extended is neither"),
    "an open named tuple": (lambda: OpenPair(torch.ones(SIZE), torch.ones(SIZE)), "OpenPair"),
    "a size": (lambda: torch.Size([2, 3]), "torch.Size is neither"),
    "a key that is an object": (lambda: {Level.ONE: torch.ones(SIZE)}, "a key: .*Level"),
    "texts of records": (lambda: ["text"] * SIZE, "would show each record the values of all"),
    "numbers of records": (lambda: (0, 1) * (SIZE // 2), "would show each record"),
    "a packed sequence": (
        lambda: nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]), "PackedSequence",
    ),
    "a list within itself": (within_itself, "containers within each other"),
}  # fmt: skip


@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_change_or_hold_others_is_refused_by_name(name, method):
    make, words = REFUSED[name]
    x, y = torch.randn(SIZE, 3), torch.randn(SIZE)
    with pytest.raises(UnsupportedError, match=words) as refusal:
        clip_and_sum(Reads(), squares, (x, make()), y, 0.5, method=method)
    assert str(refusal.value).startswith("inputs[1]")
    assert "\n" not in str(refusal.value)
    with pytest.raises(UnsupportedError, match=words) as refusal:
        clip_and_sum(nn.Linear(3, 2), squares, x, {"y": y, "held": make()}, 0.5, method=method)
    assert str(refusal.value).startswith("targets['held']")


def trainer_of(method, held):
    plan = assign(
        Budgets([1.0] * SIZE, 1e-3), Scale(), steps=2, expected_batch_size=3, clip_norm=1.0
    )

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return SIZE

        def __getitem__(self, k):
            return torch.ones(3) * k, float(k)

    def collate(items):
        x, y = zip(*items, strict=True)
        return (torch.stack(x), held), torch.tensor(y)

    model = Reads()
    loader = torch.utils.data.DataLoader(Items(), batch_size=2, collate_fn=collate)
    return Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), squares, plan, loader, seed=0,
        method=method,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["proved", "alone"])
@pytest.mark.parametrize("make", [Box, lambda: WholeBatch(torch.ones(SIZE, 3)), cache])
def test_the_trainer_refuses_the_same(method, make):
    with pytest.raises(UnsupportedError, match=r"inputs\[1\]: .* is neither a tensor nor"):
        trainer_of(method, make()).fit()


# ---------------------------------------------------------------- what is taken


class Option(nn.Module):
    """Computes something else for each value and type of its option."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, option=None):
        out = self.layer(x)
        if isinstance(option, float):
            inverse = torch.full((), option) / 1.0
            return out * (3.0 + torch.nan_to_num(torch.reciprocal(inverse), 0.5, 7.0, 5.0))
        known = {"bool": 2.0, "int": 11.0, "str": 13.0, "NoneType": 17.0}
        return out * (known[type(option).__name__] + len(str(option)))


VALUES = [None, True, False, 1, 0, 1.0, 0.0, -0.0, 2.0, float("nan"), "1", "sum"]


@pytest.mark.parametrize(
    ("method", "values"),
    [("proved", [*VALUES, *reversed(VALUES)]), ("alone", [1, True, 1.0, "1", None, 0.0, -0.0])],
)
def test_values_stand_with_their_type(method, values):
    """Each call with another option is that option's, however the one before was."""
    torch.manual_seed(0)
    model, x, y = Option(), torch.randn(SIZE, 3), torch.randn(SIZE)
    for value in values:
        found = clip_and_sum(model, squares, {"x": x, "option": value}, y, 1e6, method=method)
        losses = squares(model(x, value), y)
        wanted = torch.autograd.grad(losses.sum(), list(model.parameters()))
        for one, other in zip(found.gradients.values(), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_forms_differ_by_type_and_sign_and_a_nan_is_itself():
    forms = [records.outline({"held": value}) for value in VALUES]
    assert len(set(forms)) == len(VALUES)
    assert records.outline(float("nan")) == records.outline(float("nan"))
    assert records.outline(torch.ones(2)) != records.outline(None)
    assert records.outline({1: 1}) != records.outline({True: 1}) != records.outline({1.0: 1})
    assert records.outline({}) != records.outline(()) != records.outline([])
    with pytest.raises(TypeError, match="read_tree"):
        records.outline(Box())


def test_containers_become_the_call_s_own():
    x = torch.ones(2)
    given = {"pair": Pair(x, None), "more": collections.OrderedDict(a=[x], b=(x, 1, "two"))}
    read = guards.read_tree("inputs", given)
    assert type(read["more"]) is dict
    assert type(read["pair"]) is Pair
    assert read["pair"].x is x
    given["more"]["a"].append("changed meanwhile")
    given["pair"] = None
    assert read["more"]["a"] == [x]
    assert read["pair"].x is x
    assert guards.read_tree("inputs", collections.UserDict(x=x)) == {"x": x}
    assert guards.read_tree("targets", [None, None]) == [None, None]
    assert guards.read_tree("targets", nn.Parameter(x)) is not None


SCALE = 1.0


class Pair(NamedTuple):
    x: torch.Tensor
    y: object

    def scaled(self):
        return self.x * SCALE


class OfPairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, pair):
        return self.layer(pair.scaled())


def test_the_code_of_a_named_tuple_is_watched(monkeypatch):
    model, pair, y = OfPairs(), Pair(torch.randn(SIZE, 3), None), torch.zeros(SIZE)

    def wanted():
        return torch.autograd.grad(squares(model(pair), y).sum(), model.layer.bias)[0]

    for scale in (1.0, 3.0):
        monkeypatch.setattr(f"{__name__}.SCALE", scale)
        found = clip_and_sum(model, squares, (pair,), y, 1e6, method="proved")
        torch.testing.assert_close(found.gradients["layer.bias"], wanted(), rtol=1e-4, atol=1e-4)


class Ranked(torch.utils.data.Dataset):
    """Items with a number of Python's of their own."""

    def __len__(self):
        return SIZE

    def __getitem__(self, k):
        return {"x": torch.ones(3) * (k + 1), "option": float(k % 3)}, 0.0


def _one(items):
    ((inputs, target),) = items
    return {"x": inputs["x"][None], "option": inputs["option"]}, torch.tensor([target])


def test_a_value_of_one_record_does_not_stand_for_another_s():
    """Records go together where their values are the same; each is computed with its own."""
    source = source_of(torch.utils.data.DataLoader(Ranked(), batch_size=2, collate_fn=_one))
    groups = list(source.read_alike(np.arange(SIZE), torch.device("cpu")))
    assert [g[0].tolist() for g in groups] == [[0, 3], [1, 4], [2, 5]]
    assert [g[1]["option"] for g in groups] == [0.0, 1.0, 2.0]
