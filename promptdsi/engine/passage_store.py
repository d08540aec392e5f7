"""Where the passages of a generation are scored: in this process, or in several that each hold some of its documents.

A search encodes its queries and asks a `PassageStore` for the best documents; nothing above it knows where rows and words lie. A document
lies whole in one shard, every shard runs the same code, and word statistics are numbers of the generation: so a score is the same bits
wherever it is computed, and the k best of all are among the k best of each shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.top_k import Numbers
from promptdsi.model.path import Floats

Where = tuple[str, ...]  # conditions on metadata, as they are written
REMEMBERED = 1000  # conditions whose fields were looked for
LiveDocument = tuple[int, str]  # the number of a document in the generation, and the hash of its content
Targets = Sequence[Sequence[tuple[float, str]]]  # of each query: scores and docids of the documents that are to be ranked


class StoredPassage(NamedTuple):
    """A passage by its numbers in the generation. `span` is its place in its document's text, None where the document is one passage."""

    docid: str
    row: int
    document: int
    span: tuple[int, int] | None
    deleted: bool = False


class Retrieved(NamedTuple):
    """The best passage of each of the best documents of a query, best first.

    `coverage` is the share of the query's information that the words of each carry, `information` what all words of the query weigh.
    """

    passages: list[StoredPassage]
    scores: list[float]
    coverage: list[float]
    information: float


class PassageStore(Protocol):
    """The passages of one generation. `queries` are texts, whose words count; None where rows alone do. Ties go by docid."""

    def top_k(self, vectors: Floats, queries: Sequence[str], k: int, where: Where = ()) -> list[Retrieved]:
        """The k best live documents of each query (B, D) among those that meet the conditions."""
        ...

    def ranks(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]], where: Where = ()) -> list[Numbers]:
        """For each query the exact ranks, from 1, of the documents of some rows."""
        ...

    def scores(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]]) -> list[Floats]:
        """For each query the exact scores of some rows."""
        ...

    def matches(self, query: str, rows: Sequence[int]) -> list[list[tuple[str, float]]]:
        """The words of a query that each of some passages contains, with what each adds to the score, most first."""
        ...

    def neighbors(self, rows: Sequence[int], k: int) -> list[list[tuple[StoredPassage, float]]]:
        """The k other live documents with the row of highest cosine to each of some rows, best first."""
        ...

    def log_sum_exp(self, vectors: Floats, scale: float, without: Sequence[int] = ()) -> NDArray[np.float64]:
        """log Σ exp(scale · product) over all live rows, for each vector: what new rows need of the old ones to learn.

        `without` are numbers of documents that are about to be replaced or deleted.
        """
        ...

    def norms(self, count: int) -> NDArray[np.float64]:
        """The norms of the first `count` rows; of those that lie here."""
        ...

    def row_vectors(self, rows: Sequence[int]) -> Floats:
        """Some rows by number: (n, D)."""
        ...

    def closest(self, directions: Floats, k: int, count: int, without: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The k highest cosines of each unit vector with the first `count` rows that are not zero, one row each left out: (n, k)."""
        ...

    def locate(self, docids: Sequence[str]) -> list[StoredPassage | None]:
        """The first passage of each document, deleted or not; of a replaced document, the newest."""
        ...

    def contains(self, docids: Sequence[str]) -> list[bool]:
        """Whether each document can be retrieved."""
        ...

    def live(self, docids: Sequence[str]) -> list[LiveDocument | None]:
        """Number and content hash of each document that can be retrieved."""
        ...

    def versions(self, docids: Sequence[str]) -> list[list[int]]:
        """The numbers of all documents, deleted or not, that have each docid, oldest first."""
        ...

    def has_folder(self, name: str) -> bool:
        """Whether the first part of the path that some live docid is has this name."""
        ...

    def similar_docid(self, docid: str) -> str:
        """The end of an error message that names the most similar docid, or nothing."""
        ...

    def field_counts(self) -> dict[str, Counter[str]]:
        """For each field of the metadata the number of live documents with each value."""
        ...


class Shard(PassageStore, Protocol):
    """Some documents of a generation, and what a merge needs of them. Rows have their numbers in the generation."""

    def has_row(self, row: int) -> bool:
        """Whether a row is one of this shard's."""
        ...

    def missing_fields(self, where: Where) -> set[str]:
        """The fields of conditions that no document of this shard has."""
        ...

    def vectors(self, rows: Sequence[int]) -> list[tuple[Floats, int] | None]:
        """A row and the number of its document, for each row of this shard."""
        ...

    def document_scores(
        self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]]
    ) -> list[list[tuple[float, str] | None]]:
        """For each query the score and docid of the documents of some rows; None for those of other shards."""
        ...

    def count_before(self, vectors: Floats, queries: Sequence[str] | None, targets: Targets, where: Where) -> list[Numbers]:
        """For each query how many documents rank before each target: those that score higher, or equal with an earlier docid."""
        ...

    def nearest(self, vectors: Floats, documents: Sequence[int], k: int) -> list[list[tuple[StoredPassage, float]]]:
        """The k documents with the row of highest cosine to each vector, the vector's document excluded."""
        ...


class MergedPassageStore(ABC):
    """A generation whose documents lie in several shards."""

    def __init__(self, unknown_field: Callable[[str, dict[str, Counter[str]]], Exception]) -> None:
        self.unknown_field = unknown_field
        self._checked: set[Where] = set()  # conditions on fields that some document has

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of `Shard` on each shard: the answers of all, in their order, or an exception."""

    def top_k(self, vectors: Floats, queries: Sequence[str], k: int, where: Where = ()) -> list[Retrieved]:
        self._check_fields(where)
        return [merge(parts, k) for parts in zip(*self.call("top_k", vectors, queries, k, where), strict=True)]

    def ranks(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]], where: Where = ()) -> list[Numbers]:
        # First the scores of the documents to be ranked, each from the shard that has it; then every shard counts what is before them.
        answers = self.call("document_scores", vectors, queries, rows)
        targets = [[_only(parts) for parts in zip(*shards, strict=True)] for shards in zip(*answers, strict=True)]
        counts = self.call("count_before", vectors, queries, targets, where)
        return [1 + np.stack(parts).sum(axis=0) for parts in zip(*counts, strict=True)]

    def scores(self, vectors: Floats, queries: Sequence[str] | None, rows: Sequence[Sequence[int]]) -> list[Floats]:
        answers = self.call("scores", vectors, queries, rows)  # NaN where a row is another shard's
        return [np.nansum(parts, axis=0, dtype=np.float32) for parts in zip(*answers, strict=True)]

    def matches(self, query: str, rows: Sequence[int]) -> list[list[tuple[str, float]]]:
        return [max(parts, key=len) for parts in zip(*self.call("matches", query, rows), strict=True)]

    def neighbors(self, rows: Sequence[int], k: int) -> list[list[tuple[StoredPassage, float]]]:
        pairs = [_only(parts) for parts in zip(*self.call("vectors", rows), strict=True)]
        if not pairs:
            return []
        answers = self.call("nearest", np.stack([vector for vector, _ in pairs]), [document for _, document in pairs], k)
        each = [[pair for part in parts for pair in part] for parts in zip(*answers, strict=True)]
        return [sorted(nearby, key=lambda pair: -pair[1])[:k] for nearby in each]

    def log_sum_exp(self, vectors: Floats, scale: float, without: Sequence[int] = ()) -> NDArray[np.float64]:
        return np.asarray(np.logaddexp.reduce(self.call("log_sum_exp", vectors, scale, without)), np.float64)

    def norms(self, count: int) -> NDArray[np.float64]:
        return np.concatenate(self.call("norms", count))  # shards are in the order of rows

    def row_vectors(self, rows: Sequence[int]) -> Floats:
        return np.stack([_only(parts)[0] for parts in zip(*self.call("vectors", rows), strict=True)])

    def closest(self, directions: Floats, k: int, count: int, without: Sequence[int] | None = None) -> NDArray[np.float64]:
        return highest(np.concatenate(self.call("closest", directions, k, count, without), axis=1), k)

    def locate(self, docids: Sequence[str]) -> list[StoredPassage | None]:
        answers = zip(*self.call("locate", docids), strict=True)
        return [max((place for place in parts if place), key=lambda place: place.row, default=None) for parts in answers]

    def contains(self, docids: Sequence[str]) -> list[bool]:
        return [place is not None and not place.deleted for place in self.locate(docids)]

    def live(self, docids: Sequence[str]) -> list[LiveDocument | None]:
        answers = zip(*self.call("live", docids), strict=True)
        return [max((place for place in parts if place), default=None) for parts in answers]

    def versions(self, docids: Sequence[str]) -> list[list[int]]:
        return [[number for part in parts for number in part] for parts in zip(*self.call("versions", docids), strict=True)]

    def has_folder(self, name: str) -> bool:
        return any(self.call("has_folder", name))

    def similar_docid(self, docid: str) -> str:
        return next(filter(None, self.call("similar_docid", docid)), "")

    def field_counts(self) -> dict[str, Counter[str]]:
        total: dict[str, Counter[str]] = {}
        for counts in self.call("field_counts"):
            for field, counter in counts.items():
                total.setdefault(field, Counter()).update(counter)
        return total

    def _check_fields(self, where: Where) -> None:
        """A field that no document of a shard has is an error only if no other shard's documents have it."""
        if where and where not in self._checked:
            if missing := set.intersection(*self.call("missing_fields", where)):
                raise self.unknown_field(min(missing), self.field_counts())
            if len(self._checked) >= REMEMBERED:
                self._checked.clear()
            self._checked.add(where)


def merge(parts: Sequence[Retrieved], k: int) -> Retrieved:
    """The k best documents of all shards: by score, ties by docid, as within a shard."""
    ranked = sorted(
        (entry for part in parts for entry in zip(part.scores, part.passages, part.coverage, strict=True)),
        key=lambda entry: (-entry[0], entry[1].docid, entry[1].row),
    )[:k]
    scores, passages, coverage = (list(column) for column in zip(*ranked, strict=True)) if ranked else ([], [], [])
    return Retrieved(passages, scores, coverage, max(part.information for part in parts))  # 0 in a shard without documents


def highest(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The k highest of each row of values, descending: (n, k)."""
    return -np.sort(np.partition(-values, k - 1, axis=1)[:, :k], axis=1)


def _only(parts: Sequence[Any]) -> Any:
    """The answer of the only shard that has one."""
    (value,) = (part for part in parts if part is not None)
    return value
