"""What all records share is followed to where it meets them, and book-kept record by record."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping.selection import chosen

PLACES = 5  # as many as the records of one of the batches
SIZES = [1, 2, PLACES, 8]


class Model(nn.Module):
    """Parameters of its own by name, layers by name, and a forward that is given both."""

    def __init__(self, use, layers=None, **own):
        super().__init__()
        self.use = use
        for name, shape in own.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 2))
        for name, layer in (layers or {}).items():
            setattr(self, name, layer)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.use(self, x)).mean(1))


def token(m, x):
    x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.places
    return torch.tanh(m.body(x))[:, :1] * m.token.mean((0, 1))


def looked_up_once(m, x):
    return x + m.norm(m.shape(m.table(torch.arange(x.shape[1]).unsqueeze(0))))


def without_a_dimension(m, x):
    return m.body(x) + m.table(torch.arange(x.shape[1]))


def repeated(m, x):
    return x + m.table(torch.arange(x.shape[1]).unsqueeze(0)).repeat(x.shape[0], 1, 1)


def types(m, x):
    kinds = torch.zeros(x.shape[:2], dtype=torch.long)
    return m.norm(m.body(x) + m.table(kinds))


def windows(m, x):
    """A layer and a bias on pieces of each record, as attention in windows has them."""
    pieces = m.body(x[:, :4].reshape(-1, 2, 4)) * m.scale
    scores = pieces @ pieces.mT + m.bias[torch.tensor([[0, 1], [1, 2]])].squeeze(-1)
    return (scores.softmax(2) @ pieces).reshape(x.shape[0], 4, 4)


def relative(m, x):
    """A bias of attention that two layers share, looked up by distance."""
    bias = m.table((torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs())
    bias = bias.permute(2, 0, 1).unsqueeze(0)
    for _ in range(2):
        heads = m.body(x).unflatten(2, (2, 2)).transpose(1, 2)
        scores = heads @ heads.mT / math.sqrt(2)
        scores += bias
        x = x + (scores.softmax(3) @ heads).transpose(1, 2).flatten(2)
    return x


def behind(m, x):
    return m.body(x) + functional.linear(x.square(), m.body.weight)


def attended(m, x):
    query = m.latent.expand(x.shape[0], -1, -1)
    bias = m.bias.unsqueeze(0) * 2
    return functional.scaled_dot_product_attention(query, m.body(x), x, attn_mask=bias)


def normalised(m, x):
    return functional.layer_norm(x, (4,), m.scale, m.bias) * m.power.exp()


def joined(m, x):
    return torch.stack([m.body(x), m.token.expand(*x.shape[:2], 4)], 2).mean(2)


def convolved(m, x):
    return functional.conv1d(x.mT, m.kernel, padding=1).mT


def computed(m, x):
    scale = functional.normalize(m.rows, dim=1) @ m.rows.mT
    return functional.linear(x, scale, m.shift) + m.where.sigmoid() * x


def stirred(m, x):
    return torch.where(x > 0, m.scale, x) / (1 + m.scalar.square()) - m.scalar


def tied(m, x):
    words = (x[:, :, 0] * 3).long().clamp(0, 5)
    return functional.linear(m.body(m.table(words)), m.table.weight) @ m.out


MODELS = {
    "token": lambda: Model(token, token=(1, 1, 4), places=(1, PLACES + 1, 4)),
    "looked up once": lambda: Model(
        looked_up_once,
        {"table": nn.Embedding(9, 4), "shape": nn.Linear(4, 4), "norm": nn.LayerNorm(4)},
    ),
    "without a dimension": lambda: Model(without_a_dimension, {"table": nn.Embedding(9, 4)}),
    "repeated": lambda: Model(repeated, {"table": nn.Embedding(9, 4)}),
    "types": lambda: Model(types, {"table": nn.Embedding(2, 4), "norm": nn.LayerNorm(4)}),
    "windows": lambda: Model(windows, scale=(4,), bias=(3, 1)),
    "relative": lambda: Model(relative, {"table": nn.Embedding(9, 2)}),
    "behind": lambda: Model(behind),
    "attended": lambda: Model(attended, latent=(3, 4), bias=(3, PLACES)),
    "normalised": lambda: Model(normalised, scale=(4,), bias=(4,), power=()),
    "joined": lambda: Model(joined, token=(4,)),
    "convolved": lambda: Model(convolved, kernel=(4, 4, 3)),
    "einsum": lambda: Model(lambda m, x: torch.einsum("bti,ij->btj", x, m.map), map=(4, 4)),
    "a product": lambda: Model(lambda m, x: x @ m.map + m.body(x) * m.gate, map=(4, 4), gate=()),
    "computed": lambda: Model(computed, rows=(4, 4), shift=(4,), where=(1,)),
    "stirred": lambda: Model(stirred, scale=(4,), scalar=()),
    "tied": lambda: Model(tied, {"table": nn.Embedding(6, 4)}, out=(6, 4)),
    "parametrised": lambda: Model(
        lambda m, x: m.inner(x), {"inner": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))}
    ),
}


def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def batch(size, places=PLACES):
    return 2 * torch.randn(size, places, 4), torch.randint(0, 3, (size,))


def in_double(model, x, y, clip_norm):
    model = copy.deepcopy(model).double()
    tensors = list(model.parameters())
    total = [torch.zeros_like(p) for p in tensors]
    for row, label in zip(x.double(), y, strict=True):
        found = torch.autograd.grad(
            loss(model(row.unsqueeze(0)), label.unsqueeze(0)).sum(), tensors, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        norm = torch.stack([g.square().sum() for g in found]).sum().sqrt()
        for t, g in zip(total, found, strict=True):
            t += g * min(1.0, clip_norm / float(norm))
    return total


def hold(model, x, y, clip_norm=0.3):
    found = clip_and_sum(model, loss, x, y, clip_norm)
    wanted = in_double(model, x, y, clip_norm)
    for g, w in zip(found.gradients.values(), wanted, strict=True):
        assert torch.allclose(g.double(), w, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_a_loop_whatever_the_size(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    names = [n for n, _ in model.named_parameters()]
    for size in [4, *SIZES]:  # the first chooses the path; one has as many records as places
        hold(model, *batch(size))
    assert {path for _, path in chosen(model)} == {"book-keeping"}
    assert [n for n, p in model.named_parameters() if isinstance(p, nn.Parameter)] == names


@pytest.mark.parametrize("name", ["token", "windows", "relative", "computed", "convolved"])
def test_persons_with_many_rows(name):
    torch.manual_seed(0)
    model, (x, y) = MODELS[name](), batch(6)
    people = torch.tensor([0, 0, 1, 2, 2, 2])
    found = clip_and_sum(model, loss, x, y, 0.2, people=people)
    wanted = clip_and_sum(model, loss, x, y, 0.2, people=people, method="loop")
    for key, value in wanted.gradients.items():
        assert torch.allclose(found.gradients[key], value, atol=1e-5)


def time_first(m, x):
    return (torch.tanh(x.transpose(0, 1) * m.scale) + m.shift).transpose(0, 1)


def pieces_first(m, x):
    """Rows of a layer in an order in which a record's are not next to each other."""
    pieces = x[:, :4].reshape(-1, 2, 2, 4).transpose(0, 1).flatten(0, 1)
    return m.body(pieces).unflatten(0, (2, -1)).transpose(0, 1).flatten(1, 2) * m.scale


def sorted_inside(m, x):
    order = x[:, 0, 0].round().argsort(stable=True)
    back = order.argsort()
    return torch.tanh(m.body(x[order]))[back]


def picked(m, x):
    mask = x[:, :, 3] > -100.0
    mask[:, 0] = True
    rows = torch.zeros_like(x)
    rows[mask] = m.body(x[mask])
    return rows


class Unseen(torch.autograd.Function):
    """A product that is not seen from outside."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum((0, 1))


def unseen(m, x):
    """Whose gradient is zero as long as the gate is."""
    return m.body(x) + m.gate * Unseen.apply(x, m.scale)


OTHERS = {
    "time first": lambda: Model(time_first, scale=(4,), shift=(4,)),
    "pieces first": lambda: Model(pieces_first, scale=(4,)),
    "sorted inside": lambda: Model(sorted_inside),
    "picked": lambda: Model(picked),
    "unseen": lambda: Model(unseen, scale=(4,), gate=()),
}


def shapes(name):
    """Yield batches that look harmless first, and then are not."""
    for size, places in [(6, 6), (4, 8), (3, 9), (6, 5), (3, 6), (5, 5), (2, 8), (4, 4)]:
        x, y = batch(size, places)
        if name == "sorted inside":
            x[:, 0, 0] = 0.0 if size == 6 else torch.linspace(9, -9, size)
        if name == "picked" and size < 5:
            x[0, 1:, 3] = -200.0
            x[1, 1 : 1 + (places + 1) % size, 3] = -200.0
        yield x, y


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_are_not_the_records_in_turn_are_never_taken_for_them(name):
    torch.manual_seed(0)
    model = OTHERS[name]()
    if name == "unseen":
        nn.init.zeros_(model.gate)
    for k, (x, y) in enumerate(shapes(name)):
        hold(model, x, y)
        if name == "unseen" and k == 3:
            nn.init.ones_(model.gate)
    assert {path for _, path in chosen(model)} != {"book-keeping"}


@pytest.mark.parametrize(
    ("name", "why"),
    [("unseen", "scale: is used where it cannot be followed"), ("sorted inside", "a sort")],
)
def test_book_keeping_that_is_insisted_on_says_why_not(name, why):
    with pytest.raises(UnsupportedError, match=why):
        clip_and_sum(OTHERS[name](), loss, *batch(4), 1.0, method="book-keeping")


def written_into(m, x):
    places = m.places * 1.0
    places += x[0, :, :] * 0.0
    return x + places


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
def test_what_records_are_written_into_is_exact_by_another_path():
    torch.manual_seed(0)
    model = Model(written_into, places=(PLACES, 4))
    hold(model, *batch(4))
    assert {path for _, path in chosen(model)} != {"book-keeping"}


def test_what_is_raised_leaves_nothing_behind():
    model = MODELS["token"]()

    def broken(outputs, targets):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        clip_and_sum(model, broken, *batch(4), 1.0)
    assert torch.overrides._len_torch_function_stack() == 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    hold(model, *batch(4))


def by_key(x):
    return x[:, 0, 0].argsort()


# One call written in other ways, each with the parameters m.weight (4, 4), m.bias (4), m.table.
CALLS = {
    "linear": lambda m, x: functional.linear(input=x, weight=m.weight, bias=m.bias),
    "linear, swapped": lambda m, x: functional.linear(x, bias=m.bias, weight=m.weight),
    "matmul": lambda m, x: torch.matmul(input=x, other=m.weight),
    "embedding": lambda m, x: (
        x + functional.embedding(input=(x[..., 0] > 0).long(), weight=m.table)
    ),
    "where": lambda m, x: torch.where(x > 0, input=x, other=m.bias * x),
    "subtracted twice": lambda m, x: torch.sub(m.bias, x, alpha=2),
    "put": lambda m, x: x.index_put((torch.arange(len(x)), torch.tensor(0)), m.bias),
}


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_may_name_its_arguments(call):
    torch.manual_seed(2)
    model = Model(CALLS[call], weight=(4, 4), bias=(4,), table=(2, 4))
    for size in (1, 4, 5, 3):
        x, y = torch.randn(size, 3, 4), torch.randint(0, 3, (size,))
        found = clip_and_sum(model, loss, x, y, 0.1)
        wanted = clip_and_sum(model, loss, x, y, 0.1, method="loop")
        for name, gradient in wanted.gradients.items():
            assert torch.allclose(found.gradients[name], gradient, atol=1e-6), (name, size)


def taken(x, index, way):
    """Return the rows of x at index, by one of the ways there are."""
    wide = index.view(-1, 1, 1).expand_as(x)
    return {
        "brackets": lambda: x[index],
        "index_select": lambda: torch.index_select(x, dim=0, index=index),
        "index_select, swapped": lambda: torch.index_select(x, index=index, dim=0),
        "gather": lambda: torch.gather(x, -3, wide),
        "take_along_dim": lambda: x.take_along_dim(wide, dim=0),
    }[way]()


WAYS = ["brackets", "index_select", "index_select, swapped", "gather", "take_along_dim"]


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("own", [{}, {"bias": (4,)}], ids=["layer", "parameter"])
def test_an_order_that_records_decide_is_seen_where_the_first_batches_are_in_it(way, own):
    """Sorted by length, say; a batch that came sorted does not show it."""

    def sorted_inside(m, x):
        order = by_key(x)
        found = taken(x, order, way)
        found = m.body(found) if not own else found * m.bias
        return taken(found, order.argsort(), way)

    torch.manual_seed(4)
    model = Model(sorted_inside, **own)
    for rising in (True, True, False):
        x, y = torch.randn(6, 3, 4), torch.randint(0, 3, (6,))
        if rising:
            x = x[by_key(x)]
        found = clip_and_sum(model, loss, x, y, 0.1)
        wanted = clip_and_sum(model, loss, x, y, 0.1, method="loop")
        for name, gradient in wanted.gradients.items():
            assert torch.allclose(found.gradients[name], gradient, atol=1e-6), name
