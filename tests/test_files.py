"""Every output goes through one policy: whole or not there, and nothing of others is destroyed."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import apiece
from apiece import _files
from apiece._files import EXPORT, FIGURE, PAGE, PLAN, SCHEMA, STATE, Kind, append, reading, write
from apiece.errors import DataError
from tests.strange_paths import look, plant

SOURCE = Path(apiece.__file__).parent
OWN = '{\n  "strategy": "scale"}'
LOG = Kind("a log", mark=b"first\n", private=True)


def test_content_and_rights(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.json"
    write(path, "ε", STATE)
    assert path.read_bytes() == "ε".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    old = os.umask(0o027)
    try:
        write(tmp_path / "b.json", OWN, PLAN)
    finally:
        os.umask(old)
    assert (tmp_path / "b.json").stat().st_mode & 0o777 == 0o640
    (tmp_path / "b.json").chmod(0o600)
    write(tmp_path / "b.json", OWN, PLAN)
    assert (tmp_path / "b.json").stat().st_mode & 0o777 == 0o600  # as narrow as it was
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("linked", [True, False], ids=["named", "copied"])
@pytest.mark.parametrize("there", [True, False], ids=["replaced", "new"])
@pytest.mark.parametrize("step", ["fsync", "rename", "link", "fchmod"])
def test_a_failure_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, there: bool, linked: bool
) -> None:
    path = tmp_path / "a.json"
    if there:
        write(path, OWN, PLAN)
    if not linked:
        monkeypatch.setattr(_files, "_link", lambda *_: False)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    try:
        write(path, OWN + " ", PLAN)
    except DataError:
        assert path.exists() == there
        assert not there or path.read_text() == OWN
    else:
        assert step in ("link", "fchmod") or (step == "rename" and linked and not there)
        assert path.read_text() == OWN + " "
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] in ([], ["a.json"])


def test_an_error_and_an_interruption_in_the_body_leave_nothing(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error), _files.writing(tmp_path / "a.parquet", EXPORT) as file:  # noqa: PT012
            file.write(b"half")
            assert list(tmp_path.iterdir()) == []  # it has no name yet
            raise error
    assert list(tmp_path.iterdir()) == []


FOREIGN = {
    "a table": b"id,consent\nann,1\n",
    "a database": b"SQLite format 3\0" + bytes(200_000),
    "another kind": b'<meta name="generator" content="apiece">',
    "a plan inside": b'{"plan": {"strategy": "scale"}}',
    "the mark in the middle": bytes(70_000) + b"apiece figure" + bytes(70_000),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_somebody_s_file_stays(content: bytes, tmp_path: Path) -> None:
    for kind, name in ((PLAN, "a.json"), (FIGURE, "a.png"), (EXPORT, "a.parquet")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=r"exists and is not .* that apiece wrote; it is left"):
            write(tmp_path / name, b"new", kind)
        assert (tmp_path / name).read_bytes() == content
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(DataError, match="left untouched"):
        append(tmp_path / "log", "more", LOG)
    assert (tmp_path / "log").read_bytes() == content


def test_what_has_no_mark_is_never_replaced_and_what_is_empty_is(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.touch()
    write(path, "first", SCHEMA)
    with pytest.raises(DataError, match="exists; it is left untouched"):
        write(path, "second", SCHEMA)
    assert path.read_text() == "first"


def test_a_log_grows_for_its_owner_alone(tmp_path: Path) -> None:
    for line in ("first", "second"):
        append(tmp_path / "log", line, LOG)
    assert (tmp_path / "log").read_text() == "first\nsecond\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is no name"), ("a\0.json", "is no name"), ("x" * 300 + ".json", "cannot be written"),
        ("folder.json", "is a folder"), ("pipe.json", "is a pipe"),
        ("link.json", "is a link"), ("nowhere.json", "is a link"), ("loop.json", "is a link"),
        ("file/a.json", "cannot be written"), ("a.csv", "ends in '.csv'"), ("a", "ends in ''"),
        ("device.json", "is a device"), ("socket.json", "is a socket"),
        ("theirs.json", "belongs to another user"),
    ],
)  # fmt: skip
def test_what_is_no_file_or_another_format_is_refused(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    Path("file").write_text("kept")
    os.mkfifo("pipe.json")
    Path("link.json").symlink_to("file")
    Path("nowhere.json").symlink_to("none")
    Path("loop.json").symlink_to("loop.json")
    for kind in ("device", "socket", "theirs"):
        if f"{kind}.json" == name:
            plant(kind, Path(name))
    before = look(tmp_path)
    for put in (write, append):
        with pytest.raises(DataError, match=says):
            put(name, "new", PLAN)
    assert look(tmp_path) == before


def test_a_run_s_plan_stays(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "plan.json").write_text(OWN)
    with pytest.raises(DataError, match="a run's plan"):
        write(tmp_path / "plan.json", OWN, PLAN)


def aliases(path: Path) -> Iterator[Path]:
    """Names by which a file in a folder of its own can be reached."""
    yield path
    yield Path(os.path.relpath(path))
    yield path.parent / "." / ".." / path.parent.name / path.name
    hard = path.with_name(f"hard-{path.name}")
    hard.hardlink_to(path)
    yield hard
    soft = path.with_name(f"soft-{path.name}")
    soft.symlink_to(path)
    yield soft
    folder = path.parent.parent / "by-folder"
    folder.symlink_to(path.parent)
    yield folder / path.name


def test_an_input_is_no_output_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.json"
    path.write_text(OWN)  # of the very kind: only being read protects it
    for name in aliases(path):
        with reading([path]), pytest.raises(DataError, match="is what is read"):
            write(name, "new", PLAN)
        with pytest.raises(DataError, match="is what is read"):
            write(name, "new", PLAN, [path])
        with reading([name]), pytest.raises(DataError, match="is what is read"):
            write(path, "new", PLAN)
    for beside in ("a.json-journal", "a.json-wal", "a.json-shm"):
        with reading([path]), pytest.raises(DataError, match="kept beside it"):
            append(tmp_path / "in" / beside, "new", LOG)
    assert path.read_text() == OWN
    write(path, OWN, PLAN)  # afterwards it is a plan as any other


def test_what_appears_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(DataError, match="left"), _files.writing(path, PLAN) as file:  # noqa: PT012
        file.write(b"new")
        path.write_text("theirs")
    assert path.read_text() == "theirs"


KILLED = """
import sys, time
from apiece._files import EXPORT, writing
with writing(sys.argv[1], EXPORT) as file:
    file.write(b"everybody" * 100_000)
    file.flush()
    print("half", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("there", [True, False])
def test_a_kill_leaves_nothing(there: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    if there:
        path.write_bytes(b"ledger export")
    words = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"] * there
        writer.send_signal(signal.SIGKILL)
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"] * there
    assert not there or path.read_bytes() == b"ledger export"


AGAIN = """
import sys
from apiece._files import EXPORT, write
write(sys.argv[1], b"ledger export" + b"a" * 10**6, EXPORT)
print(flush=True)
while True:
    for letter in (b"a", b"b"):
        write(sys.argv[1], b"ledger export" + letter * 10**6, EXPORT)
"""


@pytest.mark.slow
def test_kills_at_random_leave_one_or_the_other(tmp_path: Path) -> None:
    """A writer that replaces a file again and again is killed: the file is whole, and alone."""
    path = tmp_path / "a.parquet"
    whole = {b"ledger export" + x * 10**6 for x in (b"a", b"b")}
    for number in range(25):
        words = [sys.executable, "-c", AGAIN, str(path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.02 + 0.003 * number)
            writer.kill()
        assert path.read_bytes() in whole
        left = [p for p in tmp_path.iterdir() if p != path]
        # in the one moment in which it has two names; the next output takes that away
        assert all(p.read_bytes() in whole and p.stat().st_mode & 0o777 == 0o600 for p in left)
    write(path, b"ledger export", EXPORT)
    assert list(tmp_path.iterdir()) == [path]


def test_pages_are_known_by_what_the_templates_say() -> None:
    for name in ("report.html.j2", "contributor.html.j2"):
        text = (SOURCE / "reporting" / "templates" / name).read_bytes()
        assert PAGE.mark is not None
        assert PAGE.mark in text


# Calls that write a file, or may; each that is left in the source, and why.
WRITES = {
    "write_text", "write_bytes", "to_csv", "to_parquet", "to_excel", "to_json_file", "savefig",
    "save", "savez", "savez_compressed", "savetxt", "tofile", "write_table", "ParquetWriter",
    "mkstemp", "NamedTemporaryFile", "TemporaryFile", "touch", "rename", "renames", "copyfile",
    "copy2", "copytree", "move", "link", "symlink", "symlink_to", "hardlink_to", "truncate",
    "open", "fdopen", "ZipFile", "dump", "connect", "export_text",
}  # fmt: skip
ALLOWED = {
    ("_files.py", "*"): "the policy",
    ("ledger/anchor.py", "os.open"): "the head file, read; and its folder, to be synced",
    ("ledger/anchor.py", "os.fdopen"): "the same",
    ("jobs/running.py", "self.folder.save"): "a checkpoint's folder, which writes by the policy",
    ("training/checkpoints.py", "os.open"): "the key, read without a link",
    ("training/checkpoints.py", "os.fdopen"): "the same; and zeros over a key, by the policy",
    ("queries/table.py", "stream.write_table"): "in memory, for a digest",
    ("ledger/accounts.py", "pq.ParquetWriter"): "into the file of the policy",
    ("ledger/accounts.py", "writer.write_table"): "into the file of the policy",
    ("recipes/features.py", "np.save"): "into the file of the policy",
    ("reporting/plots.py", "figure.savefig"): "into the file of the policy, or in memory",
    ("reporting/figures.py", "figure.savefig"): "in memory",
    ("audit/records.py", "np.savez_compressed"): "in memory",
    ("audit/records.py", "zipfile.ZipFile"): "in memory",
    ("jobs/model.py", "torch.save"): "in memory",
    ("ledger/directory.py", "tempfile.TemporaryFile"): "sorted runs, without a name",
    ("ledger/copies.py", "tempfile.mkstemp"): "a copy whose name is gone before it is filled",
    ("ledger/copies.py", "sqlite3.connect"): "the same",
    ("ledger/copies.py", "os.open"): "a folder, to be synced",
    ("ledger/copies.py", "os.fdopen"): "the same copy; and a database in a private folder",
    ("ledger/copies.py", "staged.rename"): "to where it was looked, and nothing is",
    ("queries/reading.py", "duckdb.connect"): "a database in memory, or in a room of this process",
    ("queries/table.py", "reading.connect"): "the same",
    ("queries/table.py", "duckdb.connect"): "in a room of this process; copied by the policy",
    ("queries/registration.py", "sqlite3.connect"): "a ledger, opened to be read alone",
    ("queries/spark.py", "reading.connect"): "the same",
    ("queries/derived.py", "reading.connect"): "the same",
    ("queries/stores.py", "duckdb.connect"): "a database of others, opened to be read alone",
    ("queries/stores.py", "sqlite3.connect"): "the same",
    (
        "queries/stores.py",
        "psycopg.connect",
    ): "a server of others, in a transaction that only reads",
    ("training/checkpoints.py", "torch.save"): "in memory",
    ("training/clipping/isolated.py", "os.open"): "what is open already, at a position of its own",
    ("cli/synthesize.py", "table.to_csv"): "in memory",
    ("cli/synthesize.py", "table.to_parquet"): "into the file of the policy",
    ("reporting/papers.py", "staged.path.rename"): "a folder of papers, made by the policy",
}
READS = {"r", "rb", "rt", "r:", None}
OF_OTHERS = {  # methods of these names that write nothing, or through the policy
    "Ledger.open", "Registration.open", "Image.open", "store.save", "target.save", "self.save",
    "page.save",
    "contributor_page(computed, language=language).save", "report(results).save", "frame.rename",
    "engine.connect", "scores.save", "save", "self._keeper.save", "synthetic.save",
    "synthetic.report(flags['edition']).save",
}  # fmt: skip


def calls_that_write(path: Path) -> Iterator[str]:
    """Yield the calls in a module that can write a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if last not in WRITES or name in OF_OTHERS or name.startswith(("_open", "self._open")):
            continue
        if last in ("open", "ZipFile") and name != "os.open":
            given = [k.value for k in node.keywords if k.arg == "mode"]
            at = 0 if last == "open" and name not in ("open", "tarfile.open", "io.open") else 1
            given += node.args[at : at + 1]
            modes = [each.value if isinstance(each, ast.Constant) else "?" for each in given]
            if all(mode in READS for mode in modes):
                continue
        yield name


def test_nothing_in_the_source_writes_a_file_another_way() -> None:
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in calls_that_write(path)
    }
    beyond = {each for each in found if each not in ALLOWED and (each[0], "*") not in ALLOWED}
    assert not beyond
    assert {each for each in ALLOWED if each[1] != "*"} <= found, "an exception that is not needed"


@pytest.mark.parametrize(
    "planted",
    [
        "open('a', 'w')", "open('a', mode='ab')", "Path('a').open('w')", "path.write_text('x')",
        "frame.to_csv('a')", "figure.savefig('a')", "torch.save(x, 'a')", "np.save('a', x)",
        "open('a', mode)", "path.open('r+b')", "os.rename('a', 'b')", "json.dump(x, file)",
        "tempfile.mkstemp()", "shutil.copyfile(a, b)", "tarfile.open('a', 'w')",
        "zipfile.ZipFile('a', 'w')", "os.open(path, flags)", "sqlite3.connect('a')",
    ],
)  # fmt: skip
def test_the_search_sees_a_planted_one(planted: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"def f():\n    return {planted}\n")
    assert list(calls_that_write(tmp_path / "a.py"))
