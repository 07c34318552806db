"""The table of operators, further: sums and products, layers, attention, tables and picking."""

from __future__ import annotations

import functools
import operator

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
    Given,
    Layout,
    Places,
    Records,
    Shared,
    Summed,
    Unproved,
    aligned,
    along,
    axis_of,
    dropped,
    is_zero,
    layout_and_tensor,
    moved,
    name_of,
    not_reduced,
    rule,
    within,
    words,
    written,
)

# ---------------------------------------------------------------- over an axis


@rule(
    """
    sum mean amax amin var var_mean std std_mean logsumexp any all prod max min argmax argmin
    median nanmedian nansum linalg_vector_norm norm count_nonzero mode aminmax kthvalue
    """
)
def _reduce(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Shared):
        return SHARED
    if isinstance(layout, Summed):
        if call.name in ("sum", "mean"):
            return SUMMED
        raise Unproved(USED)
    assert isinstance(layout, Records)
    dims = call.axes(call.argument("dim"), tensor)
    if layout.axis in dims and call.name == "sum":
        return SUMMED
    within(dims, layout, call.name)
    return layout if call.argument("keepdim", False) else dropped(layout, dims)


@rule(
    """
    _softmax _log_softmax softmax log_softmax _safe_softmax cumsum cumprod cummax cummin
    logcumsumexp sort topk argsort glu
    """
)
def _along_axis(call: Call) -> Given:
    _, layout, _ = along(call)
    if isinstance(layout, Summed) and call.name != "cumsum":
        raise Unproved(USED)
    return layout


def is_linear_in_sums(call: Call, gradient: str = "grad_output") -> bool:
    """Return whether a backward takes a sum over records back through what is shared.

    A backward is linear in the gradient that it is given, so that it gives a sum over records, too.
    """
    layouts = [call.of(tensor) for tensor in call.taken()]
    summed = isinstance(call.of(call.argument(gradient)), Summed)
    return summed and layouts.count(SUMMED) == 1 and layouts.count(SHARED) == len(layouts) - 1


@rule("_softmax_backward_data _log_softmax_backward_data glu_backward")
def _along_axis_backward(call: Call) -> Given:
    if is_linear_in_sums(call):
        return SUMMED
    layout = aligned(call, "grad_output", "output", "self")
    within([call.axis(call.argument("dim"), call.argument("grad_output"))], layout, "softmax")
    return layout


# ---------------------------------------------------------------- products

# The factors; of which axes both are batches, of the left rows, of both inner, of the right columns
_NONE = -1
_PRODUCTS = {
    "mm": ("self", "mat2", _NONE, 0, (1, 0), 1),
    "addmm": ("mat1", "mat2", _NONE, 0, (1, 0), 1),
    "bmm": ("self", "mat2", 0, 1, (2, 1), 2),
    "baddbmm": ("batch1", "batch2", 0, 1, (2, 1), 2),
    "mv": ("self", "vec", _NONE, 0, (1, 0), _NONE),
    "dot": ("self", "tensor", _NONE, _NONE, (0, 0), _NONE),
    "vdot": ("self", "other", _NONE, _NONE, (0, 0), _NONE),
}


@rule("mm bmm mv dot vdot")
def _product(call: Call) -> Given:
    first, second, batch, rows, inner, columns = _PRODUCTS[call.name]
    left, right = call.of(call.argument(first)), call.of(call.argument(second))
    match left, right:
        case Records(axis), Records() if left == right and axis == batch:
            return left
        case Records(axis), Shared() if axis == rows:
            return left
        case Shared(), Records(axis) if axis == columns:
            return right
        case Records(one), Records(other) if (one, other) == inner and left == moved(right, one):
            return SUMMED
        case (Summed(), Shared()) | (Shared(), Summed()):
            return SUMMED
        case Shared(), Shared():
            return SHARED
    raise Unproved("a product of matrices mixes the records")


@rule("addmm baddbmm")
def _added(call: Call) -> Given:
    """What is added to a product must be along the same records, or shared."""
    result, (tensor, layout) = _product(call), layout_and_tensor(call)
    if isinstance(result, Summed) or isinstance(layout, Summed):
        if layout != result:
            raise Unproved("a sum over the records is added to what is none")
        return SUMMED
    shift = len(call.out()) - len(call.shape(tensor))
    if isinstance(layout, Shared) or (
        isinstance(layout, Records) and result == moved(layout, layout.axis + shift)
    ):
        return result
    raise Unproved(AXES)


# ---------------------------------------------------------------- layers, records first


def _first(call: Call, *names: str) -> Layout:
    """Return the layout of tensors that all have the records along their first axis."""
    result = {call.of(t) for t in call.tensors(*names)}
    if len(result) == 1:
        (one,) = result
        if isinstance(one, Shared) or (isinstance(one, Records) and one.axis == 0):
            return one
    raise Unproved("the records are not along the first axis of every tensor")


def _batched(call: Call, layout: Layout, name: str, rank: int) -> Layout:
    """An image without a batch's axis has channels first."""
    if isinstance(layout, Records) and len(call.shape(call.argument(name))) != rank:
        raise Unproved("the records are taken for channels")
    return layout


def _same_records(call: Call, layout: Layout, *names: str) -> None:
    if any(call.of(tensor) != layout for tensor in call.tensors(*names)):
        raise Unproved(MEET)


def _sums(layout: Layout, count: int) -> tuple[Layout, ...]:
    """Return the layouts of a layer's gradients: of its input, and of so many parameters."""
    return (layout, *[SUMMED if isinstance(layout, Records) else SHARED] * count)


@rule("convolution _convolution convolution_backward")
def _convolution(call: Call) -> Given:
    call.only_shared("weight", "bias")
    layout = _first(call, "grad_output", "input")
    layout = _batched(call, layout, "input", len(call.argument("stride")) + 2)
    return _sums(layout, 2) if call.name.endswith("_backward") else layout


_POOLS = """
    max_pool{0}d_with_indices avg_pool{0}d _adaptive_avg_pool{0}d adaptive_max_pool{0}d
    max_pool{0}d_with_indices_backward avg_pool{0}d_backward _adaptive_avg_pool{0}d_backward
    adaptive_max_pool{0}d_backward
"""
_PLANAR = {  # by how many axes a batch has
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


# Their sizes say how many records there are, as the shape of what they give.
RESIZED_BACKWARD = frozenset(
    name
    for name in words(" ".join(_PLANAR.values()))
    if "upsample" in name and name.endswith("_backward")
)


def _planar(rank: int, call: Call) -> Given:
    names = [n for n in ("self", "input", "grad_output") if isinstance(call.argument(n), fx.Node)]
    return _batched(call, _first(call, *names, "indices"), names[0], rank)


for _rank, _names in _PLANAR.items():
    rule(_names)(functools.partial(_planar, _rank))


@rule(
    "grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward "
    "_thnn_fused_lstm_cell nll_loss_backward nll_loss2d_backward multi_margin_loss "
    "multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward"
)
def _rows_alone(call: Call) -> Given:
    """Each record's rows by themselves, with what is the same for all."""
    not_reduced(call)
    call.only_shared("input_bias", "hidden_bias", "weight")
    names = "grad_output input grid input_gates hidden_gates cx self target is_target"
    return _first(call, *names.split())


@rule("nll_loss_forward nll_loss2d_forward")
def _nll(call: Call) -> Given:
    return (_rows_alone(call), SHARED)  # type: ignore[return-value]


@rule(
    """
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward
    """
)
def _layer_norm(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call, "input")
    last = len(call.shape(tensor)) - len(call.argument("normalized_shape"))
    if isinstance(layout, Summed) or (isinstance(layout, Records) and layout.axis >= last):
        raise Unproved(f"{call.name} over the records")
    return _normalised(call, layout)


def _normalised(call: Call, layout: Layout) -> Given:
    """Return the layouts of what a normaliser gives, or its backward: gradients of all it took."""
    call.only_shared("weight", "bias")
    if not call.name.endswith("_backward"):
        return layout
    _same_records(call, layout, "grad_out", "mean", "rstd")
    return _sums(layout, len(call.node.meta["val"]) - 1)


@rule("native_group_norm native_group_norm_backward")
def _group_norm(call: Call) -> Given:
    layout = _first(call, "input")
    given = call.argument("N"), call.argument("C")
    if isinstance(layout, Records) and given != call.shape(call.argument("input"))[:2]:
        raise Unproved("group normalisation takes other rows than the records'")
    return _normalised(call, layout)


@rule(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training cudnn_batch_norm
    native_batch_norm_backward _native_batch_norm_legit_backward
    """
)
def _batch_norm(call: Call) -> Given:
    _, layout = layout_and_tensor(call, "input")
    is_backward, rest = call.name.endswith("backward"), len(call.node.meta["val"]) - 1
    training = call.argument("train" if is_backward else "training", not is_backward)
    training = training and not call.name.endswith("no_training")
    _same_records(call, layout, "grad_out")
    if isinstance(layout, Shared):
        return (SHARED,) * (rest + 1)
    if not isinstance(layout, Records):
        raise Unproved("a sum over the records is normalised")
    fixed = is_backward or call.argument("running_mean") is not None
    if not training and layout.axis != 1 and fixed:
        call.only_shared("weight", "bias", "running_mean", "running_var")
        return _sums(layout, rest) if is_backward else (layout, *[SHARED] * rest)
    if training and layout.axis == 1:  # instance normalisation: records stand for channels
        each = moved(layout, 0)
        for tensor in call.tensors("weight", "bias", "save_mean", "save_invstd"):
            if call.of(tensor) != each:
                raise Unproved("records lie in another order, or meet what is not along them")
        if call.argument("running_mean") is not None and not is_backward:
            raise Unproved("statistics of the records are kept (track_running_stats)")
        call.only_shared("running_mean", "running_var")
        return (layout, *[each] * rest)
    raise Unproved("batch normalisation takes mean and variance over the records")


# ---------------------------------------------------------------- attention

_ATTENTION = """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
"""
_BACK = " ".join(f"{name}_backward" for name in _ATTENTION.split())
ATTENTION = words(_ATTENTION + _BACK)


@rule(_ATTENTION)
def _attention(call: Call) -> Given:
    layout = _first(call, "query", "key", "value", "grad_out", "grad_out_", "out", "logsumexp")
    for mask in call.tensors("attn_mask", "attn_bias"):
        fine = call.of(mask) == layout or isinstance(call.of(mask), Shared)
        if not fine or len(call.shape(mask)) not in (2, 4):
            raise Unproved("an attention mask is not along the records")
    if call.argument("dropout_p", 0.0) and not isinstance(layout, Records):
        raise Unproved(DRAWN)
    # output and normaliser are along the records; seeds and lengths are not
    shapes = [v.shape if isinstance(v, torch.Tensor) else () for v in call.node.meta["val"]]
    return tuple(layout if call.sizes.long(tuple(shape)) else SHARED for shape in shapes)


@rule(_BACK)
def _attention_backward(call: Call) -> Given:
    result = _attention(call)
    if any(isinstance(one, Records) for one in result) and call.tensors("attn_bias"):  # type: ignore[union-attr]
        mask = [k for k, v in enumerate(call.node.meta["val"]) if k > 2 and v is not None]
        if {user.args[1] for user in call.node.users} & set(mask):
            raise Unproved("the gradient of an attention mask is summed in an unknown way")
    return result


# ---------------------------------------------------------------- tables and picking


@rule("embedding one_hot searchsorted bucketize")
def _looked_up(call: Call) -> Given:
    """What is made of each entry alone, by no linear map, with what is the same for all."""
    call.only_shared("weight", "sorted_sequence", "sorter", "boundaries")
    layout = call.of(call.argument("indices", call.argument("self")))
    if isinstance(layout, Summed):
        raise Unproved(USED)
    return layout


@rule("embedding_dense_backward")
def _embedding_backward(call: Call) -> Given:
    _is_not_scaled(call)
    layout, gradient = call.of(call.argument("indices")), call.of(call.argument("grad_output"))
    if isinstance(layout, Records) and gradient == layout:
        return SUMMED
    if isinstance(layout, Shared) and isinstance(gradient, Summed | Shared):
        return gradient
    raise Unproved(MEET)


def _is_not_scaled(call: Call) -> None:
    if call.argument("scale_grad_by_freq") or call.argument("sparse"):
        raise Unproved("an embedding scales gradients by how often the batch looks a row up")


@rule("_embedding_bag _embedding_bag_forward_only")
def _bags(call: Call) -> Given:
    """Bags of as many places for each record, one after the other."""
    call.only_shared("weight")
    layout, offsets = call.of(call.argument("indices")), call.of(call.argument("offsets"))
    if call.argument("include_last_offset") or call.argument("mode") == 2:
        raise Unproved("bags are given by where they end, or by their largest entries")
    if not isinstance(offsets, Places) or layout != Records(0, 1, offsets.step):
        raise Unproved("bags are not the records' own places")
    _same_records(call, layout, "per_sample_weights")
    for user in call.node.users:  # beside the bags, it gives their numbers
        if user.target is not operator.getitem or (user.args[1] and not _of_bags(user)):
            raise Unproved(PLACE)
    sizes = [value.shape[0] if value.shape else 0 for value in call.node.meta["val"]]
    of = call.sizes
    return tuple(Records(0, 1, of.factor(n)) if of.depends(n) else SHARED for n in sizes)


def _of_bags(given: fx.Node) -> bool:
    """Return whether nothing but the backward of the bags takes a tensor."""
    names = ("_embedding_bag_backward", "_embedding_bag_dense_backward")
    return all(name_of(user) in names for user in given.users)


@rule("_embedding_bag_dense_backward _embedding_bag_backward")
def _bags_backward(call: Call) -> Given:
    layout = call.of(call.argument("indices"))
    _is_not_scaled(call)
    _same_records(call, layout, "per_sample_weights")
    by_record = isinstance(layout, Records) and layout == Records(0, 1, layout.inner)
    if not by_record or call.of(call.argument("grad")) != Records(0):
        raise Unproved("bags are not the records' own places")
    return SUMMED


@rule("gather take_along_dim")
def _gather(call: Call) -> Given:
    _, layout, axis = along(call)
    index = call.of(call.argument("index"))
    if index == layout and isinstance(layout, Shared | Records):
        return layout
    if isinstance(layout, Summed) and isinstance(index, Shared):
        return SUMMED
    if isinstance(layout, Shared) and isinstance(index, Records) and index.axis == axis:
        return index
    raise Unproved(MEET)


@rule("scatter scatter_add scatter_reduce")
def _scatter(call: Call) -> Given:
    tensor, layout, _ = along(call)
    index = call.argument("index")
    if call.name != "scatter_reduce" and _is_sum_into_zeros(call, tensor, "src"):
        return SUMMED
    if not isinstance(layout, Records | Shared) or call.of(index) != layout:
        raise Unproved("records are scattered over what is not along them")
    _same_records(call, layout, "src")
    axis = axis_of(layout)
    if axis is not None and call.shape(index)[axis] != call.out()[axis]:
        raise Unproved(PICKED)
    return layout


def _is_sum_into_zeros(call: Call, tensor: fx.Node, name: str) -> bool:
    """Return whether a sum over records is put into zeros, by an index that is shared."""
    shared = isinstance(call.of(call.argument("index")), Shared)
    return shared and is_zero(tensor) and isinstance(call.of(call.argument(name)), Summed)


@rule("index_select index_add index_copy")
def _index_select(call: Call) -> Given:
    tensor, layout, axis = along(call)
    index = call.of(call.argument("index"))
    if call.name == "index_select" and isinstance(layout, Shared) and isinstance(index, Records):
        return moved(index, axis)
    if call.name == "index_add" and is_zero(tensor) and isinstance(index, Records):
        # rows of a table, each with what the records that look it up give it
        source, times = call.of(call.argument("source")), call.argument("alpha", 1)
        if source == moved(index, axis) and times == 1:
            return SUMMED
    call.only_shared("index")
    if call.name == "index_select":
        return layout
    if _is_sum_into_zeros(call, tensor, "source"):
        return SUMMED
    return written(call, [call.argument("self"), call.argument("source")])


Picks = list[tuple[int, fx.Node, Layout]]  # the axis, the index along it, and its layout


def _picks(call: Call) -> Picks:
    indices = enumerate(call.argument("indices"))
    return [(k, index, call.of(index)) for k, index in indices if index is not None]


@rule("index _unsafe_index")
def _index(call: Call) -> Given:
    _, layout = layout_and_tensor(call)
    if isinstance(layout, Summed):
        if all(isinstance(one, Shared) for _, _, one in _picks(call)):
            return SUMMED
        raise Unproved(AGAIN)
    return _picked(call, layout, _picks(call))


def _picked(call: Call, layout: Layout, given: Picks) -> Layout:
    """Return where the records are in tensor[indices], which are Shared, Records or Places."""
    places = [each for each in given if isinstance(each[2], Places)]
    wide = max(len(call.shape(index)) for _, index, _ in given)
    positions = [k for k, _, _ in given]
    adjacent = positions == list(range(positions[0], positions[0] + len(positions)))
    front = positions[0] if adjacent else 0  # where the indices' own axes go
    records = {
        moved(one, one.axis + wide - len(call.shape(index)))
        for _, index, one in given
        if isinstance(one, Records)
    }
    if places:  # x[arange(B), i], of any rank: from each record its own
        ((k, index, one), *more) = places
        assert isinstance(one, Places)
        axis = one.axis + wide - len(call.shape(index))
        fits = layout == Records(k) and not more and one.step == 1
        if not fits or records - {Records(axis)}:
            raise Unproved("records are picked by their place in the batch")
        return Records(front + axis)
    if isinstance(layout, Records):
        if records or layout.axis in positions:
            raise Unproved("records are picked by an index")
        if adjacent and layout.axis < front:
            return layout
        before = sum(k < layout.axis for k in positions)
        return moved(layout, layout.axis - before + wide)
    if isinstance(layout, Places):
        raise Unproved(PLACE)
    if len(records) > 1:
        raise Unproved(AXES)
    for result in records:
        return moved(result, front + (axis_of(result) or 0))
    return SHARED


@rule("index_put _unsafe_index_put _index_put_impl")
def _index_put(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    values, given = call.argument("values"), _picks(call)
    of_values, shape = call.of(values), call.shape(values)
    if all(isinstance(one, Shared) for _, _, one in given):
        if isinstance(of_values, Summed) and is_zero(tensor):
            return SUMMED
        if isinstance(layout, Shared) and isinstance(of_values, Shared):
            return SHARED
    try:
        picked = _picked(call, layout, given) if isinstance(layout, Shared | Records) else SHARED
    except Unproved:
        picked = SHARED
    if isinstance(picked, Records):
        wide = max(len(call.shape(index)) for _, index, _ in given)
        rank = len(call.shape(tensor)) - len(given) + wide  # of what is picked
        if isinstance(layout, Records):
            if isinstance(of_values, Records) and of_values == moved(
                picked, picked.axis - rank + len(shape)
            ):
                return layout
            if isinstance(of_values, Shared) and all(size == 1 for size in shape):
                return layout
        into_zeros = isinstance(layout, Shared) and is_zero(tensor) and of_values == picked
        if into_zeros and call.argument("accumulate"):
            return SUMMED
    raise Unproved("records are written where others may be")


# ---------------------------------------------------------------- others


@rule("_cdist_forward _cdist_backward linalg_inv_ex linalg_cross cross")
def _batches_of_matrices(call: Call) -> Given:
    """Matrices on the last two axes, one apart from the other."""
    for tensor in call.tensors():
        rank = len(call.shape(tensor))
        within([rank - 2, rank - 1], call.of(tensor), call.name)
    return aligned(call)
