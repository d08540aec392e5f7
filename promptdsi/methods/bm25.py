"""BM25 through bm25s: no model, no training and no forgetting; the old documents are needed again.

method = BM25().fit(d0).add(d1)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.errors import DataError, UsageError
from promptdsi.files import atomic_write
from promptdsi.methods.base import Method, Result, check_k
from promptdsi.progress import Progress, silent
from promptdsi.wording import agreeing

WORD = re.compile(r"\w+")


@dataclass(kw_only=True)
class BM25(Method):
    """Lucene's variant over title and text. Inverse document frequencies change with every corpus, so all words are stored."""

    name: ClassVar[str] = "bm25"
    rehearsal_free: ClassVar[bool] = False

    k1: float = 1.5
    b: float = 0.75
    train_queries: bool = False  # index the words of a document's train queries too

    docids_: list[str] = field(init=False, repr=False, compare=False)
    words_: list[list[str]] = field(init=False, repr=False, compare=False)
    index_: Any = field(init=False, repr=False, compare=False)
    order_: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def fit(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        self.docids_, self.words_ = [], []
        return self.add(corpus, progress=progress)

    def add(self, corpus: Corpus, *, checkpoint: Path | None = None, progress: Progress = silent) -> Self:
        if present := {document.docid for document in corpus.documents} & set(self.docids_):
            raise UsageError(f"docid {min(present)!r} is there already")
        self.docids_ = [*self.docids_, *(document.docid for document in corpus.documents)]
        queries: dict[str, list[str]] = {}
        for pair in corpus.pairs("train", kinds=("annotated",)) if self.train_queries else ():
            queries.setdefault(pair.docid, []).append(pair.query.text)
        texts = (" ".join([document.title, document.text, *queries.get(document.docid, [])]) for document in corpus.documents)
        self.words_ = [*self.words_, *(words_of(text) for text in texts)]
        self._index()
        return self

    def search(self, queries: Sequence[str], *, k: int = 10) -> list[Result]:
        check_k(k)
        queries = [queries] if isinstance(queries, str) else list(queries)
        results = []
        for scores in self.document_scores(queries):
            least = np.partition(scores, -k)[-k] if 0 < k < len(scores) else -np.inf  # sorting all documents is most of a search
            near = np.flatnonzero(scores >= least)
            best = near[np.lexsort((self.order_[near], -scores[near]))[:k]]
            results.append(Result([self.docids_[position] for position in best], scores[best].tolist()))
        return results

    def ranks(self, queries: Sequence[str], docids: Sequence[str]) -> NDArray[np.int64]:
        targets = self.positions(docids)
        ranks = np.empty(len(docids), dtype=np.int64)
        for number, (scores, target) in enumerate(zip(self.document_scores(queries), targets, strict=True)):
            ahead = (scores > scores[target]) | ((scores == scores[target]) & (self.order_ < self.order_[target]))
            ranks[number] = 1 + ahead.sum()
        return ranks

    def positions(self, docids: Sequence[str]) -> list[int]:
        """The place of each docid in `docids_`."""
        position = {docid: number for number, docid in enumerate(self.docids_)}
        if unknown := [docid for docid in docids if docid not in position]:
            raise UsageError(f"{agreeing(len(unknown), 'documents are not in the index')}, {unknown[0]!r} first")
        return [position[docid] for docid in docids]

    def extra_bytes(self) -> int:
        """The words of every document: without them no corpus can be added."""
        return sum(len(word.encode("utf-8")) for words in self.words_ for word in words)

    def save(self, folder: str | Path) -> None:
        content = {"method": self.name, "params": self.get_params(), "docids": self.docids_, "words": self.words_}
        with atomic_write(Path(folder) / "method.json") as file:
            file.write((json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8"))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        path = Path(folder) / "method.json"
        if not path.is_file():
            raise DataError("holds no saved method", path=folder)
        content = json.loads(path.read_text("utf-8"))
        method = cls.from_params(content["params"])
        method.docids_, method.words_ = content["docids"], content["words"]
        method._index()
        return method

    def _index(self) -> None:
        import bm25s

        self.index_ = bm25s.BM25(k1=self.k1, b=self.b)
        # bm25s takes no empty document: one of stop words alone gets a word that no query contains.
        self.index_.index([words or ["\0"] for words in self.words_], show_progress=False)
        self.order_ = np.argsort(np.argsort(np.array(self.docids_, dtype=object), kind="stable"))

    def document_scores(self, queries: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """The score of every document for each query: (N,)."""
        for query in queries:
            words = [word for word in words_of(query) if word in self.index_.vocab_dict]
            yield self.index_.get_scores(words) if words else np.zeros(len(self.docids_), dtype=np.float32)


def words_of(text: str) -> list[str]:
    """Lower-case words without stop words; single letters and digits count, which bm25s's own tokenizer drops.

    Examples
    --------
    >>> words_of("The vitamin K of 7 leaves")
    ['vitamin', 'k', '7', 'leaves']
    """
    return [word for word in WORD.findall(text.lower()) if word not in STOPWORDS]
