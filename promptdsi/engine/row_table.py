"""All rows of a generation and exact top-k search in them, by document.

A document has one row or, if it is long, one for each of its passages, next to each other; its score is that of its best row. Where words
count, the score of a row is the product with the query's vector plus the word score of its passage (`engine/words.py`).

Every search has two steps. The first gives each row an approximate score with a bound on its error: from int8 rows for a few queries,
where reading the rows is what takes the time; from a float32 product for many. The second scores in float64 the few rows that may be
among the k best. So a result does not depend on how many queries are searched at once, and equal rows tie exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.quantized import QuantizedQuery, RowBlock, merge_small_blocks, share, single_threaded_blas
from promptdsi.engine.top_k import EXACT_ROWS, ROUNDING, Numbers, TopK, count_before, every_score, nearest_documents, ranks_of_rows
from promptdsi.engine.words import WordQuery
from promptdsi.model.path import Floats, cores, unit

if TYPE_CHECKING:
    from promptdsi.model.rows import Rows

SCAN_QUERIES = 8  # up to so many queries int8 rows are faster: a quarter of the bytes, but read once per query
SCAN_ROWS = 1 << 18  # int8 rows per chunk: enough that Python's share of the time is small, few enough that scores stay in the cache
SCAN_BYTES = 8 << 20  # int8 bytes per thread: for fewer, waking a second thread takes longer than it saves
PRODUCT_SCORES = 1 << 22  # scores per chunk of a float32 product: at least one panel for `BATCH` queries
PRODUCT_SIZE = 1 << 25  # multiplications per thread: for fewer, waking a second thread takes longer than it saves
BATCH = 256  # queries searched at once


class RowChunk(NamedTuple):
    """Consecutive panels that are scored in one go."""

    first: int  # number of the first row
    panels: Sequence[RowBlock]
    starts: Sequence[int]  # each panel's first row, counted within the chunk
    deleted: Numbers  # deleted rows, counted within the chunk
    documents: Numbers | None  # the first row of each document within the chunk; None where every document has one row
    length: Floats  # (n,)
    error: Floats  # (n,)
    max_length: float
    max_error: float

    @classmethod
    def from_panels(cls, first: int, panels: Sequence[RowBlock], deleted: Numbers, documents: Numbers | None) -> RowChunk:
        length, error = (_concat(parts) for parts in zip(*(panel.bounds() for panel in panels), strict=True))
        starts = [0, *accumulate(len(panel.rows) for panel in panels[:-1])]
        low, high = np.searchsorted(deleted, (first, first + len(length)))
        if documents is not None:  # a document may have begun in the chunk before
            documents = np.union1d([0], documents[slice(*np.searchsorted(documents, (first, first + len(length))))] - first)
        hidden, longest, worst = deleted[low:high] - first, float(length.max()), float(error.max())
        if not 0 <= min(length.min(), error.min()) <= longest + worst < np.inf:
            raise ValueError("the rows have lengths that no rows have")
        return cls(first, panels, starts, hidden, documents, length, error, longest, worst)

    def best_of_documents(self, scores: Floats) -> Floats:
        """The best score of each document's rows in this chunk."""
        return scores if self.documents is None else np.maximum.reduceat(scores, self.documents)

    def scan(self, query: QuantizedQuery, threads: int) -> Floats:
        """The approximate score of each row (n,), from the int8 rows."""
        scores = np.empty(len(self.length), np.float32)
        threads = min(threads, len(self.panels), 1 + sum(panel.rows.size for panel in self.panels) // SCAN_BYTES)

        def score(part: slice) -> None:
            for panel, start in zip(self.panels[part], self.starts[part], strict=True):
                assert panel.quantized is not None, "only quantized rows are scanned"
                query.score(panel.quantized, scores[start : start + len(panel.rows)])

        share(len(self.panels), 1, score, threads=threads)
        return self._mask_deleted(scores)

    def products(self, queries: Floats, threads: int, transform: Callable[[Floats], Floats] = np.asarray) -> Floats:
        """The float32 product of each query (B, D) with each row, or with the row transformed: (B, n)."""
        count = len(self.length)
        scores = np.empty((len(queries), count), np.float32)
        threads = min(threads, 1 + queries.size * count // PRODUCT_SIZE)

        def multiply(part: slice) -> None:
            for panel, start in zip(self.panels, self.starts, strict=True):
                low, high = max(part.start, start), min(part.stop, start + len(panel.rows))
                if low < high:
                    np.matmul(queries, transform(panel.rows[low - start : high - start]).T, out=scores[:, low:high])

        with single_threaded_blas():
            share(count, -(-count // threads), multiply, threads=threads)
        return self._mask_deleted(scores)

    def _mask_deleted(self, scores: Floats) -> Floats:
        scores[..., self.deleted] = -np.inf
        return scores


class TopRows(NamedTuple):
    """The best row of each of the best documents, best first, and their scores: (B, k) each."""

    rows: Numbers
    scores: Floats


class RowTable:
    """Rows by number, in the order of `docids`; rows in `deleted` are never returned. Immutable, so threads may share it.

    `document_starts` are the first rows of all documents, where some have several; by default each row is a document.
    """

    def __init__(
        self,
        blocks: Sequence[RowBlock],
        docids: Sequence[str],
        deleted: set[int],
        *,
        document_starts: Numbers | None = None,
        threads: int = 1,
    ) -> None:
        self.blocks, self.docids, self.deleted, self.threads = blocks, docids, deleted, threads
        one_each = document_starts is None or len(document_starts) == len(docids)
        self.document_starts = None if one_each else document_starts
        self.firsts = np.cumsum([0, *(len(block.rows) for block in blocks)])
        self.quantized = all(block.quantized for block in blocks)
        self._deleted = np.array(sorted(deleted), np.int64)
        self._chunks_by_size: dict[int, list[RowChunk]] = {}

    @classmethod
    def from_rows(cls, rows: Rows) -> RowTable:
        """The rows of a model. Not quantized: that takes longer than the few searches a model is asked for."""
        blocks = [RowBlock(block.detach().cpu().numpy()) for block in rows.blocks]
        starts = np.array(rows.starts, np.int64) if rows.several else None
        return cls(merge_small_blocks(blocks), rows.docids, rows.deleted, document_starts=starts, threads=cores())

    def __len__(self) -> int:
        return len(self.docids)

    def only(self, allowed: NDArray[np.bool_]) -> RowTable:
        """The same rows, of which only the allowed ones (n,) are returned."""
        table = RowTable(self.blocks, self.docids, self.deleted, document_starts=self.document_starts, threads=self.threads)
        table._deleted = np.union1d(self._deleted, np.flatnonzero(~allowed))
        return table

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The first row of each docid; of a replaced document, the newest."""
        starts = range(len(self)) if self.document_starts is None else self.document_starts.tolist()
        return {self.docids[row]: row for row in starts}

    def document_rows(self, row: int) -> range:
        """All rows of the document that a row belongs to."""
        if self.document_starts is None:
            return range(row, row + 1)
        number = int(np.searchsorted(self.document_starts, row, side="right"))
        end = int(self.document_starts[number]) if number < len(self.document_starts) else len(self)
        return range(int(self.document_starts[number - 1]), end)

    @cached_property
    def live_documents(self) -> int:
        """How many documents can be retrieved. All rows of a document are deleted together."""
        if self.document_starts is None:
            return len(self) - len(self._deleted)
        return int((~np.isin(self.document_starts, self._deleted)).sum())

    def vectors(self, rows: Sequence[int] | Numbers) -> Floats:
        """Rows by number: (n, D)."""
        numbers = np.asarray(rows, np.int64)
        if len(self.blocks) == 1:
            return self.blocks[0].rows[numbers]
        blocks = np.searchsorted(self.firsts, numbers, side="right") - 1
        vectors = np.empty((len(numbers), self.blocks[0].rows.shape[1]), np.float32)
        for block in np.flatnonzero(np.bincount(blocks)).tolist():
            inside = blocks == block
            vectors[inside] = self.blocks[block].rows[numbers[inside] - self.firsts[block]]
        return vectors

    def scores(self, query: Floats, rows: Sequence[int] | Numbers, words: WordQuery | None = None) -> Floats:
        """Exact scores of some rows: summed in float64, rounded to float32."""
        numbers, exact = np.asarray(rows, np.int64), query.astype(np.float64)
        scores = np.empty(len(numbers), np.float32)
        for first in range(0, len(numbers), EXACT_ROWS):
            some = numbers[first : first + EXACT_ROWS]
            # Not a matrix product: it sums equal rows in different orders depending on their position, and they would not tie.
            products = (self.vectors(some).astype(np.float64) * exact).sum(1)
            scores[first : first + EXACT_ROWS] = products + words.scores(some) if words else products
        return scores

    def top(self, queries: Floats, k: int, words: Sequence[WordQuery] | None = None) -> TopRows:
        """The k best live documents of each query (B, D), ties by docid; `words` are the words of each query."""
        k = min(k, self.live_documents)
        each: Sequence[WordQuery | None] = words or [None] * len(queries)
        batches = [slice(first, first + BATCH) for first in range(0, max(len(queries), 1), BATCH)]
        parts = [self._top_of_batch(queries[batch], k, each[batch]) for batch in batches]
        return TopRows(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _top_of_batch(self, queries: Floats, k: int, words: Sequence[WordQuery | None]) -> TopRows:
        heaps = [TopK(self, query, k, query_words) for query, query_words in zip(queries, words, strict=True)]
        if k:
            (self._scan if self.quantized and len(queries) <= SCAN_QUERIES else self._multiply)(heaps, queries)
        rows = np.array([[row for _, row in heap.pairs] for heap in heaps], np.int64)
        scores = np.array([[score for score, _ in heap.pairs] for heap in heaps], np.float32)
        return TopRows(rows.reshape(len(heaps), k), scores.reshape(len(heaps), k))

    def ranks(self, queries: Floats, targets: Sequence[Sequence[int]], words: Sequence[WordQuery | None]) -> list[Numbers]:
        """Exact ranks of some rows' documents for each query (B, D), from 1."""
        return ranks_of_rows(self, queries, targets, words)

    def count_before(self, query: Floats, scores: Sequence[float], docids: Sequence[str], words: WordQuery | None = None) -> Numbers:
        """How many live documents score higher than each of some documents, or equal with an earlier docid."""
        approximate, bounds = every_score(self, query[None])
        return count_before(self, query, approximate[0], bounds[0], scores, docids, words)

    def neighbors(self, rows: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
        """The k other live documents with the row of highest cosine to each of some rows; (row, cosine), best first."""
        return self.nearest(unit(self.vectors(rows)), [self.document_rows(row) for row in rows], k)

    def nearest(self, directions: Floats, excluded: Sequence[range], k: int) -> list[list[tuple[int, float]]]:
        """The k live documents with the row of highest cosine to each unit vector, a document excluded; (row, cosine), best first."""
        return nearest_documents(self, self._chunks(PRODUCT_SCORES // BATCH), directions, excluded, k)

    def _scan(self, heaps: list[TopK], queries: Floats) -> None:
        """Approximate scores from int8 rows: each chunk is read once per query."""
        quantized = [QuantizedQuery(query) for query in queries]
        for chunk in self._chunks(SCAN_ROWS):
            for heap, query in zip(heaps, quantized, strict=True):
                scores, bound = chunk.scan(query, self.threads), query.error_bound(chunk.max_length, chunk.max_error)
                heap.update(chunk, scores, bound, query)

    def _multiply(self, heaps: list[TopK], queries: Floats) -> None:
        """Approximate scores from float32 products: each chunk is read once for all queries."""
        for chunk, scores, bound in self.products(queries):
            for position, heap in enumerate(heaps):
                heap.update(chunk, scores[position], bound[position])

    def products(self, queries: Floats) -> Iterator[tuple[RowChunk, Floats, Floats]]:
        """For each chunk the scores of its rows (B, n) and a bound on their rounding error (B,)."""
        lengths = np.linalg.norm(queries, axis=1).astype(np.float32)
        # The chunk size is rounded to a power of two of the queries, so that few sizes of chunks are made and kept.
        for chunk in self._chunks(PRODUCT_SCORES >> (len(queries) - 1).bit_length()):
            bound = lengths * np.float32(2 * ROUNDING * queries.shape[1] * (chunk.max_length + chunk.max_error))
            yield chunk, chunk.products(queries, self.threads), bound

    def _chunks(self, size: int) -> list[RowChunk]:
        """The rows as chunks of whole panels, about `size` rows each. Made once per size."""
        if size not in self._chunks_by_size:
            groups: list[list[RowBlock]] = []
            count = size
            for panel in (panel for block in self.blocks for panel in block.panels()):
                if count + len(panel.rows) > size:
                    groups.append([])
                    count = 0
                groups[-1].append(panel)
                count += len(panel.rows)
            starts = accumulate((sum(len(panel.rows) for panel in group) for group in groups), initial=0)
            chunks = [
                RowChunk.from_panels(start, group, self._deleted, self.document_starts)
                for start, group in zip(starts, groups, strict=False)
            ]
            self._chunks_by_size[size] = chunks
        return self._chunks_by_size[size]


def _concat(parts: Sequence[Floats]) -> Floats:
    """Parts as one array; a single part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
