"""A corpus: documents that arrive together, with their queries and judgements.

corpus = Corpus.read("my-documents")       # BEIR folder, .jsonl, .tsv, or a folder of text files
corpus.write("copy")                       # as a BEIR folder
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from promptdsi.corpus.formats import FORMATS, Parts, format_of
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import SPLITS, Document, Judgement, Query
from promptdsi.errors import DataError


class Pair(NamedTuple):
    """A query and one document it should find."""

    query: Query
    docid: str


def name_of(path: Path) -> str:
    """A folder's name; a file's without the endings that say its form.

    Examples
    --------
    >>> name_of(Path("archive/notes.v2.jsonl.gz"))
    'notes.v2'
    """
    name = path.resolve().name
    return re.sub(r"\.(jsonl|tsv)(\.gz)?$", "", name) if path.is_file() or not path.exists() else name


@dataclass
class Corpus:
    """Documents, their queries, and which query should find which document (`qrels`, by split).

    Two corpora are equal when their contents are; the name says where they came from.
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
    ) -> Self:
        """Read a corpus strictly.

        Parameters
        ----------
        path : BEIR folder, documents as .jsonl, pairs as .tsv (all plain or .gz), or a folder of .txt and .md files
        name : how the corpus is called; the folder's or file's name unless given
        on_error : "stop" raises DataError at the first bad record, "skip" leaves bad records out and notes them
        max_unknown : how many judgements may name unknown queries or documents (they are left out)
        splits : whose judgements are read; the files of the others are not opened
        notes : collects what was noticed: duplicates, skipped records, judgements left out
        """
        if on_error not in ("stop", "skip"):
            raise ValueError(f"on_error={on_error!r}, expected 'stop' or 'skip'")
        path = Path(path)
        notes = notes or ReadNotes()
        notes.skip = on_error == "skip"
        parts = format_of(path).read(path, notes, max_unknown=max_unknown, splits=splits)
        if not parts.documents:
            raise DataError("holds no document", path=path)
        return cls(*parts, name=name or name_of(path))

    def write(self, path: str | Path, *, format: str = "beir") -> None:
        """Write the corpus so that `read` gives an equal one; ValueError for what the format cannot hold."""
        FORMATS[format].write(Parts(self.documents, self.queries, self.qrels), Path(path))

    def __len__(self) -> int:
        return len(self.documents)

    def pairs(self, split: str, *, kinds: tuple[str, ...] = ("annotated", "pseudo")) -> list[Pair]:
        """Query–document pairs of a split, one for each document a query should find."""
        queries = {query.queryid: query for query in self.queries}
        found = (Pair(queries[judgement.queryid], judgement.docid) for judgement in self.qrels.get(split, ()) if judgement.score > 0)
        return [pair for pair in found if pair.query.kind in kinds]

    def only(self, docids: Collection[str]) -> Corpus:
        """The corpus of some of its documents, with the queries and judgements that are about them."""
        qrels = {split: [judgement for judgement in rows if judgement.docid in docids] for split, rows in self.qrels.items()}
        asked = {judgement.queryid for rows in qrels.values() for judgement in rows}
        documents = [document for document in self.documents if document.docid in docids]
        return Corpus(documents, [query for query in self.queries if query.queryid in asked], qrels, name=self.name)

    def counts(self) -> dict[str, int]:
        """Sizes as in the paper's Table 1: documents, annotated queries per split, pseudo-queries."""
        kinds = {query.queryid: query.kind for query in self.queries}
        sizes = {"documents": len(self.documents)}
        for split in SPLITS:
            query_ranks = {judgement.queryid for judgement in self.qrels.get(split, ()) if judgement.score > 0}
            sizes[split] = sum(kinds[queryid] == "annotated" for queryid in query_ranks)
        sizes["pseudo"] = Counter(kinds.values())["pseudo"]
        return sizes
