"""What an index keeps of documents: one SQLite file per corpus, written once, then only read.

Learning never opens these files; search, get, export, purge and the tuning of that very corpus do.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from promptdsi.corpus.records import Document
from promptdsi.errors import DataError
from promptdsi.files import discard
from promptdsi.index.blobs import Blobs

STORES = ("text", "title", "none")
TABLE = "CREATE TABLE documents (place INTEGER PRIMARY KEY, docid TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT)"


def write_documents(blobs: Blobs, numbered: Iterable[tuple[int, Document]], *, since: int, store: str = "text") -> str:
    """A blob with documents at their places in the corpus; `store` says how much of each is kept."""
    handle, name = tempfile.mkstemp(dir=blobs.folder, prefix=".documents.")
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(name, isolation_level=None)) as database:
            # Nothing can be lost that is not yet named: the file is synced as a whole before it gets its name.
            database.execute("PRAGMA journal_mode=OFF")
            database.execute("PRAGMA synchronous=OFF")
            database.execute(f"PRAGMA user_version={since:d}")
            database.execute("BEGIN")
            database.execute(TABLE)
            database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", (_record(place, one, store) for place, one in numbered))
            database.execute("COMMIT")
        return blobs.take(Path(name), "sqlite")
    except sqlite3.OperationalError as error:
        raise DataError(f"the documents could not be written: {error}", path=blobs.folder) from None
    finally:
        discard(Path(name))


def _record(place: int, document: Document, store: str) -> tuple[Any, ...]:
    if store == "title":
        return place, document.docid, document.title, "", None
    metadata = json.dumps(dict(document.metadata), ensure_ascii=False) if document.metadata else None
    return place, document.docid, document.title, document.text, metadata


class Documents:
    """Documents of one corpus, by their place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # immutable: no lock, no journal, nothing written beside it, so read-only media serve as well.
        try:
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise DataError(f"cannot be opened ({error})", path=path) from None

    def get(self, place: int) -> Document | None:
        found = self._all("WHERE place = ?", place)
        return found[0][1] if found else None

    def __iter__(self) -> Iterator[tuple[int, Document]]:
        yield from self._all("ORDER BY place")

    def _all(self, clause: str, *values: Any) -> list[tuple[int, Document]]:
        try:
            rows = self._database.execute(f"SELECT place, docid, title, text, metadata FROM documents {clause}", values).fetchall()
        except sqlite3.Error as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=self.path) from None
        return [(place, Document(docid, text, title, json.loads(metadata or "{}"))) for place, docid, title, text, metadata in rows]

    def close(self) -> None:
        self._database.close()

    def __del__(self) -> None:
        # At once, not when the collector comes: a purged file whose handle is open is not gone from the disk.
        if hasattr(self, "_database"):
            self._database.close()
