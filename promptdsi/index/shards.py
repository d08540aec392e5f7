"""A generation whose rows, words and ids lie in several processes: how it is divided, and what each side opens.

Shard `number` of `count` has the documents whose first row is among that share of all rows, next to each other and whole. Rows and words
stay where they are on disk: a shard maps the files that its documents lie in and verifies their checksums before it answers.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.passage_store import MergedPassageStore
from promptdsi.engine.quantized import RowBlock, merge_small_blocks
from promptdsi.engine.ray_store import RayPassageStore, shards_on
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.words import WordTable
from promptdsi.evaluation.evaluate import Ranker
from promptdsi.index import filters
from promptdsi.index.entry import Entry
from promptdsi.index.generation import Generation, Opening
from promptdsi.index.local_store import LocalPassageStore
from promptdsi.index.manifest import Manifest
from promptdsi.index.store import Store
from promptdsi.methods.base import Result
from promptdsi.model.path import cores


class ShardGeneration(Generation):
    """Some documents of a generation, opened in a shard's process: no encoder, and of the files only those it needs."""

    complete = False

    def __init__(
        self, store: Store, manifest: Manifest, opening: Opening, number: int, count: int, *, verified: Collection[str] = frozenset()
    ) -> None:
        total = sum(entry.row_count for entry in manifest.corpora)
        self.low, self.high = total * number // count, total * (number + 1) // count
        super().__init__(store, manifest, opening, verified=verified)

    def needed_blobs(self) -> set[str]:
        parts = [entry.files(part) for _, entry, _ in self._corpora() for part in ("rows", "ids", "words", "documents")]
        return {name for names in parts for name in names} | ({self.manifest.statistics} if self.manifest.statistics else set())

    def _corpora(self) -> list[tuple[int, Entry, int]]:
        """Number, entry and first row of each corpus that has rows in this share."""
        corpora, first = [], 0
        for number, entry in enumerate(self.manifest.corpora):
            if first < self.high and first + entry.row_count > self.low:
                corpora.append((number, entry, first))
            first += entry.row_count
        return corpora

    def _open_table(self) -> RowTable:
        blocks: list[RowBlock] = []
        names: list[str] = []
        passages: list[int] = []
        self._opened: list[tuple[Entry, int]] = []  # the corpora with documents in this share, and their first rows
        for number, entry, first in self._corpora():
            ids, block = self.store.outline(entry.ids), self.store.blobs.rows(entry.rows)
            docids, counts = self.manifest.document_names(number, ids.docids, ids.passages, block.rows.shape), ids.passages
            starts = np.cumsum([first, *counts])
            begin, end = np.searchsorted(starts[:-1], (self.low, self.high)).tolist()
            if begin == end:
                continue
            if not names:
                self.first_row, self.first_document = int(starts[begin]), self.firsts[number] + begin
            blocks += block.part(int(starts[begin]) - first, int(starts[end]) - first)
            names += docids[begin:end]
            passages += counts[begin:end]
            self._opened.append((entry, first))
        self.firsts = [first - self.first_document for first in self.firsts]
        self.starts = np.cumsum([0, *passages])[:-1]
        low, high = np.searchsorted(self.manifest.tombstones, (self.first_document, self.first_document + len(names))).tolist()
        hidden = [number - self.first_document for number in self.manifest.tombstones[low:high]]
        hidden += [number for number, name in enumerate(names) if name.startswith("\0")]  # purged
        deleted = {row for number in hidden for row in range(self.starts[number], self.starts[number] + passages[number])}
        rows = [name for name, count in zip(names, passages, strict=True) for _ in range(count)]
        return RowTable(merge_small_blocks(blocks), rows, deleted, document_starts=self.starts, threads=self.threads or cores())

    def _open_words(self) -> WordTable | None:
        manifest, blobs = self.manifest, self.store.blobs
        if manifest.statistics is None or not self._opened:
            return None
        postings = [blobs.words(entry.words) for entry, _ in self._opened if entry.words]
        if [len(part.lengths) for part in postings] != [entry.row_count for entry, _ in self._opened]:
            raise ValueError("words of other passages than the rows")
        statistics, metadata, first = blobs.statistics(manifest.statistics), manifest.metadata, self._opened[0][1] - self.first_row
        return WordTable(postings, statistics, weight=metadata["word_weight"], salt=metadata.get("word_salt", ""), first=first)

    def _check_encoder(self) -> None:
        """Queries come encoded."""


class ShardOpener:
    """Opens the same share of each generation in a shard's process. Files that were verified for one are not verified for the next.

    A process that was started again, or a node that has another copy, verifies them anew: always, however the index was opened.
    """

    def __init__(self, folder: Path, opening: Opening) -> None:
        self.folder, self.opening = folder, opening
        self.verified: set[str] = set()

    def __call__(self, manifest: Manifest, number: int, count: int, per_node: int = 1) -> LocalPassageStore:
        threads = max(1, cores() // per_node)  # shards of one node share its cores
        opening = self.opening._replace(threads=min(self.opening.threads or threads, threads), check=True)
        generation = ShardGeneration(Store(self.folder), manifest, opening, number, count, verified=self.verified)
        self.verified = generation.needed_blobs()
        shard = LocalPassageStore(generation)
        shard.locate([""])  # the lookup by docid is built on first use
        return shard


class ShardedGeneration(Generation):
    """A generation on a cluster. This process encodes queries and reads the texts of hits; rows, words and ids lie in the shards."""

    def needed_blobs(self) -> set[str]:
        parts = [(entry.rows, entry.ids, entry.words) for entry in self.manifest.corpora]
        return self.manifest.blobs() - {name for names in parts for name in names if name}

    def _open_passages(self) -> None:
        assert self.opening.on is not None
        folder = self.store.folder.absolute()
        self.processes = shards_on(self.opening.on, str(folder), ShardOpener(folder, self.opening._replace(on=None)))
        self._passages: MergedPassageStore = RayPassageStore(self.processes, self.manifest, filters.unknown_field)

    @property
    def passages(self) -> MergedPassageStore:
        return self._passages

    def shards_ready(self) -> list[bool]:
        assert isinstance(self._passages, RayPassageStore)
        return self._passages.health()

    @property
    def ranker(self) -> Ranker:
        return ShardRanker(self)


class Cluster:
    """The shards of an index that was opened on a cluster, for what writes to it. They live as long as this."""

    def __init__(self, store: Store, opening: Opening) -> None:
        self.store, self.opening = store, opening._replace(check=False)  # a writer verifies what it reads, shards what they hold
        self.opened: weakref.WeakSet[Generation] = weakref.WeakSet()
        self.processes: Any = None

    def use(self, generation: Generation) -> Generation:
        """Take over an opened generation and the processes that hold its rows."""
        self.opened.add(generation)
        self.processes = generation.processes
        return generation

    def generation(self, manifest: Manifest) -> Generation:
        """A generation in the shards, committed or about to be."""
        names = manifest.blobs() - manifest.sizes.keys()
        manifest = replace(manifest, sizes={**manifest.sizes} | {name: self.store.blobs.size(name) for name in names})
        for generation in self.opened:
            if generation.manifest == manifest:
                return generation
        return self.use(ShardedGeneration(self.store, manifest, self.opening))


class ShardRanker:
    """Evaluates a generation by its query encoder and its shards; torch is not needed."""

    def __init__(self, generation: ShardedGeneration) -> None:
        self.generation = generation

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        if not queries:
            return []
        vectors = self.generation.encoder.encode(queries).vectors
        retrieved = self.generation.passages.top_k(vectors, queries, k)
        return [Result([passage.docid for passage in result.passages], result.scores) for result in retrieved]

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        if not queries:
            return np.empty(0, np.int64)
        places: list[Any] = self.generation.passages.locate(docids)
        vectors = self.generation.encoder.encode(queries).vectors
        ranks = self.generation.passages.ranks(vectors, queries, [[place.row] for place in places])
        return np.array([each[0] for each in ranks], np.int64)
