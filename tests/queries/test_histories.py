"""The law of histories: interrupt anywhere, ask anything, and no row shows in what is seen.

Each history is lived through on two tables that differ in one person's rows, with noise that makes
honest answers equal to the bit (`histories`). What is planted below must be found by the same
search.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import (
    OTHERS,
    QUESTIONS,
    SELECTS,
    VICTIM,
    Ask,
    Enroll,
    Scanned,
    Train,
    World,
    history,
    problems,
)

from apiece.errors import AnalysisError
from apiece.ledger import Ledger, charging, reading
from apiece.ledger.codec import compute_digest
from apiece.queries import declarations, functions, session


@pytest.mark.parametrize("block", range(2))
def test_a_history_is_the_same_without_a_person(block: int, tmp_path: Path) -> None:
    for seed in range(block * 100, block * 100 + 4):
        assert not problems(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_histories_are_the_same_without_a_person(block: int, tmp_path: Path) -> None:
    for seed in range(1000 + block * 40, 1040 + block * 40):
        assert not problems(seed, tmp_path)


def test_a_history_in_sql_is_the_same_without_a_person(tmp_path: Path) -> None:
    """Derived columns that overflow, divide by zero and are cast; joins that match nobody."""
    for seed in range(3000, 3008):
        assert not problems(seed, tmp_path, questions=SELECTS)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_500_histories_in_sql_are_the_same_without_a_person(block: int, tmp_path: Path) -> None:
    for seed in range(4000 + block * 50, 4050 + block * 50):
        assert not problems(seed, tmp_path, questions=(*QUESTIONS, *SELECTS))


@pytest.mark.slow
def test_histories_are_the_same_without_a_person_on_postgresql(postgres: Any) -> None:
    """Interruptions, kills and others' questions; a server's own failures are tested in faults/."""
    for seed in range(2000, 2015):
        urls = postgres.database(), postgres.database()
        assert not problems(seed, None, urls)


def test_the_search_reaches_what_it_is_for() -> None:
    """Names are asked again on the same terms and on others, and everything befalls them."""
    faults, again, other, trained = Counter[str](), 0, 0, 0
    for seed in range(200):
        steps = [s for s in history(random.Random(seed)) if isinstance(s, Ask)]
        faults.update(s.fault[0] for s in steps if s.fault)
        for at, step in enumerate(steps):
            earlier = [s for s in steps[:at] if s.name == step.name and s.fault]
            again += any(s.query == step.query for s in earlier)
            other += any(s.query != step.query for s in earlier)
        trained += any(isinstance(s, Train) for s in history(random.Random(seed)))
    assert set(faults) == {"interrupt", "kill", "disk", "overtaken"}
    assert min(*faults.values(), again, other, trained) >= 20


def test_every_question_in_sql_is_answered_and_some_tell_of_the_person(tmp_path: Path) -> None:
    answered, told = set(), set()
    for number, text in enumerate(SELECTS):
        world = World(f"sqlite:///{tmp_path}/{number}.db", True, number)
        world.take(0, Enroll((*OTHERS, VICTIM), (4.0,) * (len(OTHERS) + 1)))
        world.take(1, Ask("a", text, 0.05, 2, 0))
        answered.update([text] if world.seen[-1].startswith("answer") else [])
        told.update([text] if world.most.get("a") else [])
    assert answered == set(SELECTS)
    assert len(told) >= 6


def _statistics_cost_half(patch: pytest.MonkeyPatch) -> None:
    """Of several in one answer."""
    real = session.square_mu
    patch.setattr(session, "square_mu", lambda mu: real(mu) / 2)


def _a_division_fails(patch: pytest.MonkeyPatch) -> None:
    function = functions.FUNCTIONS["/"]

    def planted(parts: Any) -> str:
        return f"(CASE WHEN {parts[1]} = 0 THEN error('zero') ELSE {function.sql(parts)} END)"

    patch.setitem(functions.FUNCTIONS, "/", replace(function, sql=planted))


def _a_row_without_a_match_counts(patch: pytest.MonkeyPatch) -> None:
    """In the sums, and not in what a person is charged for."""
    real = Scanned.totals

    def planted(scanned: Scanned, paid: Any) -> Any:
        sums = {cell: list(values) for cell, values in real(scanned, paid).items()}
        if scanned.asked.query.joins and paid[scanned.ids == VICTIM].any():
            sums.setdefault(0, [0] * scanned.width)[0] += 1 << 20
        return sums

    patch.setattr(Scanned, "totals", planted)


@pytest.mark.parametrize(
    "plant",
    [
        _statistics_cost_half,
        _a_division_fails,
        pytest.param(_a_row_without_a_match_counts, marks=pytest.mark.slow),
    ],
)
def test_a_planted_break_in_sql_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("histories._scanned", {})
    plant(monkeypatch)
    assert any(problems(seed, tmp_path, questions=SELECTS) for seed in range(120))


# Planted breaks: what the ledger and the session did once, or might. The search must find each.


def _terms_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    for module in (reading, charging):
        patch.setattr(module, "check_terms", lambda *_: None)


def _contributions_are_compared_instead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "digest_terms", lambda *_: None)


def _contributions_are_compared_too(patch: pytest.MonkeyPatch) -> None:
    real = charging.replay

    def strict(
        connection: Any, trail: Any, number: int, ordinals: Any, charges: Any, entry: Any
    ) -> Any:
        found = real(connection, trail, number, ordinals, charges, entry)
        request = compute_digest(trail.salt, ordinals.tobytes(), *charges.encode()).hex()
        if entry.request != request:
            raise AnalysisError("reserved with other people or norms")
        return found

    patch.setattr(charging, "replay", strict)


def _a_refusal_counts_those_who_paid(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.status

    def counting(self: Ledger, analysis_id: str, terms: Any = None) -> str:
        try:
            return real(self, analysis_id, terms)
        except AnalysisError as error:
            paid = sum(ids.size for ids in self.admitted(analysis_id))
            raise AnalysisError(f"{error} ({paid} people)") from None

    patch.setattr(Ledger, "status", counting)


def _one_answers_with_ones_own(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.commit

    def own(self: Ledger, analysis_id: str, result: Any = None) -> Any:
        real(self, analysis_id, result)
        return result

    patch.setattr(Ledger, "commit", own)


def _answers_overflow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(declarations, "LARGEST", 1.7e308)


def _who_did_not_pay_is_admitted_again(patch: pytest.MonkeyPatch) -> None:
    def everybody(*given: Any) -> Any:
        return np.ones(given[3].size, dtype=bool)

    patch.setattr(charging, "replay", everybody)


def _who_has_nothing_left_is_in_the_sum(patch: pytest.MonkeyPatch) -> None:
    real = charging.charge

    def charge(*given: Any) -> Any:
        admitted, record = real(*given)
        return np.ones_like(admitted), record

    patch.setattr(charging, "charge", charge)


def _a_commit_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The answer is given and not recorded, so that the next one is another."""
    patch.setattr(Ledger, "commit", lambda _self, _analysis, result=None: result)


PLANTS = (
    _contributions_are_compared_instead,
    _one_answers_with_ones_own,
    _a_commit_is_forgotten,
)
MORE = (
    _terms_are_not_compared,
    _who_has_nothing_left_is_in_the_sum,
    _contributions_are_compared_too,
    _a_refusal_counts_those_who_paid,
    _answers_overflow,
    _who_did_not_pay_is_admitted_again,
)


@pytest.mark.parametrize(
    "plant", [*PLANTS, *(pytest.param(plant, marks=pytest.mark.slow) for plant in MORE)]
)
def test_a_planted_break_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(problems(seed, tmp_path) for seed in range(120))
