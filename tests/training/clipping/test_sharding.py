"""The table beside PyTorch's sharding rules: Shard is Records, Replicate Shared, Partial Summed.

Two machines in one process hold halves of a batch; no message is sent. DTensor says for an operator
what becomes of tensors that lie so; where the table claims a layout, DTensor gives the same one, or
has no rule for these inputs and would move data first (`MOVED`, by name and reason).
"""

import contextlib
import operator

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from apiece.training.clipping import proof, table
from apiece.training.clipping.graphs import free_batch_size
from apiece.training.clipping.table import Records, Shared, Summed

from .test_table import CASES, SKIPPED, laid_out, overloads, traced, values


@pytest.fixture(scope="module")
def mesh():
    assert not dist.is_initialized()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield dist.device_mesh.init_device_mesh("cpu", (2,))
    finally:
        dist.destroy_process_group()


def theirs():
    """Return the operators that DTensor has a rule for."""
    held = DTensor._op_dispatcher.sharding_propagator
    return {*held.op_strategy_funcs, *held.op_to_rules, *held.op_single_dim_strategy_funcs}


def placement(layout):
    match layout:
        case Records(axis, 1, _):
            return Shard(axis)
        case Records(axis, outer, _):
            return _StridedShard(axis, split_factor=int(outer))
        case Shared():
            return Replicate()
        case Summed():
            return Partial("sum")
    return None


def spec_of(mesh, tensor, layout):
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return DTensorSpec(mesh, (placement(layout),), meta)


def asked(mesh, node, layouts, found):
    """Return what DTensor says of an operator: the placements of its outputs; "moved"; None."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    if node.target not in theirs():
        return None

    def given(argument):
        value = found[argument]
        if not isinstance(value, torch.Tensor):
            return value
        return spec_of(mesh, value, layouts[argument])

    tensors = [n for n in node.all_input_nodes if isinstance(found[n], torch.Tensor)]
    if not tensors or any(placement(layouts[n]) is None for n in tensors):
        return None
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), given)
    info = propagator.op_to_schema_info.get(node.target)
    info = info or propagator.op_to_schema_info_for_single_dim_strategy.get(node.target)
    schema = OpSchema(node.target, _tuples(args), kwargs, schema_info=info)
    answer = propagator.propagate_op_sharding_non_cached(schema)
    if answer.needs_redistribute and _specs(answer.redistribute_schema) != _specs(schema):
        return "moved"
    several = answer.output_spec
    several = several if isinstance(several, tuple | list) else (several,)
    return [None if one is None else one.placements[0] for one in several]


def _specs(schema):
    return [spec.placements for spec in schema.args_spec]


def _tuples(args):
    return tuple(list(a) if isinstance(a, list | tuple) else a for a in args)


def compared(mesh, function, given, shared=()):
    """Yield each operator's name with what the table claims and what DTensor says."""
    graph, sizes = traced(function, given, shared)
    layouts = laid_out(graph, sizes, len(given))
    free_batch_size(graph, sizes, next(iter(graph.graph.nodes)))
    found = values(graph, [*given, *shared])
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        said = asked(mesh, node, layouts, found)
        if said is None:
            continue
        ours = layouts[node]
        ours = ours if isinstance(ours, tuple) else (ours,) * (1 if said == "moved" else len(said))
        yield table.name_of(node), [placement(one) for one in ours], said


# Backwards and places that take a sum over records as they take each part of it.
LINEAR_IN_A_SUM = (
    "tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward",
    "_log_softmax_backward_data", "_softmax_backward_data", "masked_fill", "scatter", "scatter_add",
    "native_layer_norm_backward", "convolution_backward",
)  # fmt: skip
# Where DTensor would move data before it begins, though the operator can be run on each half.
MOVED = {
    "native_batch_norm_backward": "it is for training alone; with fixed statistics the sum is one",
    "native_batch_norm": "as its backward",
    "cat": "an empty tensor, which torch passes over, lies in no halves",
    "tril": "it wants matrices whole, and looks no further than their number of axes",
    "triu": "as tril",
    **dict.fromkeys(LINEAR_IN_A_SUM, "it is linear in a gradient, which DTensor does not know"),
    "index_put": "it adds no values up that lie on several machines, into zeros or not",
}
# What the table has along the records, and DTensor on each machine whole: the same for everybody.
SAME_FOR_ALL = {"repeat", "expand", "new_full", "new_zeros"}


def disputed(answers):
    """Return what of the answers is neither the same nor among the exceptions."""
    found = []
    for name, ours, said in answers:
        if said == "moved":
            fine = name in MOVED
        else:
            pairs = [(a, b) for a, b in zip(ours, said, strict=True) if b is not None and a != b]
            fine = not pairs or (
                name in SAME_FOR_ALL and all(b == Replicate() and a != b for a, b in pairs)
            )
        if not fine:
            found.append((name, ours, said))
    return found


def entry_by_entry(mesh, name):
    for call, given in overloads(name):
        yield from compared(mesh, call, given)
        if len(given) > 1:
            with contextlib.suppress(RuntimeError):  # it takes no smaller tensors
                yield from compared(mesh, call, given[:1], [t[0] for t in given[1:]])


@pytest.fixture(scope="module")
def answers(mesh):
    torch.manual_seed(0)
    found = [each for case in CASES.values() for each in compared(mesh, *case)]
    for name in sorted(table.POINTWISE - SKIPPED):
        found += entry_by_entry(mesh, name)
    return found


def test_the_table_claims_nothing_that_dtensor_denies(answers):
    assert disputed(answers) == []


def test_every_exception_is_one(answers):
    moved = {name for name, _, said in answers if said == "moved"}
    other = {name for name, ours, said in answers if said not in ("moved", ours)}
    assert moved == MOVED.keys()
    assert other >= SAME_FOR_ALL


def test_how_many_operators_are_compared(answers):
    both = {table.operator_name(op) for op in theirs()} & table.RULES.keys()
    seen = {name for name, *_ in answers}
    assert len(seen) >= 220
    assert len(both) >= 280


WRONG = {
    "_softmax": (lambda x: x.softmax(0), lambda call: call.of(call.argument("self"))),
    "cumsum": (lambda x: x.cumsum(0), lambda call: call.of(call.argument("self"))),
    "mean": (lambda x: x.mean(0), lambda _: Summed()),
    "amax": (lambda x: x.amax(0), lambda _: Summed()),
    "mm": (lambda x: x.t() @ x, lambda _: Shared()),
    "mul": (lambda x: x.sum(0) * x.sum(0), lambda _: Summed()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_is_seen(name, mesh, monkeypatch):
    function, rule = WRONG[name]
    monkeypatch.setattr(proof, "_check_flow", lambda *_args, **_kwargs: None)
    monkeypatch.setitem(table.RULES, name, rule)
    wrong = disputed(compared(mesh, function, [torch.randn(4, 6)]))
    assert name in [op for op, *_ in wrong]
