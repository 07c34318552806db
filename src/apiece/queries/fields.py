"""The names of an answer's parts."""

from typing import Final

# Names that no grouping column may have.
FIELDS: Final = {
    "estimate", "interval", "edges", "bins", "coefficients", "quantiles", "resolution",
    "rank_margin", "statistics",
}  # fmt: skip
