"""A hundred kinds of mistakes: what is typed, what is said, and that the remedy it names works.

Each is met by one line on stderr that holds the value and the way out: a refusal (exit status 2,
nothing printed, nothing written) or a warning beside a result (exit status 0).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece import cli

from .options import instead

N = 200
SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.town]
kind = "categorical"
values = ["A", "B"]
missing = ["", "?"]
[columns.answer]
kind = "categorical"
values = ["no", "yes"]
[columns.person]
kind = "skip"
[columns.budget]
kind = "skip"
"""
Files = dict[str, bytes]
WORKED: dict[Any, str] = {}  # what was said on stderr by commands that worked
Change = Callable[[pd.DataFrame], pd.DataFrame]


def people() -> pd.DataFrame:
    random = np.random.default_rng(3)
    age = random.integers(1, 99, N)
    return pd.DataFrame(
        {
            "age": age.astype(str),
            "town": random.choice(["A", "B", "?", ""], N),
            "answer": np.where(age > 50, "yes", "no"),
            "budget": "1.5",
            "person": [f"p{i}" for i in range(N)],
            "part": np.where(np.arange(N) % 4, "train", "test"),
        }
    )


PLAN = "--batch-size 20 --steps 3"
DATA = "--data people.csv --epsilon budget"
TRAIN = f"train {DATA} --label answer --schema schema.toml --split part --delta 1e-4"
COMMANDS = {
    "train": f"{TRAIN} --strategy uniform {PLAN} --ids person --out run",
    "train persons": (
        f"{TRAIN} --strategy uniform {PLAN} --person person --rows-per-person 2 --out run"
    ),
    "plan": f"plan --records 1000 --groups a:1:1 --delta 1e-5 {PLAN} --strategy scale",
    "plan --data": f"plan {DATA} --ids person --delta 1e-4 {PLAN} --strategy scale --out p.json",
    "account": "account --noise-multiplier 1 --sampling-probability 0.1 --steps 3 --delta 1e-5",
    "risk": f"risk --records 500 --epsilon 2 --delta 1e-5 {PLAN} --others 1 --shares 0.5",
    "risk --each": (
        f"risk --each --records 500 --epsilon 2 --delta 1e-5 {PLAN} --others 1 --strategy scale"
    ),
    "ledger init": f"ledger init sqlite:///l.db {DATA} --person person --delta 1e-4",
    "schema": "schema people.csv --label answer",
    "audit": "audit --canaries scores.csv --delta 1e-5",
    "query": "query people.parquet count(persons) --person person --epsilon 1 --delta 1e-6",
    "sensitivity": "sensitivity a**2 --range a=1:2",
    "": "",
}


@dataclass(frozen=True)
class Mistake:
    """What is done wrong in a command that would work, what is said, and how it is mended.

    add, drop: options put behind, options left out with their value; table: what happens to the
    people; written: how their file is written; schema: a replaced schema; files: others by name.
    twice: options of add do not take the place of those that are there.
    mend: the fields that the remedy changes, None where none is named that a test can follow.
    """

    name: str
    command: str
    says: tuple[str, ...]
    add: str = ""
    drop: tuple[str, ...] = ()
    table: Change | None = None
    written: Callable[[pd.DataFrame], Files] | None = None
    schema: str | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    status: int = 2
    twice: bool = False
    mend: Mapping[str, Any] | None = None


def arguments(case: Mistake) -> list[str]:
    words = COMMANDS[case.command].split(" ") if case.command else []
    for option in case.drop:
        at = words.index(option)
        words[at : at + 2] = []
    added = [word.replace("·", " ") for word in case.add.split()]
    return [*words, *added] if case.twice else instead(words, *added)


def made(case: Mistake) -> Files:
    frame = people() if case.table is None else case.table(people())
    write = case.written or (lambda f: {"people.csv": f.to_csv(index=False).encode()})
    files: dict[str, str | bytes] = {**write(frame)}
    files["schema.toml"] = SCHEMA if case.schema is None else case.schema
    random = np.random.default_rng(0)
    coins = random.integers(0, 2, 200)
    scores = pd.DataFrame({"score": coins + random.normal(size=200), "included": coins})
    files["scores.csv"] = scores.to_csv(index=False)
    if case.command == "query":
        files["people.parquet"] = people().assign(age=7).to_parquet()
    files |= case.files
    return {n: c if isinstance(c, bytes) else c.encode() for n, c in files.items()}


def lay_out(case: Mistake, folder: Path) -> None:
    for name, content in made(case).items():
        (folder / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def ask(case: Mistake, folder: Path, capsys: Any, monkeypatch: Any) -> tuple[int, str, str]:
    """Lay out the files in a new folder and run the command there."""
    folder.mkdir()
    lay_out(case, folder)
    monkeypatch.chdir(folder)
    status = cli.run(arguments(case))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def cell(column: str, value: str, rows: slice | int = 7) -> Change:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.copy()
        frame.loc[rows, column] = value
        return frame

    return change


def every(column: str, value: Any) -> Change:
    return lambda frame: frame.assign(**{column: value})


def encoded(encoding: str) -> Callable[[pd.DataFrame], Files]:
    named = {"people.csv": lambda f: f.assign(town="Ü").to_csv(index=False).encode(encoding)}
    return lambda frame: {name: make(frame) for name, make in named.items()}


def european(frame: pd.DataFrame) -> Files:
    commas = frame.assign(budget=frame["budget"].str.replace(".", ","))
    return {"people.csv": commas.to_csv(index=False, sep=";").encode()}


def line(number: int, change: Callable[[str], str]) -> Callable[[pd.DataFrame], Files]:
    def write(frame: pd.DataFrame) -> Files:
        lines = frame.to_csv(index=False).splitlines()
        lines[number - 1] = change(lines[number - 1])
        return {"people.csv": ("\n".join(lines) + "\n").encode()}

    return write


def wide(count: int) -> str:
    values = ", ".join(f'"v{i}"' for i in range(count))
    return SCHEMA.replace('values = ["A", "B"]', f'values = ["A", "B", {values}]')


def renamed(**names: str) -> Change:
    return lambda frame: frame.rename(columns=names)


def declared(text: str) -> str:
    return SCHEMA.replace('[columns.person]\nkind = "skip"\n', "") + text


RESKIPPED = SCHEMA + '[columns.part]\nkind = "skip"\n'
NUMBERED = declared('[columns.person]\nkind = "numeric"\nlower = 0\nupper = 999\n')
BUDGETED = SCHEMA.replace(
    '[columns.budget]\nkind = "skip"', '[columns.budget]\nkind = "numeric"\nlower = 0\nupper = 9'
)
LOG = SCHEMA.replace("lower = 0\nupper = 100", 'lower = -5\nupper = 100\nscale = "log"')
LABEL_UP = SCHEMA.replace('["no", "yes"]', '["No", "Yes"]')
JSON_DATA = {"written": lambda f: {"people.json": f.to_json(orient="records").encode()}}


def in_words(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(budget=np.resize(["low", "high"], len(frame)))


TRAIN_DATA = [
    # Budgets
    Mistake("percent", "train", ("warning", "25", "divide by 100"), status=0,
            table=every("budget", "25"), mend={"table": every("budget", "2.5")}),
    Mistake("a million", "train", ("1e+06", "--no-limit-cap 8"), table=cell("budget", "1e6"),
            mend={"table": cell("budget", "inf"), "add": "--no-limit-cap 8"}),
    Mistake("no limit", "train", ("row 8 = 'no limit'", "--no-limit-cap 8"),
            table=cell("budget", "no limit"), mend={"add": "--no-limit-cap 8"}),
    Mistake("infinite", "train", ("row 8 = inf", "--no-limit-cap 8"), table=cell("budget", "inf"),
            mend={"add": "--no-limit-cap 8"}),
    Mistake("cap of nothing", "train", ("no_limit_cap = 0",), add="--no-limit-cap 0",
            mend={"add": "--no-limit-cap 8"}),
    Mistake("cap of infinity", "train", ("no_limit_cap = inf", "(0, inf)"),
            add="--no-limit-cap inf", mend={"add": "--no-limit-cap 8"}),
    Mistake("zero", "train", ("row 8 = 0", "(0, inf)", "drop"), table=cell("budget", "0"),
            mend={"table": lambda f: f.drop(7)}),
    Mistake("negative", "train", ("row 8 = -1", "(0, inf)"), table=cell("budget", "-1")),
    Mistake("no budget", "train", ("row 8 = ''", "empty", "drop"), table=cell("budget", ""),
            mend={"table": lambda f: f.drop(7)}),
    Mistake("not a number", "train", ("row 8 = 'nan'", "empty"), table=cell("budget", "nan")),
    Mistake("a word", "train", ("row 8 = 'much'", "not a number"), table=cell("budget", "much")),
    Mistake("words", "train", ("declare the words", "--levels low=1,high=8"), table=in_words,
            mend={"add": "--levels low=1,high=2"}),
    Mistake("a word that is no level", "train", ("1 of 200 rows", "1 of them empty", "low, high"),
            table=lambda f: cell("budget", "")(in_words(f)), add="--levels low=1,high=2",
            mend={"table": in_words}),
    Mistake("levels without numbers", "train", ("'low' is not name=epsilon", "low=1,high=8"),
            table=in_words, add="--levels low,high", mend={"add": "--levels low=1,high=2"}),
    Mistake("a level by its old name", "train", ("'--level'", "'--levels'"), add="--level 1"),
    Mistake("a percent sign", "train", ("row 8 = '50%'", "plain number"),
            table=cell("budget", "50%"), mend={"table": cell("budget", "0.5")}),
    Mistake("a decimal comma", "train", ("row 8 = '1,5'", "--decimal ,"),
            table=cell("budget", "1,5"),
            mend={"table": lambda f: f.assign(budget=f["budget"].str.replace(".", ",")),
                  "add": "--decimal ,"}),
    Mistake("digits of another script", "train", ("not a number",), table=cell("budget", "١")),
    Mistake("an underscore", "train", ("row 8 = '1_0'", "not a number"),
            table=cell("budget", "1_0")),
    Mistake("delta of 1/n", "train", ("warning", "delta = 0.01", "1/n", "0.0001"), status=0,
            add="--delta 0.01", mend={"add": "--delta 0.0001"}),
    Mistake("delta column of 1/n", "train", ("warning", "delta = 0.02", "1/n"), status=0,
            add="--delta part_delta", table=every("part_delta", "0.02"),
            mend={"table": every("part_delta", "0.0001")}),
    Mistake("five people", "train", ("warning", "records: noise"), status=0,
            table=lambda f: f.groupby("answer").head(4).assign(part="train"),
            add="--batch-size 2", mend={"table": None}),
    Mistake("a group of one", "train", ("warning", "1 of 2 groups", "smallest 1", "round"),
            status=0, table=cell("budget", "1.7", 6), mend={"table": cell("budget", "1.5", 6)}),
    # Columns
    Mistake("epsilon a number", "train", ("--epsilon = 1.0", "column"), add="--epsilon 1.0",
            mend={"table": every("e", "1.0"), "add": "--epsilon e"}),
    Mistake("budget column misspelled", "train", ("'budgt'", "did you mean 'budget'"),
            add="--epsilon budgt", mend={"add": "--epsilon budget"}),
    Mistake("label misspelled", "train", ("'anser'", "did you mean 'answer'"), add="--label anser",
            mend={"add": "--label answer"}),
    Mistake("ids misspelled", "train", ("'persn'", "did you mean 'person'"), add="--ids persn",
            mend={"add": "--ids person"}),
    Mistake("split misspelled", "train", ("'prt'", "did you mean 'part'"), add="--split prt",
            mend={"add": "--split part"}),
    Mistake("budget as label", "train", ("'answer'", "both as label and as epsilon"),
            add="--epsilon answer", mend={"add": "--epsilon budget"}),
    Mistake("budget as ids", "train", ("'budget'", "both as epsilon and as ids"),
            add="--ids budget", mend={"add": "--ids person"}),
    Mistake("budget as a feature", "train", ("warning", "'budget'", "left out", "skip"), status=0,
            schema=BUDGETED, mend={"schema": SCHEMA}),
    Mistake("id as a feature by name", "train", ("warning", "'person'", "--ids person"), status=0,
            schema=NUMBERED, drop=("--ids",), table=every("person", "7"),
            mend={"drop": (), "table": lambda f: f.assign(person=range(N))}),
    Mistake("id as a feature by content", "train", ("private", "'age'", "like an id"), status=0,
            table=lambda f: f.assign(age=[str(i) for i in range(N)])),
    Mistake("another budget as a feature", "train", ("warning", "'consent'", "looks like a budget"),
            status=0, table=every("consent", "3"),
            schema=SCHEMA + '[columns.consent]\nkind = "numeric"\nlower = 0\nupper = 9\n',
            mend={"schema": SCHEMA + '[columns.consent]\nkind = "skip"\n'}),
    Mistake("ids twice", "train", ("'p1'"[1:-1], "occurs", "unique"), table=cell("person", "p1")),
    Mistake("an empty id", "train", ("row 8", "empty", "--ids"), table=cell("person", ""),
            mend={"drop": ("--ids",)}),
    Mistake("people twice without ids", "train", ("private", "3 rows are exact copies", "--ids"),
            status=0, drop=("--ids",), table=lambda f: pd.concat([f, f.head(3)]),
            mend={"table": None}),
    Mistake("column not in the schema", "train", ("warning", "not used: 'shoe'", "skip"), status=0,
            table=every("shoe", "42"), mend={"schema": SCHEMA + '[columns.shoe]\nkind = "skip"\n'}),
    Mistake("column not in the table", "train", ("'age'", "not in the table"),
            table=lambda f: f.drop(columns="age")),
    Mistake("column in another case", "train", ("'age'", "did you mean 'Age'"),
            table=renamed(age="Age"), mend={"schema": SCHEMA.replace("s.age]", "s.Age]")}),
    Mistake("a column twice", "train", ("one name in the header", "rename"),
            written=line(1, lambda h: h.replace("town", "age")), mend={"written": None}),
    # Labels, split
    Mistake("one class", "train", ("'no'", "one class"), table=every("answer", "no")),
    Mistake("label undeclared", "train", ("row 8 = 'perhaps'", "declared", "schema"),
            table=cell("answer", "perhaps"),
            mend={"schema": SCHEMA.replace('"no", "yes"', '"no", "yes", "perhaps"')}),
    Mistake("labels in another case", "train", ("'No'", "case matters"), schema=LABEL_UP,
            mend={"schema": SCHEMA}),
    Mistake("split unknown", "train", ("row 8 = 'later'", "'train' or 'test'"),
            table=cell("part", "later"), mend={"table": cell("part", "test")}),
    Mistake("nobody to train on", "train", ("no record is left for training",),
            table=every("part", "test")),
    # Features
    Mistake("categories in another case", "train", ("'town'", "case matters", "values"),
            table=lambda f: f.assign(town=np.where(f["age"].astype(int) % 2, "a", "b")),
            mend={"schema": SCHEMA.replace('["A", "B"]', '["a", "b"]')}),
    Mistake("some in another case", "train", ("private", "'town'", "for their case"), status=0,
            table=cell("town", "a", slice(0, 20))),
    Mistake("unreadable everywhere", "train", ("'age'", "'old'", "skip"), table=every("age", "old"),
            mend={"schema": SCHEMA.replace(
                'kind = "numeric"\nlower = 0\nupper = 100', 'kind = "skip"')}),
    Mistake("all commas", "train", ("'age'", "'1,5'", "--decimal ,"), table=every("age", "1,5"),
            mend={"add": "--decimal ,",
                  "table": lambda f: f.assign(age="1,5", budget="1,5")}),
    Mistake("some unreadable", "train", ("private", "'age'", "1 of 200", "no finite number"),
            status=0, table=cell("age", "old")),
    Mistake("other units", "train", ("private", "'age'", "outside"), status=0,
            table=lambda f: f.assign(age=(f["age"].astype(int) * 365 + 101).astype(str))),
    Mistake("20,000 categories", "train", ("warning", "'town'", "20002 declared values"), status=0,
            schema=wide(20_000), mend={"schema": SCHEMA.replace(
                'kind = "categorical"\nvalues = ["A", "B"]\nmissing = ["", "?"]',
                'kind = "skip"')}),
    Mistake("log of negatives", "train", ("'age'", "lower = -5", "linear"), schema=LOG,
            mend={"schema": LOG.replace('"log"', '"linear"')}),
    Mistake("range reversed", "train", ("lower = 200", "upper = 100"),
            schema=SCHEMA.replace("lower = 0", "lower = 200")),
    Mistake("schema not filled in", "train", ("'age'", "'?'", "numeric"),
            schema=SCHEMA.replace('"numeric"', '"?"', 1)),
    Mistake("no schema", "train", ("apiece schema people.csv", "--schema schema.toml"),
            drop=("--schema",), mend={"drop": ()}),
    Mistake("schema is a CSV", "train", ("people.csv", "TOML"), add="--schema people.csv",
            mend={"add": "--schema schema.toml"}),
    # Files
    Mistake("semicolons", "train", ("--separator ';'",), written=european,
            mend={"add": "--separator ; --decimal ,"}),
    Mistake("semicolons, declared in a config", "train", ("--separator ';'", "under [data]"),
            written=european, mend={"add": "job.toml", "files": {
            "job.toml": "[data]\nseparator = ';'\ndecimal = ','\n"}}),
    Mistake("an output that cannot be", "train", ("/proc/nowhere", "cannot be made"),
            add="--out /proc/nowhere/run", schema=BUDGETED),
    Mistake("semicolons, comma undeclared", "train", ("'1,5'", "--decimal ,"), written=european,
            add="--separator ;", mend={"add": "--separator ; --decimal ,"}),
    Mistake("comma declared, points used", "train", ("1.5", "leave that out"), add="--decimal ,",
            mend={"add": ""}),
    Mistake("tabs", "train", ("--separator tab",),
            written=lambda f: {"people.csv": f.to_csv(index=False, sep="\t").encode()},
            mend={"add": "--separator tab"}),
    Mistake("latin-1", "train", ("line 2", "--encoding latin-1"), written=encoded("latin-1"),
            schema=SCHEMA.replace('["A", "B"]', '["Ü"]'), mend={"add": "--encoding latin-1"}),
    Mistake("utf-16", "train", ("--encoding utf-16",), written=encoded("utf-16"),
            schema=SCHEMA.replace('["A", "B"]', '["Ü"]'), mend={"add": "--encoding utf-16"}),
    Mistake("an encoding that is none", "train", ("'utf8x'", "utf-8"), add="--encoding utf8x",
            mend={"add": "--encoding utf-8"}),
    Mistake("a separator of two", "train", ("separator = ';;'", "one character"),
            add="--separator ;;", mend={"add": "--separator ,"}),
    Mistake("a ragged row", "train", ("line 9", "7 cells where the header has 6", "double quotes"),
            written=line(9, lambda s: s + ",x"), mend={"written": None}),
    Mistake("a short row", "train", ("line 9", "5 cells", "6"),
            written=line(9, lambda s: s.rpartition(",")[0]), mend={"written": None}),
    Mistake("an open quote", "train", ("line 9", "quotes"), written=line(9, lambda s: '"' + s)),
    Mistake("a spreadsheet", "train", ("people.xlsx", "CSV UTF-8"), add="--data people.xlsx",
            files={"people.xlsx": b"PK\x03\x04"}, mend={"add": "--data people.csv",
            "written": lambda f: {"people.csv": f.to_csv(index=False).encode("utf-8-sig")}}),
    Mistake("a spreadsheet called CSV", "train", ("spreadsheet", "CSV UTF-8"),
            written=lambda f: {"people.csv": b"PK\x03\x04" + bytes(40)}),
    Mistake("parquet called CSV", "train", ("Parquet", ".parquet"),
            written=lambda f: {"people.csv": f.to_parquet()}, mend={
            "written": lambda f: {"people.parquet": f.to_parquet()},
            "add": "--data people.parquet"}),
    Mistake("json", "train", ("people.json", "pandas.read_json"), add="--data people.json",
            **JSON_DATA),
    Mistake("an empty file", "train", ("people.csv", "empty"),
            written=lambda f: {"people.csv": b""}),
    Mistake("a header alone", "train", ("no rows",), table=lambda f: f.head(0)),
    Mistake("no such file", "train", ("nowhere.csv", "No such file"), add="--data nowhere.csv"),
    Mistake("a folder as data", "train", ("cannot be read", "Is a directory"), add="--data ."),
    # Settings
    Mistake("batch above n", "train", ("5000", "150 records"), add="--batch-size 5000",
            mend={"add": "--batch-size 50"}),
    Mistake("steps of zero", "train", ("steps = 0", "at least 1"), add="--steps 0",
            mend={"add": "--steps 1"}),
    Mistake("steps of a half", "train", ("'1.5'", "--steps"), add="--steps 1.5"),
    Mistake("strategy misspelled", "train", ("'sampel'", "did you mean 'sample'"),
            add="--strategy sampel", mend={"add": "--strategy sample"}),
    Mistake("option misspelled", "train", ("--bach-size", "--batch-size"), add="--bach-size 3",
            mend={"add": "--batch-size 3"}),
    Mistake("delta of one", "train", ("delta = 1", "(0, 1)"), add="--delta 1"),
    Mistake("a rate of no number", "train", ("learning_rate = nan",), add="--learning-rate nan"),
    Mistake("ledger without a name", "train", ("--ledger", "--analysis"),
            add="--ledger sqlite:///l.db"),
    Mistake("a used folder", "train", ("out = .", "not empty", "--out"), add="--out .",
            mend={"add": "--out fresh"}),
    Mistake("a config that is none", "train", ("people.csv", "TOML"), add="people.csv"),
    Mistake("a misspelled section", "train", ("'trainig'", "did you mean 'training'"),
            add="job.toml", files={"job.toml": "[trainig]\nsteps = 3\n"},
            mend={"files": {"job.toml": "[training]\nsteps = 3\n"}}),
    Mistake("a misspelled key", "train", ("'batchsize'", "did you mean 'batch_size'"),
            add="job.toml", files={"job.toml": "[training]\nbatchsize = 3\n"},
            mend={"files": {"job.toml": "[training]\nbatch_size = 3\n"}}),
    Mistake("a text as number", "train", ("separator = 3", "quotes"), add="job.toml",
            files={"job.toml": "[data]\nseparator = 3\n"},
            mend={"files": {"job.toml": '[data]\nseparator = ","\n'}}),
    Mistake("resume with settings", "train", ("--resume run", "leave out data"),
            add="--resume run"),
]  # fmt: skip

OTHERS = [
    Mistake("no such command", "", ("'pln'", "did you mean 'plan'"), add="pln",
            mend={"add": "plan --help"}),
    Mistake("shares above one", "plan", ("1.1", "sum to 1"), add="--groups a:1:0.5,b:3:0.6",
            mend={"add": "--groups a:1:0.4,b:3:0.6"}),
    Mistake("shares in percent", "plan", ("sum to 100", "sum to 1"), add="--groups a:1:50,b:3:50",
            mend={"add": "--groups a:1:0.5,b:3:0.5"}),
    Mistake("a group without share", "plan", ("'a:1'", "name:epsilon:share"), add="--groups a:1",
            mend={"add": "--groups a:1:1"}),
    Mistake("a group's epsilon a word", "plan", ("'a:one:1'", "numbers"), add="--groups a:one:1"),
    Mistake("a group without limit", "plan", ("inf", "--no-limit-cap 8"),
            add="--groups a:1:0.5,b:inf:0.5",
            mend={"add": "--groups a:1:0.5,b:inf:0.5 --no-limit-cap 8"}),
    Mistake("a group of a million", "plan", ("1e+06", "--no-limit-cap 8"),
            add="--groups a:1e6:1", mend={"add": "--groups a:inf:1 --no-limit-cap 8"}),
    Mistake("groups in percent", "plan", ("warning", "25", "divide by 100"), status=0,
            add="--groups a:25:1", mend={"add": "--groups a:2.5:1"}),
    Mistake("a delta of 1/n", "plan", ("warning", "delta = 0.001", "0.0001"), status=0,
            add="--delta 1e-3", mend={"add": "--delta 1e-4"}),
    Mistake("a handful", "plan", ("warning", "5 records"), status=0,
            add="--records 5 --groups a:1:1 --batch-size 2"),
    Mistake("a named one", "plan", ("warning", "1 of 2 groups"), status=0,
            add="--groups a:1:999,b:3:1", mend={"add": "--groups a:1:990,b:3:10"}),
    Mistake("no groups", "plan", ("--records", "--groups"), drop=("--groups",), mend={"drop": ()}),
    Mistake("no delta", "plan", ("--delta: missing",), drop=("--delta",), mend={"drop": ()}),
    Mistake("budgets twice", "plan", ("twice", "leave out --groups"), add="--data people.csv"),
    Mistake("option without value", "plan", ("'noise'", "name=value"), add="--option noise"),
    Mistake("a plan that is none", "", ("not JSON", "apiece wrote"), add="plan --from people.csv"),
    Mistake("plan: words", "plan --data", ("declare the words",), table=in_words,
            mend={"add": "--levels low=1,high=2"}),
    Mistake("plan: levels of no table", "plan", ("--levels", "leave it out"), add="--levels low=1"),
    Mistake("plan: no limit", "plan --data", ("'no limit'", "--no-limit-cap 8"),
            table=cell("budget", "no limit"), mend={"add": "--no-limit-cap 8"}),
    Mistake("plan: decimal commas", "plan --data", ("--separator ';'",), written=european,
            mend={"add": "--separator ; --decimal ,"}),
    Mistake("plan: a ragged row", "plan --data", ("line 9", "7 cells"),
            written=line(9, lambda s: s + ",x"), mend={"written": None}),
    Mistake("plan: utf-16", "plan --data", ("--encoding utf-16",), written=encoded("utf-16"),
            mend={"add": "--encoding utf-16"}),
    Mistake("plan: an empty cell", "plan --data", ("row 8 = ''", "empty"),
            table=cell("budget", "")),
    Mistake("plan: no epsilon", "plan --data", ("--epsilon: missing",), drop=("--epsilon",),
            mend={"drop": ()}),
    Mistake("plan: ids twice", "plan --data", ("occurs 2 times", "unique"),
            table=cell("person", "p1")),
    Mistake("no noise", "account", ("noise_multiplier = 0", "positive"),
            add="--noise-multiplier 0"),
    Mistake("a probability of two", "account", ("2.0", "[0, 1]"),
            add="--sampling-probability 2"),
    Mistake("an unknown method", "account", ("'pdl'", "did you mean 'pld'"), add="--method pdl",
            mend={"add": "--method pld"}),
    Mistake("account without delta", "account", ("--delta: missing",), drop=("--delta",),
            mend={"drop": ()}),
    Mistake("account of a delta of two", "account", ("delta = 2",), add="--delta 2"),
    Mistake("twice a mechanism", "account", ("twice", "leave out the"), add="plan.json"),
    Mistake("shares in percent of risk", "risk", ("50",), add="--shares 50"),
    Mistake("words for numbers", "risk", ("'few'", "numbers"), add="--others few",
            mend={"add": ""}),
    Mistake("risk of a million", "risk", ("1e+06", "above 1000"), add="--others 1e6",
            mend={"add": ""}),
    Mistake("risk at a delta of 1/n", "risk", ("warning", "delta = 0.01", "1/n"), status=0,
            add="--delta 0.01 --steps 1", mend={"add": "--delta 0.0001 --steps 1"}),
    Mistake("each at a delta of 1/n", "risk --each", ("warning", "delta = 0.01", "1/n"), status=0,
            add="--delta 0.01", mend={"add": "--delta 0.0001"}),
    Mistake("risk in percent", "risk", ("warning", "25", "divide by 100"), status=0,
            add="--epsilon 25 --steps 1", mend={"add": "--epsilon 2.5 --steps 1"}),
    Mistake("each by words", "risk --each", ("'few'", "2,4,8"), add="--others few",
            mend={"add": "--others 1"}),
    Mistake("each of one", "risk --each", ("--records = 1", "at least 2"), add="--records 1"),
    Mistake("each: a seed that draws nobody", "risk --each", ("--seed", "--shares"), add="--seed 3",
            mend={"add": "--seed 3 --shares 0.5"}),
    Mistake("each: a bound for none", "risk --each", ("--excess", "hybrid"), add="--excess 0.1"),
    Mistake("ledger: words", "ledger init", ("1 of 200 rows", "'high' is the nearest"),
            table=lambda f: cell("budget", "hihg")(in_words(f)), add="--levels low=1,high=2",
            mend={"table": in_words}),
    Mistake("ledger: no limit", "ledger init", ("'no limit'", "--no-limit-cap 8"),
            table=cell("budget", "no limit"), mend={"add": "--no-limit-cap 8"}),
    Mistake("ledger: decimal commas", "ledger init", ("--separator ';'",), written=european,
            mend={"add": "--separator ; --decimal ,"}),
    Mistake("ledger: a separator of Parquet", "ledger init",
            ("people.parquet", "separator = ';'", "leave it out"),
            written=lambda f: {"people.parquet": f.to_parquet()},
            add="--data people.parquet --separator ;", mend={"add": "--data people.parquet"}),
    Mistake("ledger: percent", "ledger init", ("warning", "800", "divide by 100"), status=0,
            table=every("budget", "800"), mend={"table": every("budget", "8")}),
    Mistake("ledger: no ids", "ledger init", ("--person",), drop=("--person",), mend={"drop": ()}),
    Mistake("ledger: one id, two budgets", "ledger init", ("epsilon",),
            table=lambda f: cell("budget", "7")(cell("person", "p1")(f))),
    Mistake("ledger: an old word", "ledger init", ("'--ids'", "--help"), add="--ids person",
            mend={"add": ""}),
    Mistake("ledger: a ragged row", "ledger init", ("line 9", "5 cells"),
            written=line(9, lambda s: s.rpartition(",")[0]), mend={"written": None}),
    Mistake("ledger: no file", "ledger init", ("nowhere.csv",), add="--data nowhere.csv"),
    Mistake("schema: label misspelled", "schema", ("'anser'", "did you mean 'answer'"),
            add="--label anser", mend={"add": "--label answer"}),
    Mistake("schema: semicolons", "schema", ("--separator ';'",), written=european,
            mend={"add": "--separator ;"}),
    Mistake("schema: file there", "schema", ("schema.toml", "exists"), add="--out schema.toml",
            mend={"add": "--out new.toml"}),
    Mistake("audit of nothing", "audit", ("nothing given", "--canaries"), drop=("--canaries",),
            mend={"drop": ()}),
    Mistake("audit: a score misspelled", "audit", ("'scor'", "did you mean 'score'"),
            add="--score scor", mend={"add": "--score score"}),
    Mistake("audit: scores of words", "audit", ("'score', row 1 = 'high'", "not a number"),
            files={"scores.csv": "score,included\nhigh,1\n"}),
    Mistake("audit: coins of words", "audit", ("'included'", "0 or 1"),
            files={"scores.csv": "score,included\n1,maybe\n"}),
    Mistake("audit: a stray option", "audit", ("--plan", "leave it out"), add="--plan p.json",
            mend={"add": ""}),
    Mistake("audit: semicolons", "audit", ("--separator ';'",),
            files={"scores.csv": "score;included\n" + "1;1\n0;0\n" * 50},
            mend={"add": "--separator ;"}),
    Mistake("query: bounds of words", "query", ("'age=low'", "column=LOW:HIGH"),
            add="--bounds age=low", mend={"add": "--bounds age=0:100"}),
    Mistake("query: a name without a ledger", "query", ("--analysis", "--ledger"),
            add="--analysis first"),
    Mistake("query: delta of one", "query", ("delta = 1", "[0, 1)"), add="--delta 1"),
    Mistake("sensitivity without range", "sensitivity", ("none given", "declare a range"),
            drop=("--range",),
            mend={"drop": ()}),
    Mistake("sensitivity: an order of no loss", "sensitivity", ("--order", "--noise-stddev"),
            add="--order 8", mend={"add": "--order 8 --noise-stddev 10"}),
    Mistake("sensitivity: range of words", "sensitivity", ("'b=low:2'", "LOWER:UPPER"),
            add="--range b=low:2"),
    Mistake("sensitivity: not a colon", "sensitivity", ("--range: 'b=1-2'", "a=1:2"),
            add="--range b=1-2"),
]  # fmt: skip


def twice(**differing: str) -> Change:
    """One person has a second row, which says something else in these columns."""
    return lambda f: pd.concat([f, f.tail(1).assign(**differing)])


def of_people(change: Change = lambda f: f) -> dict[str, str]:
    frame = people()[["person", "budget", "part"]].sample(frac=1, random_state=0)
    return {"who.csv": change(frame).to_csv(index=False)}


SECOND = {"add": "--people who.csv", "files": of_people()}
PERSONS = [
    Mistake("person: rows unsaid", "train persons", ("rows_per_person: missing", "public number"),
            drop=("--rows-per-person",), mend={"drop": ()}),
    Mistake("person: rows in words", "train persons", ("'few'", "whole number", "or all"),
            add="--rows-per-person few", mend={"add": "--rows-per-person all"}),
    Mistake("person: no rows", "train persons", ("rows_per_person = 0", "at least 1"),
            add="--rows-per-person 0", mend={"add": "--rows-per-person 1"}),
    Mistake("person: half a row", "train persons", ("rows_per_person = 1.5", "whole number"),
            add="--rows-per-person 1.5", mend={"add": "--rows-per-person 1"}),
    Mistake("person: rows of records", "train", ("rows_per_person", "--person COLUMN"),
            add="--rows-per-person 2", mend={"add": ""}),
    Mistake("person: ids too", "train persons", ("ids", "one of --ids and --person"),
            add="--ids person", mend={"add": ""}),
    Mistake("person: ids repeat", "train", ("occurs", "--person person in place of --ids"),
            table=twice(age="7"),
            mend={"drop": ("--ids",), "add": "--person person --rows-per-person 2"}),
    Mistake("person misspelled", "train persons", ("'persn'", "did you mean 'person'"),
            add="--person persn", mend={"add": "--person person"}),
    Mistake("person: the label", "train persons", ("'answer'", "both as label and as person"),
            add="--person answer", mend={"add": "--person person"}),
    Mistake("person: the budget", "train persons", ("'budget'", "both as epsilon and as person"),
            add="--person budget", mend={"add": "--person person"}),
    Mistake("person: a feature", "train persons", ("'person'", "as a feature", "skip"),
            schema=NUMBERED, table=lambda f: f.assign(person=range(N)), mend={"schema": SCHEMA}),
    Mistake("person: an id missing", "train persons", ("row 8", "empty", "leave the row out"),
            table=cell("person", ""), mend={"table": lambda f: f.drop(7)}),
    Mistake("person: two budgets", "train persons", ("'budget'", "1 of 200 persons", "--people"),
            table=twice(budget="2.5"), mend={"table": twice(budget="1.50")}),
    Mistake("person: two deltas", "train persons", ("delta column 'd'", "1 of 200 persons"),
            add="--delta d", table=lambda f: twice(d="1e-5")(f.assign(d="1e-4")),
            mend={"table": lambda f: twice(age="7")(f.assign(d="1e-4"))}),
    Mistake("person: two parts", "train persons", ("split column 'part'", "1 of 200 persons"),
            table=twice(part="test"), mend={"table": twice(part="train")}),
    Mistake("person: two budgets, a table", "train persons", ("'budget'", "--people"),
            table=twice(budget="2.5"), mend=SECOND),
    Mistake("people alone", "train", ("people", "--person"), add="--people who.csv",
            files=of_people(), mend={"add": ""}),
    Mistake("people: no file", "train persons", ("who.csv", "No such file"),
            add="--people who.csv", mend=SECOND),
    Mistake("people: no budgets", "train persons", ("'budget'", "not in the table"),
            add="--people who.csv", files=of_people(lambda f: f.drop(columns="budget")),
            mend=SECOND),
    Mistake("people: a bad budget", "train persons", ("'budget', row 8 = -1", "(0, inf)"),
            add="--people who.csv",
            files=of_people(lambda f: cell("budget", "-1")(f.reset_index(drop=True))),
            mend=SECOND),
    Mistake("people: somebody twice", "train persons", ("1 of 200 persons have several rows",),
            add="--people who.csv", files=of_people(twice()), mend=SECOND),
    Mistake("people: somebody missing", "train persons", ("people.csv: 2 of 200", "who.csv"),
            add="--people who.csv", files=of_people(lambda f: f.head(-2)),
            mend={"table": lambda f: f[f["person"].isin(people()[["person"]].sample(
                frac=1, random_state=0).head(-2)["person"])]}),
    Mistake("people: a person without a row", "train persons", ("who.csv: 1 of 200", "people.csv"),
            add="--people who.csv", files=of_people(), table=lambda f: f.drop(7),
            mend={"files": of_people(lambda f: f[f["person"] != "p7"])}),
    Mistake("people: ids of another kind", "train persons", ("200 of 200 persons have no row",),
            add="--people who.csv", files=of_people(lambda f: f.assign(person=range(N))),
            mend=SECOND),
]  # fmt: skip
DEEP = ["x = " + "[" * 5000 + "]" * 5000, "x = " + "{a = " * 5000 + "1" + "}" * 5000,
        "[" + ".".join(["a"] * 5000) + "]\nx = " + "[" * 990 + "]" * 990]  # fmt: skip
ZERO = '[run]\nout = "a\\u0000b"\n'
LEDGER = "ledger init sqlite:///new.db"
SILENT = [
    *[Mistake(f"query: memory {text}", "query", ("--memory", "(0, inf)"), add=f"--memory {text}",
              mend={"add": "--memory 1"}) for text in ("nan", "inf", "-inf", "0", "-1", "-nan")],
    *[Mistake(f"query: {flag} {one} and {two}", "query", (flag, "'age'", "given twice"),
              add=f"{flag} age={one} {flag} age={two}", mend={"add": f"{flag} age={one}"})
      for flag, one, two in (("--bounds", "0:9", "0:99"), ("--values", "7,8", "7,9"),
                             ("--kind", "text", "numeric"), ("--bounds", "0:9", "0:9"))],
    *[Mistake(f"query: values {text}", "query", ("--values", says), add=f"--values town={text}",
              mend={"add": "--values town=A,B"})
      for text, says in (("A,·B", "' B'"), ("·A,B", "' A'"), ("A·,B", "'A '"), ("A,,B", "''"),
                         ("A,B,", "''"), ("A,B,A", "'A' occurs twice"))],
    *[Mistake(f"query: a workspace, {more or 'duckdb'}", "query", ("--workspace", "leave it out"),
              add=f"--workspace . {more}".strip(), mend={"add": more})
      for more in ("", "--memory 1", "--engine duckdb")],
    *[Mistake(f"{command}: {option} twice", command, (option, "given 2 times", "once"), twice=True,
              add=f"{option} {value}", mend={"add": ""})
      for command, option, value in (
          ("plan", "--delta", "1e-6"), ("query", "--epsilon", "9"), ("train", "--epsilon", "e"),
          ("account", "--steps", "3"), ("ledger init", "--person", "person"),
          ("schema", "--label", "age"), ("audit", "--canaries", "scores.csv"))],
    Mistake("an option three times", "query", ("--rows-per-person", "3 times"), twice=True,
            add="--rows-per-person 1 --rows-per-person 2 --rows-per-person 3"),
    Mistake("plan: an option of the strategy twice", "plan", ("--option", "'noise'", "twice"),
            add="--option noise=mean --option noise=strictest"),
    Mistake("a group of a blank", "plan", ("' b:1:.5'", "name:epsilon:share"),
            add="--groups a:1:.5,·b:1:.5", mend={"add": "--groups a:1:.5,b:1:.5"}),
    *[Mistake(f"a plan that is read, with {flag}", "", (flag, "--from", "leave it out"),
              add=f"plan --from p.json {flag} {value}")
      for flag, value in (("--records", "5"), ("--strategy", "scale"), ("--delta", "1e-5"),
                          ("--separator", ";"))],
    *[Mistake(f"plan: {flag} of groups", "plan", (flag, "for a table", "leave it out"),
              add=f"{flag} {value}", mend={"add": ""})
      for flag, value in (("--ids", "person"), ("--epsilon", "budget"), ("--encoding", "utf-8"))],
    *[Mistake(f"ledger: {flag} without a table", "", (flag, "give --data too"),
              add=f"{LEDGER} {flag} {value}",
              mend={"add": f"{LEDGER} {DATA} --person person --delta 1e-4"})
      for flag, value in (("--person", "person"), ("--epsilon", "budget"), ("--delta", "1e-4"),
                          ("--no-limit-cap", "8"), ("--decimal", ","))],
    *[Mistake(f"a config nested in form {i}", "train", ("deep.toml", "cannot be read", "TOML"),
              add="deep.toml", files={"deep.toml": text}) for i, text in enumerate(DEEP)],
    *[Mistake(f"a schema nested in form {i}", "train", ("schema.toml", "cannot be read", "TOML"),
              schema=text) for i, text in enumerate(DEEP)],
    Mistake("a zero byte in a config", "train", ("z.toml", "zero byte"), add="z.toml",
            drop=("--out",), files={"z.toml": ZERO}),
    Mistake("a zero byte in a key", "train", ("z.toml", "zero byte"), add="z.toml",
            files={"z.toml": '[run]\n"a\\u0000b" = 1\n'}),
    Mistake("a zero byte in a schema", "train", ("schema.toml", "zero byte"),
            schema=SCHEMA.replace('"A", "B"', '"A", "B", "B\\u0000"'), mend={"schema": SCHEMA}),
    *[Mistake(f"{command}: a zero byte in {option}", command, ("zero byte",), add=f"{option} a\0b")
      for command, option in (("plan", "--out"), ("train", "--out"), ("query", "--steward-log"),
                              ("plan --data", "--ids"), ("schema", "--out"))],
    *[Mistake(f"plan: written to {name}", "plan", (name.rpartition("/")[2], says),
              add=f"--out {name}", mend={"add": "--out new.json"})
      for name, says in (("people.csv", "left untouched"), ("new.csv", "ends in '.csv'"),
                         ("/dev/null", "is a device"), ("/dev/stdout", "give the name of a file"),
                         (".", "is no name"))],
    *[Mistake(f"query: a log in {name}", "query", (name, says), add=f"--steward-log {name}",
              mend={"add": "--steward-log new.log"})
      for name, says in (("people.csv", "left untouched"), ("people.parquet", "what is read"),
                         ("/dev/null", "is a device"))],
]  # fmt: skip
MISTAKES = TRAIN_DATA + OTHERS + PERSONS + SILENT


def test_there_are_a_hundred_and_no_two_alike() -> None:
    assert len({m.name for m in MISTAKES}) == len(MISTAKES) >= 100
    assert {m.command.split(" ")[0] for m in MISTAKES} >= {
        "plan", "account", "risk", "train", "audit", "query", "ledger", "sensitivity",
        "schema",
    }  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES, ids=lambda m: m.name)
def test_a_mistake(case: Mistake, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("apiece.reporting.pages.render", lambda *_: "tested elsewhere")
    (tmp_path / "plain").mkdir()
    lay_out(case, tmp_path / "plain")
    before = {Path(p).name: c for p, c in contents(tmp_path / "plain").items()}
    status, out, err = ask(case, tmp_path / "made", capsys, monkeypatch)
    assert status == case.status, err
    assert "Traceback" not in out + err
    said = err.splitlines()
    assert any(all(words in one for words in case.says) for one in said), err
    if status:
        assert out == ""
        assert len(said) == 1
        command = (case.command or case.add).split(" ")[0]
        assert said[0].startswith(f"apiece {command}: ")
        after = {Path(p).name: c for p, c in contents(tmp_path / "made").items()}
        assert after == before, "something was written"
    if case.mend is not None:
        mended = replace(case, **case.mend)
        key = (case.command, tuple(arguments(mended)), *made(mended).items())
        if key not in WORKED:  # many remedies lead to the command as it should have been
            status, _, WORKED[key] = ask(mended, tmp_path / "mended", capsys, monkeypatch)
            assert status == 0, WORKED[key]
        again = [one for one in WORKED[key].splitlines() if all(w in one for w in case.says)]
        assert not again


def test_the_conversion_of_json_that_is_named_works(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    case = next(m for m in MISTAKES if m.name == "json")
    _, _, err = ask(case, tmp_path / "made", capsys, monkeypatch)
    line = re.search(r"import pandas; .*index=False\)", err)
    assert line is not None
    exec(line.group(), {})
    assert cli.run(arguments(replace(case, add=""))) == 0


def test_counts_of_people_are_on_stderr_and_in_no_file(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    cases = [m for m in MISTAKES if m.says[0] == "private"]
    assert cases
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        status, out, err = ask(case, folder, capsys, monkeypatch)
        assert status == 0
        private = [one for one in err.splitlines() if one.startswith("private, ")]
        assert private
        files = contents(folder / "run")
        assert files
        for name, content in files.items():
            for one in private:
                told = one.split(": ", 2)[-1]
                assert told not in content.decode("utf-8", "replace") + out, name


def test_the_cap_is_stated_in_plan_metrics_and_report(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    case = Mistake("", "train", (), table=cell("budget", "no limit"), add="--no-limit-cap 8")
    assert ask(case, tmp_path / "x", capsys, monkeypatch)[0] == 0
    run = tmp_path / "x" / "run"
    words = "whoever set no limit is promised epsilon = 8, a cap set by the steward"
    assert words in json.loads((run / "plan.json").read_text())["notes"]
    assert json.loads((run / "metrics.json").read_text())["no_limit_cap"] == 8
    assert words in (run / "report.html").read_text()
    assert "no_limit_cap = 8" in (run / "config.toml").read_text()
