"""What a model makes without records is followed to where it meets them.

Scales, class tokens, positions, biases of attention: parameters that no layer's rule knows, and
what layers give for inputs that have no records in them. All records share them, so that their
gradients are those of all records together. But where such a tensor meets records, in a sum or a
product, say, it is broadcast, and the gradient there is each record's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from apiece.training.clipping import records
from apiece.training.clipping.paths.meeting import Use, apart, broadcast, linear, lookup
from apiece.training.clipping.paths.rows import Function, RowOrder, named, ordered
from apiece.training.clipping.rules.attention import written_out
from apiece.training.clipping.rules.rule import NotBookable

_Tensor = torch.Tensor


_MAKING = named(
    "arange zeros ones full empty linspace eye tensor scalar_tensor zeros_like ones_like full_like "
    "new_zeros new_ones new_full",
    torch,
    _Tensor,
)
_ONLY_BY_SHAPE = named("expand_as view_as reshape_as type_as to", _Tensor)
_READ = ("shape", "dtype", "device", "requires_grad", "ndim", "layout", "grad_fn", "_version")
_READING = frozenset(getattr(_Tensor, name).__get__ for name in _READ)
_BROADCASTING = named(
    "add sub mul div true_divide where maximum minimum pow lerp addcmul addcdiv",
    torch,
    _Tensor,
) | named(
    "add_ sub_ mul_ div_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ "
    "__imul__ __truediv__ __rtruediv__ __itruediv__ __div__ __rdiv__ __idiv__ __pow__ __rpow__",
    _Tensor,
)
_IN_PLACE = named(
    "add_ sub_ mul_ div_ __iadd__ __isub__ __imul__ __itruediv__ __idiv__ __setitem__ copy_",
    _Tensor,
)
_BY_ROWS = named("clone contiguous to float double half bfloat16", _Tensor)  # repeat no row
_TIMES = named("matmul mm __matmul__", torch, _Tensor)
_JOINING = named("cat concat concatenate stack", torch)
_TREES = (tuple, list, dict)
_ATTENDING = nn.functional.scaled_dot_product_attention
_ATTENTION = nn.functional.multi_head_attention_forward


class Following(TorchFunctionMode):
    """Knows what is shared by `size` records, and notes each meeting of it with them.

    uses: the meetings. roots: parameters from which something shared was computed.
    inside: how many layers with a rule of their own the forward is in, which see to themselves.
    attention: the one that it is in, if it is attention, until its projections have been noted.
    rows: knows whose rows tensors have.
    """

    def __init__(
        self, size: int, parameters: Iterable[torch.Tensor], constants: Iterable[torch.Tensor]
    ) -> None:
        super().__init__()
        self.size = size
        self.inside = 0
        self.attention: nn.MultiheadAttention | None = None
        self.rows = RowOrder(size, self.knows)
        self.uses: list[Use] = []
        self.roots: dict[int, torch.Tensor] = {}
        self._known: dict[int, tuple[torch.Tensor, int]] = {}
        self._parameters = {id(p) for p in parameters}
        for tensor in (*parameters, *constants):
            self.keep(tensor)

    def keep(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is shared."""
        self._known[id(tensor)] = tensor, tensor._version

    def knows(self, tensor: Any) -> bool:
        """Whether a tensor is shared; it is not once records have been written into it."""
        found = self._known.get(id(tensor))
        if found is None:
            return False
        if found[1] == tensor._version:
            return True
        if tensor.requires_grad:
            raise NotBookable("what all records share is changed in place")
        return False

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _READING:
            return func(*args)
        kwargs = kwargs or {}
        if self.inside:
            out = self._attend(args, kwargs) if func is _ATTENTION else None
            return func(*args, **kwargs) if out is None else out
        mine, others = self._sorted(args, kwargs)
        out = self._run(func, args, kwargs, mine, others)
        if others:
            self.rows.note(func, args, kwargs, out, others)
        return out

    def _attend(self, args: Any, kwargs: Any) -> tuple[torch.Tensor, None] | None:
        """Return what attention gives, its projections noted, or None where they cannot be."""
        found = None if self.attention is None else written_out(self.attention, args, kwargs)
        if found is None:
            return None
        self.attention = None
        for each in found:
            self._note_linear(each.weight, each.bias, each.values, each.out)
        return found[1].out.transpose(0, 1), None

    def _run(
        self,
        func: Function,
        args: Any,
        kwargs: Any,
        mine: list[torch.Tensor],
        others: list[torch.Tensor],
    ) -> Any:
        if not mine:
            out = func(*args, **kwargs)
            if func in _MAKING:
                self._keep_all(out)
            return out
        if not others or (func in _ONLY_BY_SHAPE and self.knows(args[0])):
            return self._among(func, args, kwargs, mine)
        if not any(t.requires_grad for t in mine) or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        try:
            return self._met(func, args, kwargs, others)
        except (IndexError, TypeError, ValueError, RuntimeError) as error:  # a model's, or ours
            name = getattr(func, "__name__", str(func))
            raise NotBookable(f"a shared tensor is used by {name}: {error}") from None

    def _sorted(self, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the tensors among the arguments: those that are shared, and the others."""
        mine: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for tensor in self._tensors(args, kwargs):
            (mine if self.knows(tensor) else others).append(tensor)
        return mine, others

    @staticmethod
    def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, _TREES):
                found += records.leaves(value)
        return found

    def _among(self, func: Function, args: Any, kwargs: Any, mine: list[torch.Tensor]) -> Any:
        """Return what comes of shared things alone, which is shared."""
        one = self.one_of(args[0]) if func in _BY_ROWS and self.knows(args[0]) else None
        if one is not None:
            out = func(one, *args[1:], **kwargs).expand(args[0].shape)
        elif func is _Tensor.repeat and len(args) == args[0].dim() + 1 and args[0].shape[0] == 1:
            out = args[0].repeat(1, *args[2:])
            out = out.expand(args[1], *out.shape[1:])
        else:
            out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor | tuple | list):
            self._keep_all(out)
        if func in _IN_PLACE or getattr(func, "__name__", "").endswith("_"):
            self._keep_all(args[0])
        for tensor in mine:
            if id(tensor) in self._parameters and tensor.requires_grad:
                self.roots[id(tensor)] = tensor
        return out

    def one_of(self, shared: torch.Tensor) -> torch.Tensor | None:
        """Return a shared tensor's first row, where all of several are the same, else None."""
        if not shared.dim() or shared.shape[0] < 2:
            return None
        same = shared.stride(0) == 0 or (
            not shared.requires_grad and bool((shared[1:] == shared[:1]).all())
        )
        return self._row(shared) if same else None

    def _row(self, shared: torch.Tensor) -> torch.Tensor:
        row = shared.narrow(0, 0, 1)
        self.keep(row)
        return row

    def spread(self, path: str, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Return a layer's arguments with what is shared and trained made the records' own."""
        mine, others = self._sorted(args, kwargs)
        if not any(t.requires_grad for t in mine):
            return None
        self.inside += 1
        found: tuple[Any, Any] = self._each((args, kwargs), self._spread_already(others))
        self.inside -= 1
        if any(t.requires_grad for t in self._sorted(*found)[0]):
            raise NotBookable(f"{path}: is given what all records share beside them")
        return found

    def _keep_all(self, tree: Any) -> None:
        for tensor in records.leaves(tree):
            self.keep(tensor)

    def _met(self, func: Function, args: Any, kwargs: Any, others: list[torch.Tensor]) -> Any:
        """Return what comes of something shared and records, and note what is to be known."""
        self.rows.refuse("a shared tensor", others)
        if func in _IN_PLACE and self.knows(args[0]):
            raise NotBookable("records are written into what all of them share")
        if func in _BROADCASTING:
            shapes = (t.shape for t in self._tensors(args, kwargs))
            shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
            args, kwargs = self._each((args, kwargs), lambda _: shape)
            return func(*args, **kwargs)
        if func is nn.functional.linear:
            call = ordered(("input", "weight", "bias"), args, kwargs)
            if not self.knows(call["input"]):
                return self._linear(call["input"], call["weight"], call.get("bias"))
        if func in _TIMES and not kwargs and self.knows(args[1]) and args[1].dim() == 2:
            out = func(*args)
            self.uses.append(linear(args[1], out, args[0], self.size, turned=True))
            return out
        if func is nn.functional.embedding and len(args) == 2 and not self.knows(args[0]):
            out = func(*args, **kwargs)
            if not {n for n, v in kwargs.items() if v} - {"padding_idx"}:
                skip = kwargs.get("padding_idx")
                self.uses.append(lookup(args[1], out, args[0], self.size, skip))
                return out
        if func in _JOINING and kwargs.get("dim", (*args, 0)[1]) == 0:
            raise NotBookable("what all records share is joined to them as one more")
        if func is _ATTENDING and kwargs.get("attn_mask") is not None:
            query, key = args[0], args[1]
            shape = (*query.shape[:-1], key.shape[-2])
            kwargs = kwargs | self._each(
                {"attn_mask": kwargs["attn_mask"]}, lambda _: torch.Size(shape)
            )
        args, kwargs = self._each((args, kwargs), self._spread_already(others))
        mine, others = self._sorted(args, kwargs)
        if not any(t.requires_grad for t in mine):
            return func(*args, **kwargs)
        return self._by_vmap(func, args, kwargs, mine)

    def _linear(
        self, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        out = nn.functional.linear(values, weight, bias)
        self._note_linear(weight, bias, values, out)
        return out

    def _note_linear(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        values: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        if self.knows(weight) and weight.requires_grad:
            self.uses.append(linear(weight, out, values, self.size))
        if bias is not None and self.knows(bias) and bias.requires_grad:
            self.uses.append(broadcast(bias, out, self.size, [values]))

    def _each(self, tree: Any, shape_of: Callable[[torch.Tensor], torch.Size | None]) -> Any:
        """Return the arguments with what is shared and trained broadcast to the shape it meets."""

        def one(tensor: torch.Tensor) -> torch.Tensor:
            if not self.knows(tensor) or not tensor.requires_grad:
                return tensor
            shape = shape_of(tensor)
            if shape is None:
                return tensor
            full = tensor.expand(shape)
            self.uses.append(broadcast(tensor, full, self.size))
            return full

        return records.tree_map(one, tree)

    def _spread_already(
        self, others: list[torch.Tensor]
    ) -> Callable[[torch.Tensor], torch.Size | None]:
        """Return the shape of what the model has itself expanded to as many as there are others."""
        firsts = {t.shape[0] for t in others if t.dim()}

        def shape_of(tensor: torch.Tensor) -> torch.Size | None:
            if tensor.dim() and tensor.stride(0) == 0 and firsts == {tensor.shape[0]}:
                return tensor.shape
            return None

        return shape_of

    def _by_vmap(self, func: Function, args: Any, kwargs: Any, mine: list[torch.Tensor]) -> Any:
        name = getattr(func, "__name__", str(func))
        if func in _IN_PLACE or name.endswith("_"):
            raise NotBookable(f"what all records share is written among them by {name}")
        out = func(*args, **kwargs)
        self.uses += apart(func, args, kwargs, out, mine, self.size)
        return out
