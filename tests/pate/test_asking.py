"""Questions are asked once, whatever is killed; what is written is a function of answers alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apiece._types import Integers
from apiece.errors import StateError
from apiece.pate import Noise
from apiece.pate.planning import VotePlan
from apiece.pate.teaching import NONE, KeptAnswers, ask

from .test_planning import with_own_phases
from .worlds import CLASSES, plan, public, unchecked

VOTES = np.random.default_rng(0).integers(0, CLASSES, (12, 1000))
MANY = plan(questions=250)


class Killed(BaseException):
    pass


class Ballots:
    """Votes that note what was asked, and after some blocks kill the run."""

    def __init__(self, alive: int = 10**9, votes: Integers = VOTES) -> None:
        self.asked: list[slice] = []
        self.alive, self.votes = alive, votes

    def __call__(self, which: slice) -> Integers:
        if len(self.asked) == self.alive:
            raise Killed
        self.asked.append(which)
        return self.votes[:, which]


def kept(folder: Path, votes: VotePlan = MANY) -> KeptAnswers:
    return KeptAnswers.for_questions(folder / "answers.json", votes, public(votes.questions))


@pytest.mark.parametrize("alive", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, None])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, alive: int, seed: int | None) -> None:
    first, second = Ballots(alive), Ballots()
    with pytest.raises(Killed):
        ask(MANY, first, CLASSES, seed=seed, kept=kept(tmp_path))
    written = kept(tmp_path).read(250, CLASSES)
    assert written.size == 100 * alive
    found = ask(MANY, second, CLASSES, seed=seed, kept=kept(tmp_path))
    assert (found[: written.size] == written).all()
    asked = [k for block in (*first.asked, *second.asked) for k in range(250)[block]]
    assert sorted(asked) == list(range(250)), "every question is asked once"
    if seed is not None:
        assert (found == ask(MANY, Ballots(), CLASSES, seed=seed)).all()


def test_a_finished_run_asks_no_more(tmp_path: Path) -> None:
    found = ask(MANY, Ballots(), CLASSES, seed=None, kept=kept(tmp_path))
    assert (ask(MANY, Ballots(0), CLASSES, seed=None, kept=kept(tmp_path)) == found).all()


def test_fresh_noise_is_fresh_in_every_run() -> None:
    one, other = (ask(MANY, Ballots(), CLASSES, seed=None) for _ in range(2))
    assert (one != other).any()


def test_what_is_written_is_made_of_answers_alone(tmp_path: Path) -> None:
    """Other votes that get the same answers leave the same bytes, after every block."""
    loud = unchecked(MANY, noise=Noise(answer=1e-9))
    unanimous = np.repeat(VOTES[:1], 12, axis=0)
    split = unanimous.copy()
    split[0] = (split[0] + 1) % CLASSES
    texts = []
    for votes in (unanimous, split):
        path = tmp_path / str(len(texts)) / "answers.json"
        path.parent.mkdir()
        place = replace(kept(tmp_path), path=path)
        with pytest.raises(Killed):
            ask(loud, Ballots(2, votes), CLASSES, seed=None, kept=place)
        assert [p.name for p in path.parent.iterdir()] == ["answers.json"]
        assert path.stat().st_mode & 0o777 == 0o600
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]
    assert set(json.loads(texts[0])) == {"format", "of", "answers"}


def test_a_quota_holds_over_blocks_and_kills(tmp_path: Path) -> None:
    noise = Noise(answer=1.0, check=1.0, threshold=0.01)
    phase = replace(MANY.phases[0], answers=130)
    votes = unchecked(MANY, noise=noise, phases=(phase,))
    with pytest.raises(Killed):
        ask(votes, Ballots(1), CLASSES, seed=None, kept=kept(tmp_path, votes))
    last = Ballots()
    found = ask(votes, last, CLASSES, seed=None, kept=kept(tmp_path, votes))
    assert (found != NONE).sum() == 130
    assert (found[200:] == NONE).all()
    assert last.asked == [slice(100, 200)], "no vote is cast once the answers are used up"


def test_those_who_left_have_no_vote() -> None:
    """The pools that left say 0, the one that stays says 1: with next to no noise 1 wins then."""
    votes = with_own_phases()
    quiet = unchecked(votes, noise=Noise(answer=1e-9))
    ballots = np.zeros((30, votes.questions), dtype=np.int64)
    ballots[20:] = 1
    found = ask(quiet, Ballots(votes=ballots), CLASSES, seed=0)
    begin, last = votes.phases[0].questions, votes.phases[2].questions
    assert (found[:begin] == 0).all()
    assert (found[-last:] == 1).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d | {"answers": [7]},
        lambda d: d | {"answers": [-2]},
        lambda d: d | {"answers": [0] * 251},
        lambda d: d | {"answers": [[0]]},
        lambda d: d | {"answers": ["a"]},
        lambda d: d | {"of": "another"},
        lambda d: d | {"format": "1"},
        lambda d: {"format": d["format"], "of": d["of"]},
        lambda d: [d],
    ],
)
def test_answers_that_are_not_of_this_run(tmp_path: Path, change: object) -> None:
    place = kept(tmp_path)
    place.write(np.array([0, 1, NONE]))
    data = change(json.loads(place.path.read_text()))  # type: ignore[operator]
    place.path.write_text(json.dumps(data))
    with pytest.raises(StateError, match="start a new run"):
        place.read(250, CLASSES)


def test_other_questions_or_another_plan_are_seen(tmp_path: Path) -> None:
    kept(tmp_path).write(np.array([0]))
    with pytest.raises(StateError):
        KeptAnswers.for_questions(tmp_path / "answers.json", MANY, public(250) + 1).read(
            250, CLASSES
        )
    with pytest.raises(StateError):
        kept(tmp_path, plan(questions=251)).read(251, CLASSES)
    (tmp_path / "answers.json").write_text("{")
    with pytest.raises(StateError):
        kept(tmp_path).read(250, CLASSES)
