"""What a forward pass must leave as it is, and that nothing of it is overlooked."""

import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training.clipping import State


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("kept", torch.zeros(2))
        self.more = 0

    def get_extra_state(self):
        return {"more": self.more}

    def set_extra_state(self, state):
        self.more = state["more"]


def buffer(model):
    model.kept += 1
    return model.more


def buffer_by_data(model):
    model.kept.data.add_(1)


def replaced(model):
    model.kept = torch.ones(2)


def weight(model):
    with torch.no_grad():
        model.layer.weight.mul_(2)


def weight_by_data(model):
    model.layer.weight.data.mul_(2)


def extra(model):
    model.more += 1


@pytest.mark.parametrize(
    ("write", "place"),
    [(buffer, "model.kept"), (replaced, "model.kept"), (weight, "model.layer.weight"),
     (buffer_by_data, "model.kept"), (weight_by_data, "model.layer.weight"),
     (extra, "model.get_extra_state")],
)  # fmt: skip
@pytest.mark.parametrize("contents", [True, False])
def test_what_is_written_is_seen(write, place, contents):
    model = Keeping()
    state = State(model=model)
    if not contents and write in (buffer_by_data, weight_by_data, extra):
        with state.kept(contents=False):
            write(model)
        return
    with pytest.raises(UnsupportedError, match=place), state.kept(contents=contents):
        write(model)


def test_what_was_replaced_is_put_back():
    model = Keeping()
    before = model.kept
    with pytest.raises(UnsupportedError), State(model=model).kept(contents=False):
        replaced(model)
    assert model.kept is before


def test_an_error_inside_goes_on_unless_something_changed():
    model = Keeping()
    with pytest.raises(ZeroDivisionError), State(model=model).kept(contents=True):
        _ = 1 / 0
    with pytest.raises(UnsupportedError), State(model=model).kept(contents=True):
        _ = buffer(model) / 0


def test_nothing_changed_is_nothing_said():
    model = Keeping()
    model.kept.fill_(torch.nan)
    with State(model=model, loss_fn=nn.MSELoss()).kept(contents=True):
        model.layer(torch.ones(1, 2))
    assert model.kept.isnan().all()


def test_what_cannot_be_compared_is_refused():
    class Held:
        """Shows the same whatever it holds, and is not pickled."""

        def __init__(self):
            self.seen = 0

        def __reduce__(self):
            raise TypeError("not this one")

    model = Keeping()
    model.more = Held()
    with (
        pytest.raises(UnsupportedError, match=r"model.get_extra_state\(\): cannot be pickled"),
        State(model=model).kept(contents=True),
    ):
        model.more.seen += 1
