"""Capture: model and loss, forward and backward of all records, as one graph of ATen's operators.

Nothing of the user's Python runs after that: what is proved of the graph holds of what runs. The
capture sees shapes and no values, so that no branch can depend on a record. It is made twice, with
other numbers of records and other seeds, and both must agree: what a capture freezes (a coin of
Python's, a counter, the size of a batch) is not frozen in silence. Each size of the two is either
the same or the same multiple of the number of records; so the graph is one for any number.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo as dynamo
from torch import fx, nn
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from apiece.errors import ApieceError
from apiece.training.clipping import records
from apiece.training.clipping.ambient import streams_kept
from apiece.training.clipping.graphs import (
    OTHERWISE,
    Coincidence,
    Uncaptured,
    agree,
    is_mutation,
    moved_by_records,
    place_of,
    tidy,
)
from apiece.training.clipping.records import LossFunction
from apiece.training.clipping.sequences import Unwritten, written_out
from apiece.training.clipping.table import RULES, Sizes, name_of, operator_name
from apiece.training.clipping.watch import Binding, Watch

# Numbers of records in the capture that is kept: the first of which nothing else is a multiple.
PRIMES = (1009, 1013, 1019, 1021)
aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph of model and loss, forward and backward.

    module: takes the tensors of `names` (of parameters and buffers), then those of inputs and
    targets, in order. trained: the parameters that gradients are made for.
    """

    module: fx.GraphModule
    names: tuple[str, ...]
    trained: tuple[str, ...]
    sizes: Sizes

    @property
    def records(self) -> list[fx.Node]:
        """The inputs of the graph that are along the records."""
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        return placeholders[len(self.names) :]

    @property
    def results(self) -> tuple[fx.Node, list[fx.Node | None]]:
        """The losses, and each trained parameter's gradient, None where it has none."""
        (result,) = next(node for node in self.module.graph.nodes if node.op == "output").args
        losses, *gradients = result
        return losses, gradients


def capture(
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    loss_fn: LossFunction,
    inputs: object,
    targets: object,
    watch: Watch,
) -> Captured:
    """Return the graph of a model's losses and the gradients of these parameters.

    watch: of what model and loss hold, which puts back what a forward writes. Of inputs and targets
    only shapes and types are looked at; the model is left as it was. Raises `Uncaptured` with
    the line of whose code, and `InputError` for a loss that was reduced.
    """
    if watch.moving:
        raise Uncaptured(f"model, loss_fn: {watch.moving}; hold a list")
    task = _Task(model, parameters, loss_fn, inputs, targets)
    for prime in PRIMES:
        try:
            graph = _captured(task, watch, prime)
            break
        except Coincidence:
            continue
    else:
        raise Uncaptured(f"model: has sizes that are multiples of each of {PRIMES}; change one")
    tidy(graph)
    _only_parameters(graph, parameters)
    return Captured(graph, tuple(task.tensors), tuple(parameters), Sizes(prime))


def _captured(task: _Task, watch: Watch, prime: int) -> fx.GraphModule:
    """Return the graph with `prime` records, which is one with the graph of other records."""
    with watch.restored(), _quiet():
        before = _states()
        graph = task.plain(prime)
        if _states() != before:
            raise Uncaptured(
                "model, loss_fn: a coin of Python's or NumPy's, which may differ from one capture "
                "to the next: draw with torch, for each record"
            )
    changed, places = watch.changed, watch.places
    if len(changed) > len(places):
        raise _written(next((c for c in changed if c not in places), changed[0]))
    settling = _Settling(list(places.values())) if places else None
    try:
        with watch.restored(), _quiet():
            random.seed(20)
            np.random.seed(20)  # noqa: NPY002
            again = task.plain(OTHERWISE, settling)
        agree(graph, again, prime)
    except (Uncaptured, Unsettled):
        if changed:
            raise _written(changed[0]) from None
        raise
    if new := [place for place in watch.changed if place not in changed]:
        raise _written(new[0])
    for one in (graph, again):
        _write_elsewhere(one.graph)
    if any(node.op == "call_function" and is_mutation(node) for node in graph.graph.nodes):
        graph, again = task.without_writes(graph, prime), task.without_writes(again, OTHERWISE)
        agree(graph, again, prime)
    return graph


def _states() -> tuple[object, str]:
    return random.getstate(), repr(np.random.get_state())  # noqa: NPY002


def _written(place: str) -> Uncaptured:
    return Uncaptured(
        f"{place}: changes in a forward; what a forward writes would be one record's word to the "
        "next: give it as an input, or compute it before"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave the streams of random numbers as they were; run what is compiled as it was written."""
    as_written = dynamo.config.patch(error_on_nested_fx_trace=False)
    with streams_kept(), as_written, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        yield


_VALUES = {
    *(getattr(torch.Tensor, name) for name in (
        "item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__complex__",
        "__array__", "__contains__", "is_nonzero", "equal", "allclose", "unique",
    )), torch.is_nonzero, torch.equal, torch.allclose,
}  # fmt: skip


class _Restated(TorchFunctionMode):
    """Writes two functions in operators that say what they do.

    The pooling of a whole picture is a mean; torch's own writes other strides into its result, for
    pictures with their channels last. And `one_hot` compares, without values, labels with all
    classes: one beyond them would be no class, and none the wiser.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs, whole = kwargs or {}, (1, (1, 1), [1, 1])
        if func in _VALUES and args and type(args[0]) in (torch.Tensor, nn.Parameter):
            raise Uncaptured(
                "a tensor that is no buffer becomes a number, which would stay as it is; hold the "
                "number, or compute with the tensor"
            )
        if func is nn.functional.adaptive_avg_pool2d and not kwargs and args[1] in whole:
            return args[0].mean((-2, -1), keepdim=True)
        if func is nn.functional.one_hot:
            return _one_hot(*args, **kwargs)  # type: ignore[arg-type]
        return func(*args, **kwargs)


def _one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:  # noqa: A002
    if num_classes < 0:
        raise Uncaptured("one_hot: the records' labels decide how many classes there are; say it")
    zeros = input.new_zeros((*input.shape, num_classes))
    return zeros.scatter(-1, input.unsqueeze(-1), 1)


def fakes(
    tensors: Sequence[torch.Tensor], along: Sequence[bool], size: int
) -> Iterator[torch.Tensor]:
    """Yield tensors without values, with `size` records where they are along the records."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for tensor, follows in zip(tensors, along, strict=True):
        given = tensor.detach()
        if follows:
            given = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            given = torch.empty_like(given, device=tensor.device)
        yield mode.from_tensor(given)


@dataclass(frozen=True, eq=False, repr=False)
class _Task:
    """A model and a loss to be captured."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: LossFunction
    inputs: object
    targets: object

    @functools.cached_property
    def places(self) -> list[tuple[str, torch.Tensor]]:
        """Every name under which the model holds a tensor."""
        return [
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        ]

    @functools.cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, each once, the trained ones first."""
        result: dict[str, torch.Tensor] = dict(self.parameters)
        seen = {id(t) for t in result.values()}
        for name, tensor in self.places:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                result[name] = tensor
        return result

    def _fakes(self, size: int) -> list[torch.Tensor]:
        shared, given = list(self.tensors.values()), records.leaves([self.inputs, self.targets])
        return list(fakes([*shared, *given], [*[False] * len(shared), *[True] * len(given)], size))

    def plain(self, size: int, settling: _Settling | None = None) -> fx.GraphModule:
        """Return the graph for one number of records, from the state that forwards leave."""
        paths: dict[int, str] = {}
        try:
            with (
                torch.enable_grad(),
                _modules_noted(self.model, paths) as note,
                written_out(self.model),
                _Restated(),
            ):
                make = make_fx(
                    functools.partial(self._joint, settling, note),
                    tracing_mode="fake",
                    decomposition_table=decompositions(),
                    _allow_non_fake_inputs=True,
                )
                result: fx.GraphModule = make(*self._fakes(size))
        except (ApieceError, Uncaptured, Unsettled, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            raise Uncaptured(_where(error)) from None
        at = ""
        for k, node in enumerate(result.graph.nodes):
            at = paths.get(k, at)
            node.meta["custom"] = {"module": at}
        if settling is not None:
            settling.check(result.graph)
        return result

    def _joint(
        self, settling: _Settling | None, note: Callable[[str], None], *tensors: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Return losses and gradients: what is captured."""
        held = dict(zip(self.tensors, tensors, strict=False))
        for name in self.parameters:
            held[name] = held[name].detach().requires_grad_()
        inputs, targets = records.fill([self.inputs, self.targets], list(tensors[len(held) :]))
        own = {id(tensor): held[name] for name, tensor in self.tensors.items()}
        everywhere = {place: own[id(tensor)] for place, tensor in self.places}
        wanted = [held[name] for name in self.parameters]
        size = tensors[-1].shape[0]
        # what is checkpointed runs again in the backward, and must find the same parameters
        with _reparametrize_module(self.model, everywhere):
            if settling is not None:
                settling.before(lambda: self.loss_fn(records.call(self.model, inputs), targets))
            outputs = records.call(self.model, inputs)
            note("loss_fn")
            losses = records.check_losses(self.loss_fn(outputs, targets), size, self.loss_fn)
            note("")
            if settling is not None:
                settling.after()
            gradients = records.gradients_of(losses, wanted)
            for place, tensor in everywhere.items():
                module, _, name = place.rpartition(".")
                if getattr(self.model.get_submodule(module), name, None) is not tensor:
                    raise _written(place)
        return [losses.detach(), *gradients]

    def without_writes(self, graph: fx.GraphModule, size: int) -> fx.GraphModule:
        """Return a graph that does the same, and writes into no tensor."""
        try:
            with fx_traceback.preserve_node_meta():
                make = make_fx(
                    functionalize(fx.Interpreter(graph).run, remove="mutations"),
                    tracing_mode="fake",
                    _allow_non_fake_inputs=True,
                )
                result: fx.GraphModule = make(*self._fakes(size))
        except Exception as error:
            raise Uncaptured(
                f"model: cannot be written without writing into tensors ({_short(error)})"
            ) from None
        for node in result.graph.nodes:
            if is_mutation(node) and node.op == "call_function":
                raise Uncaptured(
                    f"{place_of(node)}: writes into what it was given (a buffer, a parameter, or a "
                    "record)"
                )
        return result


def _write_elsewhere(graph: fx.Graph) -> None:
    """Let operators that write into a tensor of which nothing else knows give a new one instead."""
    for node in graph.nodes:
        if node.op != "call_function" or not is_mutation(node) or not node.args:
            continue
        target, overload = node.args[0], node.target._overloadname
        alone = isinstance(target, fx.Node) and len(target.users) == 1 and _is_fresh(target)
        if not (alone and _keeps_form(node)):
            continue
        packet = getattr(aten, node.target.overloadpacket.__name__.removesuffix("_"), None)
        overload = "p" if name_of(node) == "bernoulli_" and overload == "float" else overload
        other = getattr(packet, overload, None)
        if other is not None and not other._schema.is_mutable:
            rest = node.target._schema.arguments[len(node.args) :]
            node.args += tuple(one.default_value for one in rest if not one.kwarg_only)
            node.target = other


def _keeps_form(node: fx.Node) -> bool:
    """Return whether a new tensor would have the type and strides of the one that is written."""
    own = node.meta["val"]
    others = [n.meta["val"] for n in node.all_input_nodes]
    return all(
        one.dtype == own.dtype and (one.shape != own.shape or one.stride() == own.stride())
        for one in others
        if isinstance(one, torch.Tensor)
    )


def _is_fresh(node: fx.Node) -> bool:
    """Return whether an operator gives memory of its own: no view, nothing that it was given."""
    source = node.args[0] if node.target is operator.getitem else node
    schema = getattr(getattr(source, "target", None), "_schema", None)
    return schema is not None and all(one.alias_info is None for one in schema.returns)


def _only_parameters(graph: fx.GraphModule, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `Uncaptured` where the graph holds a trained parameter that it was not given."""
    own = {id(p): name for name, p in parameters.items()}
    pointers = {p.data_ptr(): name for name, p in parameters.items() if p.numel()}
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        tensor = operator.attrgetter(node.target)(graph)
        name = own.get(id(tensor))
        with contextlib.suppress(AttributeError, RuntimeError):  # no tensor, or one without memory
            name = name or pointers.get(tensor.data_ptr())
        if name is not None:
            raise Uncaptured(
                f"{name}: is used past the model (in the loss, or in a function that holds it); "
                "use it through the model's forward"
            )


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Return how operators without a rule are written in others, where torch knows how."""
    table: Any = _core_aten_decompositions_post_autograd()
    result = {op: how for op, how in table.items() if operator_name(op) not in RULES}
    result[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    result[aten._trilinear.default] = _trilinear
    result[aten._reshape_alias.default] = _reshape_alias
    return result


def _reshape_alias(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """Return a view, which torch's own way to write it takes for one whatever its strides."""
    result = tensor.view(size)
    if result.stride() != tuple(stride):
        raise Uncaptured("_reshape_alias: the strides of a view put entries in other places")
    return result


def _weight_norm_backward(
    grad_w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of w = g·v/‖v‖ in products and sums, which are linear in `grad_w`."""
    others = [k for k in range(v.dim()) if k != dim]
    along = (grad_w * v).sum(others, keepdim=True)
    norms = norms.reshape(along.shape)
    return (grad_w - along * (v / norms.square())) * (g / norms), along / norms


def _trilinear(
    i1: torch.Tensor, i2: torch.Tensor, i3: torch.Tensor, *axes: Sequence[int]
) -> torch.Tensor:
    """Return a product of three tensors, each with new axes, summed over the last of `axes`."""
    given = [i1, i2, i3]
    for k, new in enumerate(axes[:3]):
        for axis in sorted(new):
            given[k] = given[k].unsqueeze(axis)
    total = given[0] * given[1] * given[2]
    return total.sum(list(axes[3])) if axes[3] else total


# ---------------------------------------------------------------- what a forward leaves behind

_SETTLED = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Unsettled(Exception):  # noqa: N818
    """What a forward leaves behind differs from call to call, or follows from what it was given."""


class _Number:
    """Any number: it can be counted on, and nothing can be decided by it."""

    __slots__ = ()

    def _counted(self, other: object) -> _Number:
        if isinstance(other, int | float | _Number):
            return self
        raise Unsettled("a tensor depends on it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _counted

    def _decided(self, *_others: object) -> Any:
        raise Unsettled("something is decided by it")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _decided
    __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = _decided


class _Settling:
    """Forwards before the one that counts, and what they have left in attributes and globals.

    That may be a counter of calls, or a table that follows from shapes and is kept for the next
    call, on which nothing that is computed depends. The graph that is proved and run is that of a
    forward from the state that the model has; it must be the same from the state that forwards
    leave, and with any number in a counter's place. So nothing freezes that would have moved.
    """

    def __init__(self, places: Sequence[Binding]) -> None:
        self._places = places
        self._left: list[object] = []
        self._tensors: set[fx.Node] = set()
        self._begins = 0  # the place in the graph of the forward that counts

    def before(self, run: Callable[[], object]) -> None:
        """Run twice; what still moves then must be a number, and becomes any number."""
        run()
        once = self._state()
        run()
        twice = self._state()
        for place, one, two in zip(self._places, once, twice, strict=True):
            if not _left_alike(one, two):
                if type(one) not in (int, float) or type(two) not in (int, float):
                    raise Unsettled("differs from call to call")
                place.put(_Number())
        self._left = self._state()
        mode = get_proxy_mode()
        assert mode is not None
        self._tensors = {
            get_proxy_slot(value, mode.tracer).proxy.node
            for value in self._left
            if isinstance(value, torch.Tensor)
        }
        self._begins = len(mode.tracer.graph.nodes)

    def after(self) -> None:
        """Raise `Unsettled` unless the forward that counts has left everything as it was."""
        if not all(map(_left_alike, self._state(), self._left)):
            raise Unsettled("differs from call to call")

    def _state(self) -> list[object]:
        result = [place.get() for place in self._places]
        if not all(isinstance(value, (*_SETTLED, torch.Tensor, _Number)) for value in result):
            raise Unsettled("is neither a number nor a tensor")
        return result

    def check(self, graph: fx.Graph) -> None:
        """Take out the forwards before; raise `Unsettled` where a tensor follows from inputs."""
        if self._tensors & moved_by_records(graph):
            raise Unsettled("follows from what it was given")
        for node in reversed(list(graph.nodes)[: self._begins]):
            if not node.users and node.op != "placeholder":
                graph.erase_node(node)


def _left_alike(one: object, other: object) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _SETTLED) and bool(one == other)


# ---------------------------------------------------------------- where


@contextlib.contextmanager
def _modules_noted(model: nn.Module, paths: dict[int, str]) -> Iterator[Callable[[str], None]]:
    """Note from which operator on which module's forward runs; yield what notes another place."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def at(path: str) -> None:
        mode = get_proxy_mode()
        if mode is not None:
            paths[len(mode.tracer.graph.nodes)] = path

    def enter(module: nn.Module, _args: object) -> None:
        if id(module) in names:
            stack.append(names[id(module)])
            at(stack[-1])

    def leave(module: nn.Module, _args: object, _out: object) -> None:
        if id(module) in names and stack:
            stack.pop()
            at(stack[-1] if stack else "")

    before = nn.modules.module.register_module_forward_pre_hook(enter)
    after = nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield at
    finally:
        before.remove()
        after.remove()


_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def _where(error: BaseException) -> str:
    """Return what went wrong, and the last line of somebody's code before it did."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith(_OWN) and not frame.filename.startswith("<"):
            return f"{Path(frame.filename).name}:{frame.lineno} ({frame.line}): {_short(error)}"
    return _short(error)


_MEANT = {
    "DataDependentOutputException": "a value of a record decides what is computed",
    "GuardOnDataDependentSymNode": "a value of a record decides what is computed",
    "DynamicOutputShapeException": "the shape of a tensor depends on the records' values",
}


def _short(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, Unwritten):
        return str(error)
    if name in _MEANT:
        return _MEANT[name]
    text = str(error).strip().splitlines()
    return f"{name}: {text[0][:160]}" if text else name
