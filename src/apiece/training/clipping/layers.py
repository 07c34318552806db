"""The table of operators, further: sums and products, layers, attention, tables and picking."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from apiece.training.clipping.layout import (
    SHARED,
    SUMMED,
    Layout,
    Places,
    Records,
    Shared,
    Summed,
    Unproved,
)
from apiece.training.clipping.table import (
    Call,
    Given,
    aligned,
    along,
    is_zero,
    layout_and_tensor,
    moved,
    name_of,
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
    tensor, layout = layout_and_tensor(call, "self")
    if isinstance(layout, Shared):
        return SHARED
    dims = call.axes(call.argument("dim"), tensor)
    if isinstance(layout, Summed):
        if call.name in ("sum", "mean"):
            return SUMMED
        raise Unproved(
            "a sum over the batch's records is computed with, as if it were one record's"
        )
    if isinstance(layout, Places):
        raise Unproved("a record's place in the batch becomes a value")
    call.numbers_are_shared()
    if layout.axis in dims:
        if call.name == "sum":
            return SUMMED
        raise Unproved(f"{call.name} over the records")
    keep = bool(call.argument("keepdim", False))
    return moved(layout, layout.axis - (0 if keep else sum(d < layout.axis for d in dims)))


@rule(
    """
    _softmax _log_softmax softmax log_softmax _safe_softmax cumsum cumprod cummax cummin
    logcumsumexp sort topk argsort glu
    """
)
def _along_axis(call: Call) -> Given:
    _, layout, _ = along(call)
    if isinstance(layout, Summed):
        if call.name == "cumsum":
            return SUMMED
        raise Unproved(
            "a sum over the batch's records is computed with, as if it were one record's"
        )
    if isinstance(layout, Records) and call.name == "sort" and call.argument("dim", -1) == -1:
        within(call, [len(call.out()) - 1], layout, call.name)
    if call.name in ("topk", "argsort"):
        within(
            call, [call.axis(call.argument("dim", -1), call.argument("self"))], layout, call.name
        )
    return layout


@rule("renorm")
def _renorm(call: Call) -> Given:
    """Each slice along an axis is made smaller by the norm of all that is in it."""
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Shared) or (
        isinstance(layout, Records) and call.axis(call.argument("dim"), tensor) == layout.axis
    ):
        return layout
    raise Unproved("renorm takes norms over the records")


@rule("_softmax_backward_data _log_softmax_backward_data glu_backward")
def _along_axis_backward(call: Call) -> Given:
    layout = aligned(call, "grad_output", "output", "self")
    if isinstance(layout, Records):
        rank = len(call.shape(call.argument("grad_output")))
        within(call, [int(call.argument("dim")) % rank], layout, "softmax")
    return layout


# ---------------------------------------------------------------- products


@rule("mm")
def _mm(call: Call) -> Given:
    return _matrices(call, call.of(call.argument("self")), call.of(call.argument("mat2")))


def _matrices(call: Call, left: Layout, right: Layout) -> Given:
    match left, right:
        case Records(0), Shared():
            return left
        case Shared(), Records(1):
            return right
        case Records(1), Records(0) if (left.outer, left.inner) == (right.outer, right.inner):
            return SUMMED
        case (Summed(), Shared()) | (Shared(), Summed()):
            return SUMMED
        case Shared(), Shared():
            return SHARED
    raise Unproved("a product of matrices mixes the records")


@rule("addmm")
def _addmm(call: Call) -> Given:
    call.numbers_are_shared("alpha", "beta")
    found = _matrices(call, call.of(call.argument("mat1")), call.of(call.argument("mat2")))
    return _added(call, found)


def _added(call: Call, found: Given) -> Given:
    """What is added to a product must be along the same records, or shared."""
    tensor = call.argument("self")
    layout = call.of(tensor)
    if isinstance(found, Summed):
        if isinstance(layout, Summed):
            return SUMMED
        raise Unproved("a sum over the records is added to what is none")
    if isinstance(layout, Shared):
        return found
    if isinstance(layout, Records):
        shift = len(call.out()) - len(call.shape(tensor))
        if found == Records(layout.axis + shift, layout.outer, layout.inner):
            return found
    raise Unproved("records meet along different axes")


@rule("bmm")
def _bmm(call: Call) -> Given:
    return _batched(call, call.of(call.argument("self")), call.of(call.argument("mat2")))


def _batched(call: Call, left: Layout, right: Layout) -> Given:
    match left, right:
        case Records(0), Records(0) if left == right:
            return left
        case Records(1), Shared():
            return left
        case Shared(), Records(2):
            return right
        case Records(2), Records(1) if (left.outer, left.inner) == (right.outer, right.inner):
            return SUMMED
        case (Summed(), Shared()) | (Shared(), Summed()):
            return SUMMED
        case Shared(), Shared():
            return SHARED
    raise Unproved("a product of matrices mixes the records")


@rule("baddbmm")
def _baddbmm(call: Call) -> Given:
    call.numbers_are_shared("alpha", "beta")
    left, right = call.of(call.argument("batch1")), call.of(call.argument("batch2"))
    return _added(call, _batched(call, left, right))


@rule("mv dot vdot")
def _mv(call: Call) -> Given:
    left = call.of(call.argument("self"))
    right = call.of(call.argument("vec", call.argument("tensor", call.argument("other"))))
    rank = len(call.shape(call.argument("self")))
    match left, right:
        case Records(0), Shared() if rank == 2:
            return left
        case Records(), Records(0) if left.axis == rank - 1 and (left.outer, left.inner) == (
            right.outer,
            right.inner,
        ):
            return SUMMED
        case (Summed(), Shared()) | (Shared(), Summed()):
            return SUMMED
        case Shared(), Shared():
            return SHARED
    raise Unproved("a product of matrices mixes the records")


# ---------------------------------------------------------------- layers, records first


def _first(call: Call, *names: str) -> Layout:
    """Return the layout of tensors that all have the records along their first axis."""
    found: set[Layout] = set()
    for name in names:
        tensor = call.argument(name)
        if isinstance(tensor, fx.Node):
            found.add(call.of(tensor))
    if len(found) == 1:
        (one,) = found
        if isinstance(one, Shared) or (isinstance(one, Records) and one.axis == 0):
            return one
    raise Unproved("the records are not along the first axis of every tensor")


@rule("convolution _convolution")
def _convolution(call: Call) -> Given:
    call.only_shared("weight", "bias")
    return _unbatched(call, _first(call, "input"), "input", call.argument("stride"))


def _unbatched(call: Call, layout: Layout, name: str, per_axis: Any) -> Layout:
    """An image without a batch's axis has channels first."""
    images = len(per_axis) + 2
    if isinstance(layout, Records) and len(call.shape(call.argument(name))) != images:
        raise Unproved("the records are taken for channels")
    return layout


@rule("convolution_backward")
def _convolution_backward(call: Call) -> Given:
    call.only_shared("weight")
    layout = _unbatched(
        call, _first(call, "grad_output", "input"), "input", call.argument("stride")
    )
    sums = SUMMED if isinstance(layout, Records) else SHARED
    return (layout, sums, sums)


@rule(
    """
    max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d
    upsample_bilinear2d upsample_bicubic2d im2col col2im _upsample_bilinear2d_aa
    _upsample_nearest_exact2d _upsample_bicubic2d_aa
    """
)
def _images(call: Call) -> Given:
    return _planar(call, 4)


@rule(
    """
    max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d
    upsample_trilinear3d
    """
)
def _volumes(call: Call) -> Given:
    return _planar(call, 5)


@rule(
    """
    upsample_linear1d upsample_nearest1d avg_pool1d adaptive_max_pool1d max_pool1d
    adaptive_avg_pool1d
    """
)
def _lines(call: Call) -> Given:
    return _planar(call, 3)


def _planar(call: Call, rank: int) -> Layout:
    name = "self" if isinstance(call.argument("self"), fx.Node) else "input"
    layout = _first(call, name)
    batched = 3 if call.name in ("im2col", "col2im") and call.name == "col2im" else rank
    if isinstance(layout, Records) and len(call.shape(call.argument(name))) != batched:
        raise Unproved("the records are taken for channels")
    return layout


@rule(
    """
    max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward
    adaptive_max_pool2d_backward max_pool3d_with_indices_backward avg_pool3d_backward
    _adaptive_avg_pool3d_backward adaptive_max_pool3d_backward
    """
)
def _pools_backward(call: Call) -> Given:
    rank = 4 if "2d" in call.name else 5
    layout = _first(call, "grad_output", "self", "indices")
    if isinstance(layout, Records) and len(call.shape(call.argument("self"))) != rank:
        raise Unproved("the records are taken for channels")
    return layout


@rule("grid_sampler_2d grid_sampler_3d")
def _grid(call: Call) -> Given:
    return _first(call, "input", "grid")


@rule("grid_sampler_2d_backward grid_sampler_3d_backward")
def _grid_backward(call: Call) -> Given:
    return _first(call, "grad_output", "input", "grid")


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(call: Call) -> Given:
    call.only_shared("weight", "bias")
    return _normed(call, "input")


def _normed(call: Call, name: str) -> Layout:
    tensor, layout = layout_and_tensor(call, name)
    last = len(call.shape(tensor)) - len(call.argument("normalized_shape"))
    if isinstance(layout, Summed | Places) or (isinstance(layout, Records) and layout.axis >= last):
        raise Unproved(f"{call.name} over the records")
    return layout


@rule("native_layer_norm_backward _fused_rms_norm_backward")
def _layer_norm_backward(call: Call) -> Given:
    call.only_shared("weight", "bias")
    layout = _normed(call, "input")
    _same_records(call, layout, "grad_out", "mean", "rstd")
    sums = SUMMED if isinstance(layout, Records) else SHARED
    return (layout, *(sums for _ in call.node.meta["val"][1:]))


def _same_records(call: Call, layout: Layout, *names: str) -> None:
    for name in names:
        tensor = call.argument(name)
        if isinstance(tensor, fx.Node) and call.of(tensor) != layout:
            raise Unproved("records and what is not along them meet")


@rule("native_group_norm")
def _group_norm(call: Call) -> Given:
    call.only_shared("weight", "bias")
    return _grouped(call)


def _grouped(call: Call) -> Layout:
    layout = _first(call, "input")
    if isinstance(layout, Records):
        shape = call.shape(call.argument("input"))
        given = [_value(call.argument(name)) for name in ("N", "C")]
        if given != list(shape[:2]):
            raise Unproved("group normalisation takes other rows than the records'")
    return layout


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


@rule("native_group_norm_backward")
def _group_norm_backward(call: Call) -> Given:
    call.only_shared("weight")
    layout = _grouped(call)
    _same_records(call, layout, "grad_out", "mean", "rstd")
    sums = SUMMED if isinstance(layout, Records) else SHARED
    return (layout, sums, sums)


@rule(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training cudnn_batch_norm
    """
)
def _batch_norm(call: Call) -> Given:
    _, layout = layout_and_tensor(call, "input")
    training = call.argument("training", call.name != "_native_batch_norm_legit_no_training")
    outputs = len(call.node.meta["val"])
    if call.name.endswith("no_training"):
        training = False
    if isinstance(layout, Shared):
        return (SHARED,) * outputs
    if not isinstance(layout, Records):
        raise Unproved("a sum over the records is normalised")
    if not training and layout.axis != 1 and call.argument("running_mean") is not None:
        call.only_shared("weight", "bias", "running_mean", "running_var")
        return (layout, *(SHARED,) * (outputs - 1))
    if training and layout.axis == 1:  # instance normalisation: records stand for channels
        _of_channels(call, layout, "weight", "bias")
        call.only_shared("running_mean", "running_var")
        if call.argument("running_mean") is not None:
            raise Unproved("statistics of the records are kept (track_running_stats)")
        each = Records(0, layout.outer, layout.inner)
        return (layout, *(each,) * (outputs - 1))
    raise Unproved("batch normalisation takes mean and variance over the records")


def _of_channels(call: Call, layout: Records, *names: str) -> None:
    each = Records(0, layout.outer, layout.inner)
    for name in names:
        tensor = call.argument(name)
        if isinstance(tensor, fx.Node) and call.of(tensor) != each:
            if not (isinstance(call.of(tensor), Records) and call.of(tensor).axis == 0):  # type: ignore[union-attr]
                raise Unproved("records and what is not along them meet")
            raise Unproved("records lie in another order")


@rule("native_batch_norm_backward _native_batch_norm_legit_backward")
def _batch_norm_backward(call: Call) -> Given:
    _, layout = layout_and_tensor(call, "input")
    _same_records(call, layout, "grad_out")
    if isinstance(layout, Shared):
        return (SHARED,) * 3
    if not isinstance(layout, Records):
        raise Unproved("a sum over the records is normalised")
    if not call.argument("train") and layout.axis != 1:
        call.only_shared("weight", "running_mean", "running_var")
        return (layout, SUMMED, SUMMED)
    if call.argument("train") and layout.axis == 1:
        _of_channels(call, layout, "weight", "save_mean", "save_invstd")
        each = Records(0, layout.outer, layout.inner)
        return (layout, each, each)
    raise Unproved("batch normalisation takes mean and variance over the records")


# ---------------------------------------------------------------- attention

_ATTENTION = words(
    """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention
    """
)


def _attended(call: Call, *more: str) -> Layout:
    layout = _first(call, "query", "key", "value", *more)
    for name in ("attn_mask", "attn_bias"):
        mask = call.argument(name)
        if isinstance(mask, fx.Node):
            found = call.of(mask)
            fine = found == layout or isinstance(found, Shared)
            if not fine or len(call.shape(mask)) not in (2, 4):
                raise Unproved("an attention mask is not along the records")
    return layout


@rule(" ".join(_ATTENTION))
def _attention(call: Call) -> Given:
    layout = _attended(call)
    if call.argument("dropout_p", 0.0) and not isinstance(layout, Records):
        raise Unproved("a random number is drawn for all records at once; draw one for each")
    return _of_attention(call, layout)


def _of_attention(call: Call, layout: Layout) -> Given:
    """Output and normaliser are along the records; seeds and lengths are not."""
    found: list[Layout] = []
    for value in call.node.meta["val"]:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        along = any(call.sizes.depends(size) for size in shape)
        found.append(layout if along else SHARED)
    return tuple(found)


@rule(" ".join(name + "_backward" for name in _ATTENTION))
def _attention_backward(call: Call) -> Given:
    layout = _attended(call, "grad_out", "grad_out_", "out", "logsumexp")
    if isinstance(layout, Records) and isinstance(call.argument("attn_bias"), fx.Node):
        mask = [k for k, v in enumerate(call.node.meta["val"]) if k > 2 and v is not None]
        used = {u.args[1] for u in call.node.users}
        if used & set(mask):
            raise Unproved("the gradient of an attention mask is summed in an unknown way")
    return _of_attention(call, layout)


# ---------------------------------------------------------------- tables and picking


@rule("embedding")
def _embedding(call: Call) -> Given:
    call.only_shared("weight")
    layout = call.of(call.argument("indices"))
    if isinstance(layout, Summed | Places):
        raise Unproved("a record's place in the batch, or a sum over them, is looked up")
    return layout


@rule("embedding_dense_backward")
def _embedding_backward(call: Call) -> Given:
    layout = call.of(call.argument("indices"))
    if call.argument("scale_grad_by_freq"):
        raise Unproved("an embedding scales gradients by how often the batch looks a row up")
    gradient = call.of(call.argument("grad_output"))
    if isinstance(layout, Records) and gradient == layout:
        return SUMMED
    if isinstance(layout, Shared) and isinstance(gradient, Summed | Shared):
        return gradient
    raise Unproved("records and what is not along them meet")


@rule("_embedding_bag _embedding_bag_forward_only")
def _bags(call: Call) -> Given:
    """Bags of as many places for each record, one after the other."""
    call.only_shared("weight")
    layout, offsets = call.of(call.argument("indices")), call.of(call.argument("offsets"))
    weights = call.argument("per_sample_weights")
    if call.argument("include_last_offset") or call.argument("mode") == 2:
        raise Unproved("bags are given by where they end, or by their largest entries")
    if layout != Records(0, 1, offsets.step) if isinstance(offsets, Places) else True:
        raise Unproved("bags are not the records' own places")
    if isinstance(weights, fx.Node) and call.of(weights) != layout:
        raise Unproved("records and what is not along them meet")
    for user in call.node.users:  # beside the bags, it gives their numbers
        if user.target is not operator.getitem or (user.args[1] and not _of_bags(user)):
            raise Unproved("a record's place in the batch becomes a value")
    found: list[Layout] = []
    for value in call.node.meta["val"]:
        rows = call.sizes.depends(value.shape[0]) if value.shape else False
        each = call.sizes.factor(value.shape[0]) if rows else 1
        found.append(Records(0, 1, each) if rows else SHARED)
    return tuple(found)


def _of_bags(given: fx.Node) -> bool:
    """Whether nothing but the backward of the bags takes a tensor."""
    names = ("_embedding_bag_backward", "_embedding_bag_dense_backward")
    return all(name_of(user) in names for user in given.users)


@rule("_embedding_bag_dense_backward _embedding_bag_backward")
def _bags_backward(call: Call) -> Given:
    indices, weights = call.argument("indices"), call.argument("per_sample_weights")
    layout = call.of(indices)
    if not isinstance(layout, Records) or layout != Records(0, 1, layout.inner):
        raise Unproved("bags are not the records' own places")
    if isinstance(weights, fx.Node) and call.of(weights) != layout:
        raise Unproved("records and what is not along them meet")
    if call.argument("scale_grad_by_freq") or call.argument("sparse"):
        raise Unproved("an embedding scales gradients by how often the batch looks a row up")
    if call.of(call.argument("grad")) != Records(0):
        raise Unproved("bags are not the records' own places")
    return SUMMED


@rule("gather take_along_dim")
def _gather(call: Call) -> Given:
    _, layout, axis = along(call)
    index = call.of(call.argument("index"))
    if isinstance(layout, Shared) and isinstance(index, Shared):
        return SHARED
    if isinstance(layout, Records) and index == layout:
        return layout
    if isinstance(layout, Summed) and isinstance(index, Shared):
        return SUMMED
    if isinstance(layout, Shared) and isinstance(index, Records) and index.axis == axis:
        return index
    raise Unproved("records and what is not along them meet")


@rule("index_fill")
def _index_fill(call: Call) -> Given:
    _, layout, _ = along(call)
    call.only_shared("index", "value")
    if isinstance(layout, Summed):
        raise Unproved(
            "a sum over the batch's records is computed with, as if it were one record's"
        )
    return layout


@rule("scatter scatter_add scatter_reduce")
def _scatter(call: Call) -> Given:
    _, layout, _ = along(call)
    call.numbers_are_shared("value")
    index, src = call.argument("index"), call.argument("src")
    if isinstance(layout, Shared) and isinstance(call.of(index), Shared):
        if isinstance(src, fx.Node) and not isinstance(call.of(src), Shared):
            raise Unproved("records and what is not along them meet")
        return SHARED
    if not isinstance(layout, Records) or call.of(index) != layout:
        raise Unproved("records are scattered over what is not along them")
    if isinstance(src, fx.Node) and call.of(src) != layout:
        raise Unproved("records and what is not along them meet")
    if call.shape(index)[layout.axis] != call.out()[layout.axis]:
        raise Unproved("some of the batch's records are picked by their place")
    return layout


@rule("index_select index_add index_copy")
def _index_select(call: Call) -> Given:
    _, layout, axis = along(call)
    call.only_shared("index") if not isinstance(layout, Shared) else None
    if call.name == "index_select":
        index = call.of(call.argument("index"))
        if isinstance(layout, Shared) and isinstance(index, Records):
            return Records(axis, index.outer, index.inner)
        return layout
    call.only_shared("index")
    return written(call, [call.argument("self"), call.argument("source")])


@rule("index _unsafe_index")
def _index(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    indices = list(call.argument("indices"))
    given = [(k, i, call.of(i)) for k, i in enumerate(indices) if i is not None]
    if isinstance(layout, Summed):
        if all(isinstance(one, Shared) for _, _, one in given):
            return SUMMED
        raise Unproved("a sum over the records meets the records again")
    return _picked(call, layout, given, len(call.shape(tensor)))


def _picked(call: Call, layout: Layout, given: list[Any], rank: int) -> Layout:
    """Return where the records are in tensor[indices], which are Shared, Records or Places."""
    places = [k for k, _, one in given if isinstance(one, Places)]
    ranks = [len(call.shape(i)) for _, i, _ in given]
    wide = max(ranks)
    positions = [k for k, _, _ in given]
    adjacent = positions == list(range(positions[0], positions[0] + len(positions)))
    front = positions[0] if adjacent else 0  # where the indices' own axes go
    records = {
        Records(one.axis + wide - len(call.shape(i)), one.outer, one.inner)
        for _, i, one in given
        if isinstance(one, Records)
    }
    if places:  # x[arange(B), i], of any rank: from each record its own
        (_, index, one), *more = [each for each in given if isinstance(each[2], Places)]
        axis = one.axis + wide - len(call.shape(index))
        fits = layout == Records(places[0]) and not more and one.step == 1
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
        raise Unproved("a record's place in the batch becomes a value")
    if len(records) > 1:
        raise Unproved("records meet along different axes")
    for found in records:
        return moved(found, found.axis + front)
    return SHARED


@rule("index_put _unsafe_index_put _index_put_impl")
def _index_put(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    values = call.argument("values")
    indices = list(call.argument("indices"))
    given = [(k, i, call.of(i)) for k, i in enumerate(indices) if i is not None]
    of_values = call.of(values)
    if all(isinstance(one, Shared) for _, _, one in given):
        if isinstance(of_values, Summed) and is_zero(tensor):
            return SUMMED
        if isinstance(layout, Shared) and isinstance(of_values, Shared):
            return SHARED
    if isinstance(layout, Shared | Records):
        try:
            picked = _picked(call, layout, given, len(call.shape(tensor)))
        except Unproved:
            picked = SHARED
        if isinstance(layout, Records) and isinstance(picked, Records):
            shape = call.shape(values)
            fits = isinstance(of_values, Records) and of_values.axis - len(shape) == (
                picked.axis - _rank_of_picked(call, given)
            )
            if fits and (of_values.outer, of_values.inner) == (picked.outer, picked.inner):  # type: ignore[union-attr]
                return layout
            if isinstance(of_values, Shared) and all(s == 1 for s in shape):
                return layout
        into_zeros = isinstance(layout, Shared) and is_zero(tensor) and of_values == picked
        if into_zeros and isinstance(picked, Records) and call.argument("accumulate"):
            return SUMMED
    raise Unproved("records are written where others may be")


def _rank_of_picked(call: Call, given: list[Any]) -> int:
    wide = max(len(call.shape(i)) for _, i, _ in given)
    return len(call.shape(call.argument("self"))) - len(given) + wide


@rule("one_hot")
def _one_hot(call: Call) -> Given:
    return _entry_by_entry(call)


def _entry_by_entry(call: Call) -> Layout:
    """Return the layout of what is made of each entry of `self` alone, by no linear map."""
    layout = call.of(call.argument("self"))
    if isinstance(layout, Summed | Places):
        raise Unproved(
            "a sum over the batch's records is computed with, as if it were one record's"
        )
    return layout


@rule("nll_loss_forward nll_loss2d_forward")
def _nll(call: Call) -> Given:
    if call.argument("reduction") != 0:
        raise Unproved("a loss is reduced over the batch; use reduction='none'")
    call.only_shared("weight")
    return (_first(call, "self", "target"), SHARED)


@rule("nll_loss_backward nll_loss2d_backward")
def _nll_backward(call: Call) -> Given:
    if call.argument("reduction") != 0:
        raise Unproved("a loss is reduced over the batch; use reduction='none'")
    call.only_shared("weight")
    return _first(call, "grad_output", "self", "target")


@rule("_cdist_forward _cdist_backward linalg_inv_ex linalg_cross cross")
def _batches_of_matrices(call: Call) -> Given:
    """Matrices on the last two axes, one apart from the other."""
    found: set[Layout] = set()
    for tensor in call.tensors():
        layout = call.of(tensor)
        if isinstance(layout, Records) and layout.axis >= len(call.shape(tensor)) - 2:
            raise Unproved(f"{call.name} over the records")
        found.add(layout)
    if len(found) == 1 and not isinstance(next(iter(found)), Summed | Places):
        return found.pop()
    raise Unproved("records and what is not along them meet")


@rule("_trilinear")
def _trilinear(call: Call) -> Given:
    """A product of three tensors, each with new axes, summed over some axes."""
    rank = len(call.shape(call.argument("i1"))) + len(call.argument("expand1"))
    found: set[Layout] = set()
    for name, new in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        layout = call.of(call.argument(name))
        if isinstance(layout, Summed | Places):
            raise Unproved("a sum over the records meets the records again")
        if isinstance(layout, Records):
            kept = [k for k in range(rank) if k not in call.argument(new)]
            found.add(moved(layout, kept[layout.axis]))
    if not found:
        return SHARED
    (layout, *others) = found
    if others or not isinstance(layout, Records):
        raise Unproved("records meet along different axes")
    summed = call.argument("sumdim")
    if layout.axis in summed:
        return SUMMED
    return moved(layout, layout.axis - sum(d < layout.axis for d in summed))


@rule("searchsorted bucketize")
def _searched(call: Call) -> Given:
    call.only_shared("sorted_sequence", "sorter", "boundaries")
    return _entry_by_entry(call)


@rule("_thnn_fused_lstm_cell")
def _rows_alone(call: Call) -> Given:
    call.only_shared("input_bias", "hidden_bias")
    return _first(call, "input_gates", "hidden_gates", "cx")


@rule("_weight_norm_interface")
def _weight_norm(call: Call) -> Given:
    call.only_shared("v", "g")
    return SHARED
