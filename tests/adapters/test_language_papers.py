"""Papers of adapters: bound to them, with what was public, and no text in them."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apiece import Budgets
from apiece.errors import DataError, InputError, StateError
from apiece.recipes import LanguageRecipe

transformers = pytest.importorskip("transformers", reason="needs the extra language")
peft = pytest.importorskip("peft", reason="needs the extra language")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

from apiece.adapters.language import (  # noqa: E402
    describe_language_model,
    save_language_model,
)
from apiece.jobs import statement_schema  # noqa: E402
from apiece.jobs.results import statement_of  # noqa: E402

RECIPE = LanguageRecipe(layers=1, rank=2, length=6, vocabulary=20, steps=2, batch_size=4.0)
LEVELS = {"strict": 1.0, "weak": 8.0}


def make_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any, Any]:
    model = make_model()
    tokens = torch.randint(30, (16, 6), generator=torch.Generator().manual_seed(0))
    budgets = Budgets(np.repeat([1.0, 8.0], 4), 1e-3, ids=[f"author {k}" for k in range(8)])
    plan = RECIPE.plan(budgets)
    adapted = RECIPE.adapt(model, seed=0)
    authors = np.repeat(budgets.ids, 2)
    RECIPE.train(plan, adapted, RECIPE.states(model, tokens), tokens, authors, seed=0)
    return plan, adapted, tokens


def describe(trained: tuple[Any, Any, Any], **options: Any) -> Any:
    plan, adapted, _ = trained
    options = {"seed": 0, "source": "letters", "levels": LEVELS} | options
    return describe_language_model(RECIPE, plan, adapted, **options)


def test_the_statement_is_of_authors_and_names_what_was_public(trained: Any) -> None:
    statement = statement_of(describe(trained, purpose="to draft letters"))
    assert statement["unit_of_privacy"]["unit"] == "person"
    assert [level["name"] for level in statement["guarantee"]["levels"]] == ["strict", "weak"]
    assert "SmolLM2" in statement["data"]["label"]
    assert statement["purpose"] == "to draft letters"
    assert not statement["for_release"], "a seed is no release"
    assert statement_of(describe(trained, seed=None))["for_release"]
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(statement, statement_schema())


def test_a_folder_has_safetensors_and_papers_without_ids(trained: Any, tmp_path: Path) -> None:
    _, adapted, tokens = trained
    folder = save_language_model(describe(trained), adapted, tmp_path / "letters")
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_model.safetensors", "README.md", "statement.json", "report.html"} <= names
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    assert "one of 30 tokens" in card
    assert "| weak | 8" in card
    for path in folder.iterdir():
        assert b"author 3" not in path.read_bytes(), path.name
    again = peft.PeftModel.from_pretrained(make_model(), folder).eval()
    torch.testing.assert_close(
        again(input_ids=tokens).logits, adapted.eval()(input_ids=tokens).logits
    )
    with pytest.raises(DataError):
        save_language_model(describe(trained), adapted, folder)


def test_another_model_than_the_described_is_refused(trained: Any, tmp_path: Path) -> None:
    run = describe(trained)
    other = RECIPE.adapt(make_model(), seed=1)
    with pytest.raises(StateError, match="changed after it was described"):
        save_language_model(run, other, tmp_path / "letters")
    assert not (tmp_path / "letters").exists()


def test_levels_that_lack_a_budget_are_refused(trained: Any) -> None:
    with pytest.raises(InputError, match="levels"):
        describe(trained, levels={"strict": 1.0})


def test_the_example_trains_on_a_file_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from apiece import recipes

    def read_letters(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 30 for letter in text]}

    lines = [
        {"author": f"author {k % 20}", "epsilon": [2.0, 8.0][k % 2], "text": "a word and more " * 5}
        for k in range(40)
    ]
    path = tmp_path / "letters.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(recipes, "load_language_model", lambda: (read_letters, make_model()))
    script = Path(__file__).parents[2] / "examples" / "finetune_language.py"
    out = tmp_path / "out"
    words = ["finetune_language.py", "--quick", "--texts", str(path), "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    runpy.run_path(str(script), run_name="__main__")
    statement = json.loads((out / "statement.json").read_text())
    assert statement["for_release"]
    assert [level["epsilon"] for level in statement["guarantee"]["levels"]] == [2.0, 8.0]
    assert "perplexity of authors who took no part, after" in capsys.readouterr().out
    path.write_text("\n".join(map(json.dumps, [*lines, lines[0] | {"epsilon": 3.0}])))
    with pytest.raises(SystemExit, match="author 0 has two budgets"):
        runpy.run_path(str(script), run_name="__main__")
