"""The experiment on mails' authors: a small random model in place of the published one."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from research.experiment import Folders, Outcome
from research.experiments import language
from research.experiments.own_texts import read_own_texts

transformers = pytest.importorskip("transformers", reason="needs the extra language")
pytest.importorskip("peft", reason="needs the extra language")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Letters:
    """A tokenizer whose tokens are letters."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 60 for letter in text]}


def make_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def write_mail(path: Path, author: str, body: str, group: str = "easy-ham-1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"From: {author}\nSubject: a thing\n\n{body}"
    path.write_text(json.dumps({"group": group, "text": text}), encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    model = make_model()
    monkeypatch.setattr(language, "load_language_model", lambda: (Letters(), model))
    settings = {"layers": 1, "rank": 2, "vocabulary": 50, "steps": 4, "batch_size": 5.0}
    monkeypatch.setattr(language, "RECIPE", language.LanguageRecipe(**settings))
    monkeypatch.setattr(language, "TEST_AUTHORS", 9)
    monkeypatch.setattr(language, "TRIAL_AUTHORS", 7)
    monkeypatch.setattr(language, "CANARIES", 6)
    language.read_letters.cache_clear()
    language.losses_before.cache_clear()
    draws = np.random.default_rng(0)
    for k in range(40):
        words = " ".join(draws.choice(["rain", "sun", "wind", "snow"], 30))
        write_mail(tmp_path / f"spam-assassin/data/a/{k:02}.json", f"person{k}@a.example", words)
    return Folders(tmp_path, tmp_path / "work")


def test_a_text_is_the_author_s_own(tmp_path: Path) -> None:
    body = "Hello there.\n> quoted\nBob Jones wrote:\nMy answer\n-- \nAnn, of the signature"
    write_mail(tmp_path / "data/a/1.json", "Ann <ANN@a.example>", body)
    write_mail(tmp_path / "data/a/2.json", "ann@a.example", "And more.")
    write_mail(tmp_path / "data/a/3.json", "spammer@a.example", "Buy", "spam-1")
    assert read_own_texts(tmp_path) == {"ann@a.example": "Hello there. My answer And more."}


def test_no_author_is_in_two_parts(place: Folders) -> None:
    letters = language.read_letters(place.data, place.work, 1.0)
    members = set(letters.trained.authors)
    others = set(letters.others.authors)
    trials = set(letters.trials.authors)
    assert (len(members), len(others), len(trials)) == (24, 9, 7)
    assert not members & others
    assert not members & trials
    assert not others & trials
    assert set(letters.later.authors) <= members
    for row in letters.later.tokens:
        assert not (letters.trained.tokens == row).all(1).any(), "held-out text was seen"
    stored = language.read_letters.__wrapped__(place.data, place.work, 1.0)
    torch.testing.assert_close(stored.trained.states, letters.trained.states)


@pytest.mark.slow
def test_a_run_is_chosen_by_trials_and_read_by_group(place: Folders) -> None:
    trials = [
        Outcome(unit, language.run(unit, place), 1.0, "here", "2026-01-02")
        for unit in language.units(1, 1.0)
    ]
    rates = language.choose_rates(trials, 1.0)
    for side, rate in rates.items():
        losses = {o.unit["rate"]: o.result["loss"] for o in trials if o.unit["side"] == side}  # type: ignore[index]
        assert losses[rate] == min(losses.values())
    tests = [
        Outcome(unit, language.run(unit, place), 1.0, "here", "2026-01-02")
        for unit in language.after(trials, 1, 1.0)
    ]
    by_side = {o.unit["side"]: o.result for o in tests if "side" in o.unit}
    assert set(by_side) == {*language.SIDES, language.PLAIN, language.BEFORE}
    for side in language.SIDES:
        spent = by_side[side]["spent"]  # type: ignore[index]
        for name, epsilon, _ in language.GROUPS:
            assert spent[name] <= epsilon
    before = by_side[language.BEFORE]["others"]["loss"]  # type: ignore[index]
    for side in language.SIDES:
        result: Any = by_side[side]["others"]  # type: ignore[index]
        assert result["gain"] == pytest.approx(before - result["loss"], abs=1e-4)
    adapter = next(o.result for o in tests if "adapter" in o.unit)
    assert adapter["largest difference"] < 1e-3 * adapter["largest parameter"]  # type: ignore[index]
    audits = [o.result for o in tests if "audit" in o.unit]
    assert all(math.isfinite(audit["lower bound of all"]) for audit in audits)  # type: ignore[index]
    texts = [table.markdown() for table in language.tables([*trials, *tests])]
    assert all(name in texts[0] for name in (*language.SIDES, "no training", "weak"))
