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
from collections.abc import Callable, Iterator, Sequence
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
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from apiece.errors import ApieceError
from apiece.training.clipping import records
from apiece.training.clipping.layout import Sizes
from apiece.training.clipping.sequences import Unwritten, written_out
from apiece.training.clipping.settled import Settling, Unsettled
from apiece.training.clipping.table import (
    RANDOM,
    RULES,
    UNFILLED,
    is_filled,
    name_of,
    operator_name,
)
from apiece.training.clipping.watch import Kept

# Numbers of records in the capture that is kept: the first of which nothing else is a multiple.
PRIMES = (1009, 1013, 1019, 1021)
OTHERWISE = 4  # in the one that it is compared with: even, and small

aten = torch.ops.aten


class Uncaptured(Exception):  # noqa: N818
    """A model or loss cannot be written as one graph; the text says what and where."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph of model and loss, forward and backward.

    Args:
        module: Takes the tensors of `names`, then those of inputs and targets, in order.
        names: Of parameters and buffers.
        trained: Of the parameters that gradients are made for.
        sizes: What is known of sizes.
    """

    module: fx.GraphModule
    names: tuple[str, ...]
    trained: tuple[str, ...]
    sizes: Sizes

    @property
    def placeholders(self) -> list[fx.Node]:
        """The inputs of the graph: parameters and buffers, then what is a record's."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def records(self) -> list[fx.Node]:
        """The inputs that are along the records."""
        return self.placeholders[len(self.names) :]

    @property
    def results(self) -> tuple[fx.Node, list[fx.Node | None]]:
        """The losses, and each trained parameter's gradient, None where it has none."""
        (found,) = next(node for node in self.module.graph.nodes if node.op == "output").args
        losses, *gradients = found
        return losses, gradients


def capture(
    model: nn.Module, parameters: dict[str, nn.Parameter], loss_fn: Any, inputs: Any, targets: Any
) -> Captured:
    """Return the graph of a model's losses and the gradients of these parameters.

    Args:
        model: Left as it was.
        parameters: The trained ones, by name.
        loss_fn: Gives one loss a record.
        inputs: Of any number of records; only shapes and types are looked at.
        targets: As `inputs`.

    Raises:
        Uncaptured: With the line of whose code.
        InputError: For a loss that was reduced.
    """
    task = _Task(model, parameters, loss_fn, inputs, targets)
    for prime in PRIMES:
        try:
            graph = _captured(task, Kept(model, loss_fn), prime)
            break
        except Coincidence:
            continue
    else:
        raise Uncaptured(f"model: has sizes that are multiples of each of {PRIMES}; change one")
    tidy(graph)
    _only_parameters(graph, parameters)
    return Captured(graph, tuple(task.tensors), tuple(parameters), Sizes(prime))


def _captured(task: _Task, kept: Kept, prime: int) -> fx.GraphModule:
    """Return the graph with `prime` records, which is one with the graph of other records."""
    with kept.restored(), _quiet():
        graph = task.plain(prime)
    changed, attributes = kept.changed, kept.attributes
    if len(changed) > len(attributes):
        raise _written(next((c for c in changed if c not in attributes), changed[0]))
    settling = Settling(list(attributes.values())) if attributes else None
    try:
        with kept.restored(), _quiet(), _other_seeds():
            again = task.plain(OTHERWISE, settling)
        agree(graph, again, prime)
    except (Uncaptured, Unsettled):
        if changed:
            raise _written(changed[0]) from None
        raise
    if set(kept.changed) - set(changed):
        raise _written(kept.changed[0])
    for one in (graph, again):
        _write_elsewhere(one.graph)
    if not _writes(graph):
        return graph
    graph, again = task.without_writes(graph, prime), task.without_writes(again, OTHERWISE)
    agree(graph, again, prime)
    return graph


def _written(place: str) -> Uncaptured:
    return Uncaptured(
        f"{place}: changes in a forward; what a forward writes would be one record's word to the "
        "next: give it as an input, or compute it before"
    )


@contextlib.contextmanager
def _other_seeds() -> Iterator[None]:
    """Let Python's and NumPy's draws be other ones, and leave the streams as they were."""
    before, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        random.seed(20)
        np.random.seed(20)  # noqa: NPY002
        yield
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)  # noqa: NPY002


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave the streams of random numbers as they were; run what is compiled as it was written."""
    before, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    as_written = dynamo.config.patch(error_on_nested_fx_trace=False)
    with torch.random.fork_rng(devices=[]), as_written, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(of_numpy)  # noqa: NPY002


class _Means(TorchFunctionMode):
    """Takes the pooling of a whole picture for the mean that it is.

    Torch's own writes other strides into its result, for pictures with their channels last.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.adaptive_avg_pool2d and not kwargs:
            given, size = args
            if size in (1, (1, 1), [1, 1]):
                return given.mean((-2, -1), keepdim=True)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False, repr=False)
class _Task:
    """What is to be captured."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: Any
    inputs: Any
    targets: Any

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, each once, the trained ones first."""
        found: dict[str, torch.Tensor] = dict(self.parameters)
        seen = {id(t) for t in found.values()}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[name] = tensor
        return found

    @property
    def _places(self) -> dict[str, str]:
        """Every name under which the model holds a tensor, and the one that it goes by here."""
        first = {id(t): name for name, t in self.tensors.items()}
        every = [
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        ]
        return {place: first[id(t)] for place, t in every}

    def plain(self, size: int, settling: Settling | None = None) -> fx.GraphModule:
        """Return the graph for one number of records, from the state that forwards leave."""
        fake = self._fake(size)
        paths: dict[int, str] = {}
        try:
            with (
                torch.enable_grad(),
                _modules_noted(self.model, paths) as note,
                _cells(self.model),
                written_out(self.model),
                _Means(),
            ):
                make = make_fx(
                    functools.partial(self._joint, settling, note),
                    tracing_mode="fake",
                    decomposition_table=decompositions(),
                    _allow_non_fake_inputs=True,
                )
                found: fx.GraphModule = make(*fake)
        except (ApieceError, Uncaptured, Unsettled, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            raise Uncaptured(_where(error)) from None
        at = ""
        for k, node in enumerate(found.graph.nodes):
            at = paths.get(k, at)
            node.meta["custom"] = {"module": at}
        if settling is not None:
            settling.check(found.graph)
        return found

    def _fake(self, size: int) -> list[torch.Tensor]:
        """Return tensors without values, with `size` records."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def of(tensor: torch.Tensor, first: bool) -> torch.Tensor:
            given = tensor.detach()
            if first:
                given = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
                given = torch.empty_like(given, device=tensor.device)
            return mode.from_tensor(given)

        shared = [of(t, first=False) for t in self.tensors.values()]
        return [*shared, *(of(t, first=True) for t in records.leaves([self.inputs, self.targets]))]

    def _joint(
        self, settling: Settling | None, note: Callable[[str], None], *tensors: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Return losses and gradients: what is captured."""
        names = list(self.tensors)
        held = dict(zip(names, tensors, strict=False))
        for name in self.parameters:
            held[name] = held[name].detach().requires_grad_()
        given = records.fill([self.inputs, self.targets], list(tensors[len(names) :]))
        args, kwargs = records.arguments(given[0])
        everywhere = {place: held[name] for place, name in self._places.items()}
        wanted = [held[name] for name in self.parameters]
        size = tensors[-1].shape[0]
        # what is checkpointed runs again in the backward, and must find the same parameters
        with _reparametrize_module(self.model, everywhere):
            if settling is not None:
                settling.before(lambda: self.loss_fn(self.model(*args, **kwargs), given[1]))
            outputs = self.model(*args, **kwargs)
            note("loss_fn")
            losses = records.check_losses(self.loss_fn(outputs, given[1]), size, self.loss_fn)
            note("")
            if settling is not None:
                settling.after()
            gradients: Sequence[torch.Tensor | None] = [None for _ in wanted]
            if losses.requires_grad:
                with torch.autocast(losses.device.type, enabled=False):
                    gradients = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
            for place, tensor in everywhere.items():
                module, _, own = place.rpartition(".")
                if getattr(self.model.get_submodule(module), own, None) is not tensor:
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
                found: fx.GraphModule = make(*self._fake(size))
        except Exception as error:
            raise Uncaptured(
                f"model: cannot be written without writing into tensors ({_short(error)})"
            ) from None
        for node in found.graph.nodes:
            if _is_mutation(node) and node.op == "call_function":
                at = node.meta.get("custom", {}).get("module") or "model"
                raise Uncaptured(
                    f"{at}: writes into what it was given (a buffer, a parameter, or a record)"
                )
        return found


def _write_elsewhere(graph: fx.Graph) -> None:
    """Let operators that write into a tensor of which nothing else knows give a new one instead."""
    for node in graph.nodes:
        if node.op != "call_function" or not _is_mutation(node) or not node.args:
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
    """Whether a new tensor would have the type and strides of the one that is written into."""
    own = node.meta["val"]
    others = [n.meta["val"] for n in node.all_input_nodes]
    return all(
        one.dtype == own.dtype and (one.shape != own.shape or one.stride() == own.stride())
        for one in others
        if isinstance(one, torch.Tensor)
    )


def _is_fresh(node: fx.Node) -> bool:
    """Whether an operator gives memory of its own: no view, and nothing that it was given."""
    source = node.args[0] if node.target is operator.getitem else node
    schema = getattr(getattr(source, "target", None), "_schema", None)
    return schema is not None and all(one.alias_info is None for one in schema.returns)


def _writes(graph: fx.GraphModule) -> bool:
    """Whether any operator writes into a tensor."""
    return any(node.op == "call_function" and _is_mutation(node) for node in graph.graph.nodes)


def for_any_size(graph: fx.GraphModule, sizes: Sizes, along: fx.Node) -> None:
    """Let a graph take any number of records, with which all its sizes that follow it change.

    Args:
        graph: Changed in place.
        sizes: Of its capture.
        along: A placeholder with the records along its first axis.
    """
    *_, last = (node for node in graph.graph.nodes if node.op == "placeholder")
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "output")]
    with graph.graph.inserting_after(last):
        batch = graph.graph.call_function(aten.sym_size.int, (along, 0))
    known = {1: batch}

    def sized(value: Any) -> Any:
        if not sizes.depends(value):
            return value
        times = value // sizes.batch
        if times not in known:
            with graph.graph.inserting_after(batch):
                known[times] = graph.graph.call_function(operator.mul, (batch, times))
        return known[times]

    for node in calls:
        node.args = fx.node.map_aggregate(node.args, sized)
        node.kwargs = fx.node.map_aggregate(node.kwargs, sized)
    if not batch.users:
        graph.graph.erase_node(batch)


def tidy(graph: fx.GraphModule) -> None:
    """Take out what nothing depends on, and copies that are none."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
            continue
        if name_of(node) in UNFILLED and not is_filled(node):
            node.target = _ZEROS[name_of(node)]
        node.meta["module"] = node.meta.get("custom", {}).get("module", "")
    graph.graph.eliminate_dead_code(is_impure_node=_is_mutation)
    graph.recompile()


_ZEROS: dict[str, Any] = {
    "empty": aten.zeros.default,
    "new_empty": aten.new_zeros.default,
    "empty_like": aten.zeros_like.default,
}


def _is_mutation(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _only_parameters(graph: fx.GraphModule, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `Uncaptured` where the graph holds a trained parameter that it was not given."""
    own = {id(p): name for name, p in parameters.items()}
    pointers = {p.data_ptr(): name for name, p in parameters.items() if p.numel()}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(graph)
            if not isinstance(tensor, torch.Tensor):
                continue
            name = own.get(id(tensor)) or pointers.get(_pointer(tensor))
            if name is not None:
                raise Uncaptured(
                    f"{name}: is used past the model (in the loss, or in a function that holds "
                    "it); use it through the model's forward"
                )


def _pointer(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


# ---------------------------------------------------------------- two captures agree


class Coincidence(Exception):  # noqa: N818
    """A number that does not follow the number of records is a multiple of it."""


def agree(graph: fx.GraphModule, other: fx.GraphModule, batch: int) -> None:
    """Raise `Uncaptured` where two captures differ but in the number of records.

    Args:
        graph: With `batch` records.
        other: With `OTHERWISE`.
        batch: A prime.

    Raises:
        Coincidence: Where a size is a multiple of `batch` and the same in both.
    """
    named: dict[fx.Node, fx.Node] = {}
    ours, theirs = _moving(graph.graph), _moving(other.graph)
    for one, two in zip(ours, theirs, strict=False):
        named[one] = two
        if not _alike(one, two, named, batch):
            at = one.meta.get("custom", {}).get("module") or "model"
            raise Uncaptured(f"{at}: {name_of(one)} differs from one capture to the next; {_MOVES}")
    if len(ours) != len(theirs):
        raise Uncaptured(f"model: other operators from one capture to the next; {_MOVES}")


_MOVES = (
    "a value of Python's (a coin, a clock, a counter, the number of records) decides what is "
    "computed: draw with torch, for each record, or give it as an input"
)


def _shapes(value: Any) -> Any:
    """Return the shapes of a node's tensors."""
    if isinstance(value, list | tuple):
        return [_shapes(part) for part in value]
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _moving(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that are made of inputs or of chance: of others the order does not count."""
    still: set[fx.Node] = set()
    for node in graph.nodes:
        made = node.op == "call_function" and name_of(node) not in RANDOM
        made = made and not _is_mutation(node)
        if (made or node.op == "get_attr") and still.issuperset(node.all_input_nodes):
            still.add(node)
    return [node for node in graph.nodes if node not in still]


def _alike(one: fx.Node, two: fx.Node, named: dict[fx.Node, fx.Node], batch: int) -> bool:
    """Whether two nodes do the same with what are the same nodes before them."""
    if one.op != two.op:
        return False
    if one.op == "get_attr":
        holders = (one.graph.owning_module, two.graph.owning_module)
        a, b = (operator.attrgetter(str(n.target))(g) for n, g in zip((one, two), holders))  # noqa: B905
        return a is b or (isinstance(a, torch.Tensor) and _equal(a, b))
    if not _same(_shapes(one.meta.get("val")), _shapes(two.meta.get("val")), named, batch):
        at = one.meta.get("custom", {}).get("module") or "model"
        raise Uncaptured(f"{at}: {name_of(one)}: a size is not a multiple of the batch's")
    if one.op == "placeholder":
        return True
    keys = one.target == two.target and one.kwargs.keys() == two.kwargs.keys()
    return keys and _same(
        [*one.args, *one.kwargs.values()],
        [*two.args, *(two.kwargs.get(k) for k in one.kwargs)],
        named,
        batch,
    )


def _same(a: Any, b: Any, named: dict[fx.Node, fx.Node], batch: int) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(
            _same(x, y, named, batch) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        if a not in named and b not in named.values() and _alike(a, b, named, batch):
            named[a] = b
        return named.get(a) is b
    if type(a) is int and type(b) is int:  # the same number, or the same multiple of the batch's
        if a == b and a and a % batch == 0:
            raise Coincidence
        return a == b or a * OTHERWISE == b * batch
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and a != a and b != b)


def _equal(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))) if a.numel() else True


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Return how operators without a rule are written in others, where torch knows how."""
    table: Any = _core_aten_decompositions_post_autograd()
    found = {op: how for op, how in table.items() if operator_name(op) not in RULES}
    found[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    return found


def _weight_norm_backward(
    grad_w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of w = g·v/‖v‖ in products and sums, which are linear in `grad_w`."""
    others = [k for k in range(v.dim()) if k != dim]
    along = (grad_w * v).sum(others, keepdim=True)
    norms = norms.reshape(along.shape)
    return (grad_w - along * (v / norms.square())) * (g / norms), along / norms


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

    def enter(module: nn.Module, _args: Any) -> None:
        if id(module) in names:
            stack.append(names[id(module)])
            at(stack[-1])

    def leave(module: nn.Module, _args: Any, _out: Any) -> None:
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


@contextlib.contextmanager
def _cells(model: nn.Module) -> Iterator[None]:
    """Let recurrent layers be written out, step by step, in place of one fused operator."""
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TF32 acceleration")
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    else:
        yield


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


Function = Callable[..., Any]
