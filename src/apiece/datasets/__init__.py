"""Packaged tables, public schemas, and readers of the files that people have."""

from apiece.datasets.blocks import read_batches
from apiece.datasets.cells import as_numbers, column, positions, require, texts
from apiece.datasets.cifar import cifar_folder, cifar_parquet
from apiece.datasets.dates import Date
from apiece.datasets.dialect import PLAIN, Dialect
from apiece.datasets.encode import (
    Encoded,
    encode,
    encode_labels,
    encode_numbers,
    feature_names,
    scale,
    unscale,
)
from apiece.datasets.idx import idx_folder, read_idx
from apiece.datasets.images import Images
from apiece.datasets.lines import UNREADABLE, UnclearLineError, cell_text, header_cells
from apiece.datasets.lint import lint
from apiece.datasets.packaged import PACKAGED, load, matching, packaged_schema, schema_text
from apiece.datasets.schema import Categorical, Column, Feature, Numeric, Schema, Skip, read_schema
from apiece.datasets.svhn import svhn_mat
from apiece.datasets.tables import is_parquet, read_header, read_table
from apiece.datasets.template import template

__all__ = [
    "PACKAGED",
    "PLAIN",
    "UNREADABLE",
    "Categorical",
    "Column",
    "Date",
    "Dialect",
    "Encoded",
    "Feature",
    "Images",
    "Numeric",
    "Schema",
    "Skip",
    "UnclearLineError",
    "as_numbers",
    "cell_text",
    "cifar_folder",
    "cifar_parquet",
    "column",
    "encode",
    "encode_labels",
    "encode_numbers",
    "feature_names",
    "header_cells",
    "idx_folder",
    "is_parquet",
    "lint",
    "load",
    "matching",
    "packaged_schema",
    "positions",
    "read_batches",
    "read_header",
    "read_idx",
    "read_schema",
    "read_table",
    "require",
    "scale",
    "schema_text",
    "svhn_mat",
    "template",
    "texts",
    "unscale",
]
