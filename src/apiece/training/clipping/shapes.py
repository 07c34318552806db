"""The table of operators, further: views, slices, what is joined and what is made anew."""

from __future__ import annotations

from torch import fx

from apiece.training.clipping.table import (
    AGAIN,
    PICKED,
    PLACE,
    SHAPES,
    SHARED,
    SUMMED,
    UNFILLED,
    Call,
    Layout,
    Layouts,
    Places,
    Records,
    Summed,
    Unproved,
    aligned_layout,
    along,
    axis_of,
    broadcast_layout,
    common_layout,
    drop_axes,
    is_filled,
    layout_and_tensor,
    move_records,
    require_own_draws,
    require_within_records,
    rule,
    spread_shared,
    view_records,
)

# ---------------------------------------------------------------- shapes


@rule("view _unsafe_view reshape _reshape_copy view_copy")
def _view(call: Call) -> Layouts:
    # Entries stay in their order: of what is shared and of sums nothing else is to be said.
    tensor, layout = layout_and_tensor(call)
    if isinstance(layout, Records):
        return view_records(layout, call.shape(tensor), call.out_shape(), call.sizes)
    return layout


@rule("permute permute_copy t mT adjoint t_copy transpose transpose_copy")
def _permute(call: Call) -> Layouts:
    # By axis of the output, the axis of the tensor that it was.
    tensor, layout = layout_and_tensor(call)
    order = list(range(len(call.out_shape())))
    if call.name in ("permute", "permute_copy"):
        order = call.axes(call.argument("dims"), tensor)
    elif call.name in ("t", "mT", "adjoint", "t_copy"):
        last_two = order[-2:]
        order = [*order[:-2], *reversed(last_two)]
    elif order:
        first = call.axis(call.argument("dim0"), tensor)
        second = call.axis(call.argument("dim1"), tensor)
        order[first], order[second] = order[second], order[first]
    # A view of the axes in another order: the records are where their axis went.
    axis = axis_of(layout)
    return layout if axis is None else move_records(layout, order.index(axis))


@rule("unsqueeze unsqueeze_copy")
def _unsqueeze(call: Call) -> Layouts:
    _, layout = layout_and_tensor(call)
    # The new axis comes before the records' where it takes its place, or one before it.
    axis = axis_of(layout)
    # Counted in the result, which has one axis more.
    new_axis = int(call.argument("dim")) % len(call.out_shape())
    return layout if axis is None else move_records(layout, axis + (new_axis <= axis))


@rule("squeeze squeeze_copy")
def _squeeze(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    shape = call.shape(tensor)
    # The records' axis is never of length one: a capture has a prime number of them.
    axes = call.axes(call.argument("dim"), tensor)
    return drop_axes(layout, [axis for axis in axes if shape and shape[axis] == 1])


@rule("expand expand_copy broadcast_to")
def _expand(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    shape = call.shape(tensor)
    out = call.out_shape()
    shift = len(out) - len(shape)  # new axes come first
    axis = axis_of(layout)
    if axis is not None:
        return move_records(layout, axis + shift)
    if isinstance(layout, Summed):
        if call.sizes.batch_axes(out):
            raise Unproved(AGAIN)
        return layout
    return spread_shared(call, tensor)


@rule("repeat")
def _repeat(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    shape = call.shape(tensor)
    out = call.out_shape()
    # Repeats of leading axes make new ones, as broadcasting does.
    times = list(call.argument("repeats"))
    shift = len(out) - len(shape)
    if isinstance(layout, Records):
        # a second copy of the batch would come after the first
        if out[layout.axis + shift] != shape[layout.axis]:
            raise Unproved("records are repeated one after the other")
        return move_records(layout, layout.axis + shift)
    if isinstance(layout, Summed):  # each record would hold what all of them give
        raise Unproved("a sum over the records is repeated")
    batch_axes = call.sizes.batch_axes(out)
    if not batch_axes:
        return SHARED
    # What is shared stands one copy after the other along the first such axis; the laws refuse a
    # second one. The repeats are a multiple of the batch: so many copies of `inner` entries are a
    # record's.
    axis = batch_axes[0]
    repeats = times[axis]
    count = repeats.meta["val"] if isinstance(repeats, fx.Node) else repeats
    inner = 1 if axis < shift else shape[axis - shift]
    return Records(axis, 1, call.sizes.factor(count) * inner)


@rule("slice slice_copy narrow slice_scatter")
def _slice(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    axis = call.axis(call.argument("dim", 0), tensor)
    source = call.argument("src")  # of `slice_scatter`: what is written into the slice
    if axis_of(layout) == axis:
        # Along the records only the whole axis may be taken: a part would be chosen by place.
        shape_of_slice = call.out_shape() if source is None else call.shape(source)
        is_whole = call.shape(tensor)[axis] == shape_of_slice[axis]
        if not is_whole or call.argument("step", 1) != 1:
            raise Unproved(PICKED)
    return layout if source is None else common_layout(call, [tensor, source])


@rule("select select_copy select_scatter")
def _select(call: Call) -> Layouts:
    # One place of another axis than the records' is a place of each record's own.
    tensor, layout = layout_and_tensor(call)
    axis = call.axis(call.argument("dim"), tensor)
    if axis_of(layout) == axis:
        raise Unproved(PICKED)
    if call.name != "select_scatter":
        return drop_axes(layout, [axis])
    source = call.argument("src")
    if not isinstance(layout, Records):
        return common_layout(call, [tensor, source])
    # record i's part is written into record i's entries
    if call.of(source) != drop_axes(layout, [axis]):
        raise Unproved("records and what is not along them are joined")
    return layout


@rule(
    "split split_with_sizes split_copy split_with_sizes_copy chunk tensor_split unbind unbind_copy"
)
def _split(call: Call) -> Layouts:
    # Parts along another axis each have all records; `unbind` takes the axis away as well.
    _, layout, axis = along(call)
    return drop_axes(layout, [axis]) if call.name.startswith("unbind") else layout


@rule("cat concat stack")
def _cat(call: Call) -> Layouts:
    tensors = call.argument("tensors")
    # By the result's rank, which `stack` raises by one.
    axis = int(call.argument("dim", 0)) % len(call.out_shape())
    is_stacked = call.name == "stack"
    if not is_stacked:  # cat passes over empty ones
        tensors = [tensor for tensor in tensors if call.shape(tensor) != (0,)] or tensors
    # Along a new axis, or one within the records, each record's parts are put side by side.
    layout = common_layout(call, tensors)
    if isinstance(layout, Records) and is_stacked:
        # A new axis at or before the records' moves them one on.
        return move_records(layout, layout.axis + (axis <= layout.axis))
    if isinstance(layout, Records) and layout.axis == axis:
        raise Unproved("batches are put one after the other")
    return layout


@rule("flip roll fft_fftshift _fft_r2c _fft_c2r _fft_c2c")
def _flip(call: Call) -> Layouts:
    # Places of an axis change their order, or become sums of all of them with factors of their
    # own: linear maps, and along the records they would mix them.
    tensor, layout = layout_and_tensor(call)
    dims = call.axes(call.argument("dims", call.argument("dim")), tensor)
    require_within_records(dims, layout, call.name)
    return layout


@rule("view_as_real view_as_complex view_as_real_copy view_as_complex_copy resolve_conj")
def _parts_of_numbers(call: Call) -> Layouts:
    """Real and imaginary parts along an axis after all others, of length two."""
    _, layout = layout_and_tensor(call)
    return layout


# Paddings that take their values from the tensor's border.
_PADS = """
    reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d
"""
_PADS_BACKWARD = " ".join(f"{name}_backward" for name in _PADS.split())


@rule(f"constant_pad_nd {_PADS} {_PADS_BACKWARD}")
def _pad(call: Call) -> Layouts:
    is_backward = call.name.endswith("_backward")
    tensor, layout = layout_and_tensor(call, "grad_output" if is_backward else "self")
    if is_backward:
        aligned_layout(call, "grad_output", "self")
    if isinstance(layout, Summed):
        # zeros around a sum are a sum of zeros; another number would stand there once for all
        if call.name == "constant_pad_nd" and call.argument("value", 0) == 0:
            return SUMMED
        raise Unproved("a sum over the records is padded")
    # The schemas call the widths `pad` or `padding`.
    ends = list(call.argument("pad", call.argument("padding")))
    # two ends an axis, from the last axis on
    pairs = zip(ends[::2], ends[1::2], strict=False)
    last_axis = len(call.shape(tensor)) - 1
    padded_axes = [last_axis - k for k, (start, end) in enumerate(pairs) if start or end]
    require_within_records(padded_axes, layout, "padding")
    return layout


@rule(
    """
    tril triu diagonal diagonal_copy diag_embed pixel_shuffle pixel_unshuffle unfold unfold_copy
    channel_shuffle native_channel_shuffle
    """
)
def _planes(call: Call) -> Layouts:
    tensor, layout = layout_and_tensor(call)
    if not isinstance(layout, Records):
        return layout
    # What becomes of an entry depends on its places along two axes, neither of them the records'.
    rank = len(call.shape(tensor))
    named_dims = [call.argument(name) for name in ("dim1", "dim2", "dimension")]
    dims = [int(dim) % rank for dim in named_dims if dim is not None]
    if call.name in ("tril", "triu"):
        dims = [rank - 2, rank - 1]
    # Only records first, apart from both axes: elsewhere the result's order of axes would decide.
    if call.name == "diag_embed" or layout.axis != 0 or 0 in dims:
        raise Unproved("an entry's place depends on the records' axis")
    return layout


@rule("diagonal_scatter")
def _diagonal_scatter(call: Call) -> Layouts:
    # A diagonal's places are an axis after all others, in place of the two that it lies in.
    tensor, layout = layout_and_tensor(call)
    dims = [call.axis(call.argument(name), tensor) for name in ("dim1", "dim2")]
    require_within_records(dims, layout, "a diagonal")
    source = call.argument("src")
    if isinstance(layout, Records):
        if call.of(source) != drop_axes(layout, dims):
            raise Unproved("records and what is not along them are joined")
        return layout
    return common_layout(call, [tensor, source])


@rule("slice_backward select_backward diagonal_backward unfold_backward")
def _scatter_gradient(call: Call) -> Layouts:
    """The gradient of a part of a tensor, in its place among zeros."""
    tensor = call.argument("grad_output", call.argument("grad_in"))
    layout = call.of(tensor)
    out = call.out_shape()
    if not isinstance(layout, Records):
        return layout
    if call.name == "diagonal_backward":
        dims = [int(call.argument(name)) % len(out) for name in ("dim1", "dim2")]
        if layout.axis or 0 in dims:
            raise Unproved("an entry's place depends on the records' axis")
        return layout
    axis = int(call.argument("dim")) % len(out)
    # The gradient has one axis less than the tensor it is scattered into.
    if call.name == "select_backward":
        return move_records(layout, layout.axis + (axis <= layout.axis))
    if axis == layout.axis:
        if call.name == "unfold_backward":
            raise Unproved("unfold over the records")
        # a slice of all records is all of them, in their order
        if out[axis] != call.shape(tensor)[axis]:
            raise Unproved(PICKED)
    return layout


# ---------------------------------------------------------------- made anew


def _uniform_layout(call: Call) -> Layout:
    """A tensor whose entries do not depend on their place, or are drawn each by itself."""
    batch_axes = call.sizes.batch_axes(call.out_shape())
    if not batch_axes:
        return SHARED
    if len(batch_axes) > 1:
        raise Unproved("a tensor has the records along two axes")
    (axis,) = batch_axes
    rows = call.sizes.factor(call.out_shape()[axis])
    # Which place is whose cannot be told from the values: any division into rows a record is right.
    # That of a tensor which the operator takes is the one that the result will be met with.
    for layout in map(call.of, call.tensors()):
        if isinstance(layout, Records) and (layout.axis, layout.rows) == (axis, rows):
            return layout
    return Records(axis, 1, rows)


rule(" ".join(SHAPES))(_uniform_layout)


@rule(" ".join(UNFILLED))
def _unfilled_layout(call: Call) -> Layouts:
    """Memory as it was found holds whatever was there: it must be written before it is read.

    A capture puts zeros where that is not so.
    """
    if not is_filled(call.node):
        raise Unproved("memory is read that nobody has written (torch.empty)")
    tensor = call.node.meta["val"]
    # Axes by growing step: each must step over all that the smaller ones reach, or two entries
    # share memory.
    extent = 1  # entries of memory that the axes so far reach over
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if step < extent and size > 1:  # two places would be one
            raise Unproved("entries of a tensor lie in the same place (torch.empty_strided)")
        extent += step * (size - 1)
    return _uniform_layout(call)


@rule("rand randn randint rand_like randn_like randint_like normal")
def _random(call: Call) -> Layouts:
    parameters = call.tensors("mean", "std")
    if parameters and call.name == "normal":
        layouts = [call.of(parameter) for parameter in parameters]
        if SUMMED in layouts:
            raise Unproved(AGAIN)
        require_own_draws(call, layouts)
        return broadcast_layout(call, parameters, layouts)
    result = _uniform_layout(call)
    require_own_draws(call, [result])
    return result


@rule("arange")
def _arange(call: Call) -> Layouts:
    # As long as the batch it numbers the records, which may be used to pick each one's own.
    (size,) = call.out_shape()
    if not call.sizes.depends(size):
        return SHARED
    start = call.argument("start", 0)
    step = call.argument("step", 1)
    # Numbers must start at 0 and be as many as the records: then number i is the place of record i.
    numbers_records = start == 0 and isinstance(step, int)
    if not numbers_records or call.sizes.factor(size) != 1:
        raise Unproved(PLACE)
    return Places(0, step)


@rule("linspace eye logspace hann_window tril_indices triu_indices _weight_norm_interface")
def _shared_layout(_call: Call) -> Layouts:
    """Return SHARED: the laws let nothing come here that is not made of what is shared."""
    return SHARED
