"""Blobs: files named by their sha256, written once. The same content is the same file, so "nothing changed" can be checked.

A corpus has up to six: `rows` (its rows and their quantized codes), `ids` (docids, content hashes and where passages begin), `words`
(which passage contains which word), `documents` (SQLite, never opened by training), `probes` and `queries` (JSON lists). `since`, the
generation the corpus arrived in, is in each, so that two corpora never share a blob: what is erased from one must stay in the other. A
corpus of more than a million passages is stored in parts, each with blobs of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.checks import Check, parse_json
from promptdsi.corpus.corpus import Document
from promptdsi.engine.postings import Postings, WordStatistics, statistics_from, to_tensors
from promptdsi.engine.quantized import RowBlock, mapped_tensors, quantize
from promptdsi.errors import DataError, PromptDSIError
from promptdsi.files import adopt, atomic_write, discard, open_plain, read_plain, sha256_of, temporary_file
from promptdsi.index.documents import write_documents
from promptdsi.index.file_checks import HASH, LISTS, MOST_TOKENIZER, NAME, check_ids
from promptdsi.index.row_files import stored_codes, write_row_file

if TYPE_CHECKING:
    from torch import Tensor

MOST_JSON = 1 << 30  # bytes of a JSON blob: the ids of some ten million documents


def is_plain(path: Path) -> bool:
    """Whether a path is a regular file: no link may lead out of the index."""
    return path.is_file() and not path.is_symlink()


class Blobs:
    """The `blobs/` folder of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, kind: str) -> str:
        """Store content and return its name; an intact blob of that name is not written again."""
        name = f"{hashlib.sha256(content).hexdigest()}.{kind}"
        if not self._is_intact(name):
            with atomic_write(self.folder / name) as file:
                file.write(content)
        return name

    def put_json(self, value: Any) -> str:
        return self.put(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8"), "json")

    def put_list(self, entries: list[dict[str, Any]], *, since: int) -> str:
        """Store probes or training queries."""
        return self.put_json({"since": since, "entries": entries})

    def put_rows(self, rows: NDArray[np.float32], *, since: int, part: int = 0) -> str:
        """Store rows (n, D) with their quantized codes, which a search reads first; panel by panel, as rows may be mapped from a file."""
        with temporary_file(self.folder, ".rows.") as (file, path):
            try:
                write_row_file(file, rows, _origin(since, part))
            except ValueError as error:
                raise PromptDSIError(f"{error}: the training diverged; nothing is stored") from None
            file.flush()
            name = f"{sha256_of(path)}.safetensors"
            if not self._is_intact(name):
                adopt(path, self.folder / name)
        return name

    def put_words(self, postings: Postings, *, since: int, part: int = 0) -> str:
        """Store the words of a corpus."""
        from safetensors.numpy import save

        return self.put(save(to_tensors(postings), _origin(since, part)), "safetensors")

    def put_statistics(self, statistics: WordStatistics) -> str:
        from safetensors.numpy import save

        return self.put(save(to_tensors(statistics)), "safetensors")

    def put_documents(self, numbered: Iterable[tuple[int, Document]], *, since: int, store: str = "text") -> str:
        """Store documents under their positions in the corpus; `store` says how much of each."""
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".documents.")
        os.close(handle)
        try:
            write_documents(Path(name), (_document_record(position, document, store) for position, document in numbered), since=since)
            blob = f"{sha256_of(Path(name))}.sqlite"
            if not self._is_intact(blob):
                adopt(Path(name), self.folder / blob)
            return blob
        except sqlite3.OperationalError as error:
            raise DataError(f"the documents could not be written: {error}", path=self.folder) from None
        finally:
            discard(Path(name))

    def path(self, name: str) -> Path:
        """The path of a blob, which must exist and be a regular file."""
        if not NAME.fullmatch(name):
            raise DataError(f"names the blob {name[:100]!r}, which is no blob's name; run `promptdsi verify`", path=self.folder.parent)
        path = self.folder / name
        try:
            mode = os.lstat(path).st_mode  # asked once: an index may have thousands of small files
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                "is missing; restore it from a copy, or see with `promptdsi verify` which generations are intact", path=path
            ) from None
        if stat.S_ISLNK(mode) or self.folder.is_symlink():
            raise DataError("is a link; an index holds its own files only", path=path)
        if not stat.S_ISREG(mode):
            raise DataError("is no regular file; an index holds its own files only", path=path)
        return path

    def size(self, name: str) -> int:
        return self.path(name).stat().st_size

    def check(self, name: str, size: int) -> None:
        """Raise DataError unless the blob has the size and the checksum it should."""
        path = self.path(name)
        with open_plain(path) as file:  # size and checksum of the same file, also while a purge replaces it
            intact = os.fstat(file.fileno()).st_size == size and hashlib.file_digest(file, "sha256").hexdigest() == name[:HASH]
        if not intact:
            advice = "restore it from a copy, or see with `promptdsi verify` which generations are intact"
            raise DataError(f"is damaged (sha256 or size differ); {advice}", path=path)

    def json(self, name: str) -> Any:
        path = self.path(name)
        try:
            return parse_json(read_plain(path, MOST_JSON))
        except ValueError as error:
            raise DataError(f"is damaged (no JSON we read: {error}); run `promptdsi verify`", path=path) from None

    def ids(self, name: str) -> Ids:
        value = self._checked(name, check_ids)
        return Ids(value["since"], value["docids"], value["marks"], value.get("boundaries", {}))

    def list(self, name: str, part: str) -> list[dict[str, Any]]:
        """Stored `probes` or training `queries`."""
        return list(self._checked(name, LISTS[part])["entries"])

    def _checked(self, name: str, check: Check) -> Any:
        value = self.json(name)
        try:
            check(value)
        except ValueError as error:
            raise DataError(f"is no part of an index: {str(error).strip()}; run `promptdsi verify`", path=self.folder / name) from None
        return value

    def text(self, name: str) -> str:
        path = self.path(name)
        try:
            return read_plain(path, MOST_TOKENIZER).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=path) from None

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Tensors mapped from the file, not read. The header is checked before anything is allocated."""
        from safetensors import SafetensorError, safe_open

        path = self.path(name)
        mapped_tensors(path)
        try:
            with safe_open(path, "pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=path) from None

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The same as numpy arrays, without torch."""
        return mapped_tensors(self.path(name))

    def rows(self, name: str) -> RowBlock:
        """Rows and codes, mapped. Indexes written before codes lay in panels get them here, in memory."""
        arrays = self.arrays(name)
        with self._reading(name):
            rows = arrays["rows"]
            if rows.ndim != 2 or rows.dtype != np.float32:
                raise ValueError(f"rows of {rows.dtype} in {rows.ndim} dimensions")
            return RowBlock(rows, stored_codes(arrays) or quantize(rows))

    def words(self, name: str) -> Postings:
        """The words of a corpus, mapped."""
        arrays = self.arrays(name)
        with self._reading(name):
            postings = Postings(**{part: arrays[part] for part in Postings._fields})
            postings.check()
            return postings

    def statistics(self, name: str) -> WordStatistics:
        arrays = self.arrays(name)
        with self._reading(name):
            return statistics_from(arrays)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Tensors that are not those of such a blob are damage: DataError."""
        try:
            yield
        except (ValueError, LookupError) as error:
            reason = f"no tensor {error}" if isinstance(error, KeyError) else error
            raise DataError(f"is damaged ({reason}); run `promptdsi verify`", path=self.folder / name) from None

    def names(self) -> set[str]:
        """Every file of the folder."""
        return {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()

    def _is_intact(self, name: str) -> bool:
        path = self.folder / name
        return is_plain(path) and sha256_of(path) == name[:HASH]


class Ids(NamedTuple):
    """By position in the corpus: docids, None where the document was purged, and the content hashes, joined into one string.

    `boundaries` tells of documents with several passages where each begins and the last ends, in characters of the text, by position.
    """

    since: int
    docids: list[str | None]
    marks: str
    boundaries: dict[str, list[int]] = {}  # noqa: RUF012  # never changed

    @classmethod
    def of(cls, documents: Sequence[Document], *, since: int, boundaries: Sequence[list[int]] = ()) -> Ids:
        offsets_by_position = {str(position): offsets for position, offsets in enumerate(boundaries) if offsets}
        hashes = "".join(content_hash(document) for document in documents)
        return cls(since, [document.docid for document in documents], hashes, offsets_by_position)

    @property
    def passages(self) -> list[int]:
        """How many passages, and rows, each document has."""
        return [max(1, len(self.boundaries.get(str(position), ())) - 1) for position in range(len(self.docids))]

    def erased(self) -> list[int]:
        """The positions of documents that were purged."""
        return [position for position, docid in enumerate(self.docids) if docid is None]

    def content_hash(self, position: int) -> str:
        return self.marks[HASH * position : HASH * (position + 1)]

    def without(self, positions: set[int]) -> Ids:
        """The same with some documents erased; the others keep their positions."""
        hashes = ["0" * HASH if position in positions else self.content_hash(position) for position in range(len(self.docids))]
        docids = [None if position in positions else docid for position, docid in enumerate(self.docids)]
        boundaries = {
            position: [0] * len(offsets) if int(position) in positions else offsets for position, offsets in self.boundaries.items()
        }  # how many passages there were stays: no other row moves
        return Ids(self.since, docids, "".join(hashes), boundaries)


def content_hash(document: Document) -> str:
    """Two documents of one docid are equal if title, text and metadata are."""
    metadata = json.dumps(dict(document.metadata), ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(f"{document.title}\0{document.text}\0{metadata}".encode()).hexdigest()


def _origin(since: int, part: int) -> dict[str, str]:
    """What tells equal contents of two corpora apart, or of two parts of one. One key: safetensors writes several in any order."""
    return {"since": f"{since} part {part}" if part else str(since)}


def _document_record(position: int, document: Document, store: str) -> tuple[Any, ...]:
    if store == "title":
        return position, document.docid, document.title, "", None
    metadata = json.dumps(dict(document.metadata), ensure_ascii=False) if document.metadata else None
    return position, document.docid, document.title, document.text, metadata
