"""Where what all records share meets them: the gradient there, and what each record gives by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.func import vjp, vmap

from apiece.training.clipping import records
from apiece.training.clipping.paths.functional import vectorised
from apiece.training.clipping.precision import wide
from apiece.training.clipping.rules.contributions import Contribution, Rows, lookups, products
from apiece.training.clipping.rules.rule import NotBookable

_AMISS = "the first dimension is not the records"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Use:
    """One meeting of a shared tensor with the records.

    shared: what all records share. edge: where the gradient appears, of a tensor with k rows for
    each record, one record's after another's. gives: what that gradient makes of `shared`, record
    by record. met: what it met there, and met_at its versions. as_it_ran: whether a function is
    run again, autocast included.
    """

    shared: torch.Tensor
    edge: GradientEdge
    gives: Callable[[torch.Tensor], Contribution]
    met: tuple[torch.Tensor, ...] = ()
    met_at: tuple[int, ...] = ()
    as_it_ran: bool = False

    @property
    def past(self) -> tuple[Node, ...]:
        """The nodes of autograd's graph at which the records came in."""
        return nodes(self.met)

    def check(self) -> None:
        """Refuse a use whose records were overwritten later in the forward pass."""
        if tuple(t._version for t in self.met) != self.met_at:
            raise NotBookable("what a shared tensor meets is changed in place after use")


def _use(
    shared: torch.Tensor,
    out: torch.Tensor,
    gives: Callable[[torch.Tensor], Contribution],
    met: Sequence[torch.Tensor],
    *,
    as_it_ran: bool = False,
) -> Use:
    versions = tuple(t._version for t in met)
    return Use(shared, get_gradient_edge(out), gives, tuple(met), versions, as_it_ran)


def nodes(tensors: Sequence[torch.Tensor]) -> tuple[Node, ...]:
    """Return where autograd's graph goes on behind tensors."""
    return tuple(get_gradient_edge(t).node for t in tensors if t.requires_grad)


def _rows(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return (B, k, ...) of (B·k, ...)."""
    if not tensor.dim() or tensor.shape[0] % size:
        raise NotBookable(f"where a shared tensor is used, {_AMISS}")
    return tensor.reshape(size, -1, *tensor.shape[1:])


def broadcast(
    shared: torch.Tensor, full: torch.Tensor, size: int, met: Sequence[torch.Tensor] = ()
) -> Use:
    """Return the use of a tensor that was broadcast to `full`, or added to what gave `full`."""
    first = shared.dim() == full.dim() and shared.shape[0] > 1
    if first and shared.stride(0) == 0:
        shared, first = shared.narrow(0, 0, 1), False
    if size > 1 and (not full.dim() or full.shape[0] % size or first):
        raise NotBookable(f"where a shared tensor is broadcast, {_AMISS}")
    return _use(shared, full, partial(_narrowed, shared.shape, size), met)


def _narrowed(shape: torch.Size, size: int, gradient: torch.Tensor) -> Contribution:
    """Return the gradient of what was broadcast from `shape`, added up where it was repeated."""
    if not gradient.dim():
        return Rows(gradient.to(wide(gradient.dtype)).view(size, *shape))
    rows = _rows(gradient, size).to(wide(gradient.dtype))
    own = (1,) * (rows.dim() - 1 - len(shape)) + tuple(shape)
    over = [k + 1 for k, n in enumerate(own) if n == 1 and rows.shape[k + 1] != 1]
    return Rows((rows.sum(over) if over else rows).reshape(size, *shape))


def linear(
    weight: torch.Tensor,
    out: torch.Tensor,
    values: torch.Tensor,
    size: int,
    *,
    turned: bool = False,
) -> Use:
    """Return the use of a matrix, (out, in) or, turned, (in, out), on the last dimension."""
    right = _rows(values.detach(), size).flatten(1, -2)
    width = out.shape[-1]

    def gives(gradient: torch.Tensor) -> Contribution:
        left = gradient.reshape(size, -1, width)
        exact = wide(torch.promote_types(left.dtype, right.dtype))
        pair = left.to(exact), right.to(exact)
        return products(*(pair[::-1] if turned else pair))

    return _use(weight, out, gives, [values])


def lookup(
    table: torch.Tensor, out: torch.Tensor, index: torch.Tensor, size: int, skip: int | None
) -> Use:
    """Return the use of the rows of a table, where index is not `skip`."""
    met, index = index, _rows(index, size).flatten(1)

    def gives(gradient: torch.Tensor) -> Contribution:
        left = gradient.reshape(*index.shape, -1).to(wide(gradient.dtype))
        if skip is not None:
            left = left * (index != skip).unsqueeze(2)
        return lookups(index, left, table.shape[0])

    return _use(table, out, gives, [met])


def apart(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    out: Any,
    shared: list[torch.Tensor],
    size: int,
) -> list[Use]:
    """Return the uses by any function that takes its records' rows one by one.

    shared: those among its arguments that are shared, trained or not.
    """
    name = getattr(func, "__name__", str(func))
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        if isinstance(out, torch.Tensor):
            return []
        raise NotBookable(f"a shared tensor is used by {name}, which gives several")
    tree = (args, kwargs)
    given = [t.detach() for t in records.leaves(tree)]
    which = [any(t is s for s in shared) for t in records.leaves(tree)]
    others = [t for t in records.leaves(tree) if not any(t is s for s in shared)]
    _rows(out, size)

    def gives(place: torch.Tensor, gradient: torch.Tensor) -> Contribution:
        rows = [t if mine else _rows(t, size) for t, mine in zip(given, which, strict=True)]

        def one(some: list[torch.Tensor], back: torch.Tensor) -> torch.Tensor:
            def run(value: torch.Tensor) -> torch.Tensor:
                several = [value if of is place else t for of, t in zip(leaves, some, strict=True)]
                again, more = records.fill(tree, several)
                found: torch.Tensor = func(*again, **more)
                return found

            _, *pull = vjp(run, place.detach())
            found: torch.Tensor = pull[0](back)[0]
            return found

        leaves = records.leaves(tree)
        dims = [None if mine else 0 for mine in which]
        try:
            with vectorised():
                found = vmap(one, in_dims=(dims, 0))(rows, _rows(gradient, size))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise NotBookable(f"a shared tensor is used by {name}: {error}") from None
        return Rows(found.to(wide(found.dtype)))

    trained = [s for s in shared if s.requires_grad]
    return [_use(s, out, partial(gives, s), others, as_it_ran=True) for s in trained]
