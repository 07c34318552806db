"""Records by position: tensors, TensorDatasets and map-style datasets read alike; fingerprints."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from apiece.errors import DataError, InputError
from apiece.training import sources

N, CPU = 30, torch.device("cpu")
INPUTS = torch.randn(N, 4, generator=torch.Generator().manual_seed(5))
TARGETS = (INPUTS[:, 0] > 0).long()


class Items(Dataset):
    """Records by position; what is read is counted."""

    def __init__(self, inputs, *, transform=None):
        self.inputs, self.transform, self.read = inputs, transform, set()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        self.read.add(i)
        x = self.inputs[i]
        return (self.transform(x) if self.transform else x), int(x[0] > 0)


class Stated(Items):
    """Says itself which version it is, and is not read for that."""

    version = 1

    def fingerprint(self):
        return f"version {self.version}"


def changed(record):
    inputs = INPUTS.clone()
    inputs[record, 2] += 1e-6
    return inputs


class Together(Items):
    """Gives many items at once, as datasets of Hugging Face do."""

    def __getitems__(self, positions):
        return [self[i] for i in positions]


SAME = {
    "tensors": lambda: (INPUTS, TARGETS),
    "tensor dataset": lambda: TensorDataset(INPUTS, TARGETS),
    "items": lambda: Items(INPUTS),
    "items together": lambda: Together(INPUTS),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
@pytest.mark.parametrize("index", [[3], [9, 2, 2, 29], list(range(N))])
def test_all_kinds_give_the_same_rows(make, index):
    source = sources.source_of(make())
    inputs, targets = source.fetch(np.array(index), CPU)
    assert len(source) == N
    assert torch.equal(inputs, INPUTS[index])
    assert torch.equal(targets, TARGETS[index])


def test_what_is_fetched_is_a_copy():
    """A model that writes into its inputs does not change the data of the next step."""
    before = INPUTS.clone()
    inputs, _ = sources.source_of((INPUTS, TARGETS)).fetch(np.arange(N), CPU)
    inputs.zero_()
    assert torch.equal(INPUTS, before)


def test_inputs_may_be_several():
    pair = {"x": INPUTS, "z": INPUTS[:, :2]}
    inputs, _ = sources.source_of((pair, TARGETS)).fetch(np.array([4, 1]), CPU)
    assert torch.equal(inputs["z"], INPUTS[[4, 1], :2])
    three = sources.source_of(TensorDataset(INPUTS, INPUTS, TARGETS))
    inputs, targets = three.fetch(np.array([0]), CPU)
    assert len(inputs) == 2
    assert torch.equal(targets, TARGETS[:1])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(INPUTS[0], 0)])


@pytest.mark.parametrize("bad", [Stream(), {"x": INPUTS}, [INPUTS][0:0].__iter__(), 7, None])
def test_what_cannot_be_read_by_position_is_refused(bad):
    with pytest.raises(DataError, match="reads records by position"):
        sources.source_of(bad)


def test_shapes_and_items_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="one record per first dimension"):
        sources.source_of((INPUTS, TARGETS[1:]))
    single = sources.source_of([(INPUTS[0],)] * 3)
    with pytest.raises(DataError, match=r"pairs \(inputs, target\)"):
        single.fetch(np.array([0]), CPU)


@pytest.mark.parametrize("make", [lambda x: (x, TARGETS), Items], ids=["tensors", "items"])
def test_a_fingerprint_changes_with_any_bit_and_with_the_key(make):
    first = sources.source_of(make(INPUTS)).fingerprint(b"k" * 32)
    assert first == sources.source_of(make(INPUTS.clone())).fingerprint(b"k" * 32)
    assert first != sources.source_of(make(INPUTS)).fingerprint(b"l" * 32)
    for other in (changed(0), changed(N - 1), INPUTS.roll(1, 0), INPUTS.double()):
        assert first != sources.source_of(make(other)).fingerprint(b"k" * 32)


def test_of_many_items_some_are_read_at_places_drawn_by_the_key(monkeypatch):
    monkeypatch.setattr(sources, "PROBES", 10)
    reads = []
    for key in (b"a" * 32, b"b" * 32):
        data = Items(INPUTS)
        one = sources.source_of(data).fingerprint(key)
        assert one == sources.source_of(Items(INPUTS)).fingerprint(key)
        reads.append(data.read)
        missed = next(i for i in range(N) if i not in data.read)
        assert one == sources.source_of(Items(changed(missed))).fingerprint(key)
        assert one != sources.source_of(Items(changed(min(data.read)))).fingerprint(key)
        assert one != sources.source_of(Items(INPUTS.roll(1, 0))).fingerprint(key)
    assert len(reads[0]) == len(reads[1]) == 10
    assert reads[0] != reads[1]


def test_a_dataset_may_say_itself_what_it_is():
    data, key = Stated(INPUTS), bytes(32)
    first = sources.source_of(data).fingerprint(key)
    assert not data.read
    assert first == sources.source_of(Stated(changed(3))).fingerprint(key)
    data.version = 2
    assert first != sources.source_of(data).fingerprint(key)
