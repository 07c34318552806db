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

from apiece.errors import UnsupportedError
from apiece.training.clipping import torch_internals
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.contributions import Contribution, limit_kept_gradients
from apiece.training.clipping.table import Unproved, name_of

# Made-up records in the trial; more than one, so that a sum over them is one.
RECORDS = 3
# Values of the model's tensors up to which it is tried: 128 MiB in double precision.
LARGEST_MODEL = 1 << 24
# Bounds on the round-off between both sums. Of the norms that the records give a parameter, added
# up:
_ROUND_OFF_OF_PARAMETER = 1e-6
# of the largest such sum over all parameters:
_ROUND_OFF_OF_LARGEST = 1e-9
# of products of two of the values that the sums are made of:
_ROUND_OFF_OF_PRODUCTS = 1e-12
# By type, the one in double precision.
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# Double precision is at hand there, whatever device the model is on.
_CPU = torch.device("cpu")


class _Widened(fx.Interpreter):
    """Runs a graph on the processor with double precision for every narrower one."""

    def fetch_attr(self, target: str) -> Any:
        """Return a constant of the graph, widened."""
        return _widen(super().fetch_attr(target))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator gives; types and devices among its arguments are exchanged."""
        # Casts and placements among the arguments would narrow values again, or move them.
        args, kwargs = torch_internals.map_leaves(_exchange, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _exchange(argument: object) -> object:
    """Return an operator's argument, with the processor for devices and double for narrow types."""
    if isinstance(argument, torch.device):
        return _CPU
    if isinstance(argument, torch.dtype):
        return _WIDE.get(argument, argument)
    return argument


def _widen(value: object) -> object:
    """Return a tensor on the processor and in double precision; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().to(_CPU)
    return value.to(_WIDE.get(value.dtype, value.dtype))


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
        labels: By the position of a tensor among the records': how many values it can have, from 0.
    """
    # Seeded: the verdict on a graph must be the same in every run.
    generator = torch.Generator().manual_seed(20)  # the same for every model, and nobody's stream
    placeholders = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    shared = [_move_parameter(tensor, generator) for tensor in held]
    signed: list[torch.Tensor] = []
    # Two trials: random signs for most graphs, and values in (0, 1) where a logarithm or a root
    # would be NaN.
    positive: list[torch.Tensor] = []
    for position, like in enumerate(placeholders[len(held) :]):
        shape = (RECORDS, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            kind = torch.complex128 if like.is_complex() else torch.float64
            signed.append(torch.randn(shape, generator=generator, dtype=kind))
            positive.append(torch.rand(shape, generator=generator, dtype=torch.float64).to(kind))
            continue
        # An integer that nothing is known of is 0, the one index that every table has.
        values = torch.randint(labels.get(position, 1), shape, generator=generator).to(like.dtype)
        signed.append(values)
        positive.append(values)
    return [*shared, *signed], [*shared, *positive]


def _move_parameter(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter widened, moved by up to half its size; another tensor only widened."""
    value = _widen(tensor)
    assert isinstance(value, torch.Tensor)
    # Buffers stay: of a variance or a mask, what is moved may be none.
    if isinstance(tensor, torch.nn.Parameter) and value.is_floating_point():
        # the root of the mean square; a parameter of zeros is moved by up to 0.05
        size = float(value.square().mean().sqrt()) if value.numel() else 1.0
        direction = torch.rand(value.shape, generator=generator, dtype=value.dtype) - 0.5
        value = value + direction * (size or 0.1)
    return value


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
    # An operator of a library's own may not know double precision, or write outside of the graph.
    graph = program.module.graph
    names = {name_of(node) for node in graph.nodes if node.op == "call_function"}
    if any("::" in name and not name.startswith("apiece::") for name in names):
        return
    # The first trial with finite gradients decides; without one nothing is said.
    for arguments in trials:
        with (
            trial([]),
            torch.no_grad(),
            torch.autocast("cpu", enabled=False),
            limit_kept_gradients(),
        ):
            try:
                # With gradients, the graph gives losses, then operands, then gradients.
                _, *results = _Widened(program.module).run(*arguments)
            except Exception:  # whatever an operator raises of what it cannot do
                continue
            count = len(results) - len(gradients)
            operands = results[:count]
            wanted = dict(zip(gradients, results[count:], strict=True))
            are_finite = [bool(gradient.isfinite().all()) for gradient in wanted.values()]
            if all(are_finite):
                _compare(program, operands, wanted)
                return


def _compare(
    program: Any, operands: list[torch.Tensor], wanted: Mapping[str, torch.Tensor]
) -> None:
    """Raise `Unproved` where contributions made of these operands do not add up to gradients."""
    totals: dict[str, torch.Tensor] = {}
    # by parameter, the records' gradient norms added up: what round-off is a share of
    sizes: dict[str, float] = {}
    for name in program.parts:
        totals[name], sizes[name] = _add_contributions(program, name, operands)
    largest_size = max(sizes.values(), default=0.0)
    numbers = [t for t in operands if t.is_floating_point() and t.numel()]
    largest_value = max((float(tensor.abs().max()) for tensor in numbers), default=0.0)
    for name, total in totals.items():
        difference = float((total - wanted[name]).norm())
        # Round-off is a share of the parameter's own terms, of the largest parameter's, and of
        # products of operands.
        room = (
            _ROUND_OFF_OF_PARAMETER * sizes[name]
            + _ROUND_OFF_OF_LARGEST * largest_size
            + _ROUND_OFF_OF_PRODUCTS * (1 + largest_value**2)
        )
        if not difference <= room:  # so that NaN is no agreement
            raise Unproved(
                f"{_source(program, name)}: what it gives the records one by one does not add up "
                f"to the gradient of {name}"
            )


def _add_contributions(
    program: Any, name: str, operands: list[torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """Return what the records give a parameter, added up, and their norms, added up.

    Raises `Unproved` where that cannot be made of these operands.
    """
    try:
        part = program.parts[name]
        of_part = [operands[program.places[node]] for node in part.operands]
        contribution: Contribution = program.contribution(part, of_part, RECORDS)
        size = float(contribution.squares().sqrt().sum())
        ones = torch.ones(RECORDS).double()
        total = program.finish_gradient(name, contribution.weighted_sum(ones))
    # A rule's message ends with a remedy for users; it is cut off, since the model then runs alone.
    except (Unproved, UnsupportedError) as error:
        raise Unproved(str(error).partition("; use ")[0]) from None
    except Exception as error:
        lines = str(error).strip().splitlines()
        first_line = lines[0] if lines else ""
        raise Unproved(
            f"{_source(program, name)}: gives no record its own gradient of {name} "
            f"({type(error).__name__}: {first_line[:120]})"
        ) from None
    return total, size


def _source(program: Any, name: str) -> str:
    """Return the operators that a parameter's gradient comes from, each once."""
    leaves = program.parts[name].leaves
    return ", ".join(dict.fromkeys(leaf.name for leaf in leaves))
