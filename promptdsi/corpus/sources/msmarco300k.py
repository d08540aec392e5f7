"""MSMARCO 300k from the official document-ranking files that the user points at: docs, train and dev queries, qrels.

Documents are those relevant to a train or dev query, sampled to the size that the paper's table implies (289,424 / 0.9).
The authors' id lists are not available, so the split follows our seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from promptdsi.corpus.corpus import Corpus, Document, Query, ReadNotes, check_document, check_query
from promptdsi.corpus.reading import Line, decode, parse_lines
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.corpus.sources.paper_split import LabeledQuery, paper_data, truncate_words
from promptdsi.corpus.splitting import seeded_order
from promptdsi.errors import DataError, UsageError

NAME = "msmarco300k"
ORIGIN = "MS MARCO document ranking, official files given by the user"
LICENCE = "MS MARCO terms: non-commercial research"
DOCUMENTS = 321_582  # 289,424 old documents are 90 % of this
MAX_NEW, MAX_TUNE = 10_000, 1_000
FILES = {
    "docs": "msmarco-docs.tsv",
    "train queries": "msmarco-doctrain-queries.tsv",
    "train qrels": "msmarco-doctrain-qrels.tsv",
    "dev queries": "msmarco-docdev-queries.tsv",
    "dev qrels": "msmarco-docdev-qrels.tsv",
}


def build(request: Request) -> SourceData:
    if request.raw is None:
        raise UsageError("msmarco300k is built from the official files: --raw FOLDER with " + ", ".join(FILES.values()))
    paths = {what: _file(request.raw, name) for what, name in FILES.items()}
    labels = [(*pair, False) for pair in _qrels(paths["train qrels"], request.notes)]
    labels += [(*pair, True) for pair in _qrels(paths["dev qrels"], request.notes)]
    relevant = list(dict.fromkeys(docid for _, docid, _ in labels))
    sampled = set(seeded_order(relevant, request.seed, "msmarco")[:DOCUMENTS])
    documents = list(_documents(paths["docs"], sampled, request))
    present = {document.docid for document in documents}
    request.notes.count("judged documents are missing from the docs file", len(sampled - present))
    texts = _queries(paths["train queries"], request.notes) | _queries(paths["dev queries"], request.notes)
    request.notes.count("judgements name unknown queries and were left out", sum(queryid not in texts for queryid, _, _ in labels))
    labeled = [
        LabeledQuery(Query(f"ms-{queryid}", texts[queryid]), docid, official_dev)
        for queryid, docid, official_dev in labels
        if docid in present and queryid in texts
    ]
    data = SourceData(Corpus(documents, name=NAME), ORIGIN, LICENCE)
    return paper_data(data, labeled, request, max_new=MAX_NEW, max_tune=MAX_TUNE)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"holds no {name} (plain or .gz)", path=folder)


def _rows(path: Path, columns: int, notes: ReadNotes, *, separator: str | None = "\t") -> Iterator[tuple[int, list[str]]]:
    def parse(line: Line) -> list[str]:
        row = decode(line, path).split(separator)
        if len(row) != columns:
            raise ValueError(f"{len(row)} cells, the official format has {columns}")
        return row

    return parse_lines(path, notes, parse)


def _qrels(path: Path, notes: ReadNotes) -> list[tuple[str, str]]:
    """(query, document) of each positive row: `queryid 0 docid score`."""
    return [(row[0], row[2]) for _, row in _rows(path, 4, notes, separator=None) if row[3] != "0"]


def _queries(path: Path, notes: ReadNotes) -> dict[str, str]:
    queries = {}
    for number, (queryid, text) in _rows(path, 2, notes):
        try:
            check_query(Query(queryid, text))
        except ValueError as error:
            notes.refuse(DataError(str(error), path=path, line=number))
            continue
        queries[queryid] = " ".join(text.split())
    return queries


def _documents(path: Path, docids: set[str], request: Request) -> Iterator[Document]:
    """The chosen rows of the docs file: docid, url, title, body."""
    with request.progress("reading MS MARCO documents", unit="documents") as advance:
        for _, (docid, _, title, body) in _rows(path, 4, request.notes):
            advance(1)
            if docid not in docids:
                continue
            document = Document(docid, truncate_words(body.split(), request.max_words, request.notes), " ".join(title.split()))
            try:
                check_document(document)
            except ValueError as error:
                # The official file holds a few documents without a body: there is nothing to retrieve them by.
                request.notes.count(f"documents left out because {error}")
                continue
            yield document
