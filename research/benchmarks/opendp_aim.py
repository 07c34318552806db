"""AIM of OpenDP on a table of cells, in an interpreter of its own; see synthetic_tables.py.

    pip install "opendp[mbi,polars]==0.16.0"
    python opendp_aim.py CELLS.npz ROWS.npy EPSILON DELTA RHO

CELLS.npz holds `codes`, (rows, columns), and `sizes`. With RHO 0 it is what OpenDP converts to
(EPSILON, DELTA). OpenDP adds a cell for values that are not declared to each column: the last cell
of each is left undeclared, so that both models have the same cells. Seconds, ρ and the number of
measurements are printed as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

# The model's size at most, in units of 2^20 bytes, as in research/experiments/synthesis.py.
MEGABYTES = 2.0


def find_rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ that OpenDP holds for (ε, δ)."""
    import opendp.prelude as dp

    domain = dp.atom_domain(T=float, nan=False)
    low, high = 0.0, 10.0
    for _ in range(60):
        rho = (low + high) / 2
        scale = (1 / (2 * rho)) ** 0.5
        gaussian = dp.m.make_gaussian(domain, dp.absolute_distance(T=float), scale=scale)
        converted = dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta)
        low, high = (rho, high) if converted <= epsilon else (low, rho)
    return low


def main() -> None:
    warnings.filterwarnings("ignore")
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    cells, rows, epsilon, delta, rho = sys.argv[1:]
    table = np.load(cells)
    codes, sizes = table["codes"].astype(np.int64), table["sizes"].tolist()
    budget = float(rho) or find_rho(float(epsilon), float(delta))
    names = [f"c{k}" for k in range(len(sizes))]
    frame = pl.DataFrame({name: codes[:, k] for k, name in enumerate(names)}).lazy()
    begun = time.perf_counter()
    context = dp.Context.compositor(
        data=frame,
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(rho=budget),
    )
    released = (
        context.query(rho=budget)
        .select(*names)
        .contingency_table(
            keys={
                name: list(range(max(size - 1, 1))) for name, size in zip(names, sizes, strict=True)
            },
            algorithm=dp.mbi.AIM(queries=2, max_size=MEGABYTES),
        )
        .release()
    )
    made = released.synthesize(rows=len(codes))
    seconds = time.perf_counter() - begun
    columns = [
        made[name].fill_null(size - 1).to_numpy() for name, size in zip(names, sizes, strict=True)
    ]
    np.save(rows, np.stack(columns, axis=1).astype(np.int32))
    print(json.dumps({"seconds": seconds, "rho": budget}))


if __name__ == "__main__":
    main()
