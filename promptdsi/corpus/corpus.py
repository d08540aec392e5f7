"""A corpus: documents that arrive together, with their queries and relevance judgements.

corpus = Corpus.read("my-documents")       # BEIR folder, .jsonl, .tsv, or a folder of text files
corpus.write("copy")                       # as a BEIR folder
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from promptdsi.corpus.reading import ReadNotes
from promptdsi.corpus.records import SPLITS, Document, Judgement, Query
from promptdsi.errors import DataError


class Pair(NamedTuple):
    """A query and one document it should retrieve."""

    query: Query
    docid: str


def name_of(path: Path) -> str:
    """The name of a folder, or of a file without the endings of its format.

    Examples
    --------
    >>> name_of(Path("archive/notes.v2.jsonl.gz"))
    'notes.v2'
    """
    name = path.resolve().name
    return re.sub(r"\.(jsonl|tsv)(\.gz)?$", "", name) if path.is_file() or not path.exists() else name


@dataclass
class Corpus:
    """Documents, their queries, and which query should retrieve which document (`qrels`, by split).

    Two corpora are equal when their contents are; the name does not count.
    """

    documents: list[Document]
    queries: list[Query] = field(default_factory=list)
    qrels: dict[str, list[Judgement]] = field(default_factory=dict)
    name: str = field(default="corpus", compare=False)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        on_error: str = "stop",
        max_unknown: int = 0,
        splits: Sequence[str] = SPLITS,
        notes: ReadNotes | None = None,
    ) -> Corpus:
        """Read a corpus strictly.

        Parameters
        ----------
        path : BEIR folder, documents as .jsonl, pairs as .tsv (all plain or .gz), or a folder of .txt and .md files
        name : name of the corpus (default: the folder's or file's name)
        on_error : "stop" raises DataError at the first bad record, "skip" leaves bad records out and notes them
        max_unknown : how many judgements may name unknown queries or documents (they are left out)
        splits : splits whose judgements are read; the files of other splits are not opened
        notes : collects duplicates, skipped records and judgements left out
        """
        from promptdsi.corpus.formats import format_of  # the formats build corpora

        if on_error not in ("stop", "skip"):
            raise ValueError(f"on_error={on_error!r}, expected 'stop' or 'skip'")
        path = Path(path)
        notes = notes or ReadNotes()
        notes.skip = on_error == "skip"
        corpus = format_of(path).read(path, notes, max_unknown=max_unknown, splits=splits)
        if not corpus.documents:
            raise DataError("holds no document", path=path)
        corpus.name = name or name_of(path)
        return corpus

    def write(self, path: str | Path, *, format: str = "beir") -> None:
        """Write the corpus so that `read` gives an equal one; ValueError for what the format cannot hold."""
        from promptdsi.corpus.formats import formats

        formats()[format].write(self, Path(path))

    def __len__(self) -> int:
        return len(self.documents)

    def pairs(self, split: str, *, kinds: tuple[str, ...] = ("annotated", "pseudo")) -> list[Pair]:
        """Query–document pairs of a split, one for each document a query should retrieve."""
        queries = {query.queryid: query for query in self.queries}
        relevant = (judgement for judgement in self.qrels.get(split, ()) if judgement.score > 0)
        pairs = (Pair(queries[judgement.queryid], judgement.docid) for judgement in relevant)
        return [pair for pair in pairs if pair.query.kind in kinds]

    def only(self, docids: Collection[str]) -> Corpus:
        """A corpus of some of the documents, with their queries and judgements."""
        qrels = {split: [judgement for judgement in rows if judgement.docid in docids] for split, rows in self.qrels.items()}
        queryids = {judgement.queryid for rows in qrels.values() for judgement in rows}
        documents = [document for document in self.documents if document.docid in docids]
        return Corpus(documents, [query for query in self.queries if query.queryid in queryids], qrels, name=self.name)

    def counts(self) -> dict[str, int]:
        """Sizes as in the paper's Table 1: documents, annotated queries per split, pseudo-queries."""
        kinds = {query.queryid: query.kind for query in self.queries}
        sizes = {"documents": len(self.documents)}
        for split in SPLITS:
            queryids = {judgement.queryid for judgement in self.qrels.get(split, ()) if judgement.score > 0}
            sizes[split] = sum(kinds[queryid] == "annotated" for queryid in queryids)
        sizes["pseudo"] = Counter(kinds.values())["pseudo"]
        return sizes
