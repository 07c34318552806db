"""Private names of torch: all that this library uses, what each is for, and since when it exists.

Another version of torch may rename any of them; what to change then stands here and nowhere else.
`Since` names the first of torch 1.13, 2.0, 2.1, 2.4, 2.5 and 2.6 whose sources have the name (1.13
stands for "1.13 or before"). 2.6 is the oldest version that this library runs on.

What takes long to import (tracing: half a second) is imported by the function that needs it, so
that a program which only checks its input does not wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

# The newest version with which the tests of the proof have passed (`make test-torch`).
NEWEST_TESTED = (2, 13)


def version() -> tuple[int, int]:
    """Return the version of torch that runs: its first two numbers."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


# ---------------------------------------------------------------- operators

# An operator of ATen with one signature: what the nodes of a captured graph call. Since 1.13.
Overload: TypeAlias = torch._ops.OpOverload
# All overloads of one operator, which has its name. Since 1.13.
OverloadPacket: TypeAlias = torch._ops.OpOverloadPacket
# An operator that a library has registered by `torch.library.custom_op`: no copy of it can be made,
# since the registry knows it by name. Since 2.4.
CustomOperator: TypeAlias = CustomOpDef


def schema_of(target: object) -> Any:
    """Return an operator's schema: its arguments, results and aliases; None for other callables.

    `_schema`: rules find arguments by name, and mutation by its alias annotations. Since 1.13.
    """
    return getattr(target, "_schema", None)


def overload_name(overload: Overload) -> str:
    """Return the part of an operator's name after the point, such as "Tensor" of "add.Tensor".

    `_overloadname`: the twin of an operator that writes in place has the same one. Since 1.13.
    """
    return str(overload._overloadname)


def library_of_operator(packet: OverloadPacket) -> str:
    """Return the namespace that an operator is registered in: "aten", or a library's own.

    `_qualified_op_name`: keeps a library's "relu" apart from ATen's. Since 1.13.
    """
    return packet._qualified_op_name.partition("::")[0]


def binding_of(overload: Overload) -> Callable[..., Any]:
    """Return an overload's own binding, which spares torch's look-up: a microsecond a call.

    `_op`: since 1.13.
    """
    return overload._op


def core_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return how composite operators are written in core ones, with gradients already taken.

    `_core_aten_decompositions_post_autograd`: since 2.6.
    """
    from torch._decomp import _core_aten_decompositions_post_autograd

    table: Mapping[Any, Callable[..., Any]] = _core_aten_decompositions_post_autograd()
    return table


# ---------------------------------------------------------------- tracing


def fake_mode() -> FakeTensorMode:
    """Return a mode that makes tensors with shape, type and strides, and without values.

    `torch._subclasses.fake_tensor.FakeTensorMode`: since 1.13; `allow_non_fake_inputs`: since 2.0.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


# The base class of modes that see every operator below autograd. Since 1.13.
DispatchMode: TypeAlias = TorchDispatchMode
# The operator by which a tensor without values is asked for its device. Since 2.0.
DEVICE_OF = torch.ops.prim.device.default


@functools.cache
def is_composite(operator: object, device: str) -> bool:
    """Return whether an operator is written in others, and has no kernel of its own on a device.

    `torch._C._dispatch_has_kernel_for_dispatch_key`: since 1.13; `_dispatch_key_for_device`: since
    2.0.
    """
    if not isinstance(operator, Overload):  # of a higher order
        return False
    name: str = operator.name()  # type: ignore[no-untyped-call]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = torch._C._dispatch_key_for_device(device)
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, key)


def mode_of(tensor: torch.Tensor) -> FakeTensorMode:
    """Return the mode in which a tensor without values was made.

    `fake_mode`, an attribute of such tensors: since 1.13.
    """
    mode: FakeTensorMode = tensor.fake_mode  # type: ignore[attr-defined]
    return mode


def has_no_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of `fake_mode`, or on the device meta."""
    return tensor.is_meta or getattr(tensor, "fake_mode", None) is not None


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the form that one has now, whatever is written into it, or is its past.

    `torch.fx.experimental.proxy_tensor.snapshot_fake`: since 2.0.
    """
    from torch.fx.experimental.proxy_tensor import snapshot_fake

    result = snapshot_fake(tensor)
    assert result is not None
    return result


def notes_of_running_node() -> dict[str, Any] | None:
    """Return the notes of the node that runs, in `keep_node_notes`; None elsewhere.

    `torch.fx.traceback`: since 2.0.
    """
    from torch.fx import traceback

    if not traceback.has_preserved_node_meta():
        return None
    notes: dict[str, Any] = traceback.get_current_meta().get("custom", {})
    return notes


def swap_parameters(
    model: nn.Module, tensors: dict[str, torch.Tensor]
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a model has `tensors`, by name, for its parameters and buffers.

    `_reparametrize_module`: unlike `functional_call` it stays in force through the backward, where
    what is checkpointed runs again. Since 1.13.
    """
    from torch.nn.utils.stateless import _reparametrize_module

    context: contextlib.AbstractContextManager[None] = _reparametrize_module(model, tensors)
    return context


@contextlib.contextmanager
def silence_tracing() -> Iterator[None]:
    """Let torch not write to its log what a trace cannot do, with the shapes of the trace.

    `torch._subclasses.fake_tensor`, the log's name: since 2.1.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = was_disabled


@contextlib.contextmanager
def keep_node_notes() -> Iterator[None]:
    """Let a trace of a graph give its nodes the notes (`meta`) of the nodes that it runs.

    `torch.fx.traceback.preserve_node_meta`: since 2.0.
    """
    from torch.fx import traceback

    with traceback.preserve_node_meta():
        yield


def graph_module(root: nn.Module | dict[str, Any], graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Return a module of a graph, whose Python code is written only where the module is called.

    `torch.fx._lazy_graph_module`: most graphs are read and interpreted, and writing one takes as
    long as to prove it. Since 2.4.
    """
    from torch.fx import _lazy_graph_module

    with _lazy_graph_module._use_lazy_graph_module(True):
        return _lazy_graph_module._make_graph_module(root, graph)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return nested tuples, lists and dicts with `function` of each leaf.

    `torch.utils._pytree.tree_map`: since 1.13.
    """
    return _pytree.tree_map(function, tree)


# ---------------------------------------------------------------- modules and tensors

# The base class of all batch norms, and of all instance norms. Since 1.13.
BatchNormBase: TypeAlias = nn.modules.batchnorm._BatchNorm
InstanceNormBase: TypeAlias = nn.modules.instancenorm._InstanceNorm
# The base class of all dropouts. Since 1.13.
DropoutBase: TypeAlias = nn.modules.dropout._DropoutNd
# How torch.compile's wrapper names the module in it, and so its parameters. Since 2.0.
WRAPPED_MODULE = "_orig_mod"
# How the attributes begin in which torch.compile notes what it did, on functions and classes. Since
# 2.0.
COMPILER_NOTES = "_torchdynamo"


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the dict of a module's own parameters, which may be written to.

    `_parameters`: `named_parameters` leaves out those that are None or shared. Since 1.13.
    """
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the dict of a module's own buffers, which may be written to.

    `_buffers`: since 1.13.
    """
    return module._buffers


def tensor_dicts_of(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dicts of a module's own parameters and buffers, which may be written to."""
    return [module._parameters, module._buffers]


def submodules_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the dict of a module's own parts.

    `_modules`: `named_children` leaves out those that are None or shared. Since 1.13.
    """
    return module._modules


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's wrapper, which is what is run."""
    inner = submodules_of(module).get(WRAPPED_MODULE)
    return module if inner is None else inner


def has_gradient_hooks(parameter: nn.Parameter) -> bool:
    """Return whether a hook sees or changes a parameter's gradient.

    `_backward_hooks`: since 1.13; `_post_accumulate_grad_hooks`: since 2.1.
    """
    return bool(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks are called around a module's own forward or backward.

    `_forward_hooks`, `_forward_pre_hooks`, `_backward_hooks`: since 1.13; `_backward_pre_hooks`:
    since 2.0.
    """
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks)


def global_hooks() -> list[object]:
    """Return the dicts of hooks that torch runs for every module.

    `_global_forward_hooks` and `_global_forward_pre_hooks`, `_global_backward_hooks`: since 1.13;
    `_global_backward_pre_hooks`: since 2.0. A model's forward may read what a hook has noted.
    """
    module: Any = nn.modules.module
    return [
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        module._global_backward_pre_hooks,
    ]


def write_count(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written in place.

    `_version`: shows a write that leaves the same values. Since 1.13.
    """
    return int(tensor._version)


def script_attributes(module: Any) -> list[tuple[str, object]]:
    """Return the values that a module of TorchScript holds outside of Python, by name.

    `_c` and `_concrete_type`: since 1.13.
    """
    held = module._c
    names = sorted(module._concrete_type.get_attributes())
    return [(name, held.getattr(name)) for name in names]


# ---------------------------------------------------------------- settings and devices


def function_mode_depth() -> int:
    """Return how many modes are in force that replace torch's functions.

    `torch._C._len_torch_function_stack`: a graph captured under one holds only under it. Since
    1.13.
    """
    return torch._C._len_torch_function_stack()


def mps_generator() -> torch.Generator:
    """Return the generator of Apple's GPU.

    `torch.mps._get_default_mps_generator`: since 2.0.
    """
    return torch.mps._get_default_mps_generator()


def has_compiler() -> bool:
    """Return whether inductor finds a C++ compiler.

    `torch._inductor.cpp_builder.get_cpp_compiler`: since 2.5;
    `torch._inductor.exc.InvalidCxxCompiler`: since 2.0.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True
