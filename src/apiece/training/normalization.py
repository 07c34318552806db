"""Batch normalisation replaced by group normalisation, which looks at one record alone."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from apiece import _check
from apiece.errors import UnsupportedError
from apiece.training.clipping import torch_internals

# The classes that are replaced: the very classes, and no others derived from them.
_REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Fewer channels than these in a group, and a map of one pixel would be normalised to a constant.
_LEAST_CHANNELS = 2


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> dict[str, nn.GroupNorm]:
    """Replace each batch normalisation in a model by a group normalisation, in place.

    Replaced are modules whose class is BatchNorm1d, BatchNorm2d, BatchNorm3d or SyncBatchNorm, at
    whatever depth, in training mode or not; nothing else changes. A module that stands in several
    places stays one. BatchNorm2d, BatchNorm3d and SyncBatchNorm of C channels get as many groups as
    divide C, at most `groups`, with two channels in each at least; BatchNorm1d, which may normalise
    vectors, gets one group. Scale and shift are the same parameters as before, so that an
    optimizer that holds them keeps them; `eps`, the mode and which parameters are trained stay.

    The running statistics are dropped: what a trained model computes changes, and it has to be
    trained on. To keep a pretrained model as it is, put its batch norms into eval() mode and leave
    them: they then apply fixed numbers to each record alone.

    Args:
        model: The model; changed unless an error is raised.
        groups: The most groups of a module.

    Returns:
        The new modules by their names in the model; empty where there was none to replace.

    Raises:
        InputError: For `groups` below 1.
        UnsupportedError: For a model that is a batch norm itself; for a lazy batch norm, whose
            channels are not known before its first forward; for other classes derived from batch
            norm, whose forward may do anything; for batch norms with hooks or parametrizations,
            which would be lost. Nothing is then changed.

    Guarantee:
        No replaced module lets a record's output depend on other records.

    References:
        Wu and He 2018; De et al. 2022 on groups in place of batches under differential privacy.

    Example:
        >>> from torch import nn
        >>> from apiece.training import replace_batch_norm
        >>> model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU())
        >>> replaced = replace_batch_norm(model)
        >>> replaced["1"] is model[1], model[1].num_groups, model[1].num_channels
        (True, 12, 24)
    """
    most = _check.count("groups", groups, least=1)
    # One new module for each old one, wherever it stands.
    made: dict[int, nn.GroupNorm] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch_internals.BatchNormBase):
            _require_replaceable(name, module)
            # All are checked and made before the first is replaced: an error changes nothing.
            made[id(module)] = _make_group_norm(module, most)
    replaced = {}
    # With duplicates: each place of a shared module gets the new one.
    for path, parent in list(model.named_modules(remove_duplicate=False)):
        for child, module in list(torch_internals.submodules_of(parent).items()):
            if id(module) in made:
                parent.register_module(child, made[id(module)])
                replaced[f"{path}.{child}".lstrip(".")] = made[id(module)]
    return replaced


def _require_replaceable(name: str, module: nn.Module) -> None:
    """Raise `UnsupportedError` for a batch norm that has more to it than its class says."""
    kind = type(module)
    if not name:
        raise UnsupportedError(
            f"model: is a {kind.__name__} itself, which cannot be replaced in place; put it into "
            "an nn.Sequential"
        )
    where = f"model.{name}: {kind.__name__}"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        raise UnsupportedError(
            f"{where} has no channels before its first forward; run the model once on zeros"
        )
    if kind not in _REPLACED:
        raise UnsupportedError(
            f"{where} is derived from batch norm, and its forward may be another; replace it by "
            "a GroupNorm of your own"
        )
    if torch_internals.has_hooks(module) or parametrize.is_parametrized(module):
        raise UnsupportedError(
            f"{where} has hooks or parametrizations, which would be lost; remove them first"
        )


def _make_group_norm(module: torch_internals.BatchNormBase, most: int) -> nn.GroupNorm:
    """Return a group norm with the parameters and the mode of a batch norm."""
    channels = int(module.num_features)
    count = 1
    if not isinstance(module, nn.BatchNorm1d):
        count = _choose_groups(channels, most)
    # Made without memory, as the batch norm's own parameters take its parameters' place.
    norm = nn.GroupNorm(count, channels, module.eps, affine=module.affine, device="meta")
    if module.affine:
        norm.weight = module.weight
        norm.bias = module.bias
    norm.train(module.training)
    return norm


def _choose_groups(channels: int, most: int) -> int:
    """Return the largest number of groups, at most so many, of equal size and two channels."""
    # At least two channels a group; one group at least.
    limit = max(min(most, channels // _LEAST_CHANNELS), 1)
    return max(count for count in range(1, limit + 1) if channels % count == 0)
