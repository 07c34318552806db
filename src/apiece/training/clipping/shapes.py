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
    Given,
    Layout,
    Places,
    Records,
    Summed,
    Unproved,
    aligned,
    along,
    axis_of,
    drawn,
    dropped,
    is_filled,
    layout_and_tensor,
    matched,
    moved,
    rule,
    viewed,
    within,
    written,
)

# ---------------------------------------------------------------- shapes


@rule("view _unsafe_view reshape _reshape_copy view_copy")
def _view(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
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
    # What is shared becomes a copy for each record, which is a record's own from here on.
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
    if isinstance(layout, Summed):
        raise Unproved("a sum over the records is repeated")
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
        # Along the records only the whole axis may be taken: a part would be chosen by place.
        taken = call.out() if part is None else call.shape(part)
        if call.shape(tensor)[axis] != taken[axis] or call.argument("step", 1) != 1:
            raise Unproved(PICKED)
    return layout if part is None else written(call, [tensor, part])


@rule("select select_copy select_scatter")
def _select(call: Call) -> Given:
    tensor, layout = layout_and_tensor(call)
    axis = call.axis(call.argument("dim"), tensor)
    if axis_of(layout) == axis:
        raise Unproved(PICKED)
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


def _even(call: Call) -> Layout:
    """A tensor whose entries do not depend on their place, or are drawn each by itself."""
    long = call.sizes.long(call.out())
    if not long:
        return SHARED
    if len(long) > 1:
        raise Unproved("a tensor has the records along two axes")
    # Which place is whose cannot be told from the values: any division into rows a record is right.
    (axis,), rows = long, call.sizes.factor(call.out()[long[0]])
    for one in map(call.of, call.tensors()):
        if isinstance(one, Records) and (one.axis, one.rows) == (axis, rows):
            return one
    return Records(axis, 1, rows)


rule(" ".join(SHAPES))(_even)


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


@rule("rand randn randint rand_like randn_like randint_like normal")
def _random(call: Call) -> Given:
    given = call.tensors("mean", "std")
    if given and call.name == "normal":
        layouts = [call.of(t) for t in given]
        if any(isinstance(one, Summed) for one in layouts):
            raise Unproved(AGAIN)
        drawn(call, layouts)
        return matched(call, given, layouts)
    result = _even(call)
    drawn(call, [result])
    return result


@rule("arange")
def _arange(call: Call) -> Given:
    (size,) = call.out()
    if not call.sizes.depends(size):
        return SHARED
    start, step = call.argument("start", 0), call.argument("step", 1)
    if start != 0 or not isinstance(step, int) or call.sizes.factor(size) != 1:
        raise Unproved(PLACE)
    return Places(0, step)


@rule("linspace eye logspace hann_window tril_indices triu_indices _weight_norm_interface")
def _shared(_call: Call) -> Given:
    """Of what is shared alone: the laws let nothing else through."""
    return SHARED
