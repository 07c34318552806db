"""Small gradients side by side: those of many parameters are clipped as those of one.

Biases, scales and shifts are most of a network's parameters by number, and none of its arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from apiece.training.clipping.rules.contributions import Contribution, Rows
from apiece.training.clipping.rules.kernels import flattened

_SMALL = 1 << 12  # entries of one record's gradient, above which a copy costs more than a call
ALL = ""  # the name of what stands side by side


def together(
    named: Mapping[str, Contribution],
) -> tuple[dict[str, Contribution], dict[str, torch.Size]]:
    """Return the contributions with the small ones as one, named `ALL`, and the shapes of those."""
    rows = {name: part.gradients for name, part in named.items() if isinstance(part, Rows)}
    small = {name: each for name, each in rows.items() if math.prod(each.shape[1:]) <= _SMALL}
    kind = next((each.dtype for each in small.values()), None)
    small = {name: each for name, each in small.items() if each.dtype == kind}
    if len(small) < 2:
        return dict(named), {}
    found = {name: part for name, part in named.items() if name not in small}
    found[ALL] = Rows(torch.cat([flattened(each) for each in small.values()], 1))
    return found, {name: each.shape[1:] for name, each in small.items()}


def apart(total: torch.Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Return what `together` put side by side, each in its shape, of one vector."""
    parts = total.split_with_sizes([math.prod(shape) for shape in shapes.values()])
    return {
        name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
