"""Registered tables: what a steward's one reading of a table has left in a folder.

The folder holds the declarations, the digest of the source, the rows as they were read, the
steward's log, and which answers the ledger has recorded. It has personal data in it, and is for its
owner alone. This module reads no row and imports little, so that a recorded answer is told at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from apiece._files import STEWARD_LOG, Kind, append, require_own_folder, write
from apiece.errors import DataError

if TYPE_CHECKING:
    from apiece._types import Json
    from apiece.datasets.schema import Schema

# Version of the folder's form.
_FORM: Final = 1
MANIFEST: Final = "registered.json"
ROWS: Final = "rows.duckdb"
LOG: Final = "steward.log"
_RECORDED: Final = "recorded.jsonl"
_MANIFEST_KIND: Final = Kind("a registered table", mark=b'{\n  "apiece registered"', private=True)
_INDEX_KIND: Final = Kind("an index of answers", mark=b'"apiece answers"\n', private=True)
# An address of an SQLite file in characters that mean themselves.
_PLAIN_FILE: Final = re.compile(r"sqlite:///([\w./-]+)")


@dataclass(frozen=True, slots=True)
class Registration:
    """A folder in which `apiece register` has left a table."""

    folder: Path
    # Name of the source, for messages.
    source: str
    # SHA-256 of the source: that of the terms of every question.
    fingerprint: str
    # SHA-256 of the file of rows.
    rows: str = field(repr=False)
    # The declared schema, as `Schema.from_dict` reads it.
    columns: Json = field(repr=False)
    # The declarations as a ledger compares them.
    terms: Json = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Registration:
        """Return the registration in a folder.

        Raises:
            DataError: Where there is none, or one of another version.
        """
        path = Path(folder)
        try:
            content = json.loads((path / MANIFEST).read_text())
            form = content["apiece registered"]
            if form == _FORM:
                return cls(
                    path,
                    source=str(content["source"]),
                    fingerprint=str(content["fingerprint"]),
                    rows=str(content["rows"]),
                    columns=dict(content["schema"]),
                    terms=dict(content["terms"]),
                )
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(
                f"source {str(path)!r}: no registered table that can be read; run `apiece "
                "register` again, into a new folder"
            ) from None
        raise DataError(
            f"source {str(path)!r}: was registered by another version of apiece (form {form}); "
            "run `apiece register` again, into a new folder"
        )

    def write(self) -> None:
        """Write the manifest, after which the folder is a registered table."""
        content = {
            "apiece registered": _FORM,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "rows": self.rows,
            "schema": self.columns,
            "terms": self.terms,
        }
        write(self.folder / MANIFEST, json.dumps(content, indent=2), _MANIFEST_KIND)

    @property
    def schema(self) -> Schema:
        """The schema that the table was registered with."""
        from apiece.datasets.schema import Schema

        if self.columns["columns"]:
            return Schema.from_dict(self.columns, self.source)
        settings: dict[str, Any] = {k: v for k, v in self.columns.items() if k != "columns"}
        return Schema({}, name=self.source, **settings)

    def add_message(self, message: str) -> None:
        """Add a message to the steward's log in the folder."""
        append(self.folder / LOG, json.dumps(message, ensure_ascii=True), STEWARD_LOG)

    def note_answer(self, asked: str, url: str, number: int, answer: Json) -> None:
        """Note which entry of a ledger in an SQLite file has the answer to what was asked.

        Args:
            asked: Digest of the question and its terms; see `digest_question`.
            url: Address of the ledger.
            number: Of the entry.
            answer: The answer, whose parts an entry has in another order.
        """
        # The entry is noted by its digest, and read back from the ledger when it is told: the index
        # itself has no answer.
        body = _read_entry(url, number)
        # Another database is asked itself.
        if body is None:
            return
        names: dict[str, None] = {}
        _list_names(answer, names)
        noted = {"asked": asked, "number": number, "body": _digest(body), "names": [*names]}
        line = json.dumps(noted)
        # Who may not write here has no index, and asks the ledger.
        with contextlib.suppress(DataError):
            # The first line is the mark by which the file is known as such an index.
            if not (self.folder / _RECORDED).exists():
                append(self.folder / _RECORDED, json.dumps("apiece answers"), _INDEX_KIND)
            append(self.folder / _RECORDED, line, _INDEX_KIND)

    def find_answer(self, asked: str, url: str) -> Json | None:
        """Return the recorded answer to what was asked, as it stands in the ledger, if it is noted.

        The answer was released before. It is told again only where the ledger still has the very
        entry that was noted.
        """
        try:
            lines = (self.folder / _RECORDED).read_text().splitlines()[1:]
        except (OSError, ValueError):
            return None
        # The newest first. A line that is torn or edited is passed over: at worst the ledger is
        # asked itself.
        for line in reversed(lines):
            try:
                noted = json.loads(line)
                if noted["asked"] != asked:
                    continue
                body = _read_entry(url, int(noted["number"]))
                if body is not None and _digest(body) == noted["body"]:
                    result = json.loads(body)["result"]
                    return dict(order_parts(result, [str(name) for name in noted["names"]]))
            except (ValueError, KeyError, TypeError):
                continue
        return None


def is_registered(source: object) -> bool:
    """Return whether a source is the folder of a registered table."""
    return isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file()


def make_folder(folder: Path) -> None:
    """Make the folder of a table to be registered, for its owner alone; raise where one is."""
    require_own_folder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise DataError(
            f"{folder}: is there and not empty; it is left untouched, give the name of a new folder"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror})") from None


def name_question(
    query: str,
    terms: Json,
    fingerprint: str,
    epsilon: float,
    delta: float,
    split: Sequence[float] | None,
    share: float | None = None,
) -> str:
    """Return the name under which a question is asked that has none: a digest of all it says."""
    # Without a share the name is that of the other parts alone.
    asked: list[object] = [query.strip(), terms, fingerprint, epsilon, delta, split]
    if share is not None:
        asked.append(share)
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"question-{digest[:20]}"


def digest_question(name: str, analysis: str, url: str, scope: str | None) -> str:
    """Return a digest of a question (by `name_question`), its analysis, ledger and scope."""
    asked = [name, analysis, url, scope]
    return _digest(json.dumps(asked))


def _list_names(value: object, names: dict[str, None]) -> None:
    """Add the names of all parts of a JSON value, in the order in which they occur."""
    if isinstance(value, list):
        for part in value:
            _list_names(part, names)
    elif isinstance(value, dict):
        for name, part in value.items():
            names[name] = None
            _list_names(part, names)


def order_parts(value: Any, names: Sequence[str]) -> Any:
    """Return a JSON value whose parts have the order of their names; others come last."""
    if isinstance(value, list):
        return [order_parts(part, names) for part in value]
    if not isinstance(value, dict):
        return value
    positions = {name: position for position, name in enumerate(names)}
    ordered = sorted(value, key=lambda name: positions.get(name, len(positions)))
    return {name: order_parts(value[name], names) for name in ordered}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_entry(url: str, number: int) -> str | None:
    """Return the body of an entry of a ledger in an SQLite file, or None."""
    match = _PLAIN_FILE.fullmatch(url)
    if match is None or not Path(match[1]).is_file():
        return None
    location = f"file:{quote(str(Path(match[1]).resolve()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(location, uri=True)) as connection:
            # The table of `ledger.schema.ENTRY`, spelled out: SQLAlchemy takes long to import.
            query = "SELECT body FROM apiece_entry WHERE number = ?"
            row = connection.execute(query, [number]).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])
