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
from torch import fx, nn
from torch.func import functionalize

from apiece.errors import ApieceError
from apiece.training.clipping import records, torch_internals
from apiece.training.clipping.ambient import keep_streams
from apiece.training.clipping.graphs import (
    FEW_RECORDS,
    Coincidence,
    Uncaptured,
    check_agreement,
    is_mutation,
    moved_by_records,
    tidy,
    written_by,
)
from apiece.training.clipping.records import LossFunction
from apiece.training.clipping.restated import Restated
from apiece.training.clipping.sequences import Unwritten, write_out
from apiece.training.clipping.table import RULES, Sizes, name_of, operator_name
from apiece.training.clipping.tracing import current_tracer, trace
from apiece.training.clipping.watch import Binding, Watch, read_numpy_state

# Numbers of records in the capture that is run: the first of which nothing else is a multiple.
PRIMES = (1009, 1013, 1019, 1021)
aten = torch.ops.aten  # what the nodes of a graph call


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph of model and loss, forward and backward.

    module: takes the tensors of `names` (of parameters and buffers), then those of inputs and
    targets, in order. trained: the parameters that gradients are made for. graph_of_few: the
    second capture, of few records; None where the graph comes of two lengths.
    """

    module: fx.GraphModule
    names: tuple[str, ...]
    trained: tuple[str, ...]
    sizes: Sizes
    graph_of_few: fx.GraphModule | None = None

    @property
    def records(self) -> list[fx.Node]:
        """The inputs of the graph that are along the records."""
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        return placeholders[len(self.names) :]

    @property
    def results(self) -> tuple[fx.Node, list[fx.Node | None]]:
        """The losses, and each trained parameter's gradient, None where it has none."""
        output = next(node for node in self.module.graph.nodes if node.op == "output")
        (results,) = output.args
        losses, *gradients = results
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
    # Nothing could be put back of it, nor a change be seen.
    if watch.moving:
        raise Uncaptured(f"model, loss_fn: {watch.moving}; hold a list")
    task = Task(model, parameters, loss_fn, inputs, targets)
    # A layer of 1009 units would be taken for the records: then another prime decides.
    for prime in PRIMES:
        try:
            graph, graph_of_few = _capture_twice(task, watch, prime)
            break
        except Coincidence:
            continue
    else:
        raise Uncaptured(
            "model: the sizes of its layers cannot be told from the number of records; change one"
        )
    # Tidied only now: the two captures are compared as they are.
    tidy(graph)
    check_constants(graph, parameters)
    names = tuple(task.tensors)
    # Tensors of the model come first among the placeholders, in the order of `task.tensors`:
    # `records` and `results` of `Captured` count on it.
    return Captured(graph, names, tuple(parameters), Sizes(prime), graph_of_few)


def _capture_twice(task: Task, watch: Watch, prime: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the graph with `prime` records, and that with few records, which agree."""
    graph = _trace_with_coins_watched(task, watch, prime)
    # Read before the second capture, whose `undo_changes` fills both attributes of the watch anew.
    changed = watch.changed
    bindings = watch.bindings
    if len(changed) > len(bindings):  # what has no name cannot be settled
        raise _writing(next((name for name in changed if name not in bindings), changed[0]))
    # What the first capture has written is put back, and the second one is to say whether that is
    # a counter or a table on which nothing depends.
    settling = _Settling(list(bindings.values())) if bindings else None
    try:
        with watch.undo_changes(), _quiet():
            # other seeds than the first capture's: a coin that the state does not show moves here
            random.seed(20)
            np.random.seed(20)  # noqa: NPY002
            graph_of_few = task.trace(FEW_RECORDS, settling)
        check_agreement(graph, graph_of_few, prime)
    except (Uncaptured, Unsettled):
        if changed:  # the cause is what was written, not what came of it
            raise _writing(changed[0]) from None
        raise
    # written only from the state that forwards leave: that was not settled
    for name in watch.changed:
        if name not in changed:
            raise _writing(name)
    # First the cheap way, which leaves most graphs without a write and spares the second trace.
    _write_elsewhere(graph.graph)
    _write_elsewhere(graph_of_few.graph)
    # What writes into views or into what several nodes take is left to `functionalize`.
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    if any(map(is_mutation, calls)):
        graph = task.remove_writes(graph, prime)
        graph_of_few = task.remove_writes(graph_of_few, FEW_RECORDS)
        # Both were traced once more, each with its own number of records, and so must agree once
        # more.
        check_agreement(graph, graph_of_few, prime)
    return graph, graph_of_few


def capture_length(task: Task, watch: Watch, size: int, length: int) -> fx.GraphModule:
    """Return the graph of `size` records of a length; a forward must leave nothing behind."""
    graph = _trace_with_coins_watched(task, watch, size, length)
    # No counters are settled here: whatever a forward leaves behind ends the search for a graph of
    # all lengths.
    if watch.changed:
        raise _writing(watch.changed[0])
    _write_elsewhere(graph.graph)
    if any(is_mutation(node) for node in graph.graph.nodes if node.op == "call_function"):
        graph = task.remove_writes(graph, size, length)
    return graph


def _trace_with_coins_watched(
    task: Task, watch: Watch, size: int, length: int | None = None
) -> fx.GraphModule:
    """Return the graph of `size` records, and put back what a forward changes.

    Raises `Uncaptured` where a coin is drawn that is no operator of the graph.
    """
    with watch.undo_changes(), _quiet():
        # Read within `_quiet`, which puts the streams back: what is compared is what this trace has
        # drawn.
        states = _stream_states()
        graph = task.trace(size, length=length)
        # Torch's coins are operators of the graph; those of others would be constants in it.
        if _stream_states() != states:
            raise Uncaptured(
                "model, loss_fn: a coin of Python's or NumPy's, which may differ from one capture "
                "to the next: draw with torch, for each record"
            )
    return graph


def _stream_states() -> tuple[object, object]:
    """Return what tells the states of Python's and NumPy's streams from others."""
    state_of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), read_numpy_state(state_of_numpy)


def _writing(name: str) -> Uncaptured:
    """Return the refusal of a forward that writes where this name says."""
    return Uncaptured(
        f"{name}: changes in a forward; what a forward writes would be one record's word to the "
        "next: give it as an input, or compute it before"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave the streams of random numbers as they were; run what is compiled as it was written."""
    as_written = torch.compiler.set_stance("force_eager")
    silent = torch_internals.silence_tracing()
    with keep_streams(), as_written, silent, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        yield


def make_fakes(
    tensors: Sequence[torch.Tensor], along: Sequence[bool], size: int
) -> Iterator[torch.Tensor]:
    """Yield tensors without values, with `size` records where they are along the records."""
    mode = torch_internals.fake_mode()
    # Model's tensors keep strides and type; those of the records get `size` rows, whatever they
    # have.
    for tensor, follows in zip(tensors, along, strict=True):
        if not follows:
            yield mode.from_tensor(tensor.detach())
            continue
        # contiguous, as `arguments_of` gives them
        shape = (size, *tensor.shape[1:])
        empty = torch.empty(shape, dtype=tensor.dtype, device="meta")
        yield mode.from_tensor(torch.empty_like(empty, device=tensor.device))


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """A model and a loss to be captured.

    axes: those that follow the length of the records: the number of a records' tensor, its axis,
    and how much longer than the length it is.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    loss_fn: LossFunction
    inputs: object
    targets: object
    axes: tuple[tuple[int, int, int], ...] = ()

    @functools.cached_property
    def names(self) -> list[tuple[str, torch.Tensor]]:
        """Every name under which the model holds a tensor."""
        return [
            *self.model.named_parameters(remove_duplicate=False),
            *self.model.named_buffers(remove_duplicate=False),
        ]

    @functools.cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, each once, the trained ones first."""
        result: dict[str, torch.Tensor] = dict(self.parameters)
        seen = {id(tensor) for tensor in result.values()}
        for name, tensor in self.names:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                result[name] = tensor
        return result

    def fakes(self, size: int, length: int | None = None) -> list[torch.Tensor]:
        """Return what the graph takes, without values: the model's tensors, then the records'."""
        shared = list(self.tensors.values())
        # Where another length is asked for, an empty tensor of it stands in: only shape and type
        # count.
        of_records = records.leaves([self.inputs, self.targets])
        if length is not None:
            for number, axis, surplus in self.axes:
                shape = [1, *of_records[number].shape[1:]]
                shape[axis] = length + surplus
                of_records[number] = of_records[number].new_empty(shape)
        along = [False] * len(shared) + [True] * len(of_records)
        return list(make_fakes([*shared, *of_records], along, size))

    def trace(
        self, size: int, settling: _Settling | None = None, length: int | None = None
    ) -> fx.GraphModule:
        """Return the graph for one number of records, from the state that forwards leave.

        length: of the records; None for what inputs and targets have.
        """
        paths: dict[int, str] = {}
        try:
            # In this order: names of modules for messages, recurrent layers in operators of their
            # own, and then functions of torch whose operators have no rule.
            with (
                torch.enable_grad(),
                _note_modules(self.model, paths) as note,
                write_out(self.model),
                Restated(),
            ):
                result = trace(
                    functools.partial(self._losses_and_gradients, settling, note),
                    *self.fakes(size, length),
                    decompositions=decompositions(),
                )
        except ApieceError as error:  # of losses, with their shapes
            error.args = (_name_records(str(error), size),)
            raise
        except (Uncaptured, Unsettled, KeyboardInterrupt, MemoryError):
            raise  # they say themselves what they mean
        except Exception as error:
            raise Uncaptured(_locate(error, size)) from None
        # An operator belongs to the module that was entered last before it.
        path = ""
        for position, node in enumerate(result.graph.nodes):
            path = paths.get(position, path)
            node.meta["custom"] = {"module": path}
        if settling is not None:
            settling.check(result.graph)
        return result

    def _losses_and_gradients(
        self, settling: _Settling | None, note: Callable[[str], None], *tensors: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Return losses and gradients: what is captured."""
        # `tensors` is longer: the records' tensors follow those of the model.
        shared = dict(zip(self.tensors, tensors, strict=False))
        # Detached, so that gradients are those of the graph's own inputs.
        for name in self.parameters:
            shared[name] = shared[name].detach().requires_grad_()
        of_records = list(tensors[len(shared) :])
        inputs, targets = records.fill([self.inputs, self.targets], of_records)
        # A tensor with several names is one: all of them stand for the same placeholder.
        replacements = {id(tensor): shared[name] for name, tensor in self.tensors.items()}
        by_name = {name: replacements[id(tensor)] for name, tensor in self.names}
        wanted = [shared[name] for name in self.parameters]
        size = tensors[-1].shape[0]  # of a record's tensor: there is one at least
        # what is checkpointed runs again in the backward, and must find the same parameters
        with torch_internals.swap_parameters(self.model, by_name):
            if settling is not None:
                settling.run_twice(lambda: self.loss_fn(records.call(self.model, inputs), targets))
            outputs = records.call(self.model, inputs)
            # The notes are set between the stages, so that each operator carries the place that a
            # message is to name.
            note("loss_fn")  # from here on, operators are the loss's
            losses = records.check_losses(self.loss_fn(outputs, targets), size, self.loss_fn)
            note("")  # and from here on the backward's, of no module
            if settling is not None:
                settling.check_state()
            gradients = records.gradients_of(losses, wanted)
            # a forward that gives a module another tensor has left the graph's behind
            for name, tensor in by_name.items():
                module, _, attribute = name.rpartition(".")
                if getattr(self.model.get_submodule(module), attribute, None) is not tensor:
                    raise _writing(name)
        return [losses.detach(), *gradients]

    def remove_writes(
        self, graph: fx.GraphModule, size: int, length: int | None = None
    ) -> fx.GraphModule:
        """Return a graph that does the same, and writes into no tensor."""
        # `functionalize` follows views of what is written and computes them anew.
        try:
            with torch_internals.keep_node_notes():
                result = trace(
                    functionalize(fx.Interpreter(graph).run, remove="mutations"),
                    *self.fakes(size, length),
                )
        except Exception as error:
            raise Uncaptured(
                "model: cannot be written without writing into tensors "
                f"({_name_records(_short(error), size)})"
            ) from None
        for node in result.graph.nodes:
            if is_mutation(node) and node.op == "call_function":
                raise _writing(self._name_of_written(node))
        return result

    def _name_of_written(self, node: fx.Node) -> str:
        """Return the name of what an operator writes into: a tensor of the model's, or a record."""
        # The chain of first arguments ends at its root: mostly a tensor of the model's or of the
        # records, of which what is written is a view.
        *_, source = (node, *written_by(node))
        placeholders = [n for n in node.graph.nodes if n.op == "placeholder"]
        names: dict[fx.Node, str] = dict(zip(placeholders, self.tensors, strict=False))
        return names.get(source, "inputs, targets")


def _write_elsewhere(graph: fx.Graph) -> None:
    """Let operators that write into a tensor of which nothing else knows give a new one instead."""
    for node in graph.nodes:
        if node.op != "call_function" or not is_mutation(node) or not node.args:
            continue
        target = node.args[0]
        # used by this operator alone: what it holds afterwards is what the operator gives
        is_alone = isinstance(target, fx.Node) and len(target.users) == 1 and _is_fresh(target)
        if not is_alone or not _keeps_form(node):
            continue
        twin = _twin_without_writes(node)
        if twin is not None:
            schema = torch_internals.schema_of(node.target)
            # the two may have other defaults: those of the one that writes stay
            missing = schema.arguments[len(node.args) :]
            node.args += tuple(arg.default_value for arg in missing if not arg.kwarg_only)
            node.target = twin


def _twin_without_writes(node: fx.Node) -> Any:
    """Return the overload that gives a new tensor where a node's writes; None where none does."""
    # ATen marks the operator that writes with a trailing underscore: `add_` is the twin of `add`.
    packet = getattr(aten, node.target.overloadpacket.__name__.removesuffix("_"), None)  # type: ignore[union-attr]
    overload = torch_internals.overload_name(node.target)  # type: ignore[arg-type]
    if name_of(node) == "bernoulli_" and overload == "float":  # by a number: "p" elsewhere
        overload = "p"
    twin = getattr(packet, overload, None)
    if twin is None or torch_internals.schema_of(twin).is_mutable:
        return None
    return twin


def _keeps_form(node: fx.Node) -> bool:
    """Return whether a new tensor would have the type and strides of the one that is written."""
    written = node.meta["val"]
    for source in node.all_input_nodes:
        value = source.meta["val"]
        if not isinstance(value, torch.Tensor):
            continue
        if value.dtype != written.dtype:
            return False
        # of another shape it is broadcast, and has no say in the strides
        same_shape = value.shape == written.shape
        if same_shape and value.stride() != written.stride():
            return False
    return True


def _is_fresh(node: fx.Node) -> bool:
    """Return whether an operator gives memory of its own: no view, nothing that it was given."""
    # The schema says of each result whether it is an argument's memory.
    source = node.args[0] if node.target is operator.getitem else node
    # A result without alias information is new memory; a view, or an argument handed back, has
    # some.
    schema = torch_internals.schema_of(getattr(source, "target", None))
    return schema is not None and all(result.alias_info is None for result in schema.returns)


def check_constants(graph: fx.GraphModule, parameters: dict[str, nn.Parameter]) -> None:
    """Raise `Uncaptured` where the graph holds a trained parameter that it was not given.

    As a constant it would have no gradient, and values of the first batch for ever.
    """
    by_id = {id(p): name for name, p in parameters.items()}
    # by its memory, too: a detached tensor is another object with the same values
    with_memory = ((name, p) for name, p in parameters.items() if p.numel())
    by_memory = {p.data_ptr(): name for name, p in with_memory}
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        tensor = operator.attrgetter(node.target)(graph)
        name = by_id.get(id(tensor))
        with contextlib.suppress(AttributeError, RuntimeError):  # no tensor, or one without memory
            name = name or by_memory.get(tensor.data_ptr())
        if name is not None:
            raise Uncaptured(
                f"{name}: is used past the model (in the loss, or in a function that holds it); "
                "use it through the model's forward"
            )


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Return how operators without a rule are written in others, where torch knows how."""
    table = torch_internals.core_decompositions()
    # what has a rule stays whole: it is faster, and its rule is of it
    without_rule = [overload for overload in table if operator_name(overload) not in RULES]
    result: dict[Any, Any] = {overload: table[overload] for overload in without_rule}
    # torch's own decompositions of these three are none that the table can prove
    result[aten._weight_norm_interface_backward.default] = _weight_norm_backward
    result[aten._trilinear.default] = _trilinear
    result[aten._reshape_alias.default] = _reshape_alias
    return result


def _reshape_alias(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """Return a view, which torch's own way to write it takes for one whatever its strides."""
    # With strides as a view has them it is one; with others, entries would be read elsewhere.
    result = tensor.view(size)
    if result.stride() != tuple(stride):
        raise Uncaptured("_reshape_alias: the strides of a view put entries in other places")
    return result


def _weight_norm_backward(
    grad_w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of w = g·v/‖v‖ in products and sums, which are linear in `grad_w`."""
    # dv = (g/‖v‖)·(grad − v·(grad·v)/‖v‖²) and dg = grad·v/‖v‖, both per slice of `dim`.
    other_axes = [axis for axis in range(v.dim()) if axis != dim]
    # grad·v, whose share along v is the gradient of the scale, and none of the direction's
    along = (grad_w * v).sum(other_axes, keepdim=True)
    norms = norms.reshape(along.shape)
    of_direction = (grad_w - along * (v / norms.square())) * (g / norms)
    of_scale = along / norms
    return of_direction, of_scale


def _trilinear(
    i1: torch.Tensor, i2: torch.Tensor, i3: torch.Tensor, *axes: Sequence[int]
) -> torch.Tensor:
    """Return a product of three tensors, each with new axes, summed over the last of `axes`."""
    # By factor its new axes, then the axes that are summed; a fifth argument says only how torch
    # loops.
    *new_axes, summed_axes = axes[:4]
    factors: list[torch.Tensor] = []
    for factor, new in zip((i1, i2, i3), new_axes, strict=True):
        # From the first axis on, so that those still to come keep their numbers.
        for axis in sorted(new):
            factor = factor.unsqueeze(axis)
        factors.append(factor)
    product = factors[0] * factors[1] * factors[2]
    return product.sum(list(summed_axes)) if summed_axes else product


# ---------------------------------------------------------------- what a forward leaves behind

# Values that are compared as such; of a tensor the graph tells what it follows from.
_COMPARED = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Unsettled(Exception):  # noqa: N818
    """What a forward leaves behind differs from call to call, or follows from what it was given."""


class _Number:
    """Any number: it can be counted on, and nothing can be decided by it."""

    __slots__ = ()

    # The number has no value, so that every result of counting is again any number.
    def _count_on(self, other: object) -> _Number:
        if isinstance(other, int | float | _Number):
            return self
        raise Unsettled("a tensor depends on it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _count_on

    def _refuse_decision(self, *_others: object) -> Any:
        raise Unsettled("something is decided by it")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse_decision
    __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = _refuse_decision


class _Settling:
    """Forwards before the one that counts, and what they have left in attributes and globals.

    That may be a counter of calls, or a table that follows from shapes and is kept for the next
    call, on which nothing that is computed depends. The graph that is proved and run is that of a
    forward from the state that the model has; it must be the same from the state that forwards
    leave, and with any number in a counter's place. So nothing freezes that would have moved.
    """

    def __init__(self, bindings: Sequence[Binding]) -> None:
        self._bindings = bindings
        self._state_before: list[object] = []  # the forward that counts
        self._tensors: set[fx.Node] = set()  # of that state, by what makes them in the graph
        self._begin = 0  # the position in the graph where the forward that counts begins

    def run_twice(self, run: Callable[[], object]) -> None:
        """Run twice; what still moves then must be a number, and becomes any number."""
        # Twice: what the first call makes (a table for later) the second one finds.
        run()
        once = self._read_state()
        run()
        twice = self._read_state()
        # What is equal after both calls is a table or a constant, and may enter the graph as it is.
        for binding, value, next_value in zip(self._bindings, once, twice, strict=True):
            if not _is_same_state(value, next_value):
                # a tensor or a text that still moves may be anybody's word
                if type(value) not in (int, float) or type(next_value) not in (int, float):
                    raise Unsettled("differs from call to call")
                binding.put(_Number())
        self._state_before = self._read_state()
        tracer = current_tracer()
        assert tracer is not None
        self._tensors = {
            tracer.node_of(value) for value in self._state_before if isinstance(value, torch.Tensor)
        }
        self._begin = len(tracer.graph.nodes)  # what comes before is of these two calls

    def check_state(self) -> None:
        """Raise `Unsettled` unless the forward that counts has left everything as it was."""
        # Counted on, a counter that stands for any number is the same still.
        if not all(map(_is_same_state, self._read_state(), self._state_before)):
            raise Unsettled("differs from call to call")

    def _read_state(self) -> list[object]:
        """Return what the bindings hold."""
        result = [binding.get() for binding in self._bindings]
        if not all(isinstance(value, (*_COMPARED, torch.Tensor, _Number)) for value in result):
            raise Unsettled("is neither a number nor a tensor")
        return result

    def check(self, graph: fx.Graph) -> None:
        """Take out the forwards before; raise `Unsettled` where a tensor follows from inputs."""
        # What a forward has left must be made of constants, or the next one would read records.
        if self._tensors & moved_by_records(graph):
            raise Unsettled("follows from what it was given")
        # backwards, so that what only an erased operator took is erased as well
        for node in reversed(list(graph.nodes)[: self._begin]):
            if not node.users and node.op != "placeholder":
                graph.erase_node(node)


def _is_same_state(value: object, other: object) -> bool:
    """Return whether a forward has left one and the same: an object, or an equal plain value."""
    if value is other:
        return True
    # By type as well: True, 1 and 1.0 are equal, and operators treat them differently. NaN equals
    # nothing, and is refused.
    return type(value) is type(other) and isinstance(value, _COMPARED) and bool(value == other)


# ---------------------------------------------------------------- where


@contextlib.contextmanager
def _note_modules(model: nn.Module, paths: dict[int, str]) -> Iterator[Callable[[str], None]]:
    """Note from which operator on which module's forward runs; yield what notes another path.

    paths: by the number of an operator in the graph, from where on a path holds.
    """
    # By identity, since a module under several names is one and runs as one.
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def note(path: str) -> None:
        tracer = current_tracer()
        if tracer is not None:
            paths[len(tracer.graph.nodes)] = path

    def enter(module: nn.Module, _args: object) -> None:
        if id(module) in names:
            stack.append(names[id(module)])
            note(stack[-1])

    # also where a forward raises, so that the stack is right for who catches it
    def leave(module: nn.Module, _args: object, _out: object) -> None:
        if id(module) in names and stack:
            stack.pop()
            note(stack[-1] if stack else "")

    on_entry = nn.modules.module.register_module_forward_pre_hook(enter)
    on_exit = nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield note
    finally:
        on_entry.remove()
        on_exit.remove()


# Folders whose lines are nobody's mistake: torch's and this one.
_FOLDERS = tuple(str(Path(path).parent) for path in (torch.__file__, __file__))


def _locate(error: BaseException, size: int) -> str:
    """Return what went wrong with `size` records, and somebody's last line of code before it."""
    reason = _name_records(_short(error), size)
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):  # the innermost first
        if not frame.filename.startswith((*_FOLDERS, "<")):  # "<": code made from text
            file = Path(frame.filename).name
            return f"{file}:{frame.lineno} ({frame.line}): {reason}"
    return reason


def _name_records(text: str, size: int) -> str:
    """Return a text with B for the number of records; few are told from no other number."""
    return text if size == FEW_RECORDS else Sizes(size).name_records(text)


# By the name of torch's error, what it means here.
_MEANINGS = {
    "DataDependentOutputException": "a value of a record decides what is computed",
    "GuardOnDataDependentSymNode": "a value of a record decides what is computed",
    "FakeTensorDeviceMismatchError": (
        "tensors on two devices meet, or derivatives are taken forward of derivatives, which torch "
        "cannot trace (torch.func.hessian: take jacrev of jacrev)"
    ),
    "DynamicOutputShapeException": "the shape of a tensor depends on the records' values",
}


def _short(error: BaseException) -> str:
    """Return an error in one line."""
    name = type(error).__name__
    if isinstance(error, Unwritten):  # which is in our own words
        return str(error)
    if name in _MEANINGS:
        return _MEANINGS[name]
    text = str(error).strip().splitlines()
    return f"{name}: {text[0][:160]}" if text else name
