"""Guards: a model whose records' gradients are their own, and bounds that can be kept."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import nn

from apiece.errors import DataError, InputError, UnsupportedError
from apiece.training.clipping import torch_internals
from apiece.training.clipping.records import LEAF_TYPES, Tree, leaves

# The least bound that can be kept: far above where squares in single precision underflow, and norms
# with them.
LEAST_BOUND = 1e-12
# Types of parameters whose gradients can be clipped.
_REAL = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# What torch says of a label or an index that is out of bounds; not of an axis, or of Python's own
# sequences.
_OUT_OF_BOUNDS = re.compile(
    r"(?<!Dimension )(?<!(?:list|uple|ring) index )out of (bounds|range)"
    r"|not in the valid range|Class values must be"
)
# Layers that `check_modules` looks at, so that all others cost one test.
_SUSPECTS = (
    torch_internals.BatchNormBase,
    torch_internals.InstanceNormBase,
    nn.Embedding,
    nn.EmbeddingBag,
)


def fit_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return `trainable(model)` of a model that passes `check_modules`, whole on this process."""
    result = trainable(model)
    check_modules(model)
    for name, parameter in result.items():
        if is_sharded(parameter):
            raise UnsupportedError(
                f"model.{name}: is sharded over processes (fully_shard, tensor parallelism), and "
                "a record's norm needs whole parameters; Trainer takes a model under fully_shard "
                "or DistributedDataParallel, clip_and_sum whole ones"
            )
    return result


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is spread over processes: a DTensor, which is slow to import."""
    # `placements` say on which process which part is; no other tensor has them
    return getattr(tensor, "placements", None) is not None


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that take gradients, by name, each shared one once.

    Raises `InputError` where there is none, and for parameters that have no values yet;
    `UnsupportedError` for one that is complex or of a type of its own, and for hooks on any.
    """
    result = {name: p for name, p in model.named_parameters() if _is_trained(name, p)}
    if not result:  # there would be no gradient to clip, and no device to clip on
        raise InputError(
            f"model: {type(model).__name__} has no trainable parameter; set requires_grad on some"
        )
    return result


def _is_trained(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter takes gradients; raise where they could not be clipped."""
    # Also where it is frozen: it may be trained later, and the hook be forgotten.
    if torch_internals.has_gradient_hooks(parameter):
        raise UnsupportedError(
            f"model.{name}: a hook on this parameter would see, or expects to change, a "
            "gradient before clipping and noise; remove it, and change the noisy gradient in "
            "the optimizer instead"
        )
    if not parameter.requires_grad:
        return False
    if parameter.dtype not in _REAL:
        raise UnsupportedError(
            f"model: parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}; "
            "gradients are clipped in real numbers of 16 to 64 bits: hold a complex one as two "
            "real parts (torch.view_as_complex in the forward), or freeze it"
        )
    # a lazy module makes its parameters from the first batch that it sees
    if nn.parameter.is_lazy(parameter):
        raise InputError(
            f"model.{name}: has no shape yet; run the model once on a made-up record first"
        )
    if parameter.is_meta:
        raise InputError(
            f"model.{name}: is on the device meta and has no values; load its weights first "
            "(to_empty and load_state_dict)"
        )
    return True


def check_modules(model: nn.Module) -> None:
    """Refuse layers that let one record reach another's gradient, or what the model keeps.

    Raises `UnsupportedError` with the module's path and what to use instead.
    """
    for path, module in model.named_modules():
        if not isinstance(module, _SUSPECTS):
            continue
        # The table's rows are written in the forward, by who is looked up.
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UnsupportedError(
                f"model.{path}: {type(module).__name__}(max_norm={module.max_norm}) rescales the "
                "rows that the records look up, without noise; use max_norm=None"
            )
        if not module.training:  # then norms take statistics as they are
            continue
        if isinstance(module, torch_internals.BatchNormBase):
            raise UnsupportedError(
                f"model.{path}: {type(module).__name__} in training mode mixes the records of a "
                "batch; call apiece.training.replace_batch_norm(model), or put this module in "
                "eval() mode"
            )
        if isinstance(module, torch_internals.InstanceNormBase) and module.track_running_stats:
            raise UnsupportedError(
                f"model.{path}: {type(module).__name__} keeps running statistics of the records "
                "without noise; construct it with track_running_stats=False"
            )


def bounds(clip_norms: torch.Tensor | float, size: int, device: torch.device) -> torch.Tensor:
    """Return `clip_norms` as (size,) doubles, each checked to be positive and finite."""
    # A column of a table is an array to numpy, and nothing to torch.
    values = clip_norms if isinstance(clip_norms, torch.Tensor) else np.array(clip_norms)
    result = torch.as_tensor(values, dtype=torch.float64, device=device)
    if result.dim() == 0:  # one number for all
        result = result.expand(size)
    if result.shape != (size,):
        raise InputError(
            f"clip_norms: shape {tuple(result.shape)} for {size} records; give one bound a record"
        )
    if size == 0:
        return result
    # Both ends in one pass; where a bound is NaN, both of them are.
    lowest, highest = torch.aminmax(result)
    is_within = lowest.item() >= LEAST_BOUND and highest.item() < torch.inf
    if not is_within:  # as it is for NaN, which compares with nothing
        is_valid = (result >= LEAST_BOUND) & (result < torch.inf)
        position = int((~is_valid).nonzero()[0])
        raise InputError(
            f"clip_norms[{position}] = {float(result[position])!r}: must be in [{LEAST_BOUND:g}, "
            "inf); give every record such a bound, scaling the loss if gradients are as small"
        )
    return result


# ---------------------------------------------------------------- what a call receives

# Containers within containers that inputs or targets may have.
MAX_DEPTH = 32
# Exact types of tensors that may be given; a subclass may compute something else.
_PLAIN_TENSORS = (torch.Tensor, nn.Parameter)


def read_tree(name: str, tree: Tree) -> Tree:
    """Return inputs or targets in tuples, lists and dicts of this call's own.

    Their leaves are tensors, None, bool, int, float and str: values that nothing can change. An
    object with attributes would carry one record's word to the next, or hold the batch unseen. A
    list of Python's values alone would show every record those of all others.

    Args:
        name: Of the argument, for messages.
        tree: A tensor, or tuples, lists, named tuples and mappings; mappings become plain dicts.

    Raises:
        UnsupportedError: For any other leaf, with its place, its type and the remedy; for a
            container with attributes of its own; and for more than `MAX_DEPTH` containers within
            each other.
    """
    return _read_tree(name, tree, 0)


def _read_tree(path: str, tree: Tree, depth: int) -> Tree:
    kind = type(tree)
    # by the exact type: a subclass may hold, or do, anything
    if kind in _PLAIN_TENSORS or kind in LEAF_TYPES:
        return tree
    if depth >= MAX_DEPTH:
        raise UnsupportedError(
            f"{path}: {depth} containers within each other, at most {MAX_DEPTH}; flatten them"
        )
    # a named tuple of tensors, whose rows are steps and not records
    if isinstance(tree, nn.utils.rnn.PackedSequence):
        raise UnsupportedError(
            f"{path}: a PackedSequence has no row for each record; give padded tensors, records "
            "first, with their lengths, and pack them in the model's forward"
        )
    # Any mapping becomes a plain dict: a library's own may compute values when asked.
    if kind is dict or isinstance(tree, Mapping):
        for key in tree:
            if type(key) not in LEAF_TYPES:
                raise _unknown_leaf(f"{path}: a key", key)
        parts_by_key: dict[object, Tree] = {}
        for key, part in tree.items():
            parts_by_key[key] = _read_tree(f"{path}[{key!r}]", part, depth + 1)
        return parts_by_key
    # A named tuple that has a dict has room for attributes of its own.
    is_named = (
        isinstance(tree, tuple) and hasattr(tree, "_fields") and not hasattr(tree, "__dict__")
    )
    if kind not in (tuple, list) and not is_named:
        raise _unknown_leaf(path, tree)
    parts = [_read_tree(f"{path}[{k}]", part, depth + 1) for k, part in enumerate(tree)]
    # [3, 1, 2] would be taken for the same three numbers of every record
    if any(part is not None for part in parts) and not leaves(parts):
        raise UnsupportedError(
            f"{path}: a {kind.__name__} of {len(parts)} values without a tensor would show each "
            "record the values of all; where they are the records', give a tensor with one row a "
            "record (torch.tensor); where they are the same for all, hold them in the model or "
            "give each by its name in a dict"
        )
    return kind(*parts) if is_named else kind(parts)


def _unknown_leaf(path: str, value: object) -> UnsupportedError:
    """Return the refusal of a value that somebody could change, or that holds others unseen."""
    name = type(value).__qualname__
    module = type(value).__module__
    if module != "builtins":
        name = f"{module}.{name}"
    if isinstance(value, torch.Tensor):
        remedy = "give a plain tensor (.as_subclass(torch.Tensor), or to_local and the like)"
    elif isinstance(value, np.ndarray):
        remedy = "give a tensor (torch.as_tensor)"
    elif isinstance(value, enum.Enum):
        remedy = "give its value (.value)"
    elif isinstance(value, np.generic):
        remedy = "give a number of Python's (.item())"
    elif isinstance(value, (bool, int, float, str)):
        base = next(kind for kind in (int, float, str) if isinstance(value, kind))
        remedy = f"give a plain {base.__name__} ({base.__name__}(...))"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        remedy = "give its tensors in a dict ({f.name: getattr(x, f.name) for f in fields(x)})"
    else:
        remedy = "give its tensors in a tuple or a dict, and build it in the model's forward"
    return UnsupportedError(
        f"{path}: {name} is neither a tensor nor None, bool, int, float or str: what can be "
        f"changed would go from one record to the next; {remedy}"
    )


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise in our words what torch raises of a batch: `DataError` for an index out of bounds.

    `UnsupportedError` where a forward pass is kept by a backward of its own. Torch's messages name
    the value, which is a record's.
    """
    try:
        yield
    # Only errors that torch raises of values; others are the user's own.
    except (IndexError, RuntimeError) as error:
        # `from None`: torch's own words would be printed beneath
        if _OUT_OF_BOUNDS.search(str(error)):
            raise DataError(
                "inputs, targets: a label or an index is beyond the classes or the rows of a "
                "table; correct the data, or give the model as many"
            ) from None
        if "use_reentrant=True" not in str(error):
            raise
        raise UnsupportedError(
            "model: torch.utils.checkpoint with use_reentrant=True runs a backward of its own, "
            "which gives the gradients of no single record; use use_reentrant=False"
        ) from None


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel and torch.compile's wrapper."""
    while True:
        # one may be wrapped in the other, in either order
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        inside = inner(model)
        if inside is model:
            return model
        model = inside


def inner(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's wrapper, which is what is run."""
    return torch_internals.unwrap_compiled(model)
