"""Norms and sums of products by tensor cores, from operands in bf16 as they are.

A product of two numbers in bf16 is exact in single precision. Tensor cores add up such products
with truncation: a sum of K terms is off by at most γ_K·Σ|a||b|, γ_K = K·2⁻²², in each entry, and so
by at most γ_K·Σ_t‖a_t‖‖b_t‖ in norm. Of a norm that is a number of that record alone, by which it
is raised. The weighted sum takes factors that are not in bf16: the narrower operand, times its
factor, is split into three parts in bf16, which leave 2⁻²⁴ of it. Its terms are added up in eighths
in the cores and then in single precision: γ_{K/8} + 26·2⁻²⁴ is less than the bound K·2⁻²⁴ of a sum
in single precision, K > 52. (One part, with room for it under every bound, would take 2⁻⁹.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from apiece.training.clipping.contributions import (
    Contribution,
    Products,
    Squares,
    row_squares,
    term_sizes,
)
from apiece.training.clipping.torch_internals import version

# What a tensor core may lose of each term that it adds, of the sum of their sizes.
_TRUNCATION = 2.0**-22
# Two products of the same tensors differ by so much, as in single precision.
_FEW_UNITS = 2.0**-21
# Parts in bf16 (8 bits each) of a number in single precision (24 bits).
_PARTS = 3
# Sums in the cores that are added up in single precision.
_EIGHTHS = 8


def on_tensor_cores(*tensors: torch.Tensor) -> bool:
    """Return whether products of these are made by cores that add up in single precision."""
    is_narrow = all(t.is_cuda and t.dtype == torch.bfloat16 for t in tensors)
    return is_narrow and version() >= (2, 8)  # `out_dtype`


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NarrowProducts(Contribution):
    """Gradients left_i ᵀ right_i summed over positions, in bf16; (B, T, O) and (B, T, I)."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, O, I)."""
        return self.widened().shape

    def widened(self) -> Products:
        """Return the same in single precision."""
        return Products(self.left.float(), self.right.float())

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return squared norms, raised by what the cores may lose; Gram matrices stay wide."""
        wide = self.widened()
        if wide.ghost_is_cheaper:
            return wide.squares(of_rows)
        # K terms of a sum lose 2⁻²² of their sizes each; the few units are those between this
        # product and the sum's.
        lost = _TRUNCATION * self.left.shape[1] + _FEW_UNITS
        room = term_sizes(wide.left, wide.right).mul_(lost)
        gradients = multiply(self.left.mT, self.right)
        return row_squares(gradients).sqrt_().add_(room).square_()

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_i weights[i]·gradient_i, by three products for each eighth of the records."""
        # Rounded up, so that there are at most eight parts.
        width = -(-len(weights) // _EIGHTHS)
        total = weights.new_zeros(self.left.shape[2], self.right.shape[2])
        for start in range(0, len(weights), width):
            records = slice(start, start + width)
            left = self.left[records].flatten(0, 1)
            right = self.right[records].flatten(0, 1)
            # One factor for each position of a record, (b·T, 1).
            factors = weights[records].repeat_interleave(self.left.shape[1]).unsqueeze(1)
            if left.shape[1] <= right.shape[1]:
                for part in split(left.float() * factors):
                    total += multiply(part.mT, right)
            else:
                for part in split(right.float() * factors):
                    total += multiply(left.mT, part)
        return total

    def per_record(self) -> torch.Tensor:
        """Return the products in single precision."""
        return self.widened().per_record()


def split(values: torch.Tensor) -> list[torch.Tensor]:
    """Return numbers in bf16 that add up to these in single precision, the largest first."""
    parts: list[torch.Tensor] = []
    for _ in range(_PARTS):
        part = values.bfloat16()
        parts.append(part)
        values = values - part.float()  # exact: what is left has fewer bits
    return parts


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return a product, or a batch of them, of tensors in bf16, in single precision."""
    if not on_tensor_cores(left, right):
        return left.float() @ right.float()
    product = torch.mm if left.dim() == 2 else torch.bmm
    result: torch.Tensor = product(left, right, out_dtype=torch.float32)
    return result
