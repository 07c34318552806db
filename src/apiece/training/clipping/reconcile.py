"""Reconciling: what a program gives the records one by one adds up to its graph's own gradients.

The rules of the rewriting are theorems: Σ_i gradient_i is the gradient of the losses' sum, which
the captured graph makes as well. A rule that lost an axis, a factor or a term would break that. So
both are made once, when a graph is captured, of records that are made up of shapes alone: nothing
here depends on a row. Both sums are made of the same tensors in double precision, so that they
differ by round-off of the last steps and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from apiece.errors import UnsupportedError
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.contributions import Contribution, keeping
from apiece.training.clipping.table import Unproved, name_of

# Made-up records in the trial; more than one, so that a sum over them is one.
RECORDS = 3
# Values of the model's tensors up to which it is tried: 128 MiB in double precision.
LARGEST_MODEL = 1 << 24
# Bounds on the round-off between both sums: of what the records give a parameter one by one, of
# what they give any parameter, and of products of two values that the sums are made of.
_OF_ITS_OWN = 1e-6
_OF_THE_LARGEST = 1e-9
_OF_PRODUCTS = 1e-12
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_CPU = torch.device("cpu")


class _Widened(fx.Interpreter):
    """Runs a graph on the processor with double precision for every narrower one."""

    def fetch_attr(self, target: str) -> Any:
        """Return a constant of the graph, widened."""
        return _widened(super().fetch_attr(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator gives; types and devices among its arguments are exchanged."""
        args, kwargs = pytree.tree_map(_exchanged, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _exchanged(argument: object) -> object:
    if isinstance(argument, torch.device):
        return _CPU
    if isinstance(argument, torch.dtype) and argument in _NARROW:
        return torch.float64
    return argument


def _widened(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().to(_CPU)
    return value.double() if value.dtype in _NARROW else value


def made_up_arguments(
    graph: fx.Graph, held: Sequence[torch.Tensor], labels: Mapping[int, int]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return twice what a graph takes: the model's tensors about as they are, and made-up records.

    The first has records of either sign, the second of values in (0, 1), which logarithms and
    probabilities take.

    Args:
        graph: Its placeholders are the model's tensors, then those along the records.
        held: The model's tensors; trained and frozen numbers are moved by up to half their size,
            and away from zero, since nothing could be said of a gradient that a zero takes away.
        labels: By the place of a tensor among the records': how many values it can have, from 0.
    """
    generator = torch.Generator().manual_seed(20)
    placeholders = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    shared: list[torch.Tensor] = []
    for tensor in held:
        value = _widened(tensor)
        assert isinstance(value, torch.Tensor)
        if isinstance(tensor, torch.nn.Parameter) and value.is_floating_point():
            size = float(value.square().mean().sqrt()) if value.numel() else 1.0
            away = torch.rand(value.shape, generator=generator, dtype=value.dtype) - 0.5
            value = value + away * (size or 0.1)
        shared.append(value)
    signed: list[torch.Tensor] = []
    positive: list[torch.Tensor] = []
    for place, like in enumerate(placeholders[len(held) :]):
        shape = (RECORDS, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            kind = torch.complex128 if like.is_complex() else torch.float64
            signed.append(torch.randn(shape, generator=generator, dtype=kind))
            positive.append(torch.rand(shape, generator=generator, dtype=torch.float64).to(kind))
            continue
        # An integer that nothing is known of is 0, the one index that every table has.
        values = torch.randint(labels.get(place, 1), shape, generator=generator).to(like.dtype)
        signed.append(values)
        positive.append(values)
    return [*shared, *signed], [*shared, *positive]


def reconcile(program: Any, gradients: Sequence[str], trials: Iterable[list[torch.Tensor]]) -> None:
    """Raise `Unproved` where what made-up records give does not add up to the graph's gradients.

    A graph that cannot be run so (an operator of a library's own, one without double precision, an
    index that no zero is for, values that are not finite) is not tried; its contributions are held
    against shapes at each batch all the same.

    Args:
        program: Whose graph gives losses, operands and then the gradients of these parameters.
        gradients: Names of parameters.
        trials: What the graph is run on, until it gives finite gradients.
    """
    graph = program.module.graph
    if any("::" in name_of(node) for node in graph.nodes if node.op == "call_function"):
        return
    for arguments in trials:
        with trial([]), torch.no_grad(), torch.autocast("cpu", enabled=False), keeping():
            try:
                _, *results = _Widened(program.module).run(*arguments)
            except Exception:  # whatever an operator raises of what it cannot do
                continue
            count = len(results) - len(gradients)
            operands, wanted = results[:count], dict(zip(gradients, results[count:], strict=True))
            if all(bool(g.isfinite().all()) for g in wanted.values()):
                _compare(program, operands, wanted)
                return


def _compare(
    program: Any, operands: list[torch.Tensor], wanted: Mapping[str, torch.Tensor]
) -> None:
    """Raise `Unproved` where contributions made of these operands do not add up to gradients."""
    given: dict[str, tuple[torch.Tensor, float]] = {}
    for name, part in program.parts.items():
        source = ", ".join(dict.fromkeys(leaf.name for leaf in part.leaves))
        try:
            contribution: Contribution = program.contribution(part, list(operands), RECORDS)
            size = float(contribution.squares().sqrt().sum())
            total = program.finished(name, contribution.weighted(torch.ones(RECORDS).double()))
        except (Unproved, UnsupportedError) as error:
            raise Unproved(str(error).partition("; use ")[0]) from None
        except Exception as error:
            said = str(error).strip().splitlines()[:1]
            raise Unproved(
                f"{source}: gives no record its own gradient of {name} "
                f"({type(error).__name__}: {' '.join(said)[:120]})"
            ) from None
        given[name] = total, size
    largest = max((size for _, size in given.values()), default=0.0)
    values = max(
        (float(t.abs().max()) for t in operands if t.is_floating_point() and t.numel()), default=0.0
    )
    for name, (total, size) in given.items():
        difference = float((total - wanted[name]).norm())
        room = _OF_ITS_OWN * size + _OF_THE_LARGEST * largest + _OF_PRODUCTS * (1 + values**2)
        if not difference <= room:
            source = ", ".join(dict.fromkeys(leaf.name for leaf in program.parts[name].leaves))
            raise Unproved(
                f"{source}: what it gives the records one by one does not add up to the gradient "
                f"of {name}"
            )
