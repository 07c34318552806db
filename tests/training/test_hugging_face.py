"""Models and data as Hugging Face gives them: run to the end, book-kept, and exact."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from apiece import Budgets, assign
from apiece.training import Trainer, clip_and_sum
from apiece.training.clipping.cache import proof_of

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
]

WORDS, PLACES, PEOPLE = 50, 12, 40


def bert():
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def t5():
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def texts(generator):
    """Return items as a tokenizer gives them, of any length, with a label each."""
    found = []
    for length in generator.integers(2, PLACES + 1, PEOPLE):
        words = generator.integers(1, WORDS, length).tolist()
        given = {"input_ids": words, "attention_mask": [1] * length, "labels": words[0] % 2}
        found.append(transformers.BatchEncoding(given))
    return found


def padded(items, to=PLACES):
    """Return a batch of items filled up to a public length."""
    longest = to or max(len(item["input_ids"]) for item in items)
    batch = {
        name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
        for name in ("input_ids", "attention_mask")
    }
    return transformers.BatchEncoding(
        batch | {"labels": torch.tensor([item["labels"] for item in items])}
    )


def classes(outputs, targets):
    return functional.cross_entropy(outputs.logits, targets, reduction="none")


def words(outputs, targets):
    logits = outputs.logits[:, : targets.shape[1]]
    each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(1)


def trainer(model, data, people=None, size=PEOPLE, **options):
    budgets = Budgets(np.linspace(2.0, 8.0, size), 1e-3, ids=list(range(size)))
    plan = assign(budgets, "scale", steps=4, expected_batch_size=size / 4, clip_norm=1.0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    return Trainer(model, optimizer, classes, plan, data, seed=0, people=people, **options)


def loader(items, collate):
    return torch.utils.data.DataLoader(items, batch_size=8, shuffle=True, collate_fn=collate)


@pytest.mark.parametrize("to", [PLACES, 0])
def test_items_are_encodings_of_any_length(to):
    torch.manual_seed(0)
    model, data = bert(), texts(np.random.default_rng(0))
    run = trainer(model, loader(data, lambda items: padded(items, to)))
    run.fit()
    assert run.step_number == 4
    assert run.proof.proved


def test_one_encoding_with_labels_is_the_data():
    torch.manual_seed(0)
    data = padded(texts(np.random.default_rng(0)))
    one, other = bert(), bert()
    other.load_state_dict(one.state_dict())
    trainer(one, data).fit()
    trainer(other, loader(texts(np.random.default_rng(0)), padded)).fit()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_adapters_with_a_budget_for_each_author():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    kind = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model, data = peft.get_peft_model(bert(), kind), texts(np.random.default_rng(0))
    authors = np.arange(PEOPLE) % 9
    run = trainer(model, loader(data, padded), authors, size=9, rows_per_person=3)
    before = copy.deepcopy(model.state_dict())
    run.fit()
    moved = {name for name, value in model.state_dict().items() if (value != before[name]).any()}
    assert moved == {name for name, p in model.named_parameters() if p.requires_grad}
    assert run.proof.proved


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2"])
def test_the_sum_is_that_of_a_loop_in_double_precision(name):
    torch.manual_seed(0)
    model = {"bert": bert, "t5": t5, "gpt2": gpt2}[name]().eval()
    data = padded(texts(np.random.default_rng(1)))
    inputs = {key: data[key][:6] for key in ("input_ids", "attention_mask")}
    loss, targets = words, inputs["input_ids"]
    if name == "bert":
        loss, targets = classes, data["labels"][:6]
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(0)
    total = clip_and_sum(model, loss, transformers.BatchEncoding(inputs), targets, 0.1)
    assert proof_of(model).proved
    double = copy.deepcopy(model).double()
    for k, norm in enumerate(total.norms.tolist()):
        one = {key: value[k : k + 1] for key, value in inputs.items()}
        loss(double(**one), targets[k : k + 1]).sum().backward()
        found = [p.grad for p in double.parameters() if p.grad is not None]
        squares = sum(float(g.square().sum()) for g in found)
        assert math.isclose(norm, math.sqrt(squares), rel_tol=1e-4)
        double.zero_grad()
