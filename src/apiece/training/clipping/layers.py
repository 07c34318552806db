"""The table of operators, further: sums and products, layers, attention, tables and picking."""

from __future__ import annotations

import contextlib
import functools
import operator
from dataclasses import dataclass

import torch
from torch import fx

from apiece.training.clipping.table import (
    AGAIN,
    AXES,
    DRAWN,
    MEET,
    PICKED,
    PLACE,
    SHARED,
    SUMMED,
    USED,
    Call,
    Layout,
    Layouts,
    Places,
    Records,
    Shared,
    Summed,
    Unproved,
    aligned_layout,
    along,
    axis_of,
    common_layout,
    drop_axes,
    is_zero,
    layout_and_tensor,
    move_records,
    name_of,
    require_unreduced,
    require_within_records,
    rule,
    words,
)

# ---------------------------------------------------------------- over an axis


@rule(
    """
    sum mean amax amin var var_mean std std_mean logsumexp any all prod max min argmax argmin
    median nanmedian nansum linalg_vector_norm norm count_nonzero mode aminmax kthvalue
    """
)
def _reduce(call: Call) -> Layouts:
    # Over other axes than the records' each record's entries are reduced by themselves. Over the
    # records' only a sum is one of the three kinds: a mean has their number in it, and a maximum
    # is of all of them at once.
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Shared):
        return SHARED
    if isinstance(layout, Summed):
        # Σ_i f_i summed over its own axes is Σ_i (f_i summed over them): both are linear.
        if call.name in ("sum", "mean"):
            return SUMMED
        raise Unproved(USED)
    assert isinstance(layout, Records)  # the laws let no places come here
    dims = call.axes(call.argument("dim"), tensor)
    if layout.axis in dims and call.name == "sum":
        return SUMMED
    require_within_records(dims, layout, call.name)
    return layout if call.argument("keepdim", False) else drop_axes(layout, dims)


@rule(
    """
    _softmax _log_softmax softmax log_softmax _safe_softmax cumsum cumprod cummax cummin
    logcumsumexp sort topk argsort glu
    """
)
def _along_axis(call: Call) -> Layouts:
    # Each line along the axis is worked on by itself; of a sum over records only what is linear
    # gives one.
    _, layout, _ = along(call)
    if isinstance(layout, Summed) and call.name != "cumsum":
        raise Unproved(USED)
    return layout


@rule("_softmax_backward_data _log_softmax_backward_data glu_backward")
def _along_axis_backward(call: Call) -> Layouts:
    layout = aligned_layout(call, "grad_output", "output", "self")
    axis = call.axis(call.argument("dim"), call.argument("grad_output"))
    require_within_records([axis], layout, "softmax")
    return layout


# ---------------------------------------------------------------- products


@dataclass(frozen=True, slots=True)
class _Factors:
    """The arguments that a product takes, and what their axes are for; None where there is none.

    batch: of both, one matrix of the left for one of the right. rows: of the left. inner: of left
    and right, over which it is summed. columns: of the right.
    """

    left: str
    right: str
    batch: int | None
    rows: int | None
    inner: tuple[int, int]
    columns: int | None


# By operator: where the batch, the rows, the sum and the columns are in its two factors.
_PRODUCTS = {
    "mm": _Factors("self", "mat2", None, 0, (1, 0), 1),
    "addmm": _Factors("mat1", "mat2", None, 0, (1, 0), 1),
    "bmm": _Factors("self", "mat2", 0, 1, (2, 1), 2),
    "baddbmm": _Factors("batch1", "batch2", 0, 1, (2, 1), 2),
    "mv": _Factors("self", "vec", None, 0, (1, 0), None),
    "dot": _Factors("self", "tensor", None, None, (0, 0), None),
    "vdot": _Factors("self", "other", None, None, (0, 0), None),
}


@rule("mm bmm mv dot vdot")
def _product(call: Call) -> Layouts:
    factors = _PRODUCTS[call.name]
    left = call.of(call.argument(factors.left))
    right = call.of(call.argument(factors.right))
    match left, right:
        # A batch of products: matrix i of the left meets matrix i of the right.
        case Records(axis), Records() if left == right and axis == factors.batch:
            return left
        # A row of the product is one of the left times all of the right; a column likewise.
        case Records(axis), Shared() if axis == factors.rows:
            return left
        case Shared(), Records(axis) if axis == factors.columns:
            return right
        # Σ over places of left·right: each record's places on one side meet its own on the other,
        # where they lie in the same order.
        case Records(left_axis), Records(right_axis) if (
            left_axis,
            right_axis,
        ) == factors.inner and left == move_records(right, left_axis):
            return SUMMED
        # (Σ_i f_i)·A = Σ_i f_i·A; times another sum it would be a square.
        case (Summed(), Shared()) | (Shared(), Summed()):
            return SUMMED
        case Shared(), Shared():
            return SHARED
    raise Unproved("a product of matrices mixes the records")


@rule("addmm baddbmm")
def _add_to_product(call: Call) -> Layouts:
    """What is added to a product must be along the same records, or shared."""
    result = _product(call)
    tensor, layout = layout_and_tensor(call)
    if isinstance(result, Summed) or isinstance(layout, Summed):
        # what is shared would be added once, and not once for each record
        if layout != result:
            raise Unproved("a sum over the records is added to what is none")
        return SUMMED
    if isinstance(layout, Shared):
        return result
    if isinstance(layout, Records):
        shift = len(call.out_shape()) - len(call.shape(tensor))
        if result == move_records(layout, layout.axis + shift):
            return result
    raise Unproved(AXES)


# ---------------------------------------------------------------- layers, records first


def _records_first(call: Call, *names: str) -> Layout:
    """Return the layout of tensors that all have the records along their first axis."""
    layouts = {call.of(tensor) for tensor in call.tensors(*names)}
    if len(layouts) == 1:
        (layout,) = layouts
        if isinstance(layout, Shared) or (isinstance(layout, Records) and layout.axis == 0):
            return layout
    raise Unproved("the records are not along the first axis of every tensor")


def _require_batch_axis(call: Call, layout: Layout, name: str, rank: int) -> None:
    """Raise `Unproved` where an image without a batch's axis has the records for its channels."""
    image = call.argument(name)
    if isinstance(layout, Records) and len(call.shape(image)) != rank:
        raise Unproved("the records are taken for channels")


def _require_layout(call: Call, layout: Layout, *names: str) -> None:
    """Raise `Unproved` unless these tensors, where they are given, have this layout."""
    if any(call.of(tensor) != layout for tensor in call.tensors(*names)):
        raise Unproved(MEET)


def _gradient_layouts(layout: Layout, parameters: int) -> tuple[Layout, ...]:
    """Return the layouts of a layer's gradients: of its input, and of so many parameters."""
    of_parameter = SUMMED if isinstance(layout, Records) else SHARED
    return (layout, *[of_parameter] * parameters)


@rule("convolution _convolution convolution_backward")
def _convolution(call: Call) -> Layouts:
    # The same kernel over each image, whose first axis is nothing to it. Backwards a gradient of
    # the input is the image's own; weight and bias get what all images give, added up.
    call.require_shared("weight", "bias")
    layout = _records_first(call, "grad_output", "input")
    image_axes = len(call.argument("stride"))
    _require_batch_axis(call, layout, "input", image_axes + 2)
    if call.name.endswith("_backward"):
        return _gradient_layouts(layout, parameters=2)  # weight and bias
    return layout


# Pooling and its backward, in two and three dimensions.
_POOLS = """
    max_pool{0}d_with_indices avg_pool{0}d _adaptive_avg_pool{0}d adaptive_max_pool{0}d
    max_pool{0}d_with_indices_backward avg_pool{0}d_backward _adaptive_avg_pool{0}d_backward
    adaptive_max_pool{0}d_backward
"""
# Operators on images, by how many axes a batch of them has.
_PLANAR = {
    3: """
       upsample_linear1d upsample_nearest1d avg_pool1d adaptive_max_pool1d max_pool1d
       adaptive_avg_pool1d col2im upsample_linear1d_backward upsample_nearest1d_backward
       _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
       """,
    4: """
       upsample_nearest2d upsample_bilinear2d upsample_bicubic2d im2col _upsample_bilinear2d_aa
       _upsample_nearest_exact2d _upsample_bicubic2d_aa upsample_nearest2d_backward
       upsample_bilinear2d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward
       _upsample_nearest_exact2d_backward _upsample_bicubic2d_aa_backward
       """ + _POOLS.format(2),
    5: """
       upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact3d upsample_nearest3d_backward
       upsample_trilinear3d_backward _upsample_nearest_exact3d_backward
       """ + _POOLS.format(3),
}  # fmt: skip


# Operators whose sizes say how many records there are, as the shape of what they give.
RESIZED_BACKWARD = frozenset(
    name
    for name in words(" ".join(_PLANAR.values()))
    if "upsample" in name and name.endswith("_backward")
)


def _planar(rank: int, call: Call) -> Layouts:
    """Each image by itself: pooling and resizing look at places of one image only."""
    candidates = ("self", "input", "grad_output")
    images = [name for name in candidates if isinstance(call.argument(name), fx.Node)]
    layout = _records_first(call, *images, "indices")
    _require_batch_axis(call, layout, images[0], rank)
    return layout


for _rank, _names in _PLANAR.items():
    rule(_names)(functools.partial(_planar, _rank))


@rule(
    "grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward "
    "_thnn_fused_lstm_cell nll_loss_backward nll_loss2d_backward multi_margin_loss "
    "multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward "
    "apiece::recurrence apiece::recurrence_backward"
)
def _row_by_row(call: Call) -> Layouts:
    """Each record's rows by themselves, with what is the same for all."""
    # With reduction="none" a loss is one of a row; weights are those of the classes.
    require_unreduced(call)
    call.require_shared("input_bias", "hidden_bias", "weight", "bias", "projection")
    names = (
        "grad_output input grid input_gates hidden_gates cx self target is_target "
        # a recurrence's, and its backward's
        "gates state cell lengths grad_states grad_last grad_last_cell previous states "
        "activations cells"
    )
    return _records_first(call, *names.split())


@rule("nll_loss_forward nll_loss2d_forward")
def _nll(call: Call) -> Layouts:
    # the losses, and the total of the classes' weights, which is nothing without a reduction
    return (_row_by_row(call), SHARED)  # type: ignore[return-value]


@rule(
    """
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward
    """
)
def _layer_norm(call: Call) -> Layouts:
    # Mean and variance are taken over the last axes: the records' must stand before them.
    tensor, layout = layout_and_tensor(call, "input")
    # The normalised axes are the last ones; the records must lie before them.
    first_normalised = len(call.shape(tensor)) - len(call.argument("normalized_shape"))
    is_across = isinstance(layout, Records) and layout.axis >= first_normalised
    if isinstance(layout, Summed) or is_across:
        raise Unproved(f"{call.name} over the records")
    return _normaliser_layouts(call, layout)


def _normaliser_layouts(call: Call, layout: Layout) -> Layouts:
    """Return the layouts of what a normaliser gives, or its backward: gradients of all it took."""
    call.require_shared("weight", "bias")
    if not call.name.endswith("_backward"):
        return layout
    _require_layout(call, layout, "grad_out", "mean", "rstd")
    return _gradient_layouts(layout, len(call.node.meta["val"]) - 1)


@rule("native_group_norm native_group_norm_backward")
def _group_norm(call: Call) -> Layouts:
    # The operator takes (N, C, …) for granted, whatever the shape: N must be the tensor's own.
    layout = _records_first(call, "input")
    rows_and_channels = call.argument("N"), call.argument("C")
    shape = call.shape(call.argument("input"))
    if isinstance(layout, Records) and rows_and_channels != shape[:2]:
        raise Unproved("group normalisation takes other rows than the records'")
    return _normaliser_layouts(call, layout)


@rule(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training cudnn_batch_norm
    native_batch_norm_backward _native_batch_norm_legit_backward
    """
)
def _batch_norm(call: Call) -> Layouts:
    _, layout = layout_and_tensor(call, "input")
    is_backward = call.name.endswith("backward")
    _require_layout(call, layout, "grad_out")
    outputs = len(call.node.meta["val"])
    if isinstance(layout, Shared):
        return (SHARED,) * outputs
    if not isinstance(layout, Records):
        raise Unproved("a sum over the records is normalised")
    if _is_training(call, is_backward):
        # An instance norm reaches torch as a batch norm of one image with B·C channels.
        if layout.axis != 1:
            raise Unproved(_OVER_RECORDS)
        return _instance_norm(call, layout, is_backward)
    # With running statistics it is a map of each entry; without them it takes the batch's own.
    has_statistics = is_backward or call.argument("running_mean") is not None
    if layout.axis == 1 or not has_statistics:
        raise Unproved(_OVER_RECORDS)
    call.require_shared("weight", "bias", "running_mean", "running_var")
    if is_backward:
        return _gradient_layouts(layout, outputs - 1)
    return (layout, *[SHARED] * (outputs - 1))


# Why a batch norm is refused, in the words that a user reads.
_OVER_RECORDS = "batch normalisation takes mean and variance over the records"


def _is_training(call: Call, is_backward: bool) -> bool:
    """Return whether a batch normalisation takes the batch's own mean and variance."""
    if call.name.endswith("no_training"):
        return False
    return bool(call.argument("train" if is_backward else "training", not is_backward))


def _instance_norm(call: Call, layout: Records, is_backward: bool) -> Layouts:
    """Instance normalisation is a batch normalisation in which records stand for channels."""
    by_record = move_records(layout, 0)
    # Scale, shift and statistics are repeated for each record, and lie along the channels' axis.
    for tensor in call.tensors("weight", "bias", "save_mean", "save_invstd"):
        if call.of(tensor) != by_record:
            raise Unproved("records lie in another order, or meet what is not along them")
    if call.argument("running_mean") is not None and not is_backward:
        raise Unproved("statistics of the records are kept (track_running_stats)")
    call.require_shared("running_mean", "running_var")
    # beside the output there are one mean and one variance for each record's channel
    statistics = len(call.node.meta["val"]) - 1
    return (layout, *[by_record] * statistics)


# ---------------------------------------------------------------- attention

# The fused attentions, by where they run.
_ATTENTION = """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
"""
_ATTENTION_BACKWARD = " ".join(f"{name}_backward" for name in _ATTENTION.split())
ATTENTION = words(_ATTENTION + _ATTENTION_BACKWARD)


@rule(_ATTENTION)
def _attention(call: Call) -> Layouts:
    # Queries, keys and values meet within one entry of the first axis, and nowhere else.
    names = "query key value grad_out grad_out_ out logsumexp"
    layout = _records_first(call, *names.split())
    for mask in call.tensors("attn_mask", "attn_bias"):
        # Masks of two axes are the same for all; of four they have the records first.
        is_aligned = call.of(mask) == layout or isinstance(call.of(mask), Shared)
        # one of three axes would be broadcast with its first against the heads
        if not is_aligned or len(call.shape(mask)) not in (2, 4):
            raise Unproved("an attention mask is not along the records")
    # of what is shared one coin would be drawn for all
    if call.argument("dropout_p", 0.0) and not isinstance(layout, Records):
        raise Unproved(DRAWN)
    # output and normaliser are along the records; seeds and lengths are not
    result: list[Layout] = []
    for value in call.node.meta["val"]:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        result.append(layout if call.sizes.batch_axes(shape) else SHARED)
    return tuple(result)


@rule(_ATTENTION_BACKWARD)
def _attention_backward(call: Call) -> Layouts:
    result = _attention(call)
    assert isinstance(result, tuple)
    if any(isinstance(layout, Records) for layout in result) and call.tensors("attn_bias"):
        # after the gradients of query, key and value
        gradients = enumerate(call.node.meta["val"])
        of_mask = {position for position, value in gradients if position > 2 and value is not None}
        if of_mask & {user.args[1] for user in call.node.users}:
            raise Unproved("the gradient of an attention mask is summed in an unknown way")
    return result


# ---------------------------------------------------------------- tables and picking


@rule("embedding one_hot searchsorted bucketize")
def _look_up(call: Call) -> Layouts:
    """What is made of each entry alone, by no linear map, with what is the same for all."""
    call.require_shared("weight", "sorted_sequence", "sorter", "boundaries")
    layout = call.of(call.argument("indices", call.argument("self")))
    if isinstance(layout, Summed):
        raise Unproved(USED)
    return layout


@rule("embedding_dense_backward")
def _embedding_backward(call: Call) -> Layouts:
    _require_unscaled(call)
    # Row r of the table gets Σ over places with index r of their gradients: a sum over the
    # records of what each one's places give.
    layout = call.of(call.argument("indices"))
    gradient = call.of(call.argument("grad_output"))
    if isinstance(layout, Records) and gradient == layout:
        return SUMMED
    if isinstance(layout, Shared) and isinstance(gradient, Shared):
        return gradient
    raise Unproved(MEET)


def _require_unscaled(call: Call) -> None:
    """Raise `Unproved` where an embedding's gradient depends on who else looks a row up."""
    if call.argument("scale_grad_by_freq") or call.argument("sparse"):
        raise Unproved("an embedding scales gradients by how often the batch looks a row up")


@rule("_embedding_bag _embedding_bag_forward_only")
def _bags(call: Call) -> Layouts:
    """Bags of as many places for each record, one after the other."""
    call.require_shared("weight")
    layout = call.of(call.argument("indices"))
    offsets = call.of(call.argument("offsets"))
    # Bag i is places i·step … (i + 1)·step − 1, all of record i, where the offsets say just that.
    # `include_last_offset` would add an end beyond the last bag: B + 1 numbers.
    if call.argument("include_last_offset"):
        raise Unproved("bags are given by where they end; give where they begin")
    if not isinstance(offsets, Places) or layout != Records(0, 1, offsets.step):
        raise Unproved("bags are not the records' own places")
    _require_layout(call, layout, "per_sample_weights")
    for user in call.node.users:  # beside the bags, it gives their numbers
        # Its other outputs number places of the whole batch, on which nothing of a record may
        # depend.
        if user.target is not operator.getitem:
            raise Unproved(PLACE)
        if user.args[1] and not _is_for_backward(user):
            raise Unproved(PLACE)
    result: list[Layout] = []
    for value in call.node.meta["val"]:
        size = value.shape[0] if value.shape else 0
        is_along = call.sizes.depends(size)
        result.append(Records(0, 1, call.sizes.factor(size)) if is_along else SHARED)
    return tuple(result)


def _is_for_backward(output: fx.Node) -> bool:
    """Return whether nothing but the backward of the bags takes a tensor."""
    names = ("_embedding_bag_backward", "_embedding_bag_dense_backward")
    return all(name_of(user) in names for user in output.users)


@rule("_embedding_bag_dense_backward _embedding_bag_backward")
def _bags_backward(call: Call) -> Layouts:
    layout = call.of(call.argument("indices"))
    _require_unscaled(call)
    _require_layout(call, layout, "per_sample_weights")
    is_by_record = isinstance(layout, Records) and layout == Records(0, 1, layout.inner)
    if not is_by_record or call.of(call.argument("grad")) != Records(0):
        raise Unproved("bags are not the records' own places")
    return SUMMED


@rule("gather take_along_dim")
def _gather(call: Call) -> Layouts:
    # Entry (i, …) of the output is taken from line i by index i: both are record i's, or one is
    # shared.
    _, layout, axis = along(call)
    index = call.of(call.argument("index"))
    if index == layout and isinstance(layout, Shared | Records):
        return layout
    if isinstance(layout, Summed) and isinstance(index, Shared):
        return SUMMED
    # lines of a shared table, looked up by each record
    if isinstance(layout, Shared) and isinstance(index, Records) and index.axis == axis:
        return index
    raise Unproved(MEET)


@rule("scatter scatter_add scatter_reduce")
def _scatter(call: Call) -> Layouts:
    # Line i of the output is line i of the tensor, with line i of the source put into it.
    tensor, layout, _ = along(call)
    index = call.argument("index")
    if call.name != "scatter_reduce" and _is_sum_into_zeros(call, tensor, "src"):
        return SUMMED
    if not isinstance(layout, Records | Shared) or call.of(index) != layout:
        raise Unproved("records are scattered over what is not along them")
    # A record's source goes into that record's line only if all three tensors have one layout.
    _require_layout(call, layout, "src")
    axis = axis_of(layout)
    # an index that is shorter than the tensor would leave some of the records as they were
    if axis is not None:
        indexed_places = call.shape(index)[axis]
        if indexed_places != call.out_shape()[axis]:
            raise Unproved(PICKED)
    return layout


def _is_sum_into_zeros(call: Call, tensor: fx.Node, name: str) -> bool:
    """Return whether a sum over records is put into zeros, by an index that is shared."""
    if not isinstance(call.of(call.argument("index")), Shared):
        return False
    return is_zero(tensor) and isinstance(call.of(call.argument(name)), Summed)


@rule("index_select index_add index_copy")
def _index_select(call: Call) -> Layouts:
    tensor, layout, axis = along(call)
    index = call.of(call.argument("index"))
    # rows of a shared table, one for each entry of the records' index
    if call.name == "index_select" and isinstance(layout, Shared) and isinstance(index, Records):
        return move_records(index, axis)
    if call.name == "index_add" and is_zero(tensor) and isinstance(index, Records):
        # rows of a table, each with what the records that look it up give it
        source = call.of(call.argument("source"))
        if source == move_records(index, axis) and call.argument("alpha", 1) == 1:
            return SUMMED
    call.require_shared("index")
    if call.name == "index_select":
        return layout
    if _is_sum_into_zeros(call, tensor, "source"):
        return SUMMED
    return common_layout(call, [call.argument("self"), call.argument("source")])


@dataclass(frozen=True, slots=True)
class _Pick:
    """An index along one axis of a tensor, and its layout.

    rank: how many axes the index has.
    """

    axis: int
    rank: int
    layout: Layout


def _picks(call: Call) -> list[_Pick]:
    """Return the indices of `tensor[indices]`, of which None takes an axis as it is."""
    return [
        _Pick(axis, len(call.shape(index)), call.of(index))
        for axis, index in enumerate(call.argument("indices"))
        if index is not None
    ]


@rule("index _unsafe_index")
def _index(call: Call) -> Layouts:
    _, layout = layout_and_tensor(call)
    picks = _picks(call)
    if isinstance(layout, Summed):
        if all(isinstance(pick.layout, Shared) for pick in picks):
            return SUMMED
        raise Unproved(AGAIN)
    return _indexed_layout(layout, picks)


def _indexed_layout(layout: Layout, picks: list[_Pick]) -> Layout:
    """Return where the records are in tensor[indices], which are Shared, Records or Places.

    The indices are broadcast to `rank` axes of their own. These stand where the picked axes stood,
    if those are side by side, and in front of all others if not.
    """
    rank = max(pick.rank for pick in picks)
    picked_axes = [pick.axis for pick in picks]
    first = picked_axes[0]
    # NumPy's rule of advanced indexing: separated picks send the new axes to the front.
    are_adjacent = picked_axes == list(range(first, first + len(picked_axes)))
    front = first if are_adjacent else 0
    # where the records are among the indices' own axes
    of_indices = {
        move_records(pick.layout, pick.layout.axis + rank - pick.rank)
        for pick in picks
        if isinstance(pick.layout, Records)
    }
    places = [pick for pick in picks if isinstance(pick.layout, Places)]
    if places:  # x[arange(B), i], of any rank: from each record its own
        pick = places[0]
        assert isinstance(pick.layout, Places)
        axis = pick.layout.axis + rank - pick.rank
        # Place i of the records' axis is picked by the number i, and by no other one's.
        is_own = layout == Records(pick.axis) and pick.layout.step == 1
        if not is_own or len(places) > 1 or of_indices - {Records(axis)}:
            raise Unproved("records are picked by their place in the batch")
        return Records(front + axis)
    if isinstance(layout, Records):
        if of_indices or layout.axis in picked_axes:
            raise Unproved("records are picked by an index")
        if are_adjacent and layout.axis < front:
            return layout
        picked_before = sum(axis < layout.axis for axis in picked_axes)
        # The picked axes vanish, and the indices' `rank` axes stand in front of the records'.
        return move_records(layout, layout.axis - picked_before + rank)
    if isinstance(layout, Places):
        raise Unproved(PLACE)
    if len(of_indices) > 1:
        raise Unproved(AXES)
    # From what is shared each record picks by its own indices.
    for result in of_indices:
        return move_records(result, front + (axis_of(result) or 0))
    return SHARED


@rule("index_put _unsafe_index_put _index_put_impl")
def _index_put(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    values = call.argument("values")
    of_values = call.of(values)
    picks = _picks(call)
    if all(isinstance(pick.layout, Shared) for pick in picks):
        # to put entries into zeros is linear: of a sum it makes a sum
        if isinstance(of_values, Summed) and is_zero(tensor):
            return SUMMED
        if isinstance(layout, Shared) and isinstance(of_values, Shared):
            return SHARED
    # Where the tensor is written is where it would be read by the same indices.
    indexed: Layout = SHARED
    if isinstance(layout, Shared | Records):
        with contextlib.suppress(Unproved):
            indexed = _indexed_layout(layout, picks)
    if isinstance(indexed, Records):
        shape = call.shape(values)
        axes_of_indices = max(pick.rank for pick in picks)
        # Axes of the indexed part: those of the tensor that stay, and those of the indices.
        rank = len(call.shape(tensor)) - len(picks) + axes_of_indices
        if isinstance(layout, Records):
            # each record's values into its own places; axes are aligned from the last one on
            aligned_axis = indexed.axis - rank + len(shape)
            if isinstance(of_values, Records) and of_values == move_records(indexed, aligned_axis):
                return layout
            if isinstance(of_values, Shared) and all(size == 1 for size in shape):
                return layout
        into_zeros = isinstance(layout, Shared) and is_zero(tensor) and of_values == indexed
        # added up, and not one in the place of another: the gradient of a table that is looked up
        if into_zeros and call.argument("accumulate"):
            return SUMMED
    raise Unproved("records are written where others may be")


# ---------------------------------------------------------------- others


@rule("_cdist_forward _cdist_backward linalg_inv_ex linalg_cross cross")
def _matrix_by_matrix(call: Call) -> Layouts:
    """Matrices on the last two axes, one apart from the other."""
    for tensor in call.tensors():
        rank = len(call.shape(tensor))
        last_two = [rank - 2, rank - 1]
        require_within_records(last_two, call.of(tensor), call.name)
    return aligned_layout(call)
