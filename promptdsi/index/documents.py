"""The stored documents of a corpus: SQLite files with one table each, read as data and never as programs.

A database from a stranger may hold views, triggers and generated columns, which compute when they are read, or pages that lead in
circles. So the file must have exactly the schema we write, and what is read of it is bounded by the size of the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from promptdsi.checks import available_memory, check_depth, parse_json
from promptdsi.corpus.corpus import Document, check_characters
from promptdsi.errors import DataError
from promptdsi.files import open_plain, write_unsynced

TABLE = "CREATE TABLE documents (place INTEGER PRIMARY KEY, docid TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT)"
SCHEMA = [("table", "documents", "documents", 2, TABLE)]
HEADER = b"SQLite format 3\0"
UTF8 = (1).to_bytes(4, "big")  # the encoding that bytes 56 to 60 name
LONGEST_PATH = 500  # bytes: SQLite opens no file with a longer one
LIMITS = {  # far more than the statements below need
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 16,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 16,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 8,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
DEFENSIVE = 1010  # SQLITE_DBCONFIG_DEFENSIVE, which Python sets from 3.12 on
STEPS = 100_000  # of SQLite between two looks at the clock
SECONDS = 30.0  # for one row


class Documents:
    """A file of stored documents, by their positions in the corpus, of which it covers these."""

    def __init__(self, path: Path, positions: range) -> None:
        self.path, self.positions = path, positions
        with open_plain(path) as file:
            header = file.read(100)
            self.size = file.seek(0, 2)
            if len(header) < 100 or header[:16] != HEADER or header[56:60] != UTF8:
                raise DataError("is damaged (no database of documents); run `promptdsi verify`", path=path)
        self._deadline = [time.monotonic() + SECONDS]
        try:
            self._database = self._connect()
            self._restrict()
            schema = self._database.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master").fetchmany(2)
        except (sqlite3.Error, ValueError, MemoryError) as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=path) from None
        if schema != SCHEMA:
            raise DataError("is no database of documents: it has other tables, views or triggers than we write", path=path)

    def _connect(self) -> sqlite3.Connection:
        location = self.path.absolute()
        if len(str(location).encode()) <= LONGEST_PATH:
            # immutable: no lock, no journal, nothing written beside it, so read-only media work as well.
            return sqlite3.connect(f"{location.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        if 2 * self.size > available_memory():
            raise ValueError(f"its path is longer than {LONGEST_PATH} bytes, and the memory is too small to copy it")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        with open_plain(self.path) as file:
            database.deserialize(file.read(self.size))
        return database

    def _restrict(self) -> None:
        """Whatever the file holds, nothing of it computes, and nothing is longer than the file."""
        for limit, most in LIMITS.items():
            self._database.setlimit(limit, most)
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(self.size, 10_000), 10**9))
        deadline = self._deadline  # not `self`, which would keep the file open until the garbage collector runs
        self._database.set_progress_handler(lambda: time.monotonic() > deadline[0], STEPS)
        if hasattr(self._database, "setconfig"):
            self._database.setconfig(DEFENSIVE, True)
        for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0"):
            self._database.execute(f"PRAGMA {setting}")

    def since(self) -> int:
        """The generation that the documents arrived in."""
        return int(self._database.execute("PRAGMA user_version").fetchone()[0])

    def get(self, position: int) -> Document | None:
        documents = list(self._documents("WHERE place = ?", position - self.positions.start))
        return documents[0][1] if documents else None

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        yield from self._documents("ORDER BY place")

    def metadata(self) -> list[tuple[int, dict[str, Any]]]:
        """Position and metadata of each document, in order; no text is read."""
        rows = self._rows("SELECT place, metadata FROM documents ORDER BY place")
        return [(position, self._fields(metadata)) for position, metadata in rows]

    def titles(self) -> list[tuple[int, str]]:
        """Position and title of each document, in order."""
        return [(position, title) for position, title in self._rows("SELECT place, title FROM documents ORDER BY place")]

    def _documents(self, clause: str, *values: Any) -> Iterator[tuple[int, Document]]:
        for position, docid, title, text, metadata in self._rows(
            f"SELECT place, docid, title, text, metadata FROM documents {clause}", *values
        ):
            if docid is None or title is None or text is None:
                raise DataError("is damaged (a document without text); run `promptdsi verify`", path=self.path)
            yield position, Document(docid, text, title, self._fields(metadata))

    def _fields(self, metadata: str | None) -> dict[str, Any]:
        try:
            fields = parse_json(metadata, constants=True) if metadata else {}
            check_depth(fields)
            if metadata and "\\" in metadata:  # only an escape can hold what UTF-8 cannot
                check_characters(fields)
        except ValueError as error:
            raise DataError(f"is damaged (metadata: {error}); run `promptdsi verify`", path=self.path) from None
        if not isinstance(fields, dict):
            raise DataError("is damaged (metadata that is no object); run `promptdsi verify`", path=self.path)
        return fields

    def _rows(self, statement: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Rows with positions that ascend and exist. In an honest file no byte belongs to two rows, so all are no longer than the file."""
        last, characters = -1, 0
        self._deadline[0] = time.monotonic() + SECONDS
        try:
            for row in self._database.execute(statement, values):
                position, *texts = row
                if type(position) is not int or not last < position < len(self.positions):
                    raise ValueError("documents at positions that do not exist")
                if any(type(text) is not str for text in texts if text is not None):
                    raise ValueError("a document that is no text")
                last, characters = position, characters + sum(len(text) for text in texts if text)
                if characters > self.size:
                    raise ValueError("documents that are longer than the file")
                yield self.positions.start + position, *texts
                self._deadline[0] = time.monotonic() + SECONDS
        except (sqlite3.Error, ValueError, MemoryError) as error:
            raise DataError(f"is damaged ({str(error) or 'too large'}); run `promptdsi verify`", path=self.path) from None

    def close(self) -> None:
        self._database.close()

    def __del__(self) -> None:
        # At once, not when the garbage collector runs: a purged file whose handle is open is still on the disk.
        if hasattr(self, "_database"):
            self._database.close()


class StoredDocuments:
    """The stored documents of a corpus, in one file or several. Each is open only while it is read."""

    def __init__(self, files: Iterable[Callable[[], Documents]]) -> None:
        self._files = list(files)

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        return self._each(iter)

    def metadata(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Position and metadata of each document, in order; no text is read."""
        return self._each(Documents.metadata)

    def titles(self) -> Iterator[tuple[int, str]]:
        """Position and title of each document, in order."""
        return self._each(Documents.titles)

    def _each(self, read: Callable[[Documents], Iterable[tuple[int, Any]]]) -> Iterator[tuple[int, Any]]:
        for opening in self._files:
            with contextlib.closing(opening()) as documents:
                yield from read(documents)


def write_documents(path: Path, records: Iterable[tuple[Any, ...]], *, since: int) -> None:
    """Write a database of documents, which the caller syncs as a whole: no journal and no sync here."""
    short = len(str(path.absolute()).encode()) <= LONGEST_PATH
    with contextlib.closing(sqlite3.connect(path if short else ":memory:", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        database.execute(f"PRAGMA user_version={since:d}")
        database.execute("BEGIN")
        database.execute(TABLE)
        database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", records)
        database.execute("COMMIT")
        if not short:
            write_unsynced(path, database.serialize())
