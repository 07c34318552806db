"""What runs is what was proved: each call of a program dispatches to the operator of the graph."""

import weakref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from apiece.training.clipping import cache, engine, guards, rewrite
from apiece.training.clipping.records import Batch


class Dispatched(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def _program(model: nn.Module, x: torch.Tensor) -> tuple[engine.Engine, Batch]:
    y, bounds = torch.zeros(len(x), dtype=torch.long), torch.ones(len(x), dtype=torch.float64)
    loss = nn.CrossEntropyLoss(reduction="none")
    batch = Batch(model, guards.trainable(model), loss, x, y, bounds)
    return cache.ENGINES.find(batch), batch


def test_a_program_runs_the_operators_of_its_graph_in_order(monkeypatch) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    made, batch = _program(nn.Sequential(layer, Mean()), torch.randn(5, 3, 8))
    assert isinstance(made, engine.ProvedEngine)
    targets = [n.target for n in made.program.module.graph.nodes if n.op == "call_function"]
    given = engine.arguments_of(made, batch)
    # contributions are made between them, by operators that the graph does not have
    monkeypatch.setattr(rewrite.Program, "contribution", lambda *_: None)
    with torch.no_grad(), Dispatched() as mode:
        made.program.run(given)
    sized = torch.ops.aten.sym_size.int  # asked of the tensor, and not dispatched
    wanted = [t for t in targets if isinstance(t, torch._ops.OpOverload) and t is not sized]
    assert mode.seen == wanted


def test_what_only_a_contribution_takes_is_freed_before_the_next_one_is_made(monkeypatch) -> None:
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.GELU())]
    made, batch = _program(nn.Sequential(*layers), torch.randn(5, 8))
    assert isinstance(made, engine.ProvedEngine)
    alive = []
    taken: list[weakref.ref[torch.Tensor]] = []

    def count(self, part, operands, size):
        alive.append(sum(tensor() is not None for tensor in taken))
        taken.extend(map(weakref.ref, operands))

    monkeypatch.setattr(rewrite.Program, "contribution", count)
    with torch.no_grad():
        made.program.run(engine.arguments_of(made, batch))
    # a layer's weight and bias take the output's gradient, the inputs lie in the batch
    assert len(taken) == 12
    assert max(alive) <= 4
