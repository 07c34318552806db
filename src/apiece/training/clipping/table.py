"""The table of operators: for each, where the records are in what it gives, from where they were.

A tensor of a captured graph is `SHARED` (made of parameters and constants alone, and so the same
whoever is in the batch), `Records` (along one axis, row i made of record i and of what is shared)
or `SUMMED` (a sum over records of what each of them gives alone, and linear in each of them).

A rule is a theorem about one operator of ATen: from inputs with these layouts come outputs with
those. `RULES` holds them by the operator's name; what is not in it is not proved. A rule is asked
once the laws of `proof` hold of what the operator is given. Each is checked in the tests against
the operator on each record alone (`torch.func.vmap`), on random shapes and arguments, and against
PyTorch's own sharding rules where it has one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from apiece.training.clipping import torch_internals

Shape: TypeAlias = tuple[int, ...]
# Why a rule does not hold, in the words that a user reads after the module and the operator.
MEET = "records and what is not along them meet"
AXES = "records meet along different axes"
AGAIN = "a sum over the records meets the records again"
USED = "a sum over the batch's records is computed with, as if it were one record's"
PLACE = "a record's place in the batch becomes a value"
PICKED = "some of the batch's records are picked by their place"
DRAWN = "a random number is drawn for all records at once; draw one for each"


# A whole number in a text.
_NUMERAL = re.compile(r"(?<![\d.])\d+(?!\d|\.\d)")


class Unproved(Exception):  # noqa: N818
    """An operator is not known to keep records apart; the text says what it does."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The same for every record, and not as long as the batch in any direction."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum over records: Σ_i f(record i, what is shared), and nothing else."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records along `axis`, of size outer·B·inner: place (o·B + i)·inner + j is record i's."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def rows(self) -> int:
        """How many places along the axis each record has."""
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class Places:
    """The numbers 0, step … (B − 1)·step along an axis: to pick from each record its own."""

    axis: int
    step: int = 1


Layout: TypeAlias = Shared | Summed | Records | Places
# What a rule gives: one layout for all that the operator gives, or one for each of it.
Layouts: TypeAlias = Layout | tuple[Layout, ...]
# Both hold nothing: one of each is enough, and layouts compare by value.
SHARED = Shared()
SUMMED = Summed()


def axis_of(layout: Layout) -> int | None:
    """Return the axis that the records, or their numbers, are along; None where there is none."""
    return layout.axis if isinstance(layout, Records | Places) else None


def move_records(layout: Layout, axis: int) -> Layout:
    """Return a layout with the records along another axis."""
    return replace(layout, axis=axis) if isinstance(layout, Records | Places) else layout


def drop_axes(layout: Layout, dims: Iterable[int]) -> Layout:
    """Return a layout without these axes, none of them the records'."""
    axis = axis_of(layout)
    if axis is None:
        return layout
    dropped_before = sum(dim < axis for dim in dims)
    return move_records(layout, axis - dropped_before)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a captured graph that are multiples of the number of records.

    batch: the number of records in the capture: a prime, of which no other size or number of the
    graph is a multiple.
    """

    batch: int

    def depends(self, size: object) -> bool:
        """Return whether a size (or a number) is another one for another number of records."""
        # Of the batch's number, a large prime, nothing else in the graph is a multiple: two
        # captures with other numbers have shown that.
        return type(size) is int and size != 0 and size % self.batch == 0

    def factor(self, size: int) -> int:
        """Return size/B; raise `Unproved` where the size is no multiple of the batch's alone."""
        result = size // self.batch
        # twice a multiple: a product of two axes along the records
        if not self.depends(size) or self.depends(result):
            raise Unproved("a size is not a multiple of the number of records")
        return result

    def name_records(self, text: str) -> str:
        """Return a text in which B stands for the number of records in the capture."""

        def name(numeral: re.Match[str]) -> str:
            size = int(numeral[0])
            # B·B is written as such: a size may follow the number of records twice.
            factors: list[str] = []
            while self.depends(size):
                size //= self.batch
                factors.append("B")
            if size != 1 or not factors:
                factors.insert(0, str(size))
            return "·".join(factors)

        return _NUMERAL.sub(name, text)

    def batch_axes(self, shape: Shape) -> list[int]:
        """Return the axes that are as long as the batch, or a multiple."""
        return [axis for axis, size in enumerate(shape) if self.depends(size)]

    def check(self, layout: Layout, shape: Shape) -> None:
        """Raise `Unproved` unless a tensor of this shape can have this layout."""
        axis = axis_of(layout)
        # A layout without an axis promises that no axis follows the records, whatever the rule
        # meant.
        expected_axes = [] if axis is None else [axis]
        if self.batch_axes(shape) != expected_axes:
            raise Unproved(
                f"shape {shape} changes with the number of records, which no rule expects"
            )
        rows = layout.rows if isinstance(layout, Records) else 1
        if axis is not None and self.factor(shape[axis]) != rows:
            raise Unproved(f"shape {shape} does not have {rows} places a record along axis {axis}")


def view_records(layout: Records, old: Shape, new: Shape, sizes: Sizes) -> Records:
    """Return where the records are after the entries, in their order, take another shape.

    As many entries come before the first step from one record to the next, and as many within it,
    as before; a new axis must hold the whole of that step.
    """
    # A run goes once through all records. Entries are in row-major order before and after, so that
    # the number of runs stays: it is the product of all axes before the records' and of `outer`.
    runs = math.prod(old[: layout.axis]) * layout.outer
    entries_before = 1  # the product of the new axes before the records'
    # The new axes before the records' and the new `outer` must make up the same number of runs.
    for axis, size in enumerate(new):
        if sizes.depends(size):
            outer, remainder = divmod(runs, entries_before) if entries_before else (0, 1)
            if remainder or not outer or sizes.factor(size) % outer:
                break
            return Records(axis, outer, sizes.factor(size) // outer)
        entries_before *= size
    raise Unproved(f"a view of shape {tuple(old)} as {tuple(new)} tears records apart")


# ---------------------------------------------------------------- operators


def name_of(node: fx.Node) -> str:
    """Return an operator's name, without the overload; a library's own "relu" has its in front."""
    return operator_name(node.target)


def operator_name(target: object) -> str:
    """Return the name of what a node calls, without the overload, or of what it reads."""
    packet = getattr(target, "overloadpacket", target)
    if not isinstance(packet, torch_internals.OverloadPacket):
        return str(target)
    name = str(packet.__name__)
    library = torch_internals.library_of_operator(packet)
    return name if library == "aten" else f"{library}::{name}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One operator in a graph, with its arguments by name and the layouts of its tensors.

    layouts: of all nodes before it; a tuple for one that gives several tensors.
    """

    node: fx.Node
    layouts: dict[fx.Node, Layouts]
    sizes: Sizes

    @property
    def name(self) -> str:
        """The operator's name, as in the table."""
        return name_of(self.node)

    def argument(self, name: str, default: object = None) -> Any:
        """Return an argument by the name that the schema has, or the schema's default."""
        schema = torch_internals.schema_of(self.node.target)
        # An argument that the node does not have takes the schema's default, as it would in a call.
        for position, argument in enumerate(schema.arguments):
            if argument.name == name:
                if not argument.kwarg_only and position < len(self.node.args):
                    return self.node.args[position]
                result = self.node.kwargs.get(name, argument.default_value)
                return default if result is None else result
        return default

    def of(self, argument: object) -> Layout:
        """Return the layout of a tensor, SHARED for a number or None."""
        if not isinstance(argument, fx.Node):
            return SHARED
        result = self.layouts.get(argument, SHARED)
        if isinstance(result, tuple):
            raise Unproved("several tensors stand where one is expected")
        return result

    def shape(self, argument: fx.Node) -> Shape:
        """Return the shape of a tensor argument."""
        return tuple(argument.meta["val"].shape)

    def tensors(self, *names: str) -> list[fx.Node]:
        """Return the tensors among the arguments, of all or of these names."""
        if names:
            arguments = map(self.argument, names)
            return [argument for argument in arguments if isinstance(argument, fx.Node)]
        nodes = self.node.all_input_nodes
        return [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]

    def tensors_repeated(self) -> list[fx.Node]:
        """Return the tensors among the arguments, one that stands in two places twice."""
        keyword_arguments = self.node.kwargs.values()
        arguments = flatten([*self.node.args, *keyword_arguments])
        nodes = [argument for argument in arguments if isinstance(argument, fx.Node)]
        return [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]

    def out_shape(self) -> Shape:
        """Return the shape of what the operator gives, or of the first of several tensors."""
        value = self.node.meta["val"]
        tensor = value[0] if isinstance(value, list | tuple) else value
        return tuple(tensor.shape)

    def axis(self, dim: Any, tensor: fx.Node) -> int:
        """Return an axis from 0 on."""
        # A number has no axis; torch takes dim 0 and −1 of it all the same.
        return int(dim) % max(1, len(self.shape(tensor)))

    def axes(self, dims: Any, tensor: fx.Node) -> list[int]:
        """Return axes from 0 on; all where none is named."""
        if dims is None or (isinstance(dims, Sequence) and not dims):
            return list(range(len(self.shape(tensor))))
        named = dims if isinstance(dims, Sequence) else [dims]
        return [self.axis(dim, tensor) for dim in named]

    def require_shared(self, *names: str) -> None:
        """Raise `Unproved` unless these arguments are the same for every record."""
        for name in names:
            for argument in flatten(self.argument(name)):
                if not isinstance(self.of(argument), Shared):
                    raise Unproved(f"{name} is not the same for every record")


Rule: TypeAlias = Callable[[Call], Layouts]
# By operator, without its overload.
RULES: dict[str, Rule] = {}


def flatten(arguments: object) -> list[Any]:
    """Return the leaves of nested lists."""
    if isinstance(arguments, list | tuple):
        return [leaf for part in arguments for leaf in flatten(part)]
    return [arguments]


def words(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


def rule(names: str) -> Callable[[Rule], Rule]:
    """Put a rule into the table, for the operators in a text."""

    def put(function: Rule) -> Rule:
        for name in words(names):
            assert name not in RULES, name
            RULES[name] = function
        return function

    return put


# ---------------------------------------------------------------- what rules have in common


def layout_and_tensor(call: Call, name: str = "self") -> tuple[fx.Node, Layout]:
    """Return a tensor among the arguments, and its layout."""
    tensor = call.argument(name)
    return tensor, call.of(tensor)


def aligned_layout(call: Call, *names: str) -> Layout:
    """Return the layout that these tensors of one shape have in common."""
    # of entries that are sums over the records, only a linear map makes a sum again
    layouts = {call.of(tensor) for tensor in call.tensors(*names)}
    if len(layouts) != 1 or layouts == {SUMMED}:
        raise Unproved(MEET)
    return layouts.pop()


def common_layout(call: Call, tensors: Sequence[object]) -> Layout:
    """Return the one layout of tensors that are joined, or written into one another."""
    layouts = {call.of(tensor) for tensor in tensors}
    # of one kind, what is joined is of that kind: entries are moved, and none is made of two
    if len(layouts) == 1:
        return layouts.pop()
    if SUMMED in layouts:  # beside entries of sums, zeros are sums of zeros
        if all(call.of(tensor) == SUMMED or is_zero(tensor) for tensor in tensors):
            return SUMMED
        raise Unproved("a sum over the records is joined to something else")
    raise Unproved("records and what is not along them are joined")


def require_within_records(dims: list[int], layout: Layout, action: str) -> None:
    """Raise `Unproved` where the records are along one of these axes."""
    if axis_of(layout) in dims:
        raise Unproved(f"{action} over the records")


def require_unreduced(call: Call) -> None:
    """Raise `Unproved` for a loss that is added up, or averaged, over its entries."""
    # 0 stands for "none", 1 for the mean, 2 for the sum
    if call.argument("reduction", 0) != 0:
        raise Unproved("a loss is reduced over the batch; use reduction='none'")


def along(call: Call, name: str = "self", dim: str = "dim") -> tuple[fx.Node, Layout, int]:
    """Return the tensor, its layout and the axis worked along, which must not be the records'."""
    tensor, layout = layout_and_tensor(call, name)
    axis = call.axis(call.argument(dim, 0), tensor)
    require_within_records([axis], layout, call.name.strip("_"))
    return tensor, layout, axis


# ---------------------------------------------------------------- entry by entry


# Entry e of the output is made of the entries at e of what the operator takes, after broadcasting.
POINTWISE = words(
    """
    abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
    celu_backward clamp clamp_max clamp_min clone complex conj copysign cos cosh deg2rad digamma
    div elu elu_backward eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod
    frac frexp gcd ge gelu gelu_backward gt hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward heaviside huber_loss hypot i0 imag isinf isnan
    isneginf isposinf le leaky_relu leaky_relu_backward lerp lgamma log log10 log1p log2
    log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not
    logical_or logical_xor logit logit_backward lt masked_fill maximum minimum mish
    mish_backward mse_loss mse_loss_backward mul mvlgamma nan_to_num ne neg nextafter polygamma
    pow rad2deg real reciprocal relu relu6 remainder round rrelu_with_noise_backward rsqrt rsub
    selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh
    smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus
    softplus_backward special_entr special_erfcx special_i0e special_i1 special_i1e
    polar special_log_ndtr special_ndtri special_xlog1py special_zeta sqrt sub tan tanh
    tanh_backward _conj_physical
    threshold threshold_backward trunc where xlogy binary_cross_entropy
    binary_cross_entropy_backward huber_loss_backward detach alias _to_copy lift_fresh_copy
    lift_fresh _conj prelu _prelu_kernel copy _prelu_kernel_backward fill isreal trunc_divide
    bernoulli uniform normal_functional exponential native_dropout native_dropout_backward
    geometric log_normal cauchy random hardshrink hardshrink_backward softshrink softshrink_backward
    """
)
# Operators that are linear in their one tensor, so that a sum over records stays one.
_LINEAR_IN_ONE = words(
    "neg clone detach alias _to_copy lift_fresh_copy copy real imag conj _conj _conj_physical"
)
# Operators that draw random numbers, one for each entry.
RANDOM = words(
    """
    bernoulli uniform normal_functional exponential native_dropout geometric log_normal cauchy
    random rand randn randint normal
    """
)


@rule(" ".join(POINTWISE))
def _pointwise(call: Call) -> Layouts:
    """Every entry of the output is made of the entries at its place."""
    # With reduction, losses of several records would be one number.
    require_unreduced(call)
    tensors = call.tensors()
    layouts = [call.of(tensor) for tensor in tensors]
    if any(isinstance(layout, Places) for layout in layouts):
        return _scaled_places(call)
    if call.name == "copy":  # what it writes over counts for its shape alone
        tensors = [call.argument("src")]
        layouts = [call.of(tensors[0])]
        if layouts == [SHARED]:
            return spread_shared(call, tensors[0])
    if SUMMED in layouts:
        if not _is_linear(call):
            raise Unproved(USED)
        return SUMMED
    if call.name in RANDOM:
        require_own_draws(call, layouts)
    return broadcast_layout(call, tensors, layouts)


def _scaled_places(call: Call) -> Layout:
    """Return the layout of the records' numbers times a whole number, the same for all."""
    numbers, layout = layout_and_tensor(call)
    factor = call.argument("other")
    # in shorter integers, products of large numbers would be other ones
    is_long = numbers.meta["val"].dtype is torch.int64
    is_factor = type(factor) is int and factor > 0
    if call.name == "mul" and isinstance(layout, Places) and is_long and is_factor:
        return Places(layout.axis, layout.step * factor)
    raise Unproved(PLACE)


def broadcast_layout(call: Call, tensors: list[fx.Node], layouts: list[Layout]) -> Layout:
    """Return the layout of what is made entry by entry of tensors that are broadcast."""
    # Layouts are compared in the result's axes, where the shapes are broadcast.
    rank = len(call.out_shape())
    results: set[Layout] = set()
    for tensor, layout in zip(tensors, layouts, strict=True):
        if isinstance(layout, Records):
            # axes are aligned from the last one on
            shift = rank - len(call.shape(tensor))
            results.add(move_records(layout, layout.axis + shift))
    if len(results) > 1:
        axes = ", ".join(str(axis_of(result)) for result in sorted(results, key=str))
        raise Unproved(f"{AXES} ({axes})")
    return results.pop() if results else SHARED


def spread_shared(call: Call, tensor: fx.Node) -> Layout:
    """Return the layout of what is shared, copied along new axes or ones of length one."""
    out = call.out_shape()
    batch_axes = call.sizes.batch_axes(out)
    if not batch_axes:
        return SHARED
    shape = call.shape(tensor)
    axis = batch_axes[0]
    # Torch aligns shapes from their last axes: the tensor's axis a is a + shift of the result.
    shift = len(out) - len(shape)  # new axes come first
    differs = axis >= shift and shape[axis - shift] != 1
    if len(batch_axes) > 1 or differs:
        raise Unproved("what is shared differs from place to place of the batch")
    # A copy for each record, which is a record's own from here on: the same for every record.
    return Records(axis, 1, call.sizes.factor(out[axis]))


def require_own_draws(call: Call, layouts: list[Layout]) -> None:
    """Raise `Unproved` where not each record has a random number of its own."""
    # The streams of torch are put back around a step; of another's state nobody knows.
    if call.argument("generator") is not None:
        raise Unproved("random numbers come from a generator of the model's own")
    if not any(isinstance(layout, Records) for layout in layouts):
        raise Unproved(DRAWN)


def _is_linear(call: Call) -> bool:
    """Return whether an operator maps its sums over records linearly, so that one comes of it.

    That is with shared factors, and sums added up. A sum that stands in two places counts twice:
    times itself it is a square, which is not linear.
    """
    # Counted with repetition; a scalar that is no tensor does not count.
    layouts = [call.of(tensor) for tensor in call.tensors_repeated()]
    sums = layouts.count(SUMMED)
    name = call.name
    if name in _LINEAR_IN_ONE:
        # rounding to whole numbers is not linear
        result = call.node.meta["val"]
        return bool(result.is_floating_point() or result.is_complex())
    if name in ("add", "sub"):  # what is no sum has no share for each record
        return sums == len(layouts) == 2
    if name == "mul":  # by what is shared: records may not meet a sum
        return sums == 1
    if name == "div":
        is_numerator = isinstance(call.of(call.argument("self")), Summed)
        return is_numerator and sums == 1 and call.argument("rounding_mode") is None
    if name == "masked_fill":  # times a shared matrix of zeros and ones
        is_shared = isinstance(call.of(call.argument("mask")), Shared)
        return is_shared and sums == 1 and is_zero_number(call.argument("value"))
    if name == "where":  # entries of sums, or zeros, chosen by what is shared
        is_shared = isinstance(call.of(call.argument("condition")), Shared)
        choices = [call.argument("self"), call.argument("other")]
        return is_shared and all(
            isinstance(call.of(choice), Summed) or is_zero(choice) for choice in choices
        )
    return False


def is_zero_number(value: object) -> bool:
    """Return whether a value is the number 0, perhaps as a tensor of it."""
    return is_zero(value) or (isinstance(value, int | float) and value == 0)


def is_zero(tensor: object) -> bool:
    """Return whether a tensor is made of nothing but zeros."""
    if not isinstance(tensor, fx.Node) or tensor.op != "call_function":
        return False
    name = name_of(tensor)
    if name in ("zeros", "new_zeros", "zeros_like"):
        return True
    if name in ("full", "new_full", "scalar_tensor"):
        # In all three the value is the last positional argument.
        value = tensor.args[-1]
        return bool(value == 0)
    return False


# ---------------------------------------------------------------- made anew

# Operators that give a tensor of one value everywhere.
SHAPES = words(
    """
    full zeros ones new_full new_zeros new_ones scalar_tensor full_like zeros_like ones_like
    _efficientzerotensor
    """
)
# Operators that give memory as it was found.
UNFILLED = words(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted
    """
)
# These take the shape of a tensor, and nothing else of it.
LIKE = words(
    """
    new_full new_zeros new_ones full_like zeros_like ones_like empty_like new_empty
    new_empty_strided rand_like randn_like randint_like
    """
)
# These write over their first tensor without reading it, or read its shape.
_FILLS = LIKE | words(
    "uniform normal_functional exponential geometric log_normal cauchy random fill copy bernoulli"
)


def is_filled(node: fx.Node) -> bool:
    """Return whether all that is done to an unfilled tensor is to fill it, or to take its shape."""
    for user in node.users:
        name = name_of(user)
        if name not in _FILLS:
            return False
        # in any place but the first its values are read
        if node in user.args[1:] or node in user.kwargs.values():
            return False
        # without a probability of its own it takes its tensor's values for them
        if name == "bernoulli" and len(user.args) < 2:
            return False
    return True
