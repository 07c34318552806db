"""Records by position: tensors, TensorDatasets and map-style datasets read alike; fingerprints."""

import random
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from apiece.errors import DataError, InputError, StewardWarning
from apiece.training import sources
from apiece.training.sums import Sums

from .items import INPUTS, TARGETS, Items, N, changed

CPU = torch.device("cpu")


class Stated(Items):
    """Says itself which version it is, and is not read for that."""

    version = 1

    def fingerprint(self):
        return f"version {self.version}"


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


def test_a_mapping_with_labels_stands_for_a_pair():
    given = UserDict(input_ids=INPUTS, labels=TARGETS)
    inputs, targets = sources.source_of(given).fetch(np.array([1, 3]), CPU)
    assert type(inputs) is dict
    assert torch.equal(inputs["input_ids"], INPUTS[[1, 3]])
    assert torch.equal(targets, TARGETS[[1, 3]])


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


class Texts(Dataset):
    """Items are dicts with labels, of their own lengths."""

    def __init__(self, many=12):
        self.many = many

    def __len__(self):
        return self.many

    def __getitem__(self, i):
        return {"tokens": torch.arange(1, 2 + i % 4), "labels": i % 2}


def padded(items):
    """Pad to the longest item, as collators do."""
    longest = max(len(item["tokens"]) for item in items)
    rows = [nn.functional.pad(i["tokens"], (0, longest - len(i["tokens"]))) for i in items]
    return {"x": torch.stack(rows), "labels": torch.tensor([item["labels"] for item in items])}


def texts(collate=padded, **options):
    return sources.source_of(DataLoader(Texts(), batch_size=4, collate_fn=collate, **options))


def test_what_is_padded_goes_together_by_shape():
    index = np.array([3, 4, 5, 8, 7, 0])
    found = list(texts().read_alike(index, CPU))
    assert sorted(np.concatenate([where for where, _, _ in found])) == list(range(6))
    for where, inputs, targets in found:
        for row, target, i in zip(inputs["x"], targets, index[where], strict=True):
            assert row.tolist() == list(range(1, 2 + i % 4)), "nothing is padded"
            assert target == i % 2
    with pytest.raises(DataError, match="3 shapes"):
        texts().fetch(index, CPU)
    assert texts().fingerprint(b"k" * 32) == texts(shuffle=True).fingerprint(b"k" * 32)


class Padding(nn.Module):
    """Counts what is padded as if it were text."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(6, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def moved(source):
    """Return by how many bounds the sum moves when the longest record leaves."""
    torch.manual_seed(0)
    sums = Sums(Padding(), nn.CrossEntropyLoss(reduction="none"), source, width=8)
    every = np.array([0, 4, 8, 3])
    with_, without = (sums.over(r, np.full(r.size, 1e-3), seed=0) for r in (every, every[:-1]))
    assert torch.allclose(with_.norms[:-1], without.norms) or source.collate is None
    apart = [with_.gradients[name] - without.gradients[name] for name in with_.gradients]
    return float(torch.stack([a.norm() for a in apart]).norm()) / 1e-3


def test_no_record_pads_another():
    assert moved(texts()) <= 1

    class Together(sources.Items):
        def read_alike(self, index, device):
            batch = padded([self.dataset[int(i)] for i in index])
            yield np.arange(index.size), {"x": batch["x"]}, batch["labels"]

    assert moved(Together(Texts(), 12)) > 1.2, "the harness sees padding"


def test_sums_over_several_shapes_keep_the_order():
    torch.manual_seed(1)
    model, loss = Padding(), nn.CrossEntropyLoss(reduction="none")
    index = np.array([3, 4, 5, 8, 7, 0, 11])
    bounds = np.linspace(0.01, 0.5, index.size)
    found = Sums(model, loss, texts(), width=3).over(index, bounds, seed=0)
    wanted = torch.zeros(6, 3)
    for place, i in enumerate(index):
        one = Sums(model, loss, texts()).over(
            index[place : place + 1], bounds[place : place + 1], 0
        )
        assert torch.allclose(found.norms[place], one.norms[0]), i
        assert float(found.clip_norms[place]) == pytest.approx(bounds[place])
        wanted += one.gradients["table.weight"]
    assert torch.allclose(found.gradients["table.weight"], wanted, atol=1e-6)


def test_a_collate_function_that_makes_other_records_is_refused():
    twice = texts(lambda items: (torch.ones(2 * len(items), 3), torch.ones(2 * len(items))))
    with pytest.raises(DataError, match="made 2 records of one"):
        list(twice.read_alike(np.array([0]), CPU))
    with pytest.raises(DataError, match="dicts with 'labels'"):
        list(texts(lambda items: {"x": torch.ones(1)}).read_alike(np.array([0]), CPU))


@pytest.mark.parametrize("sampler", [RandomSampler(range(5)), SequentialSampler(range(5))])
def test_a_loader_that_leaves_records_out_is_refused(sampler):
    with pytest.raises(DataError, match="how often"):
        texts(sampler=sampler)


class Counted(Items):
    """Items that change with each reading."""

    reads = 0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        self.reads += 1
        return x + self.reads, y


class Centred(Items):
    """Items less the mean of those that are read together."""

    def __getitems__(self, index):
        made = [self[i] for i in index]
        mean = torch.stack([x for x, _ in made]).mean(0)
        return [(x - mean, y) for x, y in made]


class Drawn(Items):
    """Items that a transform changes, by draws of three libraries."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.rand(()) + random.random() + np.random.rand(), y  # noqa: NPY002


@pytest.mark.parametrize("make", [Counted, Centred])
def test_items_made_of_more_than_their_record_are_told(make):
    with pytest.warns(StewardWarning, match="dataset: its first item is another one"):
        sources.look_at_items(sources.source_of(make(INPUTS)))


def test_items_of_their_record_alone_pass_and_no_stream_moves():
    streams = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    loader = DataLoader(Texts(), collate_fn=padded)
    for source in (Items(INPUTS), Drawn(INPUTS), (INPUTS, TARGETS), loader):
        sources.look_at_items(sources.source_of(source))
    assert torch.equal(streams[0], torch.get_rng_state())
    assert streams[1] == random.getstate()
    assert streams[2] == np.random.get_state()[1].tolist()  # noqa: NPY002
