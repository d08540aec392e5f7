"""One generation, opened for searching: its rows, its query encoder, its documents.

`onnx` runs the encoder without torch, on the CPU; `int8` is the same with int8 products; `torch` runs the model that training uses,
on any device. Rows are scanned on the CPU in all of them.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import weakref
from collections.abc import Collection
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from promptdsi.corpus.corpus import Document
from promptdsi.engine.passage_store import PassageStore
from promptdsi.engine.quantized import RowBlock, merge_small_blocks
from promptdsi.engine.query_encoder import EncoderSessions, OnnxEncoder, QueryEncoder, TorchEncoder
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import Calibration, WordTable
from promptdsi.errors import DataError, UsageError
from promptdsi.evaluation.evaluate import Ranker
from promptdsi.index.documents import Documents, StoredDocuments
from promptdsi.index.encoder_checks import check_encoder, check_prompts
from promptdsi.index.entry import Arrival, Entry
from promptdsi.index.local_store import LocalPassageStore
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import Location
from promptdsi.index.store import Store
from promptdsi.model.config import EncoderConfig
from promptdsi.model.path import cores
from promptdsi.model.prompts import make_strategy
from promptdsi.model.prompts.strategy import ArrayPool, PromptStrategy
from promptdsi.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from promptdsi.methods.promptdsi import PromptDSI

OPEN_FILES = 64  # document files open at a time: an index may have more corpora than a process may open files
# Generations of one index have the same encoder: it is built once for all that are open.
_shared_sessions: weakref.WeakValueDictionary[tuple[Any, ...], EncoderSessions] = weakref.WeakValueDictionary()


class Opening(NamedTuple):
    """The keywords of `Index.open`: whether checksums are verified, what encodes queries, how many threads a search may use, and where."""

    check: bool = True
    engine: str = "onnx"
    device: str = "auto"
    threads: int | None = None
    on: str | None = None  # the URL of a cluster; None: this process


class RowOrigin(NamedTuple):
    """Where a row comes from: its corpus, the number of that corpus, its document's position in it, and its passage of the document."""

    entry: Entry
    corpus: int
    position: int
    passage: int


class Generation:
    """A generation opened for searching. Any number of threads may share it; it never writes.

    `verified` names blobs whose checksum was verified before.
    """

    first_row = first_document = 0  # the numbers, in the generation, of what was opened first
    complete = True  # whether all of its documents were opened (`shards.py`)
    processes: Any = None  # those that hold its rows, where they lie in shards

    def __init__(self, store: Store, manifest: Manifest, opening: Opening, *, verified: Collection[str] = frozenset()) -> None:
        self.store, self.manifest, self.opening, self.engine, self.device = store, manifest, opening, opening.engine, opening.device
        if opening.check:
            store.check(manifest, self.needed_blobs() - set(verified))
        self.threads = opening.threads and min(opening.threads, cores())  # more than cores only wait for each other
        self.firsts = manifest.firsts()
        with manifest.as_data_error(store.folder):
            self._open_passages()
            self._check_encoder()
        self._documents: dict[tuple[int, int], Documents] = {}  # by corpus and file
        self._queries: dict[int, dict[str, list[Any]]] = {}
        self.filtered: dict[tuple[str, ...], RowTable] = {}  # the rows of the documents that meet some conditions (`filters.py`)
        self._lock = threading.Lock()

    def needed_blobs(self) -> set[str]:
        """The blobs that are read here."""
        return self.manifest.blobs()

    def _check_encoder(self) -> None:
        check_encoder(self.manifest, self.store.blobs)

    def _open_passages(self) -> None:
        self.table = self._open_table()
        self.words = self._open_words()

    @property
    def passages(self) -> PassageStore:
        """Where passages are scored. Made anew each time: kept, it would keep this generation, and what a purge erased, in memory."""
        return LocalPassageStore(self)

    def _open_table(self) -> RowTable:
        blocks: list[RowBlock] = []
        names: list[str] = []
        passages: list[int] = []
        hidden = set(self.manifest.tombstones)
        for number, entry in enumerate(self.manifest.corpora):
            ids = self.store.outline(entry.ids)
            hidden.update(self.firsts[number] + position for position in (ids.erased() if None in ids.docids else ()))
            blocks.append(self.store.blobs.rows(entry.rows))
            names += self.manifest.document_names(number, ids.docids, ids.passages, blocks[-1].rows.shape)
            passages += ids.passages
        self.starts = np.cumsum([0, *passages[:-1]])  # the first row of each document
        if not all(0 <= number < len(names) for number in hidden):
            raise ValueError("documents are deleted that do not exist")
        docids = [name for name, count in zip(names, passages, strict=True) for _ in range(count)]
        deleted = {row for number in hidden for row in range(self.starts[number], self.starts[number] + passages[number])}
        threads = self.threads or cores()
        return RowTable(merge_small_blocks(blocks), docids, deleted, document_starts=self.starts, threads=threads)

    def _open_words(self) -> WordTable | None:
        manifest, blobs = self.manifest, self.store.blobs
        if manifest.statistics is None:
            return None
        postings = [blobs.words(entry.words) for entry in manifest.corpora if entry.words]
        statistics, metadata = blobs.statistics(manifest.statistics), manifest.metadata
        table = WordTable(postings, statistics, weight=metadata["word_weight"], salt=metadata.get("word_salt", ""))
        if len(table) != len(self.table):
            raise ValueError("words of other passages than the rows")
        return table

    @cached_property
    def calibration(self) -> Calibration | None:
        """What turns scores into confidences, where it was fitted."""
        fitted = self.manifest.metadata.get("calibration")
        return Calibration(**fitted) if fitted else None

    @cached_property
    def encoder(self) -> QueryEncoder:
        """The query encoder, built at the first query."""
        if self.engine == "torch":
            method = self.method
            return TorchEncoder(method.model_, method.tokenizer_, max_tokens=method.encoding.max_tokens, threads=self.threads)
        with self.manifest.as_data_error(self.store.folder, UsageError):
            return self._onnx_encoder()

    def _onnx_encoder(self) -> OnnxEncoder:
        blobs, manifest, params = self.store.blobs, self.manifest, self.manifest.params
        encoding, config = params["encoding"], EncoderConfig(**manifest.config)
        strategy: PromptStrategy | None = None
        layers: tuple[int, ...] = ()
        if manifest.prompts:
            arrays = {name: blobs.arrays(name) for name in set(manifest.prompts.values())}
            strategy = make_strategy(params.get("prompts", "none"), **params.get("prompt_options", {}))
            tensors = {name: arrays[blob][name] for name, blob in manifest.prompts.items()}
            check_prompts(strategy, tensors, config.width)
            strategy.pool = ArrayPool(tensors, strategy.blocks)
            layers = strategy.prompt_layers if strategy.prompts else ()
        path = {"pooling": encoding["pooling"], "prefix_space": params.get("prefix_space", "post")}
        key = (manifest.encoder, config, layers, *path.values(), self.threads or cores(), self.engine)
        sessions = _shared_sessions.get(key)
        if sessions is None:
            weights, int8 = blobs.arrays(manifest.encoder), self.engine == "int8"
            sessions = _shared_sessions[key] = EncoderSessions(config, weights, layers, **path, threads=self.threads, int8=int8)
        tokenizer = Tokenizer(blobs.text(manifest.tokenizer), config.pad_id, config.vocabulary)
        selection, normalize, max_tokens = params.get("selection", "single"), encoding["normalize"], encoding["max_tokens"]
        return OnnxEncoder(sessions, tokenizer, strategy, max_tokens=max_tokens, normalize=normalize, selection=selection, **path)

    @cached_property
    def method(self) -> PromptDSI:
        """The method of this generation, able to train and to be evaluated. Imports torch."""
        from promptdsi.index.method_io import load_method

        return load_method(self.store, self.manifest, device=self.device)

    def shards_ready(self) -> list[bool]:
        """Whether each shard answers; there are none where rows lie in this process."""
        return []

    @property
    def ranker(self) -> Ranker:
        """What evaluates this generation."""
        return self.method

    @property
    def row_of(self) -> dict[str, int]:
        return self.table.row_of

    def live_row(self, docid: str) -> int | None:
        """The row of a document that can be retrieved."""
        place = self.passages.locate([docid])[0]
        return None if place is None or place.deleted else place.row

    def live_rows(self) -> list[int]:
        """The rows of all documents that can be retrieved."""
        return [row for row in range(len(self.table)) if row not in self.table.deleted]

    def document_number(self, row: int) -> int:
        """The number of a row's document in the generation."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1 + self.first_document

    def corpus_of(self, document: int) -> tuple[Entry, int, int]:
        """The corpus of a document, the number of that corpus, and the document's position in it."""
        document -= self.first_document
        number = bisect.bisect_right(self.firsts, document) - 1
        return self.manifest.corpora[number], number, document - self.firsts[number]

    def arrival_of(self, document: int) -> Arrival:
        """The corpus that a document arrived with."""
        entry, _, position = self.corpus_of(document)
        return entry.arrival_of(position)

    def origin(self, row: int) -> RowOrigin:
        document = self.document_number(row)
        return RowOrigin(*self.corpus_of(document), row - int(self.starts[document - self.first_document]))

    def passage(self, row: int) -> tuple[int, int] | None:
        """Where in its document's text a row's passage begins and ends; None where the document is one passage."""
        entry, _, position, passage = self.origin(row)
        offsets = self.store.outline(entry.ids).boundaries.get(str(position))
        return (offsets[passage], offsets[passage + 1]) if offsets else None

    def document(self, number: int) -> Document | None:
        """What is stored of a document, by its number: None where nothing is."""
        entry, corpus, position = self.corpus_of(number)
        files = entry.document_files
        if not files:
            return None
        file = bisect.bisect_right(files, position, key=lambda named: named[1].start) - 1
        with self._lock:
            documents = self._documents.pop((corpus, file), None) or self._document_file(corpus, file)
            self._documents[corpus, file] = documents  # the most recently used is the last to be closed
            if len(self._documents) > OPEN_FILES:
                self._documents.pop(next(iter(self._documents))).close()
            return documents.get(position)

    def stored(self, number: int) -> StoredDocuments:
        """The stored documents of a corpus, not those that are open already."""
        count = len(self.manifest.corpora[number].document_files)
        return StoredDocuments(partial(self._document_file, number, file) for file in range(count))

    def _document_file(self, number: int, file: int) -> Documents:
        name, positions = self.manifest.corpora[number].document_files[file]
        return self.store.document_file(self._blob(name, number, "documents", file), positions)

    def get(self, docid: str) -> Document:
        """What is stored of a live document."""
        place, folder = self.passages.locate([docid])[0], self.store.folder
        if place is None:
            hint = self.passages.similar_docid(docid)
            raise DataError(f"holds no document {docid!r} in generation {self.manifest.number}{hint}", path=folder)
        if place.deleted:
            raise DataError(f"the document {docid!r} is deleted; `undelete` shows it again", path=folder)
        return self.document(place.document) or Document(docid, "")

    def locate(self, docid: str) -> Location | None:
        """The corpus of a document and whether it is deleted; None where there is no such document."""
        place = self.passages.locate([docid])[0]
        if place is None:
            return None
        arrival = self.arrival_of(place.document)
        return Location(arrival.name, arrival.since, place.deleted)

    def stored_queries(self, number: int) -> dict[str, list[Any]]:
        """The training queries stored of a corpus, by docid."""
        name = self.manifest.corpora[number].queries
        if name and number not in self._queries:
            by_docid: dict[str, list[Any]] = {}
            for query in self.store.blobs.list(self._blob(name, number, "queries"), "queries"):
                by_docid.setdefault(query["docid"], []).append(query)
            self._queries[number] = by_docid
        return self._queries.get(number, {})

    def _blob(self, name: str, number: int, part: str, file: int = 0) -> str:
        """The name of a corpus's blob now: a purge may have replaced it since this generation was opened."""
        with contextlib.suppress(DataError):
            self.store.blobs.path(name)
            return name
        again = self.store.manifest(self.manifest.number)
        if (again.encoder, again.time) != (self.manifest.encoder, self.manifest.time):
            raise DataError("holds another index since this one was opened; open it again", path=self.store.folder)
        return again.corpora[number].files(part)[file]
