"""The table of operators: for each, where the records are in what it gives, from where they were.

A tensor of a captured graph is `SHARED` (made of parameters and constants alone, and so the same
whoever is in the batch), `Records` (along one axis, row i made of record i and of what is shared)
or `SUMMED` (a sum over records of what each of them gives alone, and linear in each of them).

A rule is a theorem about one operator of ATen: from inputs with these layouts come outputs with
those. `RULES` holds them by the operator's name; what is not in it is not proved. Each is checked
in the tests against the operator on each record alone (`torch.func.vmap`), on random shapes and
arguments, and against PyTorch's own sharding rules where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

Shape: TypeAlias = tuple[int, ...]
# Why a rule does not hold.
MEET = "records and what is not along them meet"
AXES = "records meet along different axes"
AGAIN = "a sum over the records meets the records again"
USED = "a sum over the batch's records is computed with, as if it were one record's"
PLACE = "a record's place in the batch becomes a value"
PICKED = "some of the batch's records are picked by their place"
COUNT = "the number of records in the batch becomes a value"
DRAWN = "a random number is drawn for all records at once; draw one for each"


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
Given: TypeAlias = Layout | tuple[Layout, ...]
SHARED, SUMMED = Shared(), Summed()


def axis_of(layout: Layout) -> int | None:
    """Return the axis that the records, or their numbers, are along; None where there is none."""
    return layout.axis if isinstance(layout, Records | Places) else None


def moved(layout: Layout, axis: int) -> Layout:
    """Return a layout with the records along another axis."""
    return replace(layout, axis=axis) if isinstance(layout, Records | Places) else layout


def dropped(layout: Layout, dims: Iterable[int]) -> Layout:
    """Return a layout without these axes, none of them the records'."""
    axis = axis_of(layout)
    return layout if axis is None else moved(layout, axis - sum(d < axis for d in dims))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a captured graph that are multiples of the number of records.

    batch: the number of records in the capture: a prime, of which no other size or number of the
    graph is a multiple.
    """

    batch: int

    def depends(self, size: object) -> bool:
        """Return whether a size (or a number) is another one for another number of records."""
        return type(size) is int and size != 0 and size % self.batch == 0

    def factor(self, size: int) -> int:
        """Return size/B; raise `Unproved` where the size is no multiple of the batch's alone."""
        result = size // self.batch
        if not self.depends(size) or self.depends(result):
            raise Unproved("a size is not a multiple of the number of records")
        return result

    def long(self, shape: Shape) -> list[int]:
        """Return the axes that are as long as the batch, or a multiple."""
        return [axis for axis, size in enumerate(shape) if self.depends(size)]

    def check(self, layout: Layout, shape: Shape) -> None:
        """Raise `Unproved` unless a tensor of this shape can have this layout."""
        axis = axis_of(layout)
        if self.long(shape) != ([] if axis is None else [axis]):
            raise Unproved(f"shape {shape} of what is {layout}: it changes with the records")
        rows = layout.rows if isinstance(layout, Records) else 1
        if axis is not None and self.factor(shape[axis]) != rows:
            raise Unproved(f"shape {shape} of what has {rows} places a record along axis {axis}")


def viewed(layout: Records, old: Shape, new: Shape, sizes: Sizes) -> Records:
    """Return where the records are after the entries, in their order, take another shape.

    As many entries come before the first step from one record to the next, and as many within it,
    as before; a new axis must hold the whole of that step.
    """
    before, at = math.prod(old[: layout.axis]) * layout.outer, 1
    for axis, size in enumerate(new):
        if sizes.depends(size):
            outer, left = divmod(before, at) if at else (0, 1)
            if left or not outer or sizes.factor(size) % outer:
                break
            return Records(axis, outer, sizes.factor(size) // outer)
        at *= size
    raise Unproved(f"a view of shape {tuple(old)} as {tuple(new)} tears records apart")


# ---------------------------------------------------------------- operators


def name_of(node: fx.Node) -> str:
    """Return an operator's name, without the overload; a library's own "relu" has its in front."""
    return operator_name(node.target)


def operator_name(target: object) -> str:
    """Return the same of what a node calls, or of the place that it reads."""
    packet = getattr(target, "overloadpacket", target)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return str(target)
    name = str(packet.__name__)
    library = packet._qualified_op_name.partition("::")[0]
    return name if library == "aten" else f"{library}::{name}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One operator in a graph, with its arguments by name and the layouts of its tensors.

    layouts: of all nodes before it; a tuple for one that gives several tensors.
    """

    node: fx.Node
    layouts: dict[fx.Node, Given]
    sizes: Sizes

    @property
    def name(self) -> str:
        """The operator's name, as in the table."""
        return name_of(self.node)

    def argument(self, name: str, default: object = None) -> Any:
        """Return an argument by the name that the schema has, or the schema's default."""
        schema = self.node.target._schema.arguments  # type: ignore[union-attr]
        for k, argument in enumerate(schema):
            if argument.name == name:
                if not argument.kwarg_only and k < len(self.node.args):
                    return self.node.args[k]
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
            return [t for name in names if isinstance(t := self.argument(name), fx.Node)]
        nodes = self.node.all_input_nodes
        return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]

    def out(self, index: int = 0) -> Shape:
        """Return the shape of what the operator gives."""
        value = self.node.meta["val"]
        return tuple((value[index] if isinstance(value, list | tuple) else value).shape)

    def axis(self, dim: Any, tensor: fx.Node) -> int:
        """Return an axis from 0 on."""
        return int(dim) % max(1, len(self.shape(tensor)))

    def axes(self, dims: Any, tensor: fx.Node) -> list[int]:
        """Return axes from 0 on; all where none is named."""
        if dims is None or (isinstance(dims, Sequence) and not dims):
            return list(range(len(self.shape(tensor))))
        return [self.axis(d, tensor) for d in (dims if isinstance(dims, Sequence) else [dims])]

    def numbers_are_shared(self, *names: str) -> None:
        """Raise `Unproved` where the batch's size is among numbers that enter values."""
        given = [self.argument(name) for name in names]
        for number in flat(given if names else [*self.node.args, *self.node.kwargs.values()]):
            value = number.meta["val"] if isinstance(number, fx.Node) else number
            if not isinstance(value, torch.Tensor) and self.sizes.depends(value):
                raise Unproved(COUNT)

    def only_shared(self, *names: str) -> None:
        """Raise `Unproved` unless these arguments are the same for every record."""
        for name in names:
            if any(not isinstance(self.of(t), Shared) for t in flat(self.argument(name))):
                raise Unproved(f"{name} is not the same for every record")


Rule: TypeAlias = Callable[[Call], Given]
RULES: dict[str, Rule] = {}


def flat(arguments: object) -> list[Any]:
    """Return the leaves of nested lists."""
    if isinstance(arguments, list | tuple):
        return [leaf for part in arguments for leaf in flat(part)]
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


def aligned(call: Call, *names: str) -> Layout:
    """Return the layout that these tensors of one shape have in common."""
    layouts = {call.of(t) for t in call.tensors(*names)}
    if len(layouts) != 1 or isinstance(next(iter(layouts)), Summed | Places):
        raise Unproved(MEET)
    return layouts.pop()


def written(call: Call, tensors: Sequence[object]) -> Given:
    """Return the layout of tensors of one layout, one of them written into another."""
    layouts = {call.of(t) for t in tensors}
    if len(layouts) == 1 and not isinstance(next(iter(layouts)), Places):
        return layouts.pop()
    if any(isinstance(one, Summed | Places) for one in layouts):
        raise Unproved("a sum over the records is joined to something else")
    raise Unproved("records and what is not along them are joined")


def within(dims: list[int], layout: Layout, what: str) -> None:
    """Raise `Unproved` where the records are along one of these axes."""
    if axis_of(layout) in dims:
        raise Unproved(f"{what} over the records")


def not_reduced(call: Call) -> None:
    """Raise `Unproved` for a loss that is added up, or averaged, over its entries."""
    if call.argument("reduction", 0) != 0:
        raise Unproved("a loss is reduced over the batch; use reduction='none'")


def along(call: Call, name: str = "self", dim: str = "dim") -> tuple[fx.Node, Layout, int]:
    """Return the tensor, its layout and the axis worked along, which must not be the records'."""
    tensor, layout = layout_and_tensor(call, name)
    axis = call.axis(call.argument(dim, 0), tensor)
    if isinstance(layout, Places):
        raise Unproved(PLACE)
    within([axis], layout, call.name.strip("_"))
    return tensor, layout, axis


# ---------------------------------------------------------------- entry by entry


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
    special_log_ndtr special_ndtri special_xlog1py special_zeta sqrt sub tan tanh tanh_backward
    threshold threshold_backward trunc where xlogy binary_cross_entropy
    binary_cross_entropy_backward huber_loss_backward detach alias _to_copy lift_fresh_copy
    lift_fresh _conj prelu _prelu_kernel copy _prelu_kernel_backward fill isreal trunc_divide
    bernoulli uniform normal_functional exponential native_dropout native_dropout_backward
    geometric log_normal cauchy random
    """
)
# Of these the value is linear in one tensor, so that a sum over records stays one.
_LINEAR_IN_ONE = {"neg", "clone", "detach", "alias", "_to_copy", "lift_fresh_copy", "real"}
RANDOM = words(
    """
    bernoulli uniform normal_functional exponential native_dropout geometric log_normal cauchy
    random rand randn randint normal
    """
)


@rule(" ".join(POINTWISE))
def _pointwise(call: Call) -> Given:
    """Every entry of the output is made of the entries at its place."""
    call.numbers_are_shared()
    not_reduced(call)
    # what a copy writes over counts for its shape alone
    tensors = [call.argument("src")] if call.name == "copy" else call.tensors()
    layouts = [call.of(t) for t in tensors]
    if any(isinstance(one, Summed) for one in layouts):
        return _of_sums(call, layouts)
    if call.name in RANDOM:
        _drawn(call, layouts)
    return _aligned(call, tensors, layouts)


def _aligned(call: Call, tensors: list[fx.Node], layouts: list[Layout]) -> Layout:
    rank, result = len(call.out()), set[Layout]()
    for tensor, layout in zip(tensors, layouts, strict=True):
        if isinstance(layout, Places):
            raise Unproved(PLACE)
        if isinstance(layout, Records):
            result.add(moved(layout, layout.axis + rank - len(call.shape(tensor))))
    if len(result) > 1:
        said = ", ".join(str(axis_of(one)) for one in sorted(result, key=str))
        raise Unproved(f"{AXES} ({said})")
    return result.pop() if result else SHARED


def _drawn(call: Call, layouts: list[Layout]) -> None:
    if call.argument("generator") is not None:
        raise Unproved("random numbers come from a generator of the model's own")
    if not any(isinstance(one, Records) for one in layouts):
        raise Unproved(DRAWN)


def _of_sums(call: Call, layouts: list[Layout]) -> Given:
    """A linear map of sums over records is one: with shared factors, and sums added up."""
    name, several = call.name, sum(isinstance(one, Summed) for one in layouts)
    if any(isinstance(one, Records | Places) for one in layouts):
        raise Unproved(AGAIN)
    linear = False
    if name in _LINEAR_IN_ONE:
        linear = name != "_to_copy" or call.node.meta["val"].is_floating_point()
    elif name in ("add", "sub"):
        linear = several == len(layouts) == 2
    elif name == "mul":
        linear = several == 1
    elif name == "div":
        numerator = isinstance(call.of(call.argument("self")), Summed)
        linear = numerator and several == 1 and call.argument("rounding_mode") is None
    elif name == "where":
        both = [call.argument("self"), call.argument("other")]
        linear = isinstance(call.of(call.argument("condition")), Shared) and all(
            isinstance(call.of(one), Summed) or is_zero(one) for one in both
        )
    if not linear:
        raise Unproved(USED)
    return SUMMED


def is_zero(tensor: object) -> bool:
    """Return whether a tensor is made of nothing but zeros."""
    if not isinstance(tensor, fx.Node) or tensor.op != "call_function":
        return False
    name = name_of(tensor)
    if name in ("zeros", "new_zeros", "zeros_like"):
        return True
    return name in ("full", "new_full", "scalar_tensor") and bool(tensor.args[-1] == 0)


# ---------------------------------------------------------------- shapes


@rule("view _unsafe_view reshape _reshape_copy view_copy")
def _view(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Places):
        raise Unproved(PLACE)
    if isinstance(layout, Records):
        return viewed(layout, call.shape(tensor), call.out(), call.sizes)
    return layout


@rule("permute permute_copy t mT adjoint t_copy transpose transpose_copy")
def _permuted(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    order = list(range(len(call.out())))
    if call.name in ("permute", "permute_copy"):
        order = call.axes(call.argument("dims"), tensor)
    elif call.name in ("t", "mT", "adjoint", "t_copy"):
        order = [*order[:-2], *reversed(order[-2:])]
    elif order:
        one, other = (call.axis(call.argument(name), tensor) for name in ("dim0", "dim1"))
        order[one], order[other] = order[other], order[one]
    axis = axis_of(layout)
    return layout if axis is None else moved(layout, order.index(axis))


@rule("unsqueeze unsqueeze_copy")
def _unsqueeze(call: Call) -> Given:
    _, layout = layout_and_tensor(call)
    axis, at = axis_of(layout), int(call.argument("dim")) % len(call.out())
    return layout if axis is None else moved(layout, axis + (at <= axis))


@rule("squeeze squeeze_copy")
def _squeeze(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    shape = call.shape(tensor)
    gone = [a for a in call.axes(call.argument("dim"), tensor) if shape and shape[a] == 1]
    return dropped(layout, gone)


@rule("expand expand_copy broadcast_to")
def _expand(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    shape, out = call.shape(tensor), call.out()
    shift, axis, long = len(out) - len(shape), axis_of(layout), call.sizes.long(out)
    if axis is not None:
        return moved(layout, axis + shift)
    if not long:
        return layout
    if isinstance(layout, Summed):
        raise Unproved(AGAIN)
    at = long[0]
    if len(long) > 1 or (at >= shift and shape[at - shift] != 1):
        raise Unproved("what is shared differs from place to place of the batch")
    return Records(at, 1, call.sizes.factor(out[at]))  # the same for every record


@rule("repeat")
def _repeat(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    shape, out, times = call.shape(tensor), call.out(), list(call.argument("repeats"))
    shift = len(out) - len(shape)
    if isinstance(layout, Records):
        if out[layout.axis + shift] != shape[layout.axis]:
            raise Unproved("records are repeated one after the other")
        return moved(layout, layout.axis + shift)
    if isinstance(layout, Summed | Places):
        raise Unproved("a sum over the records, or their numbers, is repeated")
    for at in call.sizes.long(out)[:1]:
        count = times[at].meta["val"] if isinstance(times[at], fx.Node) else times[at]
        inner = 1 if at < shift else shape[at - shift]
        return Records(at, 1, call.sizes.factor(count) * inner)
    return SHARED


@rule("slice slice_copy narrow slice_scatter")
def _slice(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    axis, part = call.axis(call.argument("dim", 0), tensor), call.argument("src")
    if axis_of(layout) == axis:
        taken = call.out() if part is None else call.shape(part)
        if call.shape(tensor)[axis] != taken[axis] or call.argument("step", 1) != 1:
            raise Unproved(PICKED)
    return layout if part is None else written(call, [tensor, part])


@rule("select select_copy select_scatter")
def _select(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if axis_of(layout) == call.axis(call.argument("dim"), tensor):
        raise Unproved(PICKED)
    _, layout, axis = along(call)
    call.numbers_are_shared("index")
    if call.name != "select_scatter":
        return dropped(layout, [axis])
    part = call.argument("src")
    if not isinstance(layout, Records):
        return written(call, [tensor, part])
    if call.of(part) != dropped(layout, [axis]):
        raise Unproved("records and what is not along them are joined")
    return layout


@rule(
    "split split_with_sizes split_copy split_with_sizes_copy chunk tensor_split unbind unbind_copy"
)
def _split(call: Call) -> Given:
    _, layout, axis = along(call)
    return dropped(layout, [axis]) if call.name.startswith("unbind") else layout


@rule("cat concat stack")
def _cat(call: Call) -> Given:
    tensors, dim = call.argument("tensors"), int(call.argument("dim", 0)) % len(call.out())
    stacked = call.name == "stack"
    some = [t for t in tensors if stacked or call.shape(t) != (0,)]  # cat passes over empty ones
    layout = written(call, some or tensors)
    if isinstance(layout, Records) and stacked:
        return moved(layout, layout.axis + (dim <= layout.axis))
    if isinstance(layout, Records) and layout.axis == dim:
        raise Unproved("batches are put one after the other")
    return layout


@rule("flip roll fft_fftshift")
def _flip(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    within(call.axes(call.argument("dims"), tensor), layout, call.name)
    return layout


_PADS = " ".join(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))


@rule(f"constant_pad_nd {_PADS} " + " ".join(f"{name}_backward" for name in _PADS.split()))
def _pad(call: Call) -> Given:
    backward = call.name.endswith("_backward")
    tensor, layout = layout_and_tensor(call, "grad_output" if backward else "self")
    if backward:
        aligned(call, "grad_output", "self")
    if isinstance(layout, Summed):
        if call.name == "constant_pad_nd" and call.argument("value", 0) == 0:
            return SUMMED
        raise Unproved("a sum over the records is padded")
    ends, rank = list(call.argument("pad", call.argument("padding"))), len(call.shape(tensor))
    padded = [rank - 1 - k for k in range(len(ends) // 2) if ends[2 * k] or ends[2 * k + 1]]
    within(padded, layout, "padding")
    call.numbers_are_shared("value")
    return layout


@rule(
    """
    tril triu diagonal diagonal_copy diag_embed pixel_shuffle pixel_unshuffle unfold unfold_copy
    channel_shuffle native_channel_shuffle
    """
)
def _planes(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if not isinstance(layout, Records):
        return layout
    rank = len(call.shape(tensor))
    named = [call.argument(d) for d in ("dim1", "dim2", "dimension")]
    dims = [int(d) % rank for d in named if d is not None]
    if call.name in ("tril", "triu"):
        dims = [rank - 2, rank - 1]
    if call.name == "diag_embed" or layout.axis != 0 or 0 in dims:
        raise Unproved("an entry's place depends on the records' axis")
    return layout


@rule("slice_backward select_backward diagonal_backward unfold_backward")
def _back_into(call: Call) -> Given:
    tensor = call.argument("grad_output", call.argument("grad_in"))
    layout, out = call.of(tensor), call.out()
    if not isinstance(layout, Records):
        return layout
    if call.name == "diagonal_backward":
        if layout.axis or any(int(call.argument(d)) % len(out) == 0 for d in ("dim1", "dim2")):
            raise Unproved("an entry's place depends on the records' axis")
        return layout
    axis = int(call.argument("dim")) % len(out)
    if call.name == "select_backward":
        return moved(layout, layout.axis + (axis <= layout.axis))
    if axis == layout.axis:
        if call.name == "unfold_backward":
            raise Unproved("unfold over the records")
        if out[axis] != call.shape(tensor)[axis]:
            raise Unproved(PICKED)
    return layout


# ---------------------------------------------------------------- made anew


SHAPES = words(
    """
    full zeros ones new_full new_zeros new_ones scalar_tensor full_like zeros_like ones_like
    _efficientzerotensor
    """
)
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


@rule(" ".join(SHAPES))
def _constant(call: Call) -> Given:
    call.numbers_are_shared("fill_value", "s")
    return _even(call)


def _even(call: Call) -> Layout:
    """A tensor whose entries do not depend on their place, or are drawn each by itself."""
    long = call.sizes.long(call.out())
    if not long:
        return SHARED
    if len(long) > 1:
        raise Unproved("a tensor has the records along two axes")
    (axis,), rows = long, call.sizes.factor(call.out()[long[0]])
    for one in map(call.of, call.tensors()):
        if isinstance(one, Records) and (one.axis, one.rows) == (axis, rows):
            return one
    return Records(axis, 1, rows)


@rule(" ".join(UNFILLED))
def _unfilled(call: Call) -> Given:
    """Memory as it was found holds whatever was there: it must be written before it is read.

    A capture puts zeros where that is not so.
    """
    if not is_filled(call.node):
        raise Unproved("memory is read that nobody has written (torch.empty)")
    tensor, extent = call.node.meta["val"], 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if step < extent and size > 1:
            raise Unproved("entries of a tensor lie in the same place (torch.empty_strided)")
        extent += step * (size - 1)
    return _even(call)


def is_filled(node: fx.Node) -> bool:
    """Return whether all that is done to an unfilled tensor is to fill it, or to take its shape."""
    for user in node.users:
        name = name_of(user)
        elsewhere = node in (*user.args[1:], *user.kwargs.values())
        if name not in _FILLS or elsewhere or (name == "bernoulli" and len(user.args) < 2):
            return False
    return True


@rule("rand randn randint rand_like randn_like randint_like normal")
def _random(call: Call) -> Given:
    call.numbers_are_shared("low", "high", "mean", "std")
    given = call.tensors("mean", "std")
    if given and call.name == "normal":
        layouts = [call.of(t) for t in given]
        if any(isinstance(one, Summed) for one in layouts):
            raise Unproved(AGAIN)
        _drawn(call, layouts)
        return _aligned(call, given, layouts)
    result = _even(call)
    _drawn(call, [result])
    return result


@rule("arange")
def _arange(call: Call) -> Given:
    (size,) = call.out()
    if not call.sizes.depends(size):
        call.numbers_are_shared("start", "step", "end")
        return SHARED
    start, step = call.argument("start", 0), call.argument("step", 1)
    if start != 0 or not isinstance(step, int) or call.sizes.factor(size) != 1:
        raise Unproved(PLACE)
    return Places(0, step)


@rule("linspace eye logspace hann_window tril_indices triu_indices")
def _constants(call: Call) -> Given:
    call.numbers_are_shared()
    return SHARED
