"""A run inside Lightning is the run without it, bit for bit; runs where Lightning is installed."""

import importlib
import sys

import pytest
import torch

from apiece import Trainer
from apiece.errors import StateError, UnsupportedError

from .small import PLAN, trainer


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
