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
    # `before` counts the runs through all records: entries are in row-major order before and after.
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

    def taken(self) -> list[fx.Node]:
        """Return the tensors among the arguments, one that stands in two places twice."""
        given = flat([*self.node.args, *self.node.kwargs.values()])
        tensors = [one for one in given if isinstance(one, fx.Node)]
        return [one for one in tensors if isinstance(one.meta.get("val"), torch.Tensor)]

    def out(self) -> Shape:
        """Return the shape of what the operator gives, or of the first of several tensors."""
        value = self.node.meta["val"]
        return tuple((value[0] if isinstance(value, list | tuple) else value).shape)

    def axis(self, dim: Any, tensor: fx.Node) -> int:
        """Return an axis from 0 on."""
        return int(dim) % max(1, len(self.shape(tensor)))

    def axes(self, dims: Any, tensor: fx.Node) -> list[int]:
        """Return axes from 0 on; all where none is named."""
        if dims is None or (isinstance(dims, Sequence) and not dims):
            return list(range(len(self.shape(tensor))))
        return [self.axis(d, tensor) for d in (dims if isinstance(dims, Sequence) else [dims])]

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
    if len(layouts) != 1 or layouts == {SUMMED}:
        raise Unproved(MEET)
    return layouts.pop()


def written(call: Call, tensors: Sequence[object]) -> Given:
    """Return the layout of tensors of one layout, one of them written into another."""
    layouts = {call.of(t) for t in tensors}
    if len(layouts) == 1:
        return layouts.pop()
    if SUMMED in layouts:
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
    geometric log_normal cauchy random hardshrink hardshrink_backward softshrink softshrink_backward
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
    not_reduced(call)
    # what a copy writes over counts for its shape alone
    tensors = [call.argument("src")] if call.name == "copy" else call.tensors()
    layouts = [call.of(t) for t in tensors]
    if SUMMED in layouts:
        return _of_sums(call)
    if call.name in RANDOM:
        drawn(call, layouts)
    return matched(call, tensors, layouts)


def matched(call: Call, tensors: list[fx.Node], layouts: list[Layout]) -> Layout:
    """Return the layout of what is made entry by entry of tensors that are broadcast."""
    rank, result = len(call.out()), set[Layout]()
    for tensor, layout in zip(tensors, layouts, strict=True):
        if isinstance(layout, Records):
            result.add(moved(layout, layout.axis + rank - len(call.shape(tensor))))
    if len(result) > 1:
        said = ", ".join(str(axis_of(one)) for one in sorted(result, key=str))
        raise Unproved(f"{AXES} ({said})")
    return result.pop() if result else SHARED


def drawn(call: Call, layouts: list[Layout]) -> None:
    """Raise `Unproved` where not each record has a random number of its own."""
    if call.argument("generator") is not None:
        raise Unproved("random numbers come from a generator of the model's own")
    if not any(isinstance(one, Records) for one in layouts):
        raise Unproved(DRAWN)


def _of_sums(call: Call) -> Given:
    """A linear map of sums over records is one: with shared factors, and sums added up.

    A sum that stands in two places counts twice: times itself it is a square, which is not linear.
    """
    layouts = [call.of(tensor) for tensor in call.taken()]
    name, several, linear = call.name, layouts.count(SUMMED), False
    if name in _LINEAR_IN_ONE:
        linear = name != "_to_copy" or call.node.meta["val"].is_floating_point()
    elif name in ("add", "sub"):
        linear = several == len(layouts) == 2
    elif name == "mul":
        linear = several == 1
    elif name == "div":
        numerator = isinstance(call.of(call.argument("self")), Summed)
        linear = numerator and several == 1 and call.argument("rounding_mode") is None
    elif name.endswith("_backward"):  # a product of the gradient and a matrix of all the rest
        gradient = call.argument("grad_output", call.argument("grad_out"))
        linear = isinstance(call.of(gradient), Summed) and several == 1
    elif name == "masked_fill":
        linear = isinstance(call.of(call.argument("mask")), Shared) and several == 1
        linear = linear and is_zero_number(call.argument("value"))
    elif name == "where":
        both = [call.argument("self"), call.argument("other")]
        linear = isinstance(call.of(call.argument("condition")), Shared) and all(
            isinstance(call.of(one), Summed) or is_zero(one) for one in both
        )
    if not linear:
        raise Unproved(USED)
    return SUMMED


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
    return name in ("full", "new_full", "scalar_tensor") and bool(tensor.args[-1] == 0)


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


def is_filled(node: fx.Node) -> bool:
    """Return whether all that is done to an unfilled tensor is to fill it, or to take its shape."""
    for user in node.users:
        name = name_of(user)
        elsewhere = node in (*user.args[1:], *user.kwargs.values())
        if name not in _FILLS or elsewhere or (name == "bernoulli" and len(user.args) < 2):
            return False
    return True
