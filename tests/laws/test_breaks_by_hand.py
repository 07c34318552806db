"""Properties that breaks planted by hand once passed by, each with the break that it now sees."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from apiece import jobs, report
from apiece._types import Json
from apiece.accounting import privacy_curve, selection
from apiece.accounting.selection import SelectedProfile
from apiece.audit import Claim, anytime
from apiece.budgets import ConsentMapping, Units, consent_files, read_consents
from apiece.jobs import results, running, trained
from apiece.jobs.config import job_from_dict
from apiece.mechanisms import Allocated, Composed, Gaussian, Mechanism, Repeated, Runs
from apiece.mechanisms import allocated as blocks
from apiece.plan import parts
from apiece.plan.parts import Stage
from apiece.reporting import sections
from apiece.training.batches import AllocatedSampler
from apiece.training.sums import Brought, choose_rows
from planted import plant
from sample_runs import FACTS, sample_run

KEY = bytes(32)


def check_rows_in_physical_batches() -> None:
    """Physical batches hold each person, and each of their rows, exactly once."""
    for counts in ([3, 1, 5, 1], [1], [2, 2, 1], [7, 1, 1, 1], [1, 1, 9, 1]):
        people = np.repeat(np.arange(len(counts)), counts)
        units = Units.of(people, np.arange(len(counts)))
        brought = choose_rows(units, np.arange(len(counts)), KEY)
        for width in range(1, 12):
            slices = list(brought.split(width))
            persons = np.concatenate([np.arange(len(counts))[part] for part, _ in slices])
            rows = np.concatenate([brought.rows[part] for _, part in slices])
            assert persons.tolist() == list(range(len(counts)))
            assert sorted(rows.tolist()) == list(range(people.size))


def check_error_shared_by_groups() -> None:
    """One of two groups is named only on twice the evidence that it needs alone."""
    generator = np.random.default_rng(3)
    ins, outs = generator.normal(1.5, 1, 400), generator.normal(0, 1, 400)
    claim = Claim.budget(0.5, 1e-5)
    alone = anytime.sequential([{"a": (ins, outs)}], {"a": claim}, max_samples=400)
    pairs = alone.watched[0].samples
    assert alone.watched[0].rejected
    assert 20 <= alone.watched[0].evidence < 40
    silent = np.zeros(pairs)
    rounds = [{"a": (ins[:pairs], outs[:pairs]), "b": (silent, silent)}]
    both = anytime.sequential(rounds, {"a": claim, "b": claim}, max_samples=pairs, delta=1e-5)
    watched = {one.group: one for one in both.watched}
    assert watched["a"].evidence >= 20
    assert not watched["a"].rejected
    assert [bound.confidence for bound in both.bounds.values()] == pytest.approx([0.975] * 2)


def check_coarser_levels_of_selection() -> None:
    """The bound on the best of many runs does not fall where its integral is cut more coarsely."""
    curve = privacy_curve(Gaussian(1.0))
    profile = curve.profile
    epsilon = np.linspace(0.5, 8.0, 16)
    fine = SelectedProfile.of([profile], Runs(10)).delta(epsilon).upper
    levels = selection._LEVELS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_LEVELS", np.concatenate((levels[:-1:12], [0.0])))
        coarse = SelectedProfile.of([profile], Runs(10)).delta(epsilon).upper
    assert (coarse >= fine * (1 - 1e-9)).all()


def lengths(mechanism: Mechanism) -> list[int]:
    """Numbers of steps of the blocks of an allocated mechanism."""
    if isinstance(mechanism, Composed):
        return [size for part in mechanism.mechanisms for size in lengths(part)]
    if isinstance(mechanism, Repeated):
        return lengths(mechanism.mechanism) * mechanism.times
    assert isinstance(mechanism, Allocated)
    return [mechanism.steps]


def check_blocks_of_allocated_steps() -> None:
    """The blocks that are accounted are those that are drawn, and have T steps together."""
    for times, steps in ((1, 1), (1, 7), (3, 10), (4, 100), (7, 7), (6, 23), (2, 9)):
        accounted = sorted(lengths(parts.allocated_steps(1.5, times, steps)))
        assert sum(accounted) == steps
        assert len(accounted) == times
        records = 400
        stage = Stage(
            steps, records * times / steps, 1.5, np.array([times / steps]), np.array([1.0]),
            times=np.array([times]),
        )  # fmt: skip
        sampler = AllocatedSampler(
            stage, np.zeros(records, dtype=np.int64), lambda g, s: np.random.default_rng([g, s])
        )
        joined = np.zeros((records, steps), dtype=int)
        for step in range(steps):
            joined[sampler.draw(step), step] += 1
        assert (joined.sum(axis=1) == times).all()
        # each block is drawn as a whole: no record joins twice between two of its ends
        ends = np.cumsum(drawn_lengths(times, steps))
        assert sorted(drawn_lengths(times, steps)) == accounted
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            assert (joined[:, start:end].sum(axis=1) == 1).all()


def drawn_lengths(times: int, steps: int) -> list[int]:
    ends = [block * steps // times for block in range(times + 1)]
    return np.diff(ends).tolist()


MAPPING = ConsentMapping.from_toml(
    """
source = "fhir"
levels = { low = 1 }
default = "low"
provisions = "limits"
[about]
research = true
"""
)


def check_periods_of_consents() -> None:
    """Nobody is enrolled outside the period of their consent, wherever a file says it."""
    today = date(2026, 5, 1)
    held: Json = {"start": "2026-04-01", "end": "2026-06-01"}
    periods: list[tuple[Json, bool]] = [
        (held, True), ({"end": "2026-05-01"}, True), ({"start": "2026-05-01"}, True),
        ({"end": "2026-04-30"}, False), ({"start": "2026-05-02"}, False),
        ({"end": "2026-04"}, False), ({"start": "2026-05"}, False), ({"start": "2026"}, False),
        ({"end": "2026-05-01T12:00:00Z"}, False), ({"start": "2026-05-01T12:00:00Z"}, False),
        ({"end": "2026-05-02T01:00:00+02:00"}, False),
    ]  # fmt: skip
    scope = {"coding": [{"code": "research"}]}
    forms: list[Callable[[Json, Json], Json]] = [
        lambda own, inner: {
            "scope": scope, "patient": {"reference": "Patient/ann"}, "period": own,
            "provision": {"type": "permit", "period": inner}},
        lambda own, inner: {
            "category": [scope], "subject": {"reference": "Patient/ann"}, "decision": "permit",
            "period": own, "provision": [{"period": inner}]},
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder, "consents.json")
        for make in forms:
            for period, has_today in periods:
                for own, inner in ((period, held), (held, period)):
                    consent = {"resourceType": "Consent", "status": "active", **make(own, inner)}
                    bundle = {"resourceType": "Bundle", "type": "collection",
                              "entry": [{"resource": consent}]}  # fmt: skip
                    path.write_text(json.dumps(bundle))
                    assert len(read_consents(path, MAPPING).on(today)) == has_today


def check_public_pages_of_packaged_data() -> None:
    """Budgets are public where they were drawn for packaged data, and nowhere else.

    Packaged data with people's own budgets tell of these no more than a private table does.
    """
    (at,) = sample_run().kept.plan.budget_groups.epsilon[:1]
    levels = (trained.Level("strict", float(at), 1e-3),)
    for packaged in (False, True):
        for simulated in (False, True):
            data = replace(FACTS, packaged=packaged, simulated_budgets=simulated)
            run = replace(sample_run(), data=data, levels=levels)
            page = report(run, edition="public").html
            (level,) = results.statement_of(run)["guarantee"]["levels"]
            are_public = packaged and simulated
            assert (">What was promised, and what was spent<" in page.split("left-out")[0]) == (
                are_public
            )
            assert (level["gaussian"] is not None) == are_public
    wishes = {"epsilon": "installment_rate", "levels": [1.0, 2.0, 3.0, 4.0]}
    drawn = {"budgets": {"groups": [{"name": "all", "share": 1.0, "epsilon": 2.0}]}}
    settings = {"source": "german", "delta": 1e-4, "batch_size": 20, "strategy": "scale"}
    for config, changes, simulated in (({}, wishes, False), (drawn, {}, True)):
        job = job_from_dict(config, name="x", changes=settings | changes)
        facts = running._collect_facts(jobs.prepare(job, out=Path("nowhere")), None)
        assert facts.packaged
        assert facts.simulated_budgets == simulated


CHECKS: dict[str, Callable[[], None]] = {
    "rows": check_rows_in_physical_batches,
    "groups": check_error_shared_by_groups,
    "levels": check_coarser_levels_of_selection,
    "blocks": check_blocks_of_allocated_steps,
    "periods": check_periods_of_consents,
    "public": check_public_pages_of_packaged_data,
}

BREAKS = [
    ("rows", Brought.split, "row = row_end", "row = row_end - (row_end - row == 1)"),
    ("rows", Brought.split, "row_end = int(row_ends[person_end - 1])",
     "row_end = int(row_ends[person_end - 1]) - (person_end == persons)"),
    ("groups", anytime.sequential, "group_needed = needed + math.log(len(bets))",
     "group_needed = needed"),
    ("groups", anytime.sequential, "1 - (1 - confidence) / len(bets)", "confidence"),
    ("levels", SelectedProfile.of, "(shift[:1], shift[:-1])", "(shift[:1], shift[1:])"),
    ("blocks", parts.allocated_steps, "block_sizes(times, steps)", "block_sizes(times, steps + 1)"),
    ("blocks", blocks.block_sizes, "((size, times - larger), (size + 1, larger))",
     "((size + 1, times - larger), (size + 1, larger))"),
    ("blocks", AllocatedSampler._draw_block, "end = (block + 1)", "end = (block + 2)"),
    ("periods", consent_files._read_consent, "period = _read_element_period(resource)",
     "period = ((1, 4_000_000), (1, 4_000_000))"),
    ("periods", consent_files._read_provision,
     "_intersect_periods(outer_period, _read_element_period(node))",
     "_read_element_period(node)"),
    ("periods", consent_files._read_provision,
     "_intersect_periods(outer_period, _read_element_period(node))", "outer_period"),
    ("periods", consent_files._read_instant, ".astimezone(UTC)", ".replace(tzinfo=UTC)"),
    ("public", sections._of_run, "data.packaged and data.simulated_budgets", "data.packaged"),
    ("public", sections._of_run, "data.packaged and data.simulated_budgets",
     "data.simulated_budgets"),
    ("public", results.statement_of, "(data.packaged and data.simulated_budgets)",
     "data.packaged"),
    ("public", results.statement_of, "(data.packaged and data.simulated_budgets)",
     "data.simulated_budgets"),
    ("public", running._collect_facts, "bool(prepared.job.budgets.groups)",
     "prepared.job.data.packaged"),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    ("name", "target", "old", "new"),
    BREAKS,
    ids=[f"{one[0]}-{at}" for at, one in enumerate(BREAKS)],
)
def test_a_break_is_seen(
    name: str, target: object, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, target, old, new)
    with pytest.raises(AssertionError):
        CHECKS[name]()
