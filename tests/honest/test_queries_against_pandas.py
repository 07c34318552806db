"""Private queries at a negligible noise are pandas' answers, on tables as programs write them.

A run's seeds are fixed; APIECE_SURVEYS=N takes N tables that nobody has seen, and prints their
first seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_surveys import CONTAINERS, random_question, random_survey

from apiece.queries import quantiles, question, scan, session
from apiece.queries.grammar import Combined, Compare, Condition, Missing, Negated
from apiece.queries.question import Bins, Question
from apiece.queries.scan import ClampedColumn, Scan

# Of each table.
QUESTIONS = 8
Patch = pytest.MonkeyPatch


def differences(seeds: range, folder: Path) -> list[str]:
    """Return the questions to the tables of these seeds whose answers are not pandas'."""
    return [line for seed in seeds for line in random_survey(seed).differences(folder, QUESTIONS)]


def test_answers_are_those_of_pandas(tmp_path: Path) -> None:
    """30 tables × 8 questions."""
    assert differences(range(30), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_answers_are_those_of_pandas_more_often(block: int, tmp_path: Path) -> None:
    """In all 500 tables × 8 questions."""
    first = 1000 + 50 * block
    assert differences(range(first, first + 50), tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif("APIECE_SURVEYS" not in os.environ, reason="APIECE_SURVEYS says how many")
def test_answers_are_those_of_pandas_on_tables_never_seen(tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(10**6, 10**9)
    print(f"first seed: {first}")
    assert differences(range(first, first + int(os.environ["APIECE_SURVEYS"])), tmp_path) == []


def test_the_tables_and_questions_are_all_kinds() -> None:
    """Containers, storages, aggregates, groups, conditions; gaps, edges, repeats, the unseen."""
    containers, dtypes, asked, oddities = Counter(), Counter(), Counter(), Counter()
    for seed in range(200):
        survey = random_survey(seed)
        rng = random.Random(seed + 1)
        containers[survey.container] += 1
        dtypes.update(str(column.stored.dtype) for column in survey.columns)
        for column in survey.columns:
            present = [each for each in column.meant if each is not None]
            oddities["gap"] += len(present) < len(column.meant)
            oddities["repeat"] += len(set(present)) < len(present)
            if column.bounds is not None:
                oddities["bound"] += bool(set(column.bounds) & set(present))
                oddities["outlier"] += any(each > column.bounds[1] for each in present)
            if column.groups is not None:
                declared = set(map(str, column.groups))
                oddities["undeclared"] += bool(set(present) - declared)
                oddities["never seen"] += bool(declared - set(present))
        for _ in range(QUESTIONS):
            drawn = random_question(rng, survey)
            asked.update([drawn.aggregate, f"{len(drawn.by)} by"])
            asked["where"] += drawn.where is not None
            asked["pure"] += drawn.delta == 0
    assert set(containers) == set(CONTAINERS)
    wanted = {"float64", "float32", "Float64", "int64", "Int64", "int8", "bool", "boolean"}
    wanted |= {"object", "category", "double[pyarrow]", "datetime64[ns]", "datetime64[ms]"}
    assert wanted <= set(dtypes)
    assert len(asked) >= 16
    assert min(asked.values()) >= 50
    assert min(oddities.values()) >= 50


# Planted breaks: what a scan, a condition or an estimate could get wrong. Pandas finds each.


def _replaced(patch: Patch, old: str, new: str) -> None:
    """Write one piece of the scan's SQL as another."""
    real = scan.contributions_sql

    def planted(*args: Any, **named: Any) -> str:
        sql = real(*args, **named)
        return sql.replace(old, new)

    patch.setattr(scan, "contributions_sql", planted)


def _conditions(patch: Patch, change: Callable[[Condition], Condition]) -> None:
    """Change every part of a condition."""
    real = question.bind_literals

    def planted(condition: Condition, schema: Any) -> Condition:
        return change(real(condition, schema))

    patch.setattr(question, "bind_literals", planted)


def _sign(old: str, new: str) -> Callable[[Patch], None]:
    def change(condition: Condition) -> Condition:
        if isinstance(condition, Compare) and condition.sign == old:
            return replace(condition, sign=new)
        return condition

    return lambda patch: _conditions(patch, change)


def _edges_closed_on_the_right(patch: Patch) -> None:
    real = ClampedColumn.bin_sql

    def planted(column: ClampedColumn, bins: Bins, dialect: Any) -> str:
        return real(column, bins, dialect).replace(" < ", " <= ").replace(" >= ", " > ")

    patch.setattr(ClampedColumn, "bin_sql", planted)


def _bins_by_division(patch: Patch) -> None:
    def planted(column: ClampedColumn, bins: Bins, _dialect: Any) -> str:
        places = f"floor((({column.scaled_sql} + 1) / 2) * {len(bins)})"
        return f"least(CAST({places} AS BIGINT), {len(bins) - 1})"

    patch.setattr(ClampedColumn, "bin_sql", planted)


def _words_joined_by_the_other(patch: Patch) -> None:
    def change(condition: Condition) -> Condition:
        if isinstance(condition, Combined):
            return replace(condition, word="and" if condition.word == "or" else "or")
        return condition

    _conditions(patch, change)


def _missing_is_false_under_not(patch: Patch) -> None:
    """So that `not x = 3` holds of a missing x, as in Python."""
    real = scan.condition_sql

    def planted(condition: Condition, *dialect: Any) -> str:
        if isinstance(condition, Negated):
            return f"(NOT coalesce({planted(condition.part, *dialect)}, FALSE))"
        return real(condition, *dialect)

    patch.setattr(scan, "condition_sql", planted)


def _null_is_not_null(patch: Patch) -> None:
    def change(condition: Condition) -> Condition:
        return Negated(condition) if isinstance(condition, Missing) else condition

    _conditions(patch, change)


def _missing_counts(patch: Patch) -> None:
    real = Scan.from_question

    def planted(asked: Question, schema: Any) -> Scan:
        made = real(asked, schema)
        return replace(made, present="TRUE") if not asked.measures else made

    patch.setattr(Scan, "from_question", planted)


def _missing_is_the_lower_bound(patch: Patch) -> None:
    real = Scan.from_question
    patch.setattr(Scan, "from_question", lambda *args: replace(real(*args), present="TRUE"))
    clamp = ClampedColumn.clamped_sql.fget

    def planted(column: ClampedColumn) -> str:
        low = scan.number_sql(column.measure.low)
        return f"coalesce({clamp(column)}, {low})"

    patch.setattr(ClampedColumn, "clamped_sql", property(planted))


def _clamped_at_one_end(patch: Patch) -> None:
    def clamped(column: ClampedColumn) -> str:
        return f"least({column.stored}, {scan.number_sql(column.measure.high)})"

    patch.setattr(ClampedColumn, "clamped_sql", property(clamped))


def _labels_in_another_order(patch: Patch) -> None:
    real = question.resolve

    def planted(*args: Any) -> Question:
        asked = real(*args)
        return replace(asked, groups=asked.groups[::-1])

    patch.setattr(session, "resolve", planted)


def _persons_as_rows(patch: Patch) -> None:
    real = question.resolve
    patch.setattr(session, "resolve", lambda *args: replace(real(*args), persons=False))


def _one_row_fewer(patch: Patch) -> None:
    # Nobody here has more rows than count, so that none would have to be chosen.
    patch.setattr(scan, "has_no_surplus", lambda _question, _most: False)
    _replaced(patch, "WHERE nth <= ", "WHERE nth < ")


def _mirrored_levels(patch: Patch) -> None:
    real = quantiles.quantize_level
    patch.setattr(quantiles, "quantize_level", lambda level: real(1 - level))


def _variance_of_a_sample(patch: Patch) -> None:
    real = session.estimate

    def planted(asked: Question, sums: Any, *args: Any) -> Any:
        found = real(asked, sums, *args)
        if asked.query.aggregate == "variance" and sums[0, 0] > 1.5:
            found["estimate"] *= sums[0, 0] / (sums[0, 0] - 1)
        return found

    patch.setattr(session, "estimate", planted)


def _sum_of_absolute_values(patch: Patch) -> None:
    real = scan._round_sql

    def planted(addend: str, grid: float) -> str:
        return real(f"abs({addend})" if addend.startswith("(CASE ") else addend, grid)

    patch.setattr(scan, "_round_sql", planted)


def _persons_are_counted_by_row(patch: Patch) -> None:
    """In the one scan of rows that nobody brings too many of."""
    patch.setattr(scan, "_adds_every_row", scan.has_no_surplus)


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a histogram's bins closed on the right": _edges_closed_on_the_right,
    "a histogram's bins by division": _bins_by_division,
    "< for <=": _sign("<=", "<"),
    "<= for <": _sign("<", "<="),
    ">= for >": _sign(">", ">="),
    "= for !=": _sign("!=", "="),
    "not equal for <>, swapped": _sign("<>", "="),
    "and for or": _words_joined_by_the_other,
    "missing is false": _missing_is_false_under_not,
    "null is not null": _null_is_not_null,
    "missing cells count": _missing_counts,
    "missing cells lie on a bound": _missing_is_the_lower_bound,
    "clamped at one end": _clamped_at_one_end,
    "labels in another order": _labels_in_another_order,
    "persons as rows": _persons_as_rows,
    "one row of a person fewer": _one_row_fewer,
    "levels from the other end": _mirrored_levels,
    "the variance of a sample": _variance_of_a_sample,
    "sums of sizes": _sum_of_absolute_values,
    "persons by row": _persons_are_counted_by_row,
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_breaks_are_found(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Within 60 tables, most of them within a few."""
    PLANTED[name](monkeypatch)
    found = (differences(range(seed, seed + 1), tmp_path) for seed in range(60))
    assert any(found)
