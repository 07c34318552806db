"""One capture for many lengths: what runs for each is what a capture of that length gives."""

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from apiece.training import clip_and_sum
from apiece.training.clipping import cache, graphs, lengths
from apiece.training.clipping.cache import proof_of
from apiece.training.clipping.front import batch_without_bounds
from apiece.training.clipping.watch import Watch

SIZE, WIDTH = 5, 4


def squares(out, y):
    return (out.squeeze(1) - y).square()


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, WIDTH)
        self.layer = nn.GRU(WIDTH, 6, batch_first=True, bidirectional=True)
        self.last = nn.Linear(12, 1)

    def forward(self, words, ends):
        packed = rnn.pack_padded_sequence(self.table(words), ends, True, enforce_sorted=False)
        states, _ = rnn.pad_packed_sequence(self.layer(packed)[0], True)
        return self.last(states.sum(1) / ends.unsqueeze(1))


class Attends(nn.Module):
    """A layer of attention with positions, a convolution along the length and a last difference."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(400, WIDTH) * 0.1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = x + self.positions[: x.shape[1]]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.convolution(x.mT).relu().mT
        return self.last(x.mean(1) + (x[:, 1:] - x[:, :-1]).square().sum(1) / x.shape[1])


class Changes(nn.Module):
    """A layer over sequences, with a factor that follows their length."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.layer(x.sum(1)) * self.factor(x.shape[1])


class Counts(Changes):
    """It makes positions that it does not use, as masks of language models do."""

    def forward(self, x):
        torch.arange(x.shape[1]).add(1)
        return super().forward(x)


def words(length):
    ends = torch.randint(1, length + 1, (SIZE,))
    ends[0] = length
    return torch.randint(11, (SIZE, length)), ends


def families(model):
    """Return the graphs for many lengths that are held of a model, None for a refusal."""
    return [family for *_, family in cache.ENGINES._stores[model].families.values()]


def values(length):
    return torch.randn(SIZE, length, WIDTH).double()


@pytest.fixture
def captures(monkeypatch):
    """Count the graphs that are traced."""
    counted = []
    trace = lengths.Task.trace
    monkeypatch.setattr(
        lengths.Task, "trace", lambda *args, **more: counted.append(1) or trace(*args, **more)
    )
    return counted


def apart(model, inputs):
    """Return how far the proved sum and norms are from those of each record alone."""
    y = torch.randn(SIZE).double()
    one, other = (
        clip_and_sum(model, squares, inputs, y, 0.05, method=method)
        for method in ("proved", "alone")
    )
    pairs = [(one.gradients[name], other.gradients[name]) for name in one.gradients]
    pairs += [(one.norms, other.norms), (one.losses, other.losses)]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    "kind", [(Ragged, words), pytest.param((Attends, values), marks=pytest.mark.slow)]
)
def test_a_length_costs_one_capture_or_none(kind, captures):
    torch.manual_seed(4)
    make, batch = kind
    model = make().double()
    counts = []
    for length in (8, 6, 7, 12, 15, 5, 8, 3, 9):
        assert apart(model, batch(length)) < 1e-9
        counts.append(len(captures))
    # the first form, the second length, a long one that confirms both, and a short one
    assert counts == [2, 3, 4, 4, 4, 5, 5, 5, 5]


def test_a_length_beyond_those_confirmed_is_confirmed_by_one_capture(captures):
    model = Ragged().double()
    for length in (6, 7, 8):
        assert apart(model, words(length)) < 1e-9
    before = len(captures)
    for length in (200, 150, 7):
        assert apart(model, words(length)) < 1e-9
    assert len(captures) == before + 1


def test_a_length_of_one_is_captured_by_itself():
    model = Ragged().double()
    for length in (1, 6, 7, 1, 8):
        assert apart(model, words(length)) < 1e-9
    (family,) = families(model)
    assert family.lengths == (6, 7)
    assert family.shortest > 1


@pytest.mark.parametrize(
    ("end", "met"),
    [
        (80, (60, 50, 52)),
        pytest.param(60, (60, 50, 52), marks=pytest.mark.slow),
        (60, (50, 60, 52)),
    ],
)
def test_a_table_of_positions_may_end_before_twice_the_length(end, met, captures):
    model = Attends().double()
    model.positions = nn.Parameter(model.positions[:end].detach())
    for length in met:
        assert apart(model, values(length)) < 1e-9
    before = len(captures)
    assert apart(model, values(55)) < 1e-9
    assert len(captures) == before


def test_primes_about_a_number():
    assert [lengths._next_prime(number) for number in (-4, 1, 3, 4, 8, 9)] == [3, 3, 3, 5, 11, 11]
    assert [lengths._last_prime(number) for number in (-4, 2, 3, 4, 8, 13)] == [1, 1, 3, 3, 7, 13]


FACTORS = {
    "a square": lambda length: 1 / (length * length),
    "a square, as an operator's number": lambda length: torch.tensor(2.0).double() / length**2,
    "a root": lambda length: length**-0.5,
    "a threshold": lambda length: 2.0 if length > 9 else 3.0,
    "rounded up": lambda length: -(-length // 4) * 4,
    "parity": lambda length: 1 + length % 2,
}


# Each is captured five times; the rest are slow.
QUICK = ("a square", "parity")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FACTORS],
)
def test_what_follows_the_length_otherwise_is_captured_for_each(name):
    torch.manual_seed(4)
    model = Changes(FACTORS[name]).double()
    for length in (8, 6, 7, 12, 11):
        assert apart(model, values(length)) < 1e-9
    assert families(model) == [None]


def test_constants_that_are_not_used_follow_no_length():
    model = Counts(lambda length: 2.0).double()
    for length in (8, 6, 7, 12, 11):
        assert apart(model, values(length)) < 1e-9
    assert families(model)[0] is not None


def test_a_number_that_is_the_length_is_no_constant():
    model = Changes(lambda length: 3 * length - 2).double()
    for length in (8, 6, 7, 12, 11):
        assert apart(model, values(length)) < 1e-9
    assert families(model)[0] is not None


def forms(graph):
    """Return the shape, type and strides of what each operator of a graph gives."""

    def form(value):
        if isinstance(value, list | tuple):
            return [form(part) for part in value]
        if isinstance(value, torch.Tensor):
            return tuple(value.shape), value.dtype, value.stride()
        return value

    nodes = graphs._ordered_nodes(graph.graph)
    return [(str(node.target), form(node.meta.get("val"))) for node in nodes if node.op != "output"]


class Pools(nn.Module):
    """Pictures of any width, with max pooling, dropout and a constant."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.GroupNorm(1, 3)
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.norm(self.convolution(x)), 2, stride=1)
        x = nn.functional.dropout(x, 0.25, self.training) + torch.ones(1, dtype=x.dtype)
        return self.last(x.mean((2, 3)))


def pictures(length):
    return torch.randn(SIZE, 1, 6, length).double()


@pytest.mark.parametrize(("make", "batch"), [(Ragged, words), (Attends, values), (Pools, pictures)])
def test_shapes_of_a_length_are_those_of_its_capture(make, batch):
    model = make().double()
    y = torch.randn(SIZE).double()
    for length in (8, 6):
        clip_and_sum(model, squares, batch(length), y, 0.05, method="proved")
    (family,) = families(model)
    task = lengths._task(batch_without_bounds(model, squares, batch(11), y), family.axes)
    watch = Watch(model, squares)
    traced = lengths.capture_length(task, watch, family.batch, 11)
    assert forms(family.graph_of(task, 11)) == forms(traced)


def test_pooling_has_channels_last_at_each_length():
    torch.manual_seed(4)
    model = Pools().double().eval()
    for length in (8, 6, 10):
        assert apart(model, pictures(length)) < 1e-9
        (form,) = list(cache.ENGINES._stores[model].forms.values())[-1:]
        graph = form.engine.program.module.graph
        pooling = next(n for n in graph.nodes if "max_pool2d_with_indices.d" in str(n.target))
        assert pooling.args[0].target is torch.ops.aten.clone.default


class Tables(nn.Module):
    """Positions up to a number, and another rule beyond."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.layer(x.sum(1) if x.shape[1] < 20 else x.mean(1))


def test_beyond_what_lengths_have_in_common_each_is_captured():
    model = Tables().double()
    for length in (8, 6, 7, 9, 25, 7, 30, 12):
        assert apart(model, values(length)) < 1e-9


def test_each_length_is_proved_anew(monkeypatch):
    """A graph for a length whose operators mix records is refused, however it was made."""
    model = Ragged().double()
    for length in (8, 6, 7):
        assert apart(model, words(length)) < 1e-9
    right = lengths.Family.graph_of

    def mixed(self, task, length):
        module = right(self, task, length)
        node = next(n for n in module.graph.nodes if "embedding" in str(n.target))
        with module.graph.inserting_after(node):
            turned = module.graph.call_function(torch.ops.aten.flip.default, (node, [0]))
        turned.meta = dict(node.meta)
        node.replace_all_uses_with(turned, delete_user_cb=lambda user: user is not turned)
        return module

    monkeypatch.setattr(lengths.Family, "graph_of", mixed)
    # another capture, which is right, takes its place
    assert apart(model, words(9)) < 1e-9
    assert "flip" not in proof_of(model).operators


def test_torch_refuses_sizes_that_are_none(monkeypatch):
    model = Ragged().double()
    for length in (8, 6, 7):
        assert apart(model, words(length)) < 1e-9
    wrong = lambda *args: (right(*args) or 0) + 1  # noqa: E731
    right = graphs.size_between
    monkeypatch.setattr(lengths, "size_between", wrong)
    assert apart(model, words(9)) < 1e-9


def test_two_lengths_that_differ_by_as_much_are_one():
    assert lengths.find_axes([[5, 2], [6]], [[7, 2], [8]]) == ((0, 1, 0), (1, 1, 1))
    assert lengths.find_axes([[5, 2], [6]], [[7, 2], [9]]) == ()
    assert lengths.find_axes([[5, 2]], [[5, 2]]) == ()
    assert lengths.find_axes([[5, 2]], [[5]]) == ()


def test_a_size_between_two():
    between = graphs.size_between
    assert between(3 * 1009 * 10, 3 * 4 * 20, 1009, (10, 20), 15) == 3 * 1009 * 15
    assert between(11, 21, 1009, (10, 20), 15) == 16
    assert between(7, 7, 1009, (10, 20), 15) == 7
    assert between(5, 11, 1009, (10, 20), 15) is None
