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
    # Two columns of one marginal are neighbours.
    for clique in cliques:
        for column, neighbour in itertools.permutations(clique, 2):
            neighbours[column].add(neighbour)
    # In logarithms, as products of many sizes overflow.
    log_sizes = [math.log(size) for size in sizes]

    def log_cells(column: int) -> float:
        """Logarithm of the cells of the clique that removing a column makes."""
        around = sum(log_sizes[neighbour] for neighbour in neighbours[column])
        return log_sizes[column] + around

    costs = {column: log_cells(column) for column in neighbours}
    eliminated: list[frozenset[int]] = []
    while neighbours:
        # Columns are removed one by one, the one of the smallest clique first; equal ones in the
        # order of their numbers, so that the tree depends on nothing else.
        column = min(costs, key=lambda candidate: (costs[candidate], candidate))
        adjacent = neighbours.pop(column)
        del costs[column]
        # What stood beside the column is joined, pair by pair: this triangulates the graph.
        for neighbour in adjacent:
            neighbours[neighbour].discard(column)
            neighbours[neighbour] |= adjacent - {neighbour}
        for neighbour in adjacent:
            costs[neighbour] = log_cells(neighbour)
        eliminated.append(frozenset(adjacent | {column}))
    # A clique can lie only in one whose column was removed earlier.
    maximal = [
        clique
        for position, clique in enumerate(eliminated)
        if not any(clique < larger for larger in eliminated[:position])
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
        # Each column by itself too, so that a column without a marginal has a node.
        columns = [(column,) for column in range(len(self.sizes))]
        self.nodes = _root_tree(triangulate(self.sizes, [*cliques, *columns]))
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
        # Fewest cells: sums over them cost least.
        home = min(holders, key=lambda k: math.prod(self.shape(self.nodes[k].clique)))
        self._homes[clique] = home
        return home

    def calibrate(self, potentials: Mapping[Clique, Floats]) -> list[Floats]:
        """Return the probabilities of each node's cells, from log potentials of marginals."""
        # Belief propagation: messages from the leaves to the root, then from the root down.
        sums = [np.zeros(self.shape(node.clique)) for node in self.nodes]
        for clique, potential in potentials.items():
            home = self.home_of(clique)
            assert home is not None
            sums[home] += self._line_up(potential.reshape(self.shape(clique)), clique, home)
        # Message k goes from node k to its parent.
        upward: list[Floats] = [np.zeros(())] * len(self.nodes)
        # Parents come before their children.
        for k in range(len(self.nodes) - 1, 0, -1):
            node = self.nodes[k]
            upward[k] = _log_sum(sums[k], node.inner_axes)
            sums[node.parent] += self._line_up(upward[k], node.separator, node.parent)
        # From the root down: a belief is complete when its parent's message is in it.
        beliefs: list[Floats] = []
        for k, node in enumerate(self.nodes):
            belief = sums[k]
            if k:
                parent = self.nodes[node.parent].clique
                # The parent's law of the shared columns.
                shared = _sum_out(beliefs[node.parent], parent, node.separator)
                with np.errstate(divide="ignore", invalid="ignore"):
                    # A child's own message is in its parent's belief, and is taken out again.
                    downward = np.log(shared) - upward[k]
                # What no row can be stays impossible.
                downward = np.where(shared > 0, downward, -np.inf)
                belief = belief + self._line_up(downward, node.separator, k)
            # The largest goes to e^0, so that nothing overflows.
            weights = np.exp(belief - belief.max())
            beliefs.append(weights / weights.sum())
        return beliefs

    def _line_up(self, array: Floats, clique: Clique, node: int) -> Floats:
        """Return an array over some columns of a node, shaped so that it adds to the node's."""
        # Axes of length 1 broadcast over the columns that are missing.
        shape = [
            self.sizes[column] if column in clique else 1 for column in self.nodes[node].clique
        ]
        return array.reshape(shape)

    def marginal(self, beliefs: Sequence[Floats], clique: Clique) -> Floats:
        """Return the probabilities of a marginal's cells, in the shape of its columns."""
        # Within one node a marginal is a sum over the other columns.
        home = self.home_of(clique)
        if home is not None:
            return _sum_out(beliefs[home], self.nodes[home].clique, clique)
        return self._join(beliefs, clique)

    def _join(self, beliefs: Sequence[Floats], clique: Clique) -> Floats:
        """Return a marginal whose columns lie in several nodes.

        Given its separator, what lies in a subtree is independent of all else: each subtree sends
        the law of its columns given the separator, and the first node whose subtree has all the
        columns multiplies what it received.
        """
        asked = set(clique)
        # Columns asked for that lie in the subtree of each node.
        subtree: list[set[int]] = [asked & set(node.clique) for node in self.nodes]
        for k in range(len(self.nodes) - 1, 0, -1):
            subtree[self.nodes[k].parent] |= subtree[k]
        messages: dict[int, list[tuple[Floats, Clique]]] = {}
        for k in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[k]
            # What the parent does not have itself.
            inner = subtree[k] - set(node.separator)
            if k and not inner:
                continue
            array = beliefs[k]
            columns = node.clique
            # Each message multiplies the belief by a law given the separator.
            for message, message_columns in messages.get(k, []):
                merged = tuple(sorted(set(columns) | set(message_columns)))
                array = _contract(merged, array, columns, message, message_columns)
                columns = merged
            # The first node that has everything need not send it on.
            if k == 0 or subtree[k] >= asked:
                return _contract(clique, array, columns)
            sent = tuple(sorted(inner | set(node.separator)))
            joint = _contract(sent, array, columns)
            # P(inner | separator) = joint/P(separator); where a cell is impossible, 0.
            separator_law = _contract(node.separator, joint, sent)
            shape = [self.sizes[c] if c in node.separator else 1 for c in sent]
            conditional = np.divide(
                joint, separator_law.reshape(shape), out=np.zeros_like(joint), where=joint > 0
            )
            messages.setdefault(node.parent, []).append((conditional, sent))
        raise AssertionError("the root is reached")

    def draw(
        self, beliefs: Sequence[Floats], rows: int, generator: np.random.Generator
    ) -> npt.NDArray[np.int32]:
        """Return rows whose counts in each node differ from the expected ones by rounding."""
        codes = np.zeros((rows, len(self.sizes)), dtype=np.int32)
        # The root has no separator: all rows are one group there.
        # Parents first: the separator's columns are drawn by then.
        for k, node in enumerate(self.nodes):
            drawn = tuple(column for column in node.clique if column not in node.separator)
            if not drawn:
                continue
            order = (*node.separator, *drawn)
            axes = [node.clique.index(column) for column in order]
            separator_shape = self.shape(node.separator)
            # (cells of the separator, cells of what is drawn): a law for each group.
            table = beliefs[k].transpose(axes).reshape(math.prod(separator_shape), -1)
            group: Integers = np.zeros(rows, dtype=np.int64)
            if node.separator:
                parent_columns = tuple(codes[:, list(node.separator)].T)
                group = np.ravel_multi_index(parent_columns, separator_shape)
            cells = _draw_within(table, group, generator)
            codes[:, list(drawn)] = np.stack(np.unravel_index(cells, self.shape(drawn)), axis=1)
        return codes


def _root_tree(cliques: list[Clique]) -> list[_Node]:
    """Return the cliques as a tree of largest separators, parents before their children."""
    root = cliques[0]
    nodes = [_Node(root, -1, (), ())]
    outside = set(range(1, len(cliques)))
    # Prim's algorithm: the largest separator of all is added next. A spanning tree of largest
    # separators is a junction tree: a column's nodes hang together in it. For each clique outside
    # the tree: how many columns its best node has in common with it, and that node.
    nearest = {k: (len(set(cliques[k]) & set(root)), 0) for k in outside}
    while outside:
        # By columns in common; of equal ones the first, so that the tree is the same in each run.
        position = max(outside, key=lambda k: (nearest[k][0], -k))
        _, parent = nearest[position]
        clique = cliques[position]
        separator = tuple(sorted(set(clique) & set(nodes[parent].clique)))
        inner = tuple(axis for axis, column in enumerate(clique) if column not in separator)
        nodes.append(_Node(clique, parent, separator, inner))
        outside.discard(position)
        # Only the new node can be nearer than what was known.
        for k in outside:
            shared = len(set(cliques[k]) & set(clique))
            if shared > nearest[k][0]:
                nearest[k] = (shared, len(nodes) - 1)
    return nodes


def _contract(result: Clique, *operands: Any) -> Floats:
    """Return the product of arrays, each followed by its columns, summed to those of the result."""
    return np.asarray(np.einsum(*operands, result))


def _sum_out(array: Floats, columns: Clique, result: Clique) -> Floats:
    """Return the sums over the columns that the result lacks; its own are in increasing order."""
    # Axes to be summed over; what stays is in the columns' order.
    axes = tuple(axis for axis, column in enumerate(columns) if column not in result)
    return np.asarray(array.sum(axis=axes))


def _log_sum(array: Floats, axes: tuple[int, ...]) -> Floats:
    """Return log Σ e^x over axes; −∞ where nothing is possible, or e^−700 below the largest."""
    largest = array.max()
    with np.errstate(divide="ignore"):
        # Shifted by the largest, so that no exponential overflows.
        return np.asarray(np.log(np.exp(array - largest).sum(axis=axes)) + largest)


def _draw_within(table: Floats, group: Integers, generator: np.random.Generator) -> Integers:
    """Return a cell for each row, by the law of its group, with as little chance as rounding needs.

    The rows of a group are put in random order and get evenly spaced quantiles, each moved at
    random within its space: a cell's count is its expectation rounded up or down.
    """
    rows = len(group)
    # Rows by group, at random within each; arrays below are in this order.
    order = np.lexsort((generator.random(rows), group))
    sorted_group = group[order]
    counts = np.bincount(group, minlength=len(table))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    # Rank of a row within its group.
    rank = np.arange(rows) - starts[sorted_group]
    # One quantile in each of count equal spaces, at random within it.
    quantile = (rank + generator.random(rows)) / counts[sorted_group]
    totals = table.sum(axis=1, keepdims=True)
    # A group that the model holds impossible has no rows.
    law = np.divide(table, totals, out=np.zeros_like(table), where=totals > 0)
    # Round-off may lift a sum above 1.
    cumulated = np.minimum(np.cumsum(law, axis=1), 1.0)
    width = law.shape[1]
    # The last possible cell of a group takes what rounding left over.
    last_possible = width - 1 - np.argmax(law[:, ::-1] > 0, axis=1)
    # One search for all groups: the distribution of group g lies between g and g + 1 on one line.
    line = (cumulated + np.arange(len(table))[:, None]).ravel()
    positions = np.searchsorted(line, sorted_group + quantile, side="right")
    cells = np.empty(rows, dtype=np.int64)
    # Back to the order of the rows; past the end the last possible cell.
    cells[order] = np.minimum(positions - sorted_group * width, last_possible[sorted_group])
    return cells
