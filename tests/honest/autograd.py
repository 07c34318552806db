"""What autograd says of a model in double precision, one record at a time, beside clip_and_sum."""

from __future__ import annotations

import copy
import enum
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from apiece.errors import ApieceError, IdleParameterWarning
from apiece.training import clip_and_sum
from apiece.training.clipping import records
from apiece.training.clipping.cache import proof_of

# Relative to the size of what the records give one by one; plus a share of the largest gradient.
_RELATIVE = 1e-3
_OF_THE_LARGEST = 1e-5
# A reason names what does it: an operator in the graph (`module: name: …`), or a line of the model.
_NAMES_AN_OPERATOR = re.compile(r"\(?[\w.]+: [\w:]+: |\.py:\d+ \(|[\w.]+\(|[\w]+_?: ")


class Outcome(enum.Enum):
    """What came of a model."""

    EQUAL = "equal"
    REFUSED = "refused, with the operator's name"
    UNEXPLAINED = "refused, without an operator's name"
    WRONG = "wrong"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Found:
    """An outcome, and what was seen."""

    outcome: Outcome
    said: str = ""


Loss = Callable[[object, object], torch.Tensor]


def reference(
    model: nn.Module, loss: Loss, inputs: object, targets: object
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return each parameter's gradients record by record, (B, *shape), and losses, in float64."""
    model = copy.deepcopy(model).double()
    loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().clone()
        return tensor.double() if tensor.is_floating_point() else tensor

    inputs, targets = records.tree_map(widened, inputs), records.tree_map(widened, targets)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in named}
    losses: list[torch.Tensor] = []
    for k in range(records.count(inputs, targets)):
        one = slice(k, k + 1)
        output = records.call(model, records.select(inputs, one))
        value = loss(output, records.select(targets, one)).sum()
        losses.append(value.detach())
        given = [None] * len(named)
        if value.requires_grad:
            given = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        for (name, p), g in zip(named.items(), given, strict=True):
            rows[name].append(torch.zeros_like(p) if g is None else g.to_dense())
    return {name: torch.stack(some) for name, some in rows.items()}, torch.stack(losses)


def _differs(clipped: object, wanted: dict[str, torch.Tensor], factors: torch.Tensor) -> str:
    """Return where a clipped sum is not Σ factor·gradient; nothing where it is."""
    sizes = {name: rows.reshape(len(rows), -1).norm(dim=1).sum() for name, rows in wanted.items()}
    largest = max(sizes.values())
    for name, rows in wanted.items():
        sums = torch.einsum("b,b...->...", factors, rows)
        found = clipped.gradients[name].double()
        if found.shape != sums.shape:
            return f"{name} has shape {tuple(found.shape)} for {tuple(sums.shape)}"
        error = (found - sums).norm()
        if not error <= _RELATIVE * sizes[name] + _OF_THE_LARGEST * largest + 1e-6:
            return f"{name} is off by {float(error):.3g} of {float(sizes[name]):.3g}"
    return ""


def compared(
    model: nn.Module, loss: Loss, inputs: object, targets: object, method: str = "proved"
) -> Found:
    """Return what clip_and_sum gives, unclipped and clipped, beside autograd's sums."""
    wanted, losses = reference(model, loss, inputs, targets)
    norms = (
        torch.stack([rows.reshape(len(rows), -1).square().sum(1) for rows in wanted.values()])
        .sum(0)
        .sqrt()
    )
    if not norms.isfinite().all():
        return Found(Outcome.EQUAL, "not finite")
    half = float(norms.median()) / 2 + 1e-6
    for bound in (1e9, half):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", IdleParameterWarning)
                clipped = clip_and_sum(model, loss, inputs, targets, bound, method=method)
        except ApieceError as error:
            named = _NAMES_AN_OPERATOR.search(str(error).partition("stay apart")[2])
            return Found(Outcome.REFUSED if named else Outcome.UNEXPLAINED, str(error))
        except Exception as error:
            return Found(Outcome.CRASHED, f"{type(error).__name__}: {error}")
        factors = (bound / norms).clamp(max=1.0).nan_to_num(1.0)
        if said := _differs(clipped, wanted, factors):
            return Found(Outcome.WRONG, f"{said} at a bound of {bound:.3g}")
        if not torch.allclose(
            clipped.norms.double(), norms, rtol=2e-3, atol=1e-5 + 1e-4 * float(norms.max())
        ):
            return Found(Outcome.WRONG, f"norms {clipped.norms.tolist()} for {norms.tolist()}")
        if not torch.allclose(clipped.losses.double(), losses, rtol=1e-3, atol=1e-4):
            return Found(Outcome.WRONG, "losses differ")
    assert method != "proved" or proof_of(model).proved
    return Found(Outcome.EQUAL)
