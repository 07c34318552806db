"""Hugging Face's Trainer runs a plan's steps, bit for bit; runs where transformers is installed."""

import dataclasses
import importlib
import sys

import pytest
import torch
from torch.utils.data import DataLoader

import apiece
from apiece import Budgets, Sample, Trainer, assign
from apiece.errors import InputError, StateError, UnsupportedError

from .small import quiet_plan

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=5, expected_batch_size=10, clip_norm=1.0, method="rdp")


def test_without_transformers(monkeypatch):
    monkeypatch.delitem(sys.modules, "apiece.adapters.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*transformers"):
        importlib.import_module("apiece.adapters.huggingface")


class Texts(torch.utils.data.Dataset):
    """Forty texts of 3 to 7 tokens."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        made = torch.Generator().manual_seed(i)
        tokens = torch.randint(1, 50, (3 + i % 5,), generator=made)
        return {"input_ids": tokens, "labels": int(tokens[0]) % 2}


def padded(items):
    rows = [item["input_ids"] for item in items]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.tensor([item["labels"] for item in items])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}


def of_text(items):
    batch = padded(items)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)}


@pytest.mark.filterwarnings("ignore")
class TestWithTransformers:
    @pytest.fixture(autouse=True)
    def transformers(self, tmp_path):
        self.hf = pytest.importorskip("transformers", reason="transformers is not installed")
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        self.module = importlib.import_module("apiece.adapters.huggingface")
        self.folder = tmp_path

    def model(self, kind="bert"):
        torch.manual_seed(7)
        if kind == "gpt2":
            small = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 50, "n_positions": 9}
            return self.hf.GPT2LMHeadModel(self.hf.GPT2Config(**small))
        small = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
        sizes = {"intermediate_size": 9, "vocab_size": 50, "max_position_embeddings": 9}
        return self.hf.BertForSequenceClassification(self.hf.BertConfig(**small, **sizes))

    def arguments(self, **options):
        given = {"report_to": [], "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
        given |= {"use_cpu": True, "learning_rate": 0.1, "lr_scheduler_type": "linear"}
        return self.hf.TrainingArguments(str(self.folder / "out"), **given | options)

    def private(self, model, collate=padded, arguments=None, **options):
        given = {"plan": PLAN, "train_dataset": Texts(), "data_collator": collate}
        given |= {"private_seed": 3, "args": arguments or self.arguments()}
        return self.module.PrivateTrainer(model, **given | options)

    @pytest.mark.parametrize("kind", ["bert", "gpt2"])
    def test_the_run_is_that_of_the_engine(self, kind):
        collate = of_text if kind == "gpt2" else padded
        model, other = self.model(kind), self.model(kind)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = self.private(model, collate, optimizers=(sgd, None))
        found = trainer.train()
        assert found.training_loss is None
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (5 - k) / 5)
        loss = trainer._loss
        records = DataLoader(Texts(), collate_fn=collate)
        Trainer(
            other, optimizer, loss, PLAN, records, scheduler=falling, seed=3, physical_batch_size=8
        ).fit()
        for (name, mine), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, wanted), name
        told = {name for line in trainer.state.log_history for name in line}
        assert not {"loss", "grad_norm", "train_loss"} & told
        assert {"planned ε/strict", "learning_rate"} <= told
        rates = [h["learning_rate"] for h in trainer.state.log_history if "learning_rate" in h]
        assert rates == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02], rel=0.3)

    def test_its_speed_is_of_the_records_that_the_plan_expects(self):
        """Hugging Face's own figure is the steps times what fits into memory."""
        trainer = self.private(self.model())
        found = trainer.train().metrics
        expected = 5 * PLAN.expected_batch_size
        product = found["train_samples_per_second"] * found["train_runtime"]
        assert product == pytest.approx(expected, rel=0.01)
        assert found["train_steps_per_second"] * found["train_runtime"] == pytest.approx(5, rel=0.1)
        (logged,) = [h for h in trainer.state.log_history if "train_runtime" in h]
        assert logged["train_samples_per_second"] == found["train_samples_per_second"]
        assert expected != 5 * trainer.args.per_device_train_batch_size

    def test_evaluation_saving_and_checkpoints(self):
        arguments = self.arguments(eval_strategy="steps", eval_steps=2, save_strategy="steps")
        own = str(self.folder / "own")
        model = self.model()
        trainer = self.private(model, arguments=arguments, eval_dataset=Texts(), checkpoint=own)
        trainer.train()
        assert any("eval_loss" in line for line in trainer.state.log_history)
        saved = next((self.folder / "out").glob("checkpoint-*"))
        with pytest.raises(StateError, match="own folder"):
            self.private(self.model()).train(resume_from_checkpoint=str(saved))
        again = self.private(self.model(), checkpoint=own)
        with pytest.raises(StateError, match="own folder"):
            again.train(resume_from_checkpoint=str(saved))
        again = self.hf.BertForSequenceClassification.from_pretrained(saved)
        assert torch.equal(again.classifier.weight, model.classifier.weight)
        with pytest.raises(StateError, match="all 5 steps"):
            trainer._private.step()

    def test_under_autocast(self):
        model, plain = self.model(), self.model()
        self.private(model, arguments=self.arguments(bf16=True)).train()
        self.private(plain).train()
        assert not torch.equal(model.classifier.weight, plain.classifier.weight)
        assert torch.allclose(model.classifier.weight, plain.classifier.weight, atol=0.3)

    @pytest.mark.parametrize(
        "given",
        [
            {"gradient_accumulation_steps": 2},
            {"label_smoothing_factor": 0.1},
            {"neftune_noise_alpha": 1.0},
            {"load_best_model_at_end": True, "save_strategy": "no"},
            {"max_steps": 7},
            {"num_train_epochs": 5},
            {"max_grad_norm": 0.5},
            {"data_seed": 3},
            {"skip_memory_metrics": False},
            {"torch_empty_cache_steps": 3},
            {"dataloader_drop_last": True},
            {"ignore_data_skip": True},
            {"ddp_timeout": 60},
            {"debug": "underflow_overflow"},
        ],
    )
    def test_what_has_no_meaning_is_refused(self, given):
        with pytest.raises(UnsupportedError, match=next(iter(given))):
            self.private(self.model(), arguments=self.arguments(**given))

    def test_every_argument_is_honoured_or_refused_with_a_remedy(self):
        """A table of all fields: a new one of Hugging Face's has to be put into it."""
        module = self.module
        names = {field.name for field in dataclasses.fields(self.hf.TrainingArguments)}
        assert not module.HONOURED & module.REFUSED.keys()
        assert names <= module.HONOURED | module.REFUSED.keys()

    def test_an_argument_that_nobody_knows_is_refused(self):
        @dataclasses.dataclass
        class Newer(self.hf.TrainingArguments):
            tempo: int = 1

        given = {"use_cpu": True, "report_to": []}
        with pytest.raises(UnsupportedError, match=r"tempo = 2 .* apiece does not know it"):
            self.private(self.model(), arguments=Newer(str(self.folder), tempo=2, **given))
        self.private(self.model(), arguments=Newer(str(self.folder), **given))

    def test_the_steps_of_the_plan_may_be_said(self):
        assert self.private(self.model(), arguments=self.arguments(max_steps=5)).args.max_steps == 5

    def test_a_trainer_is_no_run_to_report(self):
        with pytest.raises(InputError, match=r"give its plan, as apiece.report\(trainer.plan\)"):
            apiece.report(self.private(self.model()))

    def test_a_rate_that_follows_exact_losses_is_refused(self):
        rate = torch.optim.lr_scheduler.ReduceLROnPlateau
        arguments = self.arguments(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps")
        with pytest.raises(UnsupportedError, match="follows an evaluation"):
            self.private(self.model(), arguments=arguments, eval_dataset=Texts())
        model = self.model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(UnsupportedError, match="follows an evaluation"):
            self.private(model, optimizers=(sgd, rate(sgd)))
        stop = self.hf.EarlyStoppingCallback(early_stopping_patience=1)
        with pytest.raises(UnsupportedError, match="early stopping"):
            self.private(self.model(), callbacks=[stop])
        with pytest.raises(UnsupportedError, match="early stopping"):
            self.private(self.model()).add_callback(self.hf.EarlyStoppingCallback)

    def test_a_model_without_a_known_loss(self):
        with pytest.raises(InputError, match="one loss a record"):
            self.private(torch.nn.Linear(2, 2))

    @pytest.mark.parametrize("kind", ["next", "tokens", "classes", "numbers", "several"])
    def test_losses_are_hugging_face_s_one_record_at_a_time(self, kind):
        from apiece.adapters import stepping

        model = self.model("gpt2" if kind == "next" else "bert")
        batch = (
            of_text([Texts()[i] for i in (1, 4)])
            if kind == "next"
            else padded([Texts()[i] for i in (1, 4)])
        )
        if kind == "tokens":
            model = self.hf.BertForTokenClassification(model.config)
            batch["labels"] = batch["input_ids"] % 2
            batch["labels"][:, 0] = -100
        if kind == "numbers":
            model = self.hf.BertForSequenceClassification(
                self.hf.BertConfig(**model.config.to_diff_dict() | {"num_labels": 1})
            )
            batch["labels"] = batch["labels"].float()
        if kind == "several":
            model.config.problem_type = "multi_label_classification"
            batch["labels"] = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
        model.eval()
        losses = stepping.find_loss(model)(model(**batch), batch["labels"])
        assert losses.shape == (2,)
        for k in range(2):
            alone = {name: value[k : k + 1] for name, value in batch.items()}
            assert float(losses[k]) == pytest.approx(float(model(**alone).loss), rel=1e-4)

    def quiet(self, model, steps, **options):
        given = {"plan": quiet_plan(40, steps), "optimizers": (self.sgd(model), None)}
        return self.private(model, **given | options)

    def sgd(self, model):
        held = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.SGD(held, lr=0.3, momentum=0.9)

    def plain(self, model, steps, collate=padded, data=None, **arguments):
        """Return a model after Hugging Face's own training on the same full batches."""
        arguments = {"per_device_train_batch_size": 40, "max_steps": steps} | arguments
        sgd = self.sgd(model)
        loop = self.hf.Trainer(
            model,
            self.arguments(max_grad_norm=0.0, **arguments),
            train_dataset=data or Texts(),
            data_collator=collate,
            optimizers=(sgd, None),
        )
        loop.train()
        return model

    def still(self, freeze=(), kind="bert"):
        """A model without dropout, parts of which are frozen."""
        model = self.model(kind)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(freeze or "none"))
        return model

    def tuned(self, freeze):
        """A model that was saved after a public training, and is loaded to be trained further."""
        saved = self.folder / "public"
        if not saved.exists():
            self.plain(self.still(), 2).save_pretrained(saved)
        model = self.hf.BertForSequenceClassification.from_pretrained(
            saved, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(freeze or "none"))
        return model

    @pytest.mark.parametrize("begin", ["still", "tuned"])
    @pytest.mark.parametrize("freeze", [(), ("bert.embeddings", "bert.encoder")])
    def test_without_noise_it_is_hugging_face_s_own_training(self, begin, freeze):
        """As the guide uses it, from the first parameters and fine-tuned, whole and frozen."""
        model, other = (getattr(self, begin)(freeze) for _ in range(2))
        first = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.quiet(model, 4).train()
        self.plain(other, 4)
        moved = 0.0
        for (name, mine), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
            assert torch.allclose(mine, wanted, atol=2e-4), name
            moved = max(moved, float((mine - first[name]).abs().max()))
        assert moved > 0.01

    @pytest.mark.parametrize("save_every", [1, 100])
    @pytest.mark.parametrize("freeze", [(), ("bert.embeddings",)])
    def test_a_run_that_was_stopped_goes_on_to_the_same_bits(self, save_every, freeze):
        """As the guide resumes it: dropout, learning rate and noise go on where they were."""
        own = str(self.folder / "own")

        class Stop(self.hf.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                if state.global_step == 3:
                    raise KeyboardInterrupt

        def made(**options):
            model = self.model()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(not name.startswith(freeze or "none"))
            given = {"checkpoint": own, "save_every": save_every, **options}
            return model, self.private(model, **given)

        whole, uninterrupted = made(checkpoint=str(self.folder / "other"))
        uninterrupted.train()
        _, stopped = made(callbacks=[Stop()])
        with pytest.raises(KeyboardInterrupt):
            stopped.train()
        model, again = made()
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 5
        for (name, mine), wanted in zip(model.named_parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine, wanted), name
        rates = [h["learning_rate"] for h in again.state.log_history if "learning_rate" in h]
        every = [
            h["learning_rate"] for h in uninterrupted.state.log_history if "learning_rate" in h
        ]
        assert rates == every[3 if save_every == 1 else 0 :]
        finished, after = made()
        assert after.train(resume_from_checkpoint=own).global_step == 5
        for (name, mine), wanted in zip(
            finished.named_parameters(), whole.parameters(), strict=True
        ):
            assert torch.equal(mine, wanted), name

    def test_what_cannot_be_resumed_is_told(self):
        with pytest.raises(StateError, match=r"give checkpoint=... and use train\(True\)"):
            self.private(self.model()).train(resume_from_checkpoint=True)
        own = str(self.folder / "own")
        self.private(self.model(), checkpoint=own).train()
        with pytest.raises(StateError, match="holds a checkpoint already"):
            self.private(self.model(), checkpoint=own).train()

    def test_a_schedule_that_ends_too_early_is_refused_before_a_step(self):
        model = self.model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        short = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=0.2, total_steps=3)
        trainer = self.private(model, optimizers=(sgd, short))
        with pytest.raises(InputError, match="OneCycleLR fails after update 4 of 5"):
            trainer.train()

    @pytest.mark.parametrize("kind", ["several", "classes", "regression"])
    @pytest.mark.parametrize("problem", ["said", "unsaid"])
    def test_the_problem_is_the_one_that_hugging_face_takes(self, kind, problem):
        """By problem_type, or by the labels where it is not said."""
        kinds = {
            "several": (3, "multi_label_classification"),
            "classes": (3, "single_label_classification"),
            "regression": (1, "regression"),
        }
        labels, said = kinds[kind]

        class Labelled(Texts):
            def __getitem__(self, i):
                number = {"several": [float(i % 2), 1.0, 0.0], "classes": i % 3}.get(kind, i / 40)
                return super().__getitem__(i) | {"labels": number}

        def model():
            config = self.still().config.to_diff_dict() | {
                "num_labels": labels, "problem_type": said if problem == "said" else None,
                "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            }  # fmt: skip
            torch.manual_seed(5)
            return self.hf.BertForSequenceClassification(self.hf.BertConfig(**config))

        mine, other = model(), model()
        self.quiet(mine, 3, train_dataset=Labelled()).train()
        self.plain(other, 3, data=Labelled())
        for (name, one), wanted in zip(mine.named_parameters(), other.parameters(), strict=True):
            assert torch.allclose(one, wanted, atol=2e-4), name

    def test_labels_of_no_kind_are_refused(self):
        from apiece.adapters import stepping

        model = self.model()
        outputs = model(**{k: v for k, v in padded([Texts()[1]]).items() if k != "labels"})
        for labels in (torch.tensor([[0, 1]]), torch.tensor([0.5]), torch.zeros(1, 3)):
            with pytest.raises(InputError, match="give one integer a record"):
                stepping.find_loss(model)(outputs, labels)
