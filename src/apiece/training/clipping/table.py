"""The table of operators: for each, where the records are in what it gives, from where they were.

A rule is a theorem about one operator of ATen: from inputs with these layouts come outputs with
those. `RULES` holds them by the operator's name; what is not in it is not proved. Each is checked
in the tests against the operator on each record alone (`torch.func.vmap`), on random shapes and
arguments, and against PyTorch's own sharding rules where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from apiece.training.clipping.layout import (
    SHARED,
    SUMMED,
    Layout,
    Places,
    Records,
    Shared,
    Sizes,
    Summed,
    Unproved,
    viewed,
)

Given: TypeAlias = Layout | tuple[Layout, ...]
Rule: TypeAlias = Callable[["Call"], Given]
RULES: dict[str, Rule] = {}


def name_of(node: fx.Node) -> str:
    """Return an operator's name: ATen's without the overload, others' with their library in front.

    So a library's own "relu" is not taken for ATen's.
    """
    return operator_name(node.target)


def operator_name(target: Any) -> str:
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

    Args:
        node: The call.
        layouts: Of all nodes before it; a tuple for one that gives several tensors.
        sizes: What is known of sizes.
    """

    node: fx.Node
    layouts: dict[fx.Node, Given]
    sizes: Sizes

    @property
    def name(self) -> str:
        """The operator's name, as in the table."""
        return name_of(self.node)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by the name that the schema has, or the schema's default."""
        schema = self.node.target._schema.arguments  # type: ignore[union-attr]
        for k, argument in enumerate(schema):
            if argument.name == name:
                if not argument.kwarg_only and k < len(self.node.args):
                    return self.node.args[k]
                found = self.node.kwargs.get(name, argument.default_value)
                return default if found is None else found
        return default

    def of(self, argument: Any) -> Layout:
        """Return the layout of a tensor, SHARED for a number or None."""
        if not isinstance(argument, fx.Node):
            return SHARED
        found = self.layouts.get(argument, SHARED)
        if isinstance(found, tuple):
            raise Unproved("several tensors stand where one is expected")
        return found

    def shape(self, argument: Any) -> tuple[Any, ...]:
        """Return the shape of a tensor argument."""
        return tuple(argument.meta["val"].shape)

    def tensors(self) -> list[fx.Node]:
        """Return the tensors among the arguments."""
        nodes = self.node.all_input_nodes
        return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]

    def out(self, index: int = 0) -> tuple[Any, ...]:
        """Return the shape of what the operator gives."""
        value = self.node.meta["val"]
        return tuple((value[index] if isinstance(value, list | tuple) else value).shape)

    def axis(self, dim: Any, tensor: Any) -> int:
        """Return an axis from 0 on."""
        rank = max(1, len(self.shape(tensor)))
        return int(dim) % rank

    def axes(self, dims: Any, tensor: Any) -> list[int]:
        """Return axes from 0 on; all where none is named."""
        rank = len(self.shape(tensor))
        if dims is None or (isinstance(dims, Sequence) and not dims):
            return list(range(rank))
        return [self.axis(d, tensor) for d in (dims if isinstance(dims, Sequence) else [dims])]

    def numbers_are_shared(self, *names: str) -> None:
        """Raise `Unproved` where the batch's size is among numbers that enter values."""
        given: list[Any] = [self.argument(name) for name in names]
        if not names:
            given = [*self.node.args, *self.node.kwargs.values()]
        for number in flat(given):
            value = number.meta["val"] if isinstance(number, fx.Node) else number
            if not isinstance(value, torch.Tensor) and self.sizes.depends(value):
                raise Unproved("the number of records in the batch becomes a value")

    def only_shared(self, *names: str) -> None:
        """Raise `Unproved` unless these arguments are the same for every record."""
        for name in names:
            for tensor in flat([self.argument(name)]):
                if not isinstance(self.of(tensor), Shared):
                    raise Unproved(f"{name} is not the same for every record")


def flat(arguments: Any) -> list[Any]:
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


# ---------------------------------------------------------------- entry by entry

POINTWISE = words(
    """
    abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
    celu_backward clamp clamp_max clamp_min clone complex conj copysign cos cosh deg2rad digamma
    div elu elu_backward eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac
    frexp gcd ge gelu gelu_backward gt hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside
    huber_loss hypot i0 imag isinf isnan isneginf isposinf le leaky_relu
    leaky_relu_backward lerp lgamma log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt
    masked_fill maximum minimum mish mish_backward mse_loss mse_loss_backward mul mvlgamma
    nan_to_num ne neg nextafter polygamma pow rad2deg real reciprocal relu relu6 remainder round
    rrelu_with_noise_backward rsqrt rsub selu sgn sigmoid sigmoid_backward sign signbit silu
    silu_backward sin sinc sinh smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward
    special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri
    special_xlog1py special_zeta sqrt sub tan tanh tanh_backward threshold
    threshold_backward trunc where xlogy binary_cross_entropy binary_cross_entropy_backward
    huber_loss_backward detach alias _to_copy lift_fresh_copy lift_fresh _conj
    prelu _prelu_kernel copy _prelu_kernel_backward fill isreal trunc_divide
    bernoulli uniform normal_functional exponential native_dropout
    native_dropout_backward geometric log_normal cauchy random
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
_REDUCTIONS_OF_LOSSES = words(
    """
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward binary_cross_entropy binary_cross_entropy_backward soft_margin_loss
    soft_margin_loss_backward
    """
)


def _pointwise(call: Call) -> Given:
    """Every entry of the output is made of the entries at its place."""
    call.numbers_are_shared()
    tensors = call.tensors()
    if call.name in _REDUCTIONS_OF_LOSSES and call.argument("reduction", 1) != 0:
        raise Unproved("a loss is reduced over the batch; use reduction='none'")
    if call.name == "copy":  # what is written over counts for its shape alone
        tensors = [call.argument("src")]
    layouts = [call.of(t) for t in tensors]
    if any(isinstance(one, Summed) for one in layouts):
        return _of_sums(call, layouts)
    if call.name in RANDOM:
        _drawn(call, layouts)
    return _aligned(call, tensors, layouts)


def _aligned(call: Call, tensors: list[fx.Node], layouts: list[Layout]) -> Layout:
    rank = len(call.out())
    found: set[Layout] = set()
    for tensor, layout in zip(tensors, layouts, strict=True):
        if isinstance(layout, Places):
            raise Unproved("a record's place in the batch becomes a value")
        if isinstance(layout, Records):
            shift = rank - len(call.shape(tensor))
            found.add(Records(layout.axis + shift, layout.outer, layout.inner))
    if len(found) > 1:
        raise Unproved(f"records meet along different axes ({_said(found)})")
    return found.pop() if found else SHARED


def _said(layouts: set[Layout]) -> str:
    return ", ".join(str(getattr(one, "axis", "?")) for one in sorted(layouts, key=str))


def _drawn(call: Call, layouts: list[Layout]) -> None:
    if call.argument("generator") is not None:
        raise Unproved("random numbers come from a generator of the model's own")
    if not any(isinstance(one, Records) for one in layouts):
        raise Unproved("a random number is drawn for all records at once; draw one for each")


def _of_sums(call: Call, layouts: list[Layout]) -> Given:
    """A linear map of sums over records is one: with shared factors, and sums added up."""
    records = [one for one in layouts if isinstance(one, Records | Places)]
    if records:
        raise Unproved("a sum over the records meets the records again")
    sums = sum(isinstance(one, Summed) for one in layouts)
    name = call.name
    if name == "_to_copy" and not call.node.meta["val"].is_floating_point():
        raise Unproved(
            "a sum over the batch's records is computed with, as if it were one record's"
        )
    if name in _LINEAR_IN_ONE or (name in ("add", "sub") and sums == len(layouts) == 2):
        return SUMMED
    if name == "mul" and sums == 1:
        return SUMMED
    divided = name == "div" and isinstance(call.of(call.argument("self")), Summed)
    if divided and sums == 1 and call.argument("rounding_mode") is None:
        return SUMMED
    if name == "where" and isinstance(call.of(call.argument("condition")), Shared):
        both = [call.argument("self"), call.argument("other")]
        if all(isinstance(call.of(one), Summed) or is_zero(one) for one in both):
            return SUMMED
    raise Unproved("a sum over the batch's records is computed with, as if it were one record's")


def is_zero(tensor: Any) -> bool:
    """Whether a tensor is made of nothing but zeros."""
    if not isinstance(tensor, fx.Node) or tensor.op != "call_function":
        return False
    name = name_of(tensor)
    if name in ("zeros", "new_zeros", "zeros_like"):
        return True
    return name in ("full", "new_full", "scalar_tensor") and bool(tensor.args[-1] == 0)


for _name in POINTWISE:
    RULES[_name] = _pointwise


# ---------------------------------------------------------------- shapes


def layout_and_tensor(call: Call, name: str = "self") -> tuple[Any, Layout]:
    """Return a tensor among the arguments, and its layout."""
    tensor = call.argument(name)
    return tensor, call.of(tensor)


@rule("view _unsafe_view reshape _reshape_copy view_copy")
def _view(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Records):
        return viewed(layout, call.shape(tensor), call.out(), call.sizes)
    if isinstance(layout, Places):
        raise Unproved("a record's place in the batch becomes a value")
    return layout


def _permuted(call: Call, order: list[int]) -> Given:
    _, layout = layout_and_tensor(call)
    if isinstance(layout, Records):
        return Records(order.index(layout.axis), layout.outer, layout.inner)
    if isinstance(layout, Places):
        return Places(order.index(layout.axis), layout.step)
    return layout


@rule("permute permute_copy")
def _permute(call: Call) -> Given:
    return _permuted(call, call.axes(call.argument("dims"), call.argument("self")))


@rule("t mT adjoint t_copy")
def _t(call: Call) -> Given:
    order = list(range(len(call.out())))
    return _permuted(call, [*order[:-2], *reversed(order[-2:])])


@rule("transpose swapaxes swapdims transpose_copy")
def _transpose(call: Call) -> Given:
    tensor = call.argument("self")
    one, other = (call.axis(call.argument(name), tensor) for name in ("dim0", "dim1"))
    order = list(range(len(call.out())))
    if order:
        order[one], order[other] = order[other], order[one]
    return _permuted(call, order)


def aligned(call: Call, *names: str) -> Layout:
    """Return the layout that these tensors of one shape have in common."""
    given = [t for name in names if isinstance(t := call.argument(name), fx.Node)]
    layouts = {call.of(t) for t in given}
    if len(layouts) != 1 or isinstance(next(iter(layouts)), Summed | Places):
        raise Unproved("records and what is not along them meet")
    return layouts.pop()


def moved(layout: Layout, axis: int) -> Layout:
    """Return a layout with the records along another axis."""
    match layout:
        case Records(_, outer, inner):
            return Records(axis, outer, inner)
        case Places(_, step):
            return Places(axis, step)
    return layout


def _kept_axis(layout: Layout) -> int | None:
    return layout.axis if isinstance(layout, Records | Places) else None


@rule("unsqueeze unsqueeze_copy")
def _unsqueeze(call: Call) -> Given:
    _, layout = layout_and_tensor(call)
    axis = _kept_axis(layout)
    if axis is None:
        return layout
    at = int(call.argument("dim")) % len(call.out())
    return moved(layout, axis + (at <= axis))


@rule("squeeze squeeze_copy")
def _squeeze(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    axis = _kept_axis(layout)
    if axis is None:
        return layout
    shape = call.shape(tensor)
    gone = [a for a in call.axes(call.argument("dim"), tensor) if shape[a] == 1]
    return moved(layout, axis - sum(a < axis for a in gone))


@rule("expand expand_copy broadcast_to")
def _expand(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    shape, out = call.shape(tensor), call.out()
    shift = len(out) - len(shape)
    axis = _kept_axis(layout)
    if axis is not None:
        return moved(layout, axis + shift)
    long = [k for k, size in enumerate(out) if call.sizes.depends(size)]
    if not long:
        return layout
    if isinstance(layout, Summed):
        raise Unproved("a sum over the records meets the records again")
    (at,) = long if len(long) == 1 else (None,)
    if at is None or (at >= shift and shape[at - shift] != 1):
        raise Unproved("what is shared differs from place to place of the batch")
    return Records(at, 1, call.sizes.factor(out[at]))  # the same for every record


@rule("repeat")
def _repeat(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    shape, out, times = call.shape(tensor), call.out(), list(call.argument("repeats"))
    shift = len(out) - len(shape)
    if isinstance(layout, Records):
        axis = layout.axis + shift
        if out[axis] != shape[layout.axis]:
            raise Unproved("records are repeated one after the other")
        return Records(axis, layout.outer, layout.inner)
    if isinstance(layout, Summed | Places):
        raise Unproved("a sum over the records, or their numbers, is repeated")
    for at, size in enumerate(out):
        if call.sizes.depends(size):
            count = times[at].meta["val"] if isinstance(times[at], fx.Node) else times[at]
            inner = 1 if at < shift else shape[at - shift]
            return Records(at, 1, call.sizes.factor(count) * inner)
    return SHARED


def within(call: Call, dims: list[int], layout: Layout, what: str) -> None:
    """Raise `Unproved` where the records are along one of these axes."""
    axis = _kept_axis(layout)
    if axis is not None and axis in dims:
        raise Unproved(f"{what} over the records")


def along(call: Call, name: str = "self", dim: str = "dim") -> tuple[Any, Layout, int]:
    """Return the tensor, its layout and the axis worked along, which must not be the records'."""
    tensor, layout = layout_and_tensor(call, name)
    axis = call.axis(call.argument(dim, 0), tensor)
    if isinstance(layout, Records | Places):
        if isinstance(layout, Places):
            raise Unproved("a record's place in the batch becomes a value")
        within(call, [axis], layout, call.name.strip("_"))
    return tensor, layout, axis


@rule("slice slice_copy narrow slice_scatter")
def _slice(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    axis = call.axis(call.argument("dim", 0), tensor)
    if isinstance(layout, Records | Places) and layout.axis == axis:
        part = call.argument("src")
        taken = call.out() if part is None else call.shape(part)
        whole = call.shape(tensor)[axis] == taken[axis]
        if not whole or call.argument("step", 1) != 1:
            raise Unproved("some of the batch's records are picked by their place")
        return layout if part is None else written(call, [tensor, part])
    if call.name != "slice_scatter":
        return layout
    return written(call, [tensor, call.argument("src")])


def written(call: Call, tensors: list[Any]) -> Given:
    """Tensors of the same layout, one written into the other."""
    layouts = [call.of(t) for t in tensors]
    if any(isinstance(one, Summed | Places) for one in layouts):
        if all(isinstance(one, Summed) for one in layouts):
            return SUMMED
        raise Unproved("a sum over the records is joined to something else")
    kept = {one for one in layouts if isinstance(one, Records)}
    if len(kept) > 1 or (kept and any(isinstance(one, Shared) for one in layouts)):
        raise Unproved("records and what is not along them are joined")
    return kept.pop() if kept else SHARED


@rule("select_scatter")
def _select_scatter(call: Call) -> Given:
    tensor, layout, axis = along(call)
    call.numbers_are_shared("index")
    src = call.of(call.argument("src"))
    if isinstance(layout, Records):
        if src != moved(layout, layout.axis - (axis < layout.axis)):
            raise Unproved("records and what is not along them are joined")
        return layout
    return written(call, [tensor, call.argument("src")])


@rule("select select_copy")
def _select(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if _kept_axis(layout) == call.axis(call.argument("dim"), tensor):
        raise Unproved("some of the batch's records are picked by their place")
    _, layout, axis = along(call)
    call.numbers_are_shared("index")
    if isinstance(layout, Records):
        return moved(layout, layout.axis - (axis < layout.axis))
    return layout


@rule("split split_with_sizes split_copy split_with_sizes_copy chunk tensor_split")
def _split(call: Call) -> Given:
    _, layout, _ = along(call)
    return layout


@rule("unbind unbind_copy")
def _unbind(call: Call) -> Given:
    return _select_like(call)


def _select_like(call: Call) -> Given:
    _, layout, axis = along(call)
    if isinstance(layout, Records):
        return moved(layout, layout.axis - (axis < layout.axis))
    return layout


@rule("cat concat")
def _cat(call: Call) -> Given:
    given = call.argument("tensors")
    tensors = [t for t in given if call.shape(t) != (0,)] or given  # torch passes over empty ones
    rank = len(call.out())
    dim = int(call.argument("dim", 0)) % rank
    return _joined(call, tensors, dim, 0)


@rule("stack")
def _stack(call: Call) -> Given:
    dim = int(call.argument("dim", 0)) % len(call.out())
    return _joined(call, call.argument("tensors"), dim, 1)


def _joined(call: Call, tensors: Any, dim: int, new: int) -> Given:
    layout = written(call, list(tensors))
    if isinstance(layout, Records):
        if new:
            return moved(layout, layout.axis + (dim <= layout.axis))
        if layout.axis == dim:
            raise Unproved("batches are put one after the other")
    return layout


@rule("flip roll fft_fftshift")
def _flip(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Records | Places):
        within(call, call.axes(call.argument("dims"), tensor), layout, call.name)
    return layout


@rule(
    """
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
    replication_pad3d_backward
    """
)
def _pad(call: Call) -> Given:
    name = "grad_output" if call.name.endswith("_backward") else "self"
    tensor, layout = layout_and_tensor(call, name)
    ends = list(call.argument("pad", call.argument("padding")))
    rank = len(call.shape(tensor))
    padded = [rank - 1 - k for k in range(len(ends) // 2) if ends[2 * k] or ends[2 * k + 1]]
    if isinstance(layout, Summed):
        if call.name == "constant_pad_nd" and call.argument("value", 0) == 0:
            return SUMMED
        raise Unproved("a sum over the records is padded")
    if isinstance(layout, Records):
        within(call, padded, layout, "padding")
    call.numbers_are_shared("value")
    if call.name.endswith("_backward"):
        return aligned(call, "grad_output", "self")
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
    if call.name.startswith(("pixel", "channel", "native_channel")):
        dims = list(range(1, rank))
    if call.name == "diag_embed" or layout.axis != 0 or 0 in dims:
        raise Unproved("an entry's place depends on the records' axis")
    return layout


@rule("slice_backward select_backward diagonal_backward unfold_backward")
def _back_into(call: Call) -> Given:
    tensor = call.argument("grad_output", call.argument("grad_in"))
    layout = call.of(tensor)
    out = call.out()
    if not isinstance(layout, Records):
        return layout
    match call.name:
        case "slice_backward":
            axis = int(call.argument("dim")) % len(out)
            if axis == layout.axis and out[axis] != call.shape(tensor)[axis]:
                raise Unproved("some of the batch's records are picked by their place")
            return layout
        case "select_backward":
            axis = int(call.argument("dim")) % len(out)
            return moved(layout, layout.axis + (axis <= layout.axis))
        case "unfold_backward":
            if int(call.argument("dim")) % len(out) == layout.axis:
                raise Unproved("unfold over the records")
            return layout
    dims = [int(call.argument(d)) % len(out) for d in ("dim1", "dim2")]
    if layout.axis == 0 and 0 not in dims:
        return layout
    raise Unproved("an entry's place depends on the records' axis")


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
    long = [k for k, size in enumerate(call.out()) if call.sizes.depends(size)]
    if not long:
        return SHARED
    if len(long) > 1:
        raise Unproved("a tensor has the records along two axes")
    given = [call.of(t) for t in call.tensors()]
    for one in given:
        along_it = isinstance(one, Records) and one.axis == long[0]
        if along_it and call.sizes.factor(call.out()[long[0]]) == one.rows:  # type: ignore[union-attr]
            return one
    return Records(long[0], 1, call.sizes.factor(call.out()[long[0]]))


@rule(" ".join(UNFILLED))
def _unfilled(call: Call) -> Given:
    """Memory as it was found holds whatever was there: it must be written before it is read.

    A capture puts zeros where that is not so.
    """
    if not is_filled(call.node):
        raise Unproved("memory is read that nobody has written (torch.empty)")
    if _overlaps(call.node.meta["val"]):
        raise Unproved("entries of a tensor lie in the same place (torch.empty_strided)")
    return _even(call)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two entries may lie in the same place of memory."""
    extent = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if step < extent and size > 1:
            return True
        extent += step * (size - 1)
    return False


def is_filled(node: fx.Node) -> bool:
    """Whether all that is done to an unfilled tensor is to fill it, or to take its shape."""
    for user in node.users:
        name = name_of(user)
        elsewhere = node in (*user.args[1:], *user.kwargs.values())
        if name not in _FILLS or elsewhere or (name == "bernoulli" and len(user.args) < 2):
            return False
    return True


@rule("rand randn randint rand_like randn_like randint_like normal")
def _random(call: Call) -> Given:
    call.numbers_are_shared("low", "high", "mean", "std")
    given = [t for t in (call.argument("mean"), call.argument("std")) if isinstance(t, fx.Node)]
    if given and call.name == "normal":
        layouts = [call.of(t) for t in given]
        if any(isinstance(one, Summed) for one in layouts):
            raise Unproved("a sum over the records meets the records again")
        _drawn(call, layouts)
        return _aligned(call, given, layouts)
    if call.argument("generator") is not None:
        raise Unproved("random numbers come from a generator of the model's own")
    found = _even(call)
    if not isinstance(found, Records):
        raise Unproved("a random number is drawn for all records at once; draw one for each")
    return found


@rule("arange")
def _arange(call: Call) -> Given:
    (size,) = call.out()
    if not call.sizes.depends(size):
        call.numbers_are_shared("start", "step", "end")
        return SHARED
    start, step = call.argument("start", 0), call.argument("step", 1)
    if start != 0 or not isinstance(step, int) or call.sizes.factor(size) != 1:
        raise Unproved("a record's place in the batch becomes a value")
    return Places(0, step)


@rule("linspace eye logspace hann_window tril_indices triu_indices")
def _table(call: Call) -> Given:
    call.numbers_are_shared()
    return SHARED
