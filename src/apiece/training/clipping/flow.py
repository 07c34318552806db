"""What holds of every operator, whatever its own rule says: a rule's oversight is caught here.

What a rule of the table lets through is held against five laws. The operator has a rule. The
number of records enters nothing but shapes. What is made of a sum over the records is one, and
not of records too. What is shared is made of what is shared. The numbers of the records' places
pick each record's own, and are nothing else.
"""

from __future__ import annotations

import torch
from torch import fx

from apiece.training.clipping.layout import (
    Layout,
    Places,
    Records,
    Shared,
    Summed,
    Unproved,
)
from apiece.training.clipping.table import (
    LIKE,
    RANDOM,
    RULES,
    SHAPES,
    UNFILLED,
    Call,
    Given,
    flat,
    words,
)


def layout_of(call: Call) -> Given:
    """Return what an operator gives, by its rule, held against these laws and the shapes it has.

    Raises `Unproved` where no rule holds for these arguments.
    """
    _is_known(call)
    _numbers_are_shapes(call)
    found = RULES[call.name](call)
    value = call.node.meta["val"]
    several = isinstance(value, list | tuple)
    layouts = found if isinstance(found, tuple) else (found,) * (len(value) if several else 1)
    values = value if several else [value]
    for k, (one, tensor) in enumerate(zip(layouts, values, strict=True)):
        if isinstance(tensor, torch.Tensor):
            call.sizes.check(one, tuple(tensor.shape))
            _flows(call, one, beside=k > 0)
    return layouts if several else layouts[0]


def _is_known(call: Call) -> None:
    """Raise `Unproved` for an operator without a rule."""
    if call.name in RULES:
        return
    if any(not isinstance(call.of(t), Shared) for t in call.tensors()):
        raise Unproved("no rule says how it treats records")
    raise Unproved("no rule for this operator")


# The arguments in which the number of records may stand: the shape of what is given follows them.
_LENGTHS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        [
            *words("view _unsafe_view view_copy _reshape_copy expand expand_copy broadcast_to"),
            *(RANDOM | SHAPES | UNFILLED),
        ],
        words("size stride"),
    ),
    "reshape": words("shape"),
    "repeat": words("repeats"),
    "arange": words("end"),
    "native_group_norm": words("N"),
    "native_group_norm_backward": words("N"),
    **dict.fromkeys(
        words("select_backward diagonal_backward unfold_backward"), words("input_sizes")
    ),
}
_SLICES = words("slice slice_copy narrow slice_scatter slice_backward")


def _numbers_are_shapes(call: Call) -> None:
    """Raise `Unproved` where the number of records may become a value."""
    allowed = _LENGTHS.get(call.name, frozenset())
    if call.name in _SLICES:
        allowed = words("input_sizes") | (words("start end") if _is_over_records(call) else set())
    schema = call.node.target._schema.arguments  # type: ignore[union-attr]
    for argument in schema:
        if argument.name in allowed:
            continue
        for number in flat(call.argument(argument.name)):
            value = number.meta["val"] if isinstance(number, fx.Node) else number
            if call.sizes.depends(value):
                raise Unproved("the number of records in the batch becomes a value")


def _is_over_records(call: Call) -> bool:
    """Whether a slice is along the axis of the records."""
    out = call.out()
    return call.sizes.depends(out[int(call.argument("dim", 0)) % len(out)])


_PICK = words("index _unsafe_index index_put _unsafe_index_put _embedding_bag")
_PLACES = words(
    """
    permute permute_copy t mT adjoint t_copy transpose swapaxes swapdims transpose_copy unsqueeze
    unsqueeze_copy squeeze squeeze_copy expand expand_copy broadcast_to slice slice_copy narrow
    arange _embedding_bag_forward_only _embedding_bag_backward
    """
)
# Where an output beside the first one does not depend on the records, though it is given with them.
_BESIDE = words(
    """
    nll_loss_forward nll_loss2d_forward native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm
    _embedding_bag _embedding_bag_forward_only _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    """
)


def _flows(call: Call, found: Layout, *, beside: bool) -> None:
    """Raise `Unproved` where a rule overlooked a tensor: whatever it says, nothing is lost."""
    if call.name in LIKE:  # takes the shape alone
        return
    given = [call.of(t) for t in call.tensors()]
    places = isinstance(found, Places) or any(isinstance(one, Places) for one in given)
    if places and call.name not in _PLACES | _PICK:
        raise Unproved("a record's place in the batch becomes a value")
    records = any(isinstance(one, Records | Places) for one in given)
    if any(isinstance(one, Summed) for one in given) and (records or not isinstance(found, Summed)):
        raise Unproved("a sum over the records meets the records again")
    if records and isinstance(found, Shared) and not (beside and call.name in _BESIDE):
        raise Unproved("what follows from records is taken for shared")
