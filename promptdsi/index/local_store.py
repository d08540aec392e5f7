"""The passages of an opened generation, or of a part of it, as `engine/passage_store.py` describes them: rows, words, ids and metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.passage_store import LiveDocument, Retrieved, StoredPassage, Targets, Where, highest
from promptdsi.engine.row_table import RowTable
from promptdsi.engine.top_k import Numbers
from promptdsi.engine.words import WordQuery
from promptdsi.index import filters
from promptdsi.index.blobs import Ids
from promptdsi.model.path import Floats, unit
from promptdsi.wording import suggest

if TYPE_CHECKING:
    from promptdsi.index.generation import Generation


ROWS_AT_ONCE = 65_536  # rows compared at a time


class LocalPassageStore:
    """A `Shard`: the opened documents of a generation. Row and document numbers are those of the whole generation."""

    def __init__(self, generation: Generation) -> None:
        self.generation, self.table = generation, generation.table

    def top_k(self, vectors: Floats, queries: Sequence[str], k: int, where: Where = ()) -> list[Retrieved]:
        words = [self._words(query) for query in queries]
        top = self._table(where).top(vectors, k, [query for query in words if query] or None)
        results = []
        for query, rows, scores in zip(words, top.rows.tolist(), top.scores.tolist(), strict=True):
            coverage = query.coverage(rows).tolist() if query else [0.0] * len(rows)
            results.append(Retrieved([self._passage(row) for row in rows], scores, coverage, query.information if query else 0.0))
        return results

    def ranks(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]], where: Where = ()) -> list[Numbers]:
        table, words = self._table(where), self._words_of(queries, len(vectors))
        local = [[row - self.generation.first_row for row in each] for each in rows]
        return table.ranks(vectors, local, words)

    def scores(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]]) -> list[Floats]:
        results = []
        for vector, each, words in zip(vectors, rows, self._words_of(queries, len(vectors)), strict=True):
            scores, local = np.full(len(each), np.nan, np.float32), [place for place, row in enumerate(each) if self.has_row(row)]
            scores[local] = self.table.scores(vector, [each[place] - self.generation.first_row for place in local], words)
            results.append(scores)
        return results

    def matches(self, query: str, rows: Sequence[int]) -> list[list[tuple[str, float]]]:
        words, first = self._words(query), self.generation.first_row
        return [words.matches(row - first) if words and self.has_row(row) else [] for row in rows]

    def neighbors(self, rows: Sequence[int], k: int) -> list[list[tuple[StoredPassage, float]]]:
        nearby = self.table.neighbors([row - self.generation.first_row for row in rows], k)
        return [[(self._passage(row), cosine) for row, cosine in pairs] for pairs in nearby]

    def log_sum_exp(self, vectors: Floats, scale: float, without: Sequence[int] = ()) -> NDArray[np.float64]:
        total, starts = np.full(len(vectors), -np.inf), self.generation.starts
        local = [number - self.generation.first_document for number in without]
        documents = [self.table.document_rows(int(starts[number])) for number in local if 0 <= number < len(starts)]
        left_out = np.array([row for rows in documents for row in rows], np.int64)
        for chunk, products, _ in self.table.products(vectors):
            rows = left_out - chunk.first
            products[:, rows[(rows >= 0) & (rows < products.shape[1])]] = -np.inf
            greatest = products.max(axis=1, initial=np.finfo(np.float32).min)
            products -= greatest[:, None]  # so that no exp exceeds 1
            products *= np.float32(scale)
            sums = np.exp(products, out=products).sum(axis=1, dtype=np.float64)
            logs = np.log(sums, where=sums > 0, out=np.full(len(sums), -np.inf))
            total = np.logaddexp(total, scale * greatest.astype(np.float64) + logs)
        return total

    def norms(self, count: int) -> NDArray[np.float64]:
        parts = (
            rows[start : start + ROWS_AT_ONCE // 8] for _, rows in self._first(count) for start in range(0, len(rows), ROWS_AT_ONCE // 8)
        )
        return np.concatenate([np.empty(0), *(np.linalg.norm(rows.astype(np.float64), axis=1) for rows in parts)])

    def row_vectors(self, rows: Sequence[int]) -> Floats:
        return self.table.vectors([row - self.generation.first_row for row in rows])

    def closest(self, directions: Floats, k: int, count: int, without: Sequence[int] | None = None) -> NDArray[np.float64]:
        best, each = np.full((len(directions), k), -np.inf), np.arange(len(directions))[:, None]
        for first, rows in self._first(count):
            cosines = directions @ unit(rows).T  # (B, n)
            cosines[:, ~rows.any(axis=1)] = -np.inf
            excluded = np.full(len(directions), -1) if without is None else np.asarray(without) - first
            inside = np.flatnonzero((excluded >= 0) & (excluded < len(rows)))
            cosines[inside, excluded[inside]] = -np.inf
            chosen = np.argpartition(-cosines, min(k, len(rows)) - 1, axis=1)[:, :k]  # by float32 products; then exactly
            exact = (unit(rows[chosen].astype(np.float64)) * directions.astype(np.float64)[:, None]).sum(2)
            best = highest(np.concatenate([best, np.where(cosines[each, chosen] > -np.inf, exact, -np.inf)], axis=1), k)
        return best

    def _first(self, count: int) -> Iterator[tuple[int, Floats]]:
        """Those of the first rows that lie here, deleted or not, in pieces, with the number of each piece's first row."""
        first = self.generation.first_row
        for block in self.table.blocks:
            for start in range(0, len(block.rows), ROWS_AT_ONCE):
                if first + start < count:
                    yield first + start, block.rows[start : min(start + ROWS_AT_ONCE, count - first)]
            first += len(block.rows)

    def locate(self, docids: Sequence[str]) -> list[StoredPassage | None]:
        rows = [self.table.row_of.get(docid) for docid in docids]
        return [None if row is None else self._passage(row) for row in rows]

    def contains(self, docids: Sequence[str]) -> list[bool]:
        return [place is not None and not place.deleted for place in self.locate(docids)]

    def live(self, docids: Sequence[str]) -> list[LiveDocument | None]:
        ids: dict[int, Ids] = {}  # not kept: hashes are large, and only writers ask for them
        results: list[LiveDocument | None] = []
        for place in self.locate(docids):
            if place is None or place.deleted:
                results.append(None)
                continue
            entry, number, position = self.generation.corpus_of(place.document)
            if number not in ids:
                ids[number] = self.generation.store.blobs.ids(entry.ids)
            results.append((place.document, ids[number].content_hash(position)))
        return results

    def versions(self, docids: Sequence[str]) -> list[list[int]]:
        numbers: dict[str, list[int]] = {docid: [] for docid in docids}
        for number, row in enumerate(self.generation.starts.tolist(), self.generation.first_document):
            if (versions := numbers.get(self.table.docids[row])) is not None:
                versions.append(number)
        return [numbers[docid] for docid in docids]

    def has_folder(self, name: str) -> bool:
        rows, table = self.generation.starts.tolist(), self.table
        return any(table.docids[row].partition("/")[0] == name for row in rows if row not in table.deleted)

    def similar_docid(self, docid: str) -> str:
        return suggest(docid, self.table.row_of)

    def field_counts(self) -> dict[str, Counter[str]]:
        return filters.field_counts(self.generation)

    def has_row(self, row: int) -> bool:
        return 0 <= row - self.generation.first_row < len(self.table)

    def missing_fields(self, where: Where) -> set[str]:
        return filters.missing_fields(self.generation, where)

    def vectors(self, rows: Sequence[int]) -> list[tuple[Floats, int] | None]:
        first, origin = self.generation.first_row, self.generation.document_number
        return [(self.table.vectors([row - first])[0], origin(row - first)) if self.has_row(row) else None for row in rows]

    def document_scores(
        self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]]
    ) -> list[list[tuple[float, str] | None]]:
        def score(vector: Floats, row: int, words: WordQuery | None) -> tuple[float, str]:
            return float(self.table.scores(vector, self.table.document_rows(row), words).max()), self.table.docids[row]

        first, each = self.generation.first_row, zip(vectors, rows, self._words_of(queries, len(vectors)), strict=True)
        return [[score(vector, row - first, words) if self.has_row(row) else None for row in some] for vector, some, words in each]

    def count_before(self, vectors: Floats, queries: Sequence[str] | None, targets: Targets, where: Where) -> list[Numbers]:
        if not len(self.table):
            return [np.zeros(len(some), np.int64) for some in targets]
        table, results = self._table(where), []
        for vector, some, words in zip(vectors, targets, self._words_of(queries, len(vectors)), strict=True):
            results.append(table.count_before(vector, [score for score, _ in some], [docid for _, docid in some], words))
        return results

    def nearest(self, vectors: Floats, documents: Sequence[int], k: int) -> list[list[tuple[StoredPassage, float]]]:
        local = [document - self.generation.first_document for document in documents]
        starts = self.generation.starts.tolist()
        excluded = [self.table.document_rows(starts[document]) if 0 <= document < len(starts) else range(0) for document in local]
        nearby = self.table.nearest(unit(vectors), excluded, k)
        return [[(self._passage(row), cosine) for row, cosine in pairs] for pairs in nearby]

    def _table(self, where: Where) -> RowTable:
        return filters.filtered_rows(self.generation, where) if where else self.table

    def _words(self, query: str) -> WordQuery | None:
        words = self.generation.words
        return words.query(query) if words and len(words) else None

    def _words_of(self, queries: Sequence[str] | None, count: int) -> list[WordQuery | None]:
        return [None] * count if queries is None else [self._words(query) for query in queries]

    def _passage(self, row: int) -> StoredPassage:
        """A passage by the number of its row here."""
        generation = self.generation
        number, span = generation.document_number(row), generation.passage(row)
        return StoredPassage(self.table.docids[row], row + generation.first_row, number, span, row in self.table.deleted)
