"""What `synthesize` returns: a model of noisy marginals, its rows, its charges and its bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import ndtri

from apiece import _check
from apiece._files import Kind, write
from apiece._types import Json
from apiece.datasets.schema import Schema
from apiece.errors import DataError, InputError, unknown
from apiece.synthesis.charges import Charges, Count
from apiece.synthesis.domain import Domain
from apiece.synthesis.fitting import Model
from apiece.synthesis.marginals import Clique, Measurement
from apiece.synthesis.page import EDITIONS, make_report
from apiece.synthesis.raking import Margins
from apiece.synthesis.selection import MEAN_DEVIATION
from apiece.synthesis.statement import hash_values, make_statement

if TYPE_CHECKING:
    import pandas as pd

    from apiece.reporting import Report

# Version of the file's content; another one is refused.
FORMAT: Final = "apiece synthesis 1"
# A file with this mark is one that `save` may replace; any other is not written over.
MODEL_FILE: Final = Kind("a synthesis", (".json",), b'{"format": "apiece synthesis')
# Counts that are told from none: at least so many standard deviations of their noise.
_TOLD_APART: Final = 2.0


@dataclass(frozen=True, eq=False, repr=False)
class Synthetic:
    """A synthetic table: a model of noisy marginals, from which any number of rows is drawn.

    All that it holds was released under everybody's own budget, but for `check`, which is the
    steward's: it is in no file, no frame and no public page.

    Attributes:
        domain: The cells of the columns.
        model: The fitted model.
        measurements: The noisy marginals that it was fitted to.
        charges: What each distinct budget spent.
        public: The settings and numbers that were public before any row was read.
        margins: Everybody's column marginals, where the model was raked to them.
        check: For the steward alone: real errors and how far levels of consent differ; None of a
            synthesis that was read from a file.

    Guarantee:
        Each person's own (ε, δ)-DP under adding or removing all their rows, whatever is done with
        the rows drawn: they are a function of what was released.

    References:
        McKenna, Mullins, Sheldon, Miklau 2022; docs/synthesis.md.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> from apiece import Budgets, Synthetic, synthesize
        >>> from apiece.datasets import Numeric, Schema
        >>> people = pd.DataFrame({"age": np.arange(1800) % 90})
        >>> budgets = Budgets([1.0, 2.0] * 900, 1e-6)
        >>> made = synthesize(people, Schema({"age": Numeric(0, 89)}), budgets, bins=9, seed=0)
        >>> bool(35 < made.frame(1000, seed=0)["age"].mean() < 55), isinstance(made, Synthetic)
        (True, True)
    """

    domain: Domain
    model: Model
    measurements: Sequence[Measurement]
    charges: Charges
    public: Json
    margins: Margins | None = None
    check: Json | None = field(default=None)

    @property
    def rows(self) -> int:
        """How many rows the real table has, estimated from the measurements."""
        if self.margins is not None:
            # Everybody's columns, added up over the levels.
            return round(float(self.margins.sizes.sum()))
        return max(1, round(self.model.total * self._rows_per_weight))

    @property
    def _rows_per_weight(self) -> float:
        """Rows for a unit of weight, by the budgets that were public."""
        # A person brings at most rows_per_person rows of weight w/rows_per_person each.
        return float(self.public["rows_per_person"]) / float(self.public["mean_weight"])

    def frame(self, n: int | None = None, *, seed: int | None = None) -> pd.DataFrame:
        """Return synthetic rows as a pandas table.

        Args:
            n: How many; by default as many as the real table has, by estimate.
            seed: Draws the same rows again; None draws new ones. It costs nobody anything.

        Raises:
            InputError: For n or a seed below its bound.
        """
        rows = self.rows if n is None else _check.count("n", n)
        if seed is not None:
            _check.count("seed", seed, least=0)
        generator = np.random.default_rng(seed)
        codes = self.model.draw(rows, generator)
        return self.domain.decode(codes, generator)

    def count(self, where: Mapping[str, object], *, confidence: float = 0.95) -> Count:
        """Return how many real rows are in given cells, with an interval.

        The interval is for the noise, and for who happened to ask for how much: as if everybody's
        budget had nothing to do with their rows. Where it has, the count is off by more.

        Args:
            where: Column → label of a cell, as `domain.columns` has it.
            confidence: Of the interval, in (0, 1).

        Raises:
            InputError: For a column or a label that there is not, and a confidence out of bounds.
        """
        level = _check.probability("confidence", confidence, low_open=True, high_open=True)
        cell = self._find_cell(where)
        clique = tuple(sorted(cell))
        estimates = []
        variances = []
        for m in self.measurements:
            # A measurement tells of the cell if it has all of its columns.
            if not set(clique) <= set(m.clique):
                continue
            array = m.values.reshape([self.domain.sizes[column] for column in m.clique])
            # A column that is not named keeps its whole axis, over which it is summed.
            part = array[tuple(cell.get(column, slice(None)) for column in m.clique)]
            estimates.append(float(np.sum(part)) * self._rows_per_weight)
            deviation = m.noise_stddev * self._rows_per_weight
            # Independent noise in each cell that is added up.
            variances.append(deviation**2 * np.size(part))
        if not estimates:
            # Measured nowhere together: the model's guess, without an interval.
            shape = [self.domain.sizes[column] for column in clique]
            law = self.model.probabilities(clique).reshape(shape)
            share = float(law[tuple(cell[column] for column in clique)])
            return Count(share * self.rows, None, level, 0)
        # Weighted by precision, the mean has the least variance; it is 1/Σ precision.
        precision = 1 / np.array(variances)
        estimate = float(np.average(estimates, weights=precision))
        variance = 1 / float(precision.sum()) + self._vary_by_consent(estimate)
        # Two-sided: (1 − level)/2 in either tail.
        width = float(-ndtri((1 - level) / 2) * math.sqrt(variance))
        return Count(estimate, (estimate - width, estimate + width), level, len(estimates))

    def _vary_by_consent(self, estimate: float) -> float:
        """Return the variance of a count of so many rows by who has which weight, at random."""
        # An estimate may be negative, or above all rows, by noise.
        count = min(max(estimate, 0.0), float(self.rows))
        # Weights are dealt out without replacement; all rows of a person have one.
        remaining = 1 - count / self.rows
        of_persons = float(self.public["rows_per_person"])
        return count * remaining * of_persons * float(self.public["weight_variation"])

    def _find_cell(self, where: Mapping[str, object]) -> dict[int, int]:
        """Return column → cell of labels."""
        if not where:
            raise InputError("where: names no column; give column → label, as {'sex': 'F'}")
        cell = {}
        for name, label in where.items():
            if name not in self.domain.names:
                raise InputError(str(unknown("column", name, self.domain.names)))
            column = self.domain.names.index(name)
            labels = self.domain.columns[column].labels
            if str(label) not in labels:
                raise InputError(str(unknown(f"cell of {name!r}", str(label), labels)))
            cell[column] = labels.index(str(label))
        return cell

    def promise(self) -> list[Json]:
        """Return each column's expected error by noise alone, promised before a row was read.

        Total variation between the released marginal of the column and the weighted people's, from
        the noise of its first measurement and the number of people who were planned with.
        """
        return promise_errors(
            self.domain.names,
            self.domain.sizes,
            float(self.public["first_noise_stddev"]),
            float(self.public["planned_weight"]),
        )

    def describe_pairs(self, most: int = 10) -> list[Json]:
        """Return the pairs of columns whose measurements have the most noise, worst first.

        Args:
            most: How many.

        Returns:
            For each the expected total variation by noise alone; None for pairs that were not
            measured together, of which the model guesses: these come first.
        """
        best: dict[Clique, float] = {}
        for m in self.measurements:
            # Expected total variation by noise: half of Σ|noise| over the total.
            error = MEAN_DEVIATION * m.noise_stddev * m.values.size / (2 * self.model.total)
            for pair in _pairs_of(m.clique):
                best[pair] = min(best.get(pair, math.inf), error)
        names = self.domain.names
        described: list[Json] = []
        for first in range(len(names)):
            for second in range(first + 1, len(names)):
                error = best.get((first, second), math.inf)
                # Total variation is at most 1, whatever the noise.
                known = min(error, 1.0) if math.isfinite(error) else None
                described.append({"columns": [names[first], names[second]], "by_noise": known})
        described.sort(key=_rank_noise)
        return described[:most]

    @property
    def smallest_count(self) -> float:
        """The number of rows that a cell of a column needs to be told from none, by the noise."""
        # By the most exact measurement.
        noise = min(m.noise_stddev for m in self.measurements)
        return _TOLD_APART * noise * self._rows_per_weight

    def warnings(self) -> list[str]:
        """Return what whoever uses the rows has to know, in sentences."""
        sentences = [
            "Synthetic rows are no sample: p-values, standard errors and confidence intervals "
            "computed from them as if they were are wrong. Take counts with their intervals from "
            "Synthetic.count.",
            f"A cell of fewer than about {math.ceil(self.smallest_count):,} real rows cannot be "
            "told from an empty one, and small groups may be missing or made up.",
            "Only columns that were measured together keep their relation; others are as "
            "independent as the model holds them. A classifier trained on synthetic rows is at "
            "best as good as on real ones: test it on real rows before it is used.",
        ]
        # With one budget for all everybody weighs alike, and there is nothing to say.
        if self.margins is None and len(set(self.charges.weight.tolist())) > 1:
            sentences.append(
                "People count by their budgets: where who gave a large budget differs from who "
                "gave a small one, these rows are like the former. rake= repairs the columns for "
                "a share of every budget."
            )
        if self.margins is not None:
            sentences.append(
                "Columns are everybody's as far as noise lets it be seen; how they hang together "
                "is that of the people weighted by their budgets."
            )
        return sentences

    def statement(self, table: str | Path | None = None) -> Json:
        """Return what is promised, bound to the file of a synthetic table by its hash.

        Args:
            table: The file.

        Raises:
            DataError: Where the file cannot be read.
        """
        # The hash covers model, charges and settings, so that a statement speaks of one synthesis.
        released = hash_values(self.to_dict())
        return make_statement(self.public, self.charges, released, self.warnings(), table)

    def report(self, edition: str = "internal") -> Report:
        """Return a page: for the steward, or for everybody.

        Args:
            edition: "internal", with real errors beside those by noise, or "public".

        Raises:
            InputError: For another edition, and an internal one of a synthesis from a file, which
                has no real rows to compare with.
        """
        if edition not in EDITIONS:
            raise unknown("edition", edition, EDITIONS)
        if edition == "internal" and self.check is None:
            raise InputError(
                "edition = 'internal': this synthesis was read from a file, which has no real rows "
                "to compare with; give edition = 'public'"
            )
        check = self.check if edition == "internal" else None
        return make_report(
            edition=edition,
            charges=self.charges,
            columns=self.promise(),
            pairs=self.describe_pairs(len(self.domain.names) ** 2),
            check=check,
            rules=self.domain.rules,
            warnings=self.warnings(),
            measurements=len(self.measurements),
            rows=self.rows,
        )

    def to_dict(self) -> Json:
        """Return all that was released as JSON values."""
        margins = None
        if self.margins is not None:
            margins = {
                "noise_stddev": self.margins.noise_stddev.tolist(),
                "by_level": {str(c): a.tolist() for c, a in self.margins.by_level.items()},
            }
        return {
            "format": FORMAT,
            "public": self.public,
            "charges": self.charges.to_dict(),
            "total": self.model.total,
            "measurements": [
                {
                    "clique": list(m.clique),
                    "noise_stddev": m.noise_stddev,
                    "values": m.values.tolist(),
                }
                for m in self.measurements
            ],
            "potentials": [
                {"clique": list(clique), "values": np.asarray(potential).tolist()}
                for clique, potential in self.model.potentials.items()
            ],
            "margins": margins,
        }

    def save(self, path: str | Path) -> Path:
        """Write all that was released to a JSON file; what is the steward's alone is not in it.

        Args:
            path: Of the file, which ends in .json.

        Returns:
            The path.

        Raises:
            DataError: Where it cannot be written.
        """
        write(path, json.dumps(self.to_dict()), MODEL_FILE)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Synthetic:
        """Return the synthesis in a file.

        Args:
            path: As `save` wrote it.

        Raises:
            DataError: For any other file, and for charges above their budgets.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: is no synthesis ({type(error).__name__})") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DataError(f"{path}: is not in the format {FORMAT!r}; give what save has written")
        public = data["public"]
        schema = Schema.from_dict(public["schema"], Path(path).name)
        bins = public["bins"]
        domain = Domain.from_schema(
            schema, bins=bins, rules=public["rules"], but=public["left_out"]
        )
        # A schema read by another version might divide a range elsewhere.
        if list(domain.sizes) != public["sizes"]:
            raise DataError(f"{path}: its columns have other cells than its schema declares")
        measurements = [
            Measurement(tuple(m["clique"]), np.array(m["values"], float), float(m["noise_stddev"]))
            for m in data["measurements"]
        ]
        potentials = {
            tuple(entry["clique"]): np.array(entry["values"], float) for entry in data["potentials"]
        }
        model = Model(domain.sizes, potentials, float(data["total"]), domain.zeros)
        margins = None
        if data["margins"] is not None:
            by_level = {
                int(column): np.array(array)
                for column, array in data["margins"]["by_level"].items()
            }
            margins = Margins(np.array(data["margins"]["noise_stddev"]), by_level)
        charges = Charges.from_dict(data["charges"])
        return cls(domain, model, measurements, charges, public, margins)


def promise_errors(
    names: Sequence[str], sizes: Sequence[int], noise_stddev: float, weight: float
) -> list[Json]:
    """Return the expected total variation of each column by its first measurement's noise."""
    return [
        {
            "column": name,
            "cells": size,
            "by_noise": min(MEAN_DEVIATION * noise_stddev * size / (2 * weight), 1.0),
        }
        for name, size in zip(names, sizes, strict=True)
    ]


def _rank_noise(entry: Json) -> float:
    """Return a key that sorts pairs of more noise first, those not measured together before all."""
    by_noise: float | None = entry["by_noise"]
    return -2.0 if by_noise is None else -by_noise


def _pairs_of(clique: Clique) -> list[Clique]:
    return [(first, second) for k, first in enumerate(clique) for second in clique[k + 1 :]]
