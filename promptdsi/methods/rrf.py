"""RRF: reciprocal rank fusion of dense retrieval and BM25, which search engines use where two scores cannot be added.

    score(q, d) = 1 / (k + rank of d by rows) + 1 / (k + rank of d by words),  k = 60

Cormack, Clarke and Buettcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009.

    method = RRF().fit(d0).add(d1)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.engine.row_table import RowTable
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write
from promptdsi.methods.base import Method, Result, check_k
from promptdsi.methods.bm25 import BM25
from promptdsi.methods.dense import Dense
from promptdsi.methods.options import Encoding
from promptdsi.progress import Progress, silent


@dataclass(kw_only=True)
class RRF(Method):
    """All documents are ranked by both; one that shares no word with the query gets nothing from BM25, as if it were not in that list.

    Learned state: `dense_` and `bm25_`, which also indexes the words of annotated train queries.
    """

    name: ClassVar[str] = "rrf"
    rehearsal_free: ClassVar[bool] = False
    encodes_as_d0: ClassVar[bool] = True  # its encoder is not trained

    backbone: str = "minilm"
    encoding: Encoding = Encoding(max_tokens=64, passage_tokens=256)
    device: str = "auto"
    offline: bool = False
    k1: float = 1.5
    b: float = 0.75
    rank_constant: int = 60  # k of the formula

    dense_: Dense = field(init=False, repr=False, compare=False)
    bm25_: BM25 = field(init=False, repr=False, compare=False)

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        if self.rank_constant < 0:
            raise UsageError(f"rank_constant={self.rank_constant} is less than 0")
        encoding = replace(self.encoding, words=False)  # words are BM25's part
        self.dense_ = Dense(backbone=self.backbone, encoding=encoding, device=self.device, offline=self.offline)
        self.bm25_ = BM25(k1=self.k1, b=self.b, train_queries=True)
        self.dense_.fit(corpus, progress=progress)
        self.bm25_.fit(corpus, progress=progress)
        return self

    def add(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        self.dense_.add(corpus, progress=progress)
        self.bm25_.add(corpus, progress=progress)
        return self

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        docids, results = self.bm25_.docids_, []
        for scores in self._scores(queries):
            best = np.lexsort((self.bm25_.order_, -scores))[:k]
            results.append(Result([docids[position] for position in best], scores[best].tolist()))
        return results

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        targets = self.bm25_.positions(docids)
        ranks = [_ranks(scores, self.bm25_.order_)[target] for scores, target in zip(self._scores(queries), targets, strict=True)]
        return np.array(ranks, dtype=np.int64)

    def extra_bytes(self) -> int:
        return self.bm25_.extra_bytes()

    def save(self, folder: str | Path) -> None:
        """Both parts first, the description last: a folder that has `method.json` is complete."""
        self.dense_.save(Path(folder) / "dense")
        self.bm25_.save(Path(folder) / "bm25")
        with atomic_write(Path(folder) / "method.json") as file:
            file.write((json.dumps({"method": self.name, "params": self.get_params()}) + "\n").encode("utf-8"))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        path = Path(folder) / "method.json"
        if not path.is_file():
            raise DataError("holds no saved method", path=folder)
        method = cls.from_params(json.loads(path.read_text("utf-8"))["params"])
        method.dense_, method.bm25_ = Dense.load(Path(folder) / "dense"), BM25.load(Path(folder) / "bm25")
        return method

    def _scores(self, queries: Sequence[str]) -> Iterator[NDArray[np.float64]]:
        """The score of every document for each query: (N,), in the order of `bm25_.docids_`."""
        queries = [queries] if isinstance(queries, str) else list(queries)
        if not queries:
            return
        table, order = RowTable.from_rows(self.dense_.model_.rows), self.bm25_.order_
        everything = np.arange(len(table))
        vectors = self.dense_.encode(queries).cpu().numpy()
        for vector, by_words in zip(vectors, self.bm25_.document_scores(queries), strict=True):
            by_rows = table.scores(vector, everything)
            if table.document_starts is not None:
                by_rows = np.maximum.reduceat(by_rows, table.document_starts)
            fused = 1.0 / (self.rank_constant + _ranks(by_rows, order))
            yield fused + np.where(by_words > 0, 1.0 / (self.rank_constant + _ranks(by_words, order)), 0.0)


def _ranks(scores: NDArray[np.floating], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each document, from 1; ties by `order`, the place of its docid among all.

    Examples
    --------
    >>> _ranks(np.array([0.5, 0.9, 0.5]), np.array([2, 0, 1])).tolist()
    [3, 1, 2]
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.lexsort((order, -scores))] = np.arange(1, len(scores) + 1)
    return ranks
