"""Losses of one record at a time, against averages of each record alone."""

import types

import pytest
import torch
from torch.nn import functional

from apiece.adapters import stepping
from apiece.errors import InputError

TOKENS = torch.tensor([[3, 1, 4, -100], [1, -100, -100, -100], [-100] * 4])


def outputs(*shape):
    torch.manual_seed(0)
    return types.SimpleNamespace(logits=torch.randn(*shape))


def test_each_record_s_mean_is_over_its_own_tokens():
    out = outputs(3, 4, 6)
    found = stepping.of_tokens(out, TOKENS)
    for k in range(2):
        wanted = functional.cross_entropy(out.logits[k], TOKENS[k], ignore_index=-100)
        assert float(found[k]) == pytest.approx(float(wanted))
    assert float(found[2]) == 0, "nothing to learn from is no loss, not NaN"
    after = stepping.of_next_tokens(out, TOKENS)
    wanted = functional.cross_entropy(out.logits[0, :2], TOKENS[0, 1:3])
    assert float(after[0]) == pytest.approx(float(wanted))
    assert after[1:].tolist() == [0, 0]


def test_classes_numbers_and_several():
    out, classes = outputs(3, 4), torch.tensor([0, 3, 1])
    wanted = -out.logits.log_softmax(1)[range(3), classes]
    assert torch.allclose(stepping.of_classes(out, classes), wanted)
    number = outputs(3, 1)
    assert torch.allclose(
        stepping.of_numbers(number, torch.ones(3)), (number.logits[:, 0] - 1).square()
    )
    both = (torch.arange(12).view(3, 4) % 2).float()
    wanted = functional.binary_cross_entropy(out.logits.sigmoid(), both, reduction="none").mean(1)
    assert torch.allclose(stepping.of_several(out, both), wanted)


def model(name="Model", loss_type=None, **config):
    return type(name, (), {"loss_type": loss_type, "config": types.SimpleNamespace(**config)})()


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        (model(loss_type="ForCausalLM"), stepping.of_next_tokens),
        (model("GPT2LMHeadModel"), stepping.of_next_tokens),
        (model(loss_type="ForMaskedLM"), stepping.of_tokens),
        (model(loss_type="ForTokenClassification"), stepping.of_tokens),
        (model(loss_type="ForSequenceClassification", num_labels=3), stepping.of_kind_of_labels),
        (model(loss_type="ForSequenceClassification", num_labels=1), stepping.of_numbers),
        (
            model(loss_type="ForSequenceClassification", problem_type="regression", num_labels=2),
            stepping.of_numbers,
        ),
        (
            model(
                loss_type="ForSequenceClassification",
                problem_type="multi_label_classification",
                num_labels=2,
            ),
            stepping.of_several,
        ),
    ],
)
def test_the_loss_is_the_model_s_own_kind(given, loss):
    assert stepping.find_loss(given) is loss
    around = type("Adapted", (), {"get_base_model": lambda self: given})()
    assert stepping.find_loss(around) is loss, "PEFT's models are what they wrap"


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="a Model, whose loss is 'ForQuestionAnswering'"):
        stepping.find_loss(model(loss_type="ForQuestionAnswering"))
