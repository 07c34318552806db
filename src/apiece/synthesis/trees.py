"""Junction trees over columns: marginals of a graphical model, and rows drawn from it.

A model is a potential for each measured marginal; the probability of a row is in proportion to the
exponential of their sum. Columns are numbered from 0. Everything here is a function of what was
released, and reads no row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers
from apiece.synthesis.marginals import Clique

# Bytes of a cell of a model.
_CELL_BYTES: Final = 8


def triangulate(sizes: Sequence[int], cliques: Iterable[Clique]) -> list[Clique]:
    """Return the maximal cliques of a triangulated graph, greedily of few cells."""
    neighbours: dict[int, set[int]] = {column: set() for column in range(len(sizes))}
    for clique in cliques:
        for first, second in itertools.permutations(clique, 2):
            neighbours[first].add(second)
    log_sizes = [math.log(size) for size in sizes]

    def cost(column: int) -> float:
        return log_sizes[column] + sum(log_sizes[other] for other in neighbours[column])

    costs = {column: cost(column) for column in neighbours}
    found: list[frozenset[int]] = []
    while neighbours:
        column = min(costs, key=lambda candidate: (costs[candidate], candidate))
        others = neighbours.pop(column)
        del costs[column]
        for other in others:
            neighbours[other].discard(column)
            neighbours[other] |= others - {other}
        for other in others:
            costs[other] = cost(other)
        found.append(frozenset(others | {column}))
    # A clique that is found later can lie only in an earlier one.
    maximal = [
        clique
        for position, clique in enumerate(found)
        if not any(clique < other for other in found[:position])
    ]
    return sorted(tuple(sorted(clique)) for clique in dict.fromkeys(maximal))


def model_megabytes(sizes: Sequence[int], cliques: Iterable[Clique]) -> float:
    """Return the size of the junction tree of these marginals, in units of 2^20 bytes."""
    cells = sum(
        math.prod(sizes[column] for column in clique) for clique in triangulate(sizes, cliques)
    )
    return cells * _CELL_BYTES / 2**20


@dataclass(frozen=True, slots=True)
class _Node:
    """A clique of a tree: its parent, the columns shared with it, and how arrays are lined up."""

    clique: Clique
    parent: int
    separator: Clique
    # Axes of the clique's array that are not in the separator.
    inner_axes: tuple[int, ...]


class JunctionTree:
    """A rooted tree of cliques that holds every marginal of a model.

    Args:
        sizes: How many cells each column has.
        cliques: Marginals that have to lie in a clique of the tree.
    """

    def __init__(self, sizes: Sequence[int], cliques: Iterable[Clique]) -> None:
        self.sizes = tuple(sizes)
        wanted = [*cliques, *((column,) for column in range(len(self.sizes)))]
        self.nodes = _root_tree(triangulate(self.sizes, wanted))
        self._homes: dict[Clique, int] = {}

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of a marginal's array."""
        return tuple(self.sizes[column] for column in clique)

    def home_of(self, clique: Clique) -> int | None:
        """Return the smallest node that holds a marginal, None where no node does."""
        if clique in self._homes:
            return self._homes[clique]
        columns = set(clique)
        holders = [k for k, node in enumerate(self.nodes) if columns <= set(node.clique)]
        if not holders:
            return None
        home = min(holders, key=lambda k: math.prod(self.shape(self.nodes[k].clique)))
        self._homes[clique] = home
        return home

    def calibrate(self, potentials: Mapping[Clique, Floats]) -> list[Floats]:
        """Return the probabilities of each node's cells, from log potentials of marginals."""
        sums = [np.zeros(self.shape(node.clique)) for node in self.nodes]
        for clique, potential in potentials.items():
            home = self.home_of(clique)
            assert home is not None
            sums[home] += self._line_up(potential.reshape(self.shape(clique)), clique, home)
        upward: list[Floats] = [np.zeros(())] * len(self.nodes)
        # Parents come before their children.
        for k in range(len(self.nodes) - 1, 0, -1):
            node = self.nodes[k]
            upward[k] = _log_sum(sums[k], node.inner_axes)
            sums[node.parent] += self._line_up(upward[k], node.separator, node.parent)
        beliefs: list[Floats] = []
        for k, node in enumerate(self.nodes):
            belief = sums[k]
            if k:
                parent = self.nodes[node.parent].clique
                shared = _sum_out(beliefs[node.parent], parent, node.separator)
                with np.errstate(divide="ignore", invalid="ignore"):
                    downward = np.log(shared) - upward[k]
                # What no row can be stays impossible.
                downward = np.where(shared > 0, downward, -np.inf)
                belief = belief + self._line_up(downward, node.separator, k)
            weights = np.exp(belief - belief.max())
            beliefs.append(weights / weights.sum())
        return beliefs

    def _line_up(self, array: Floats, clique: Clique, node: int) -> Floats:
        """Return an array over some columns of a node, shaped so that it adds to the node's."""
        shape = [
            self.sizes[column] if column in clique else 1 for column in self.nodes[node].clique
        ]
        return array.reshape(shape)

    def marginal(self, beliefs: Sequence[Floats], clique: Clique) -> Floats:
        """Return the probabilities of a marginal's cells, in the shape of its columns."""
        home = self.home_of(clique)
        if home is not None:
            return _sum_out(beliefs[home], self.nodes[home].clique, clique)
        return self._join(beliefs, clique)

    def _join(self, beliefs: Sequence[Floats], clique: Clique) -> Floats:
        """Return a marginal whose columns lie in several nodes."""
        wanted = set(clique)
        # Columns that the nodes below each node, itself included, still have to bring.
        below: list[set[int]] = [wanted & set(node.clique) for node in self.nodes]
        for k in range(len(self.nodes) - 1, 0, -1):
            below[self.nodes[k].parent] |= below[k]
        messages: dict[int, list[tuple[Floats, Clique]]] = {}
        for k in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[k]
            incoming = messages.get(k, [])
            brings = below[k] - set(node.separator)
            if k and not brings:
                continue
            array = beliefs[k]
            columns = node.clique
            for message, message_columns in incoming:
                merged = tuple(sorted(set(columns) | set(message_columns)))
                array = _contract(merged, array, columns, message, message_columns)
                columns = merged
            if k == 0 or below[k] >= wanted:
                return _contract(clique, array, columns)
            kept = tuple(sorted(brings | set(node.separator)))
            array = _contract(kept, array, columns)
            shared = _contract(node.separator, array, kept)
            shape = [self.sizes[c] if c in node.separator else 1 for c in kept]
            array = np.divide(
                array, shared.reshape(shape), out=np.zeros_like(array), where=array > 0
            )
            messages.setdefault(node.parent, []).append((array, kept))
        raise AssertionError("the root is reached")

    def draw(
        self, beliefs: Sequence[Floats], rows: int, generator: np.random.Generator
    ) -> npt.NDArray[np.int32]:
        """Return rows whose counts in each node differ from the expected ones by rounding."""
        codes = np.zeros((rows, len(self.sizes)), dtype=np.int32)
        for k, node in enumerate(self.nodes):
            new = tuple(column for column in node.clique if k == 0 or column not in node.separator)
            if not new:
                continue
            order = (*node.separator, *new) if k else new
            axes = [node.clique.index(column) for column in order]
            parents = math.prod(self.shape(node.separator)) if k else 1
            table = beliefs[k].transpose(axes).reshape(parents, -1)
            group: Integers = np.zeros(rows, dtype=np.int64)
            if k and node.separator:
                columns = tuple(codes[:, list(node.separator)].T)
                group = np.ravel_multi_index(columns, self.shape(node.separator))
            cells = _draw_within(table, group, generator)
            codes[:, list(new)] = np.stack(np.unravel_index(cells, self.shape(new)), axis=1)
        return codes


def _root_tree(cliques: list[Clique]) -> list[_Node]:
    """Return the cliques as a tree of largest separators, parents before their children."""
    start = 0
    joined = [start]
    remaining = set(range(len(cliques))) - {start}
    nodes = [_Node(cliques[start], -1, (), ())]
    # Prim's algorithm: the largest separator of all is added next.
    best = {k: (len(set(cliques[k]) & set(cliques[start])), 0) for k in remaining}
    while remaining:
        nearest = max(remaining, key=lambda k: (best[k][0], -k))
        _, parent = best[nearest]
        clique = cliques[nearest]
        separator = tuple(sorted(set(clique) & set(nodes[parent].clique)))
        inner = tuple(axis for axis, column in enumerate(clique) if column not in separator)
        nodes.append(_Node(clique, parent, separator, inner))
        joined.append(nearest)
        remaining.discard(nearest)
        for k in remaining:
            shared = len(set(cliques[k]) & set(clique))
            if shared > best[k][0]:
                best[k] = (shared, len(nodes) - 1)
    return nodes


def _contract(kept: Clique, *operands: Any) -> Floats:
    """Return the products of arrays over columns, each followed by its own, summed over others."""
    return np.asarray(np.einsum(*operands, kept))


def _sum_out(array: Floats, columns: Clique, kept: Clique) -> Floats:
    """Return the sums over the columns that are not kept; `kept` is in increasing order."""
    axes = tuple(axis for axis, column in enumerate(columns) if column not in kept)
    return np.asarray(array.sum(axis=axes))


def _log_sum(array: Floats, axes: tuple[int, ...]) -> Floats:
    """Return log Σ e^x over axes; −∞ where nothing is possible, or e^−700 below the largest."""
    largest = array.max()
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(array - largest).sum(axis=axes)) + largest)


def _draw_within(table: Floats, group: Integers, generator: np.random.Generator) -> Integers:
    """Return a cell for each row, by the law of its group, with as little chance as rounding needs.

    The rows of a group are put in random order and get evenly spaced quantiles, each moved at
    random within its space: a cell's count is its expectation rounded up or down.
    """
    rows = len(group)
    order = np.lexsort((generator.random(rows), group))
    counts = np.bincount(group, minlength=len(table))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(rows) - starts[group[order]]
    quantile = (rank + generator.random(rows)) / counts[group[order]]
    totals = table.sum(axis=1, keepdims=True)
    # A group that the model holds impossible has no rows.
    law = np.divide(table, totals, out=np.zeros_like(table), where=totals > 0)
    cumulated = np.minimum(np.cumsum(law, axis=1), 1.0)
    # The last possible cell of a group takes what rounding left over.
    last = law.shape[1] - 1 - np.argmax(law[:, ::-1] > 0, axis=1)
    cells = np.empty(rows, dtype=np.int64)
    line = (cumulated + np.arange(len(table))[:, None]).ravel()
    found = np.searchsorted(line, group[order] + quantile, side="right")
    cells[order] = np.minimum(found - group[order] * law.shape[1], last[group[order]])
    return cells
