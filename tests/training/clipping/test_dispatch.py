"""What runs is what was proved: each call of a program dispatches to the operator of the graph."""

import pytest
import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from apiece.training.clipping import engine, guards, rewrite
from apiece.training.clipping.records import Batch


class Dispatched(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def _given() -> dict[str, tuple[object, ...]]:
    a, b, row = torch.rand(3, 3), torch.randn(2, 3, 3), torch.randn(3)
    one = dict.fromkeys(
        ["t", "relu", "tanh", "sigmoid", "exp", "rsqrt", "neg", "clone", "sqrt", "sqrt_"], (a,)
    )
    two = dict.fromkeys(["add", "sub", "mul", "div", "add_", "mul_", "div_"], (a, row))
    image, kernel = torch.randn(2, 4, 5, 5), torch.randn(4, 2, 3, 3)
    return one | two | {
        "mm": (a, a), "pow_": (a, 2), "clamp_": (a, None, 0.5), "nan_to_num_": (a, 0.0),
        "squeeze_": (b[:1], 0), "stack": ([a, a],), "linalg_vector_norm": (a, 2, [1]),
        "bmm": (b, b), "addmm": (row, a, a), "baddbmm": (b, b, b), "pow": (a, 2),
        "where": (a > 0, a, a), "sum": (b, [1], True), "mean": (b, [-1], True), "cat": ([a, a], 1),
        "transpose": (b, 0, 1), "permute": (b, [2, 0, 1]), "unsqueeze": (a, 1),
        "squeeze": (b[:1], 0), "select": (b, 0, 1), "view": (a, [9]), "expand": (row, [2, 3]),
        "embedding": (a, torch.tensor([[0, 2]]), 1), "native_layer_norm": (a, [3], row, row, 1e-5),
        "convolution": (image, kernel, None, [1, 2], [1, 1], [1, 1], False, [0, 0], 2),
        "native_group_norm": (image, None, None, 2, 4, 25, 2, 1e-5), "_softmax": (a, 1, False),
        "_log_softmax": (a, 1, False), "_softmax_backward_data": (a, a, 1, torch.float32),
        "_log_softmax_backward_data": (a, a, 1, torch.float32),
    }  # fmt: skip


@pytest.mark.parametrize("bound", sorted(rewrite._BOUND))
def test_a_call_past_the_dispatcher_s_search_is_of_the_operator_that_was_proved(bound: str) -> None:
    name, overload = bound.split(".")
    target, graph = getattr(getattr(torch.ops.aten, name), overload), fx.Graph()
    given = _given()[name]
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    if name in ("cat", "stack"):
        tensors = list(given[0])  # type: ignore[call-overload]
    held = {id(t): graph.placeholder(f"x{k}") for k, t in enumerate(tensors)}
    args = fx.node.map_aggregate(given, lambda one: held.get(id(one), one))
    graph.output(graph.call_function(target, args))
    run = rewrite._function(graph)
    with torch.no_grad(), Dispatched() as mode:
        result = run(None, *(t.clone() for t in tensors))
    assert mode.seen[-1:] == [target]
    assert all(seen is torch.ops.aten.clone.default for seen in mode.seen[:-1])
    wanted = target(*given)
    pairs = zip(result, wanted, strict=True) if isinstance(wanted, tuple) else [(result, wanted)]
    assert all(torch.equal(one, other) for one, other in pairs)


def _program(model: nn.Module, x: torch.Tensor) -> tuple[engine.Engine, Batch]:
    y, bounds = torch.zeros(len(x), dtype=torch.long), torch.ones(len(x), dtype=torch.float64)
    loss = nn.CrossEntropyLoss(reduction="none")
    batch = Batch(model, guards.trainable(model), loss, x, y, bounds)
    return engine.engine_for(batch), batch


def test_a_program_runs_the_operators_of_its_graph_in_order() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    made, batch = _program(nn.Sequential(layer, Mean()), torch.randn(5, 3, 8))
    assert made.program is not None
    targets = [n.target for n in made.program.module.graph.nodes if n.op == "call_function"]
    given = engine.arguments_of(made, batch)
    with torch.no_grad(), Dispatched() as mode:
        made.program.run(given)
    sized = torch.ops.aten.sym_size.int  # asked of the tensor, and not dispatched
    wanted = [t for t in targets if isinstance(t, torch._ops.OpOverload) and t is not sized]
    assert mode.seen == wanted
