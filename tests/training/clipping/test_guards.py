"""What a model must be before a gradient of it is taken."""

import pytest
import torch
import torch.distributed.fsdp
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import guards


class Shared(nn.Module):
    """One module at two places, one parameter under two names, and no module at a third."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.one = self.other = nn.Linear(2, 2)
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.one.weight
        self.none = None
        self.register_module("empty", None)
        self.parts = nn.ModuleList([nn.Sequential(nn.Linear(2, 3), nn.ReLU()), self.tied])


MODELS = [Shared, lambda: nn.Linear(2, 2), lambda: nn.TransformerDecoderLayer(8, 2, 8)]


@pytest.mark.parametrize("make", MODELS)
def test_parameters_are_those_that_torch_names_in_the_same_order(make):
    model = make()
    list(model.parameters())[1].requires_grad_(False)
    wanted = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for found in (guards.trainable(model), guards.fit_parameters(model)):
        assert [(n, id(p)) for n, p in found.items()] == [(n, id(p)) for n, p in wanted]


def hooked():
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda g: g)
    return model


REFUSED = {
    "hook": (hooked, UnsupportedError, "model.weight: a hook"),
    "complex": (lambda: nn.Linear(2, 2, dtype=torch.complex64), UnsupportedError, "complex64"),
    "lazy": (lambda: nn.LazyLinear(2), InputError, "no shape yet"),
    "frozen": (lambda: nn.Linear(2, 2).requires_grad_(False), InputError, "no trainable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_are_refused(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        guards.trainable(make())


MODULES = {
    "batch norm": (lambda: nn.BatchNorm1d(2), "0: BatchNorm1d in training mode"),
    "running statistics": (
        lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        "0: InstanceNorm1d keeps",
    ),
    "max_norm": (lambda: nn.Embedding(2, 2, max_norm=1.0), "0: Embedding\\(max_norm=1.0\\)"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_are_refused(name):
    make, words = MODULES[name]
    model = nn.Sequential(make(), nn.Linear(2, 2))
    for check in (guards.check_modules, guards.fit_parameters):
        with pytest.raises(UnsupportedError, match=words):
            check(model)
    if name != "max_norm":
        guards.check_modules(model.eval())


@pytest.mark.parametrize(
    ("given", "words"),
    [(0.0, r"clip_norms\[0\] = 0.0"), ([1.0, torch.nan], r"clip_norms\[1\] = nan"),
     ([1.0, torch.inf], r"clip_norms\[1\] = inf"), ([1.0, 1e-13], r"clip_norms\[1\]"),
     ([1.0], "shape"), ([[1.0, 1.0]], "shape")],
)  # fmt: skip
def test_bounds_that_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        guards.bounds(torch.tensor(given), 2, torch.device("cpu"))


def test_bounds():
    found = guards.bounds(2, 3, torch.device("cpu"))
    assert found.tolist() == [2.0] * 3
    assert found.dtype == torch.float64
    assert guards.bounds(torch.ones(0), 0, torch.device("cpu")).shape == (0,)


def test_sharded_parameters_are_refused_with_what_to_do_instead():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(2, 2))
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        with pytest.raises(
            UnsupportedError, match=r"model.0.weight: is sharded .* DistributedData"
        ):
            guards.fit_parameters(model)
    finally:
        torch.distributed.destroy_process_group()
