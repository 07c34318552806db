"""A student as a network: what the stack learned, in the form that a run folder keeps."""

from pathlib import Path

import pytest
import torch

from apiece.errors import StateError
from apiece.jobs import prepare
from apiece.jobs.config import Training, job_from_dict
from apiece.jobs.people import Examples
from apiece.jobs.prepared import RunFolder
from apiece.jobs.running import Execution, teach_student, train_student
from apiece.pate import Lessons, teach
from tests.pate.worlds import CLASSES, people, plan, public

DATA = {
    "data": {"source": "german"},
    "budgets": {"groups": [{"name": "all", "share": 1.0, "epsilon": 2.0}]},
    "training": {"method": "pate", "steps": 2},
    "pate": {"teachers": 5, "questions": 10, "public_share": 0.9},
}


def test_the_network_says_what_the_stack_of_one_says() -> None:
    from apiece.training.stacked import StackedMlp

    inputs, targets = people()
    records = Examples(inputs.numpy(), targets.numpy())
    training = Training(method="pate", steps=10, batch_size=4, hidden=(5,))
    network, answers = train_student(
        plan(), records, public().numpy(), training, classes=CLASSES, seed=0
    )
    lessons = Lessons(
        steps=10, batch_size=4, learning_rate=training.learning_rate, momentum=training.momentum,
        clip_norm=training.clip_norm,
    )  # fmt: skip
    model = StackedMlp((4, 5, 3))
    found = teach(
        plan(), model, (inputs, targets), public(), classes=CLASSES, lessons=lessons, seed=0
    )
    torch.testing.assert_close(network(inputs), model.logits(found.student[None], inputs[None])[0])
    assert answers == (found.answers >= 0).sum() == 20


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    prepared = prepare(job_from_dict(DATA, name="first", changes={}), out=tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    execution = Execution(prepared, None, lambda *_: None, None)  # type: ignore[arg-type]
    model = execution.start_model("weight", 0)
    with pytest.raises(StateError, match="make room or mend the folder"):
        teach_student(execution, model)


def test_steps_of_teachers_and_student_are_counted_through(tmp_path: Path) -> None:
    prepared = prepare(job_from_dict(DATA, name="first", changes={}), out=tmp_path / "run")
    told: list[tuple[str, int, int, int]] = []
    folder = RunFolder(tmp_path / "run")
    execution = Execution(prepared, folder, lambda *n: told.append(n), None)
    teach_student(execution, execution.start_model("weight", 0))
    assert told == [("weight", 0, s, 4) for s in (1, 2, 3, 4)]
    assert prepared.steps == 4
    assert '"event": "answered"' in (tmp_path / "run" / "log.jsonl").read_text()
