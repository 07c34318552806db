"""Norms and products: right to the last places, whatever the record makes of them."""

import pytest
import torch

from apiece.training.clipping import kernels
from apiece.training.clipping.clipped import slack

ROWS = {
    "constant": lambda n: torch.full((n,), 1.1),
    "one large first": lambda n: torch.cat([torch.full((1,), 1e3), torch.full((n - 1,), 3e-2)]),
    "ramp": lambda n: torch.linspace(1e-3, 1, n),
    "normal": torch.randn,
}


def error(norms, rows):
    return float((norms.double() / rows.double().norm(dim=1) - 1).abs().max())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("width", [1, 128, 257, 36864, 200_003])
def test_norms_are_right_well_within_the_slack(name, width):
    torch.manual_seed(0)
    rows = torch.stack([ROWS[name](width)] * 2)
    assert error(kernels.row_squares(rows).sqrt(), rows) < slack(torch.float32) / 8


def test_the_plain_norm_would_not_do():
    """Negative control: on one of these rows vector_norm loses more than the slack."""
    off = [
        error(torch.linalg.vector_norm(rows, dim=1), rows)
        for rows in (make(n).repeat(2, 1) for make in ROWS.values() for n in (36864, 1_000_000))
    ]
    assert max(off) > slack(torch.float32)


@pytest.mark.parametrize("shape", [(300, 100, 90), (300, 90, 100), (3, 2, 2)])
def test_products(shape):
    n, o, i = shape
    left, right = torch.randn(n, o), torch.randn(n, i)
    wanted = left.double().t() @ right.double()
    torch.testing.assert_close(kernels.product(left, right).double(), wanted, rtol=1e-4, atol=1e-4)
    assert kernels.product(left.double(), right.double()).dtype == torch.float64
