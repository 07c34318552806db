"""A run inside Lightning is the run without it, bit for bit; runs where Lightning is installed."""

import importlib
import sys

import pytest
import torch
from torch import nn

from apiece import Trainer
from apiece.errors import StateError, UnsupportedError

from .small import PLAN, network, points, quiet_plan, trained_on, trainer


def test_without_lightning(monkeypatch):
    monkeypatch.delitem(sys.modules, "apiece.adapters.lightning", raising=False)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*lightning"):
        importlib.import_module("apiece.adapters.lightning")


@pytest.mark.filterwarnings("ignore")
class TestWithLightning:
    @pytest.fixture(autouse=True)
    def lightning(self, tmp_path):
        lightning = pytest.importorskip("lightning", reason="lightning is not installed")
        self.module = importlib.import_module("apiece.adapters.lightning").PrivateModule
        self.lightning, self.folder = lightning, tmp_path

    def loop(self, **options):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        return self.lightning.Trainer(default_root_dir=self.folder, **quiet, **options)

    def test_the_run_is_the_same(self):
        other = trainer()
        other.fit()
        inside = trainer(checkpoint=self.folder / "run", save_every=2)
        module = self.module(inside)
        seen = []

        class Tell(self.lightning.pytorch.callbacks.Callback):
            def on_train_batch_end(self, loop, *_):
                seen.append({**loop.callback_metrics})

            def on_train_epoch_end(self, loop, _):
                seen.append(loop.current_epoch)

        loop = self.loop(max_epochs=-1, callbacks=[Tell()], log_every_n_steps=1)
        loop.fit(module)
        for mine, wanted in zip(module.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(mine, wanted)
        assert seen.count(0) == seen.count(1) == 1, "four steps are an epoch"
        assert loop.global_step == 7
        told = {name for s in seen if isinstance(s, dict) for name in s}
        assert told == {
            "learning rate",
            "seconds a step",
            "stage",
            "planned ε/strict",
            "planned ε/weak",
        }
        finished = Trainer.resume(
            self.folder / "run",
            inside.model,
            inside.optimizer,
            inside.loss_fn,
            PLAN,
            (inside._loop.sums.source.inputs, inside._loop.sums.source.targets),
        )
        assert finished.step_number == 7
        saved = next(self.folder.rglob("*.ckpt"))
        with pytest.raises(StateError, match="own folder"):
            self.loop(max_epochs=-1).fit(self.module(trainer()), ckpt_path=saved)

    def test_fewer_epochs_are_fewer_steps(self):
        inside = trainer()
        self.loop(max_epochs=1, logger=False, enable_checkpointing=False).fit(self.module(inside))
        assert inside.step_number == 4

    def test_several_processes_are_refused(self, monkeypatch):
        module = self.module(trainer())
        module._trainer = type("Loop", (), {"world_size": 2, "strategy": None})()
        with pytest.raises(UnsupportedError, match="2 processes"):
            module.on_fit_start()

    def plain(self, model, steps):
        """Return a model after Lightning's own loop, full batch, without privacy."""
        lightning = self.lightning

        class Plain(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = model

            def training_step(self, batch, *_):
                return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

            def configure_optimizers(self):
                held = [p for p in model.parameters() if p.requires_grad]
                sgd = torch.optim.SGD(held, lr=0.2, momentum=0.9)
                return [sgd], [torch.optim.lr_scheduler.StepLR(sgd, 3)]

        data = torch.utils.data.TensorDataset(*points())
        loader = torch.utils.data.DataLoader(data, batch_size=40)
        options = {"logger": False, "enable_checkpointing": False}
        self.loop(max_epochs=steps, **options).fit(Plain(), loader)
        return model

    def ours(self, model, steps, resume=None, **options):
        held = [p for p in model.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(held, lr=0.2, momentum=0.9)
        falling = torch.optim.lr_scheduler.StepLR(sgd, 3)
        loss = nn.CrossEntropyLoss(reduction="none")
        given = (model, sgd, loss, quiet_plan(40, steps), points())
        if resume is not None:
            return Trainer.resume(resume, *given, scheduler=falling)
        return Trainer(*given, scheduler=falling, seed=0, **options)

    def inside(self, trainer, epochs=-1):
        options = {"logger": False, "enable_checkpointing": False}
        self.loop(max_epochs=epochs, **options).fit(self.module(trainer))

    @pytest.mark.parametrize("freeze", [(), ("0",), ("2",)])
    @pytest.mark.parametrize("begin", [lambda model: model, trained_on])
    def test_without_noise_it_is_lightning_s_own_training(self, freeze, begin):
        """As the guide uses it, from the first parameters and fine-tuned, whole and frozen."""

        def made():
            model = begin(network())
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(not name.startswith(freeze or "none"))
            return model

        model, wanted = made(), self.plain(made(), 6)
        self.inside(self.ours(model, 6))
        for (name, mine), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-5), name
        assert not torch.allclose(model[0].weight, made()[0].weight) or freeze == ("0",)

    @pytest.mark.parametrize("freeze", [(), ("0",)])
    def test_a_run_that_was_stopped_goes_on_inside_the_loop(self, freeze):
        folder = self.folder / "run"
        self.inside(self.ours(network(freeze), 6, checkpoint=folder, save_every=1), epochs=2)
        model = network(freeze)
        again = self.ours(model, 6, resume=folder)
        assert again.step_number == 2
        self.inside(again)
        assert again.step_number == 6
        wanted = self.plain(network(freeze), 6)
        for (name, mine), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-5), name
