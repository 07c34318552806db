"""The whole of it: one record moves the votes by no more than its reach, and nothing else."""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from apiece._types import Integers
from apiece.errors import DataError, InputError, VerificationError
from apiece.pate import Lessons, Upsample, plan_votes, teach, teaching
from apiece.pate.planning import VotePlan
from apiece.pate.strategies import Seats, Voters
from apiece.pate.teaching import NONE, Shares, count_votes, deal_rows, predict_classes

from .worlds import CLASSES, MODEL, budgets, people, plan, public, unchecked

INPUTS, TARGETS = people()
LESSONS = Lessons(steps=15, batch_size=4, learning_rate=3.0)


def teachers_of(
    votes: VotePlan, inputs: torch.Tensor, targets: torch.Tensor, **options: object
) -> torch.Tensor:
    """What the teachers of a run are: taken from inside it, where nobody else looks."""
    found: list[torch.Tensor] = []

    def spy(model: object, flat: torch.Tensor, which: torch.Tensor) -> Integers:
        found.append(flat)
        return predict_classes(MODEL, flat, which)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teaching, "predict_classes", spy)
        teach(votes, MODEL, (inputs, targets), public(), classes=CLASSES, lessons=LESSONS, seed=0,
              **options)  # type: ignore[arg-type]  # fmt: skip
    return found[0]


def moved(votes: VotePlan, record: int, how: str) -> tuple[bool, float, float]:
    """Whether more teachers change than the record has; by how much one count, and all, change.

    The last two are over what the plan says of the record's group: at most 1 each.
    """
    inputs, targets, options = INPUTS.clone(), TARGETS.clone(), {}
    if how == "gone":
        options["included"] = np.arange(60) != record
    else:
        inputs[record] = {"far": 1e4, "NaN": float("nan"), "turned": -3 * inputs[record]}[how]
        targets[record] = (targets[record] + 1) % CLASSES
    before, after = (
        teachers_of(votes, INPUTS, TARGETS),
        teachers_of(votes, inputs, targets, **options),
    )
    group = int(votes.plan.group_index[record])
    changed = int((before != after).any(dim=1).sum())
    weights, questions = votes.weights(votes.phases[0]), public(200)
    counts = [
        count_votes(predict_classes(MODEL, flat, questions), weights, CLASSES)
        for flat in (before, after)
    ]
    apart = counts[0] - counts[1]
    stage = votes.plan.stages[-1]
    reach, bound = votes.seats.reach[group], stage.clip_norm[group]
    return (
        changed > votes.seats.copies[group],
        float(abs(apart).max() / reach),
        float(np.sqrt((apart**2).sum(axis=1)).max() / bound),
    )


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        pytest.param(strategy, how, marks=[] if (i - j) % 4 < 2 else [pytest.mark.slow])
        for i, strategy in enumerate(["uniform", "weight", "upsample", Upsample(3)])
        for j, how in enumerate(["gone", "far", "NaN", "turned"])
    ],
    ids=str,
)
def test_a_record_moves_the_votes_by_at_most_its_reach(strategy: str | Voters, how: str) -> None:
    votes, most = plan(strategy), 0.0
    for record in (0, 1, 2):  # one of each budget
        others, count, every = moved(votes, record, how)
        assert not others
        assert count <= 1
        assert every <= 1
        most = max(most, count)
    assert most > 0, "the harness sees votes move at all"


def shifted(votes: VotePlan, **options: object) -> Shares:
    """A break: records are dealt out one after the other, so that all later ones move up."""
    included = options.get("included")
    there = np.arange(60) if included is None else np.flatnonzero(included)  # type: ignore[arg-type]
    teacher = np.arange(there.size) * votes.teachers // there.size
    return Shares(there, np.searchsorted(teacher, np.arange(votes.teachers + 1)))


def doubled(votes: VotePlan, **options: object) -> Shares:
    """A break: everyone is given to one teacher more than the plan says."""
    found = deal_rows(votes, **options)  # type: ignore[arg-type]
    owner = np.repeat(np.arange(votes.teachers), found.sizes)
    rows = np.concatenate([found.rows, found.rows])
    owner = np.concatenate([owner, (owner + 1) % votes.teachers])
    order = np.argsort(owner, kind="stable")
    return Shares(rows[order], np.searchsorted(owner[order], np.arange(votes.teachers + 1)))


@pytest.mark.parametrize("broken", [shifted, doubled])
def test_breaks_are_seen(broken: Callable[..., Shares], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "deal_rows", broken)
    monkeypatch.setattr(teaching, "require_dealt", lambda *_, **__: None)
    found = [moved(plan("uniform"), record, "gone") for record in (0, 1, 2)]
    assert any(others for others, _, _ in found)


def to_the_next(found: Shares) -> Shares:
    """Every record sits with the teacher after its own."""
    return Shares(
        np.roll(found.rows, int(found.sizes[-1])), np.r_[0, np.cumsum(np.roll(found.sizes, 1))]
    )


def one_more(found: Shares) -> Shares:
    """One record of the first teacher also sits with the last."""
    starts = found.starts.copy()
    starts[-1] += 1
    return Shares(np.append(found.rows, found.rows[0]), starts)


def one_teacher_less(found: Shares) -> Shares:
    return Shares(found.rows, np.delete(found.starts, -2))


def of_another(found: Shares) -> Shares:
    """The rows of two records, of different groups, are exchanged."""
    rows = found.rows.copy()
    rows[found.rows == 0], rows[found.rows == 1] = 1, 0
    return Shares(rows, found.starts)


ALTERED = [to_the_next, one_more, one_teacher_less, of_another]


@pytest.mark.parametrize("strategy", ["weight", "upsample", Upsample(3)], ids=str)
@pytest.mark.parametrize("altered", ALTERED)
def test_an_altered_deal_is_seen_before_a_vote(
    altered: Callable[[Shares], Shares], strategy: str | Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer recomputes each record's reach from the shares that its teachers learn from."""
    votes = plan(strategy)
    dealt = teaching.deal_rows(votes, key=bytes(32))
    deal = altered(dealt)
    if altered is to_the_next and strategy != "weight":
        teaching.require_dealt(votes, deal)  # one pool: any teachers will do, and as many as before
        return

    def nobody(*_: object, **__: object) -> None:
        raise AssertionError("a teacher was asked")

    teaching.require_dealt(votes, dealt)
    monkeypatch.setattr(teaching, "deal_rows", lambda *_, **__: deal)
    for name in ("ask", "learn", "predict_classes"):
        monkeypatch.setattr(teaching, name, nobody)
    with pytest.raises(VerificationError, match=r"^teachers: .* nothing is released") as error:
        run(votes)
    assert "\n" not in str(error.value)


def test_a_record_sits_with_a_teacher_of_its_own_group() -> None:
    """Also where the other group's votes count less, and nobody could move more than promised."""
    votes = plan()
    dealt = teaching.deal_rows(votes, key=bytes(32))
    owner = np.repeat(np.arange(votes.teachers), dealt.sizes)
    loosest = int(np.flatnonzero(votes.plan.group_index[dealt.rows] == 2)[0])
    owner[loosest] = 0  # a teacher of the strictest
    order = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[order], np.arange(votes.teachers + 1))
    assert votes.seats.weight[0] < votes.seats.weight[2]
    with pytest.raises(VerificationError, match="a teacher of another pool than its group's"):
        teaching.require_dealt(votes, Shares(dealt.rows[order], starts))


def test_who_takes_no_part_has_no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    votes, there = plan(), np.arange(60) != 7
    everyone = teaching.deal_rows(votes, key=bytes(32))
    run(votes, included=there)
    monkeypatch.setattr(teaching, "deal_rows", lambda *_, **__: everyone)
    with pytest.raises(VerificationError, match="somebody who takes no part has a teacher"):
        run(votes, included=there)


def test_a_person_is_dealt_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of one person with two teachers: each row is in one, the person moves both."""
    asked = budgets(20, ids=True)
    votes = plan_votes(asked, "uniform", teachers=8, questions=20, unit="person")
    names = asked.ids[np.arange(60) % 20]
    whole = teaching.deal_rows(votes, key=bytes(32), people=names)
    teaching.require_dealt(votes, whole, people=names)
    by_row = plan_votes(budgets(), "uniform", teachers=8, questions=20)
    split = teaching.deal_rows(by_row, key=bytes(32))
    with pytest.raises(VerificationError, match="move the votes by more than"):
        teaching.require_dealt(votes, split, people=names)


def test_a_plan_that_was_altered_is_seen_before_a_vote() -> None:
    """With seats such as were once planned: one group sits with another one's teachers."""
    votes = plan()
    weight = votes.seats.weight
    seats = [
        Seats(np.array([1, 1, 2]), votes.seats.copies, votes.seats.teachers, weight),
        Seats(votes.seats.pool, votes.seats.copies, votes.seats.teachers, weight[::-1].copy()),
        Seats(votes.seats.pool, votes.seats.copies * 2, votes.seats.teachers, weight),
    ]
    for each in seats:
        with pytest.raises(InputError, match="are not what these seats, noise and phases do"):
            run(unchecked(votes, seats=each))
    none = copy.copy(votes.seats)
    object.__setattr__(none, "teachers", np.array([0, 6, 6]))
    with pytest.raises(InputError, match="a pool has no teacher"):
        run(unchecked(votes, seats=none))


def test_a_reach_that_is_too_small_is_seen() -> None:
    """A break: a plan that counts every record's copies as one."""
    votes = plan(Upsample(3))
    found = [moved(votes, r, how) for r in (0, 1, 2) for how in ("gone", "far", "turned")]
    copies = votes.seats.copies[votes.plan.group_index[[0, 0, 0, 1, 1, 1, 2, 2, 2]]]
    assert any(count * c > 1 for (_, count, _), c in zip(found, copies, strict=True))


def test_persons_move_no_more_than_their_teachers(tmp_path: Path) -> None:
    asked = budgets(20, ids=True)
    votes = plan_votes(asked, "weight", teachers=8, questions=20, unit="person")
    owner = np.random.default_rng(1).integers(0, 20, 40)
    owner = np.concatenate([np.arange(20), owner])
    names = asked.ids[owner]
    before = teachers_of(votes, INPUTS, TARGETS, people=names)
    for person in range(6):
        inputs = INPUTS.clone()
        inputs[torch.from_numpy(owner == person)] = 1e4
        after = teachers_of(votes, inputs, TARGETS, people=names)
        assert int((before != after).any(dim=1).sum()) == 1


def run(votes: VotePlan, **options: object) -> teaching.Taught:
    given = {"classes": CLASSES, "lessons": LESSONS, "seed": 0, **options}
    return teach(votes, MODEL, (INPUTS, TARGETS), public(60), **given)  # type: ignore[arg-type]


def test_the_student_learns_from_answers_alone(tmp_path: Path) -> None:
    """With all answers kept from before, nobody's rows have a part in the student any more."""
    first = run(plan(), keep=tmp_path / "answers.json")
    other = teach(plan(), MODEL, (INPUTS * 0, TARGETS * 0), public(60), classes=CLASSES,
                  lessons=LESSONS, seed=0, keep=tmp_path / "answers.json")  # fmt: skip
    assert torch.equal(first.student, other.student)


def test_a_seed_repeats_and_none_does_not() -> None:
    assert torch.equal(run(plan()).student, run(plan()).student)
    assert not torch.equal(run(plan(), seed=None).student, run(plan(), seed=None).student)


def test_semi_supervised_learns_from_all_public_inputs() -> None:
    assert not torch.equal(run(plan()).student, run(plan(), semi_supervised=True).student)


def test_each_step_of_both_is_told() -> None:
    told: list[tuple[int, int]] = []
    run(plan(), student=Lessons(steps=3), progress=lambda step, of: told.append((step, of)))
    assert told == [(s, 15) for s in range(1, 16)] + [(s, 3) for s in range(1, 4)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"public": public(19)}, "19 inputs for 20 questions"),
        ({"public": public()[:, :3]}, "must be encoded alike"),
        ({"public": public() * float("nan")}, "NaN or infinite"),
        ({"dataset": (INPUTS[:50], TARGETS[:50])}, "50 rows for the 60 records"),
        ({"dataset": (INPUTS, TARGETS[:50])}, "for 60 rows"),
        ({"dataset": (INPUTS, TARGETS + 1)}, "labels are not in 0 to 2"),
        ({"dataset": (INPUTS, TARGETS - 1)}, "labels are not in 0 to 2"),
        ({"dataset": (INPUTS, TARGETS.float())}, "whole numbers"),
    ],
)
def test_bad_data_are_one_clear_line(options: dict[str, object], says: str) -> None:
    given = {"dataset": (INPUTS, TARGETS), "public": public(), **options}
    dataset, inputs = given["dataset"], given["public"]
    with pytest.raises(InputError, match=says) as error:
        teach(plan(), MODEL, dataset, inputs, classes=CLASSES, lessons=LESSONS, seed=0)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_no_answer_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = plan_votes(budgets(), "weight", teachers=12, questions=20, threshold=0.999, answers=1)
    monkeypatch.setattr(teaching, "ask", lambda *_, **__: np.full(20, NONE))
    with pytest.raises(DataError, match="lower one, or none"):
        run(votes, lessons=Lessons(steps=1, learning_rate=1e-9))
