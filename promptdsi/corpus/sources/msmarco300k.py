"""MSMARCO 300k from the official document-ranking files that the user points at: docs, train and dev queries, qrels.

Documents are those relevant to a train or dev query, sampled to the size that the paper's table implies (289,424 / 0.9).
The authors' id lists are not available, so the split follows our seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from promptdsi.corpus.corpus import Corpus, Document, Judgement, Query, check_query
from promptdsi.corpus.reading import Line, decode, plain_or_gz
from promptdsi.corpus.sources import Request, SourceData
from promptdsi.corpus.sources.paper_split import paper_data, raw_records, truncate_words
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
    paths = check(request)
    rows = {"train": _qrels(paths["train qrels"], request), "test": _qrels(paths["dev qrels"], request)}
    relevant = list(dict.fromkeys(docid for pairs in rows.values() for _, docid in pairs))
    sampled = set(seeded_order(relevant, request.seed, "msmarco")[:DOCUMENTS])
    documents = list(_documents(paths["docs"], sampled, request))
    present = {document.docid for document in documents}
    request.notes.count("judged documents are missing from the docs file", len(sampled - present))
    texts = _queries(paths["train queries"], request) | _queries(paths["dev queries"], request)
    unknown = sum(queryid not in texts for pairs in rows.values() for queryid, _ in pairs)
    request.notes.count("judgements name unknown queries and were left out", unknown)
    qrels = {
        split: [Judgement(f"ms-{queryid}", docid) for queryid, docid in dict.fromkeys(pairs) if docid in present and queryid in texts]
        for split, pairs in rows.items()
    }
    queries = [Query(f"ms-{queryid}", text) for queryid, text in texts.items()]
    data = SourceData(Corpus(documents, queries, qrels, name=NAME), ORIGIN, LICENCE)
    return paper_data(data, request, max_new=MAX_NEW, max_tune=MAX_TUNE)


def check(request: Request) -> dict[str, Path]:
    """The raw files."""
    if request.raw is None:
        raise UsageError("msmarco300k is built from the official files: --raw FOLDER with " + ", ".join(FILES.values()))
    return {what: _file(request.raw, name) for what, name in FILES.items()}


def _file(folder: Path, name: str) -> Path:
    if path := plain_or_gz(folder / name):
        return path
    raise DataError(f"holds no {name} (plain or .gz)", path=folder)


def _rows(
    path: Path, columns: int, request: Request, *, separator: str | None = "\t", check: Callable[[list[str]], None] = lambda row: None
) -> Iterator[list[str]]:
    def parse(line: Line) -> list[str]:
        row = decode(line, path).split(separator)
        if len(row) != columns:
            raise ValueError(f"{len(row)} cells, the official format has {columns}")
        check(row)
        return row

    return raw_records(path, request, parse)


def _qrels(path: Path, request: Request) -> list[tuple[str, str]]:
    """(query, document) of each positive row: `queryid 0 docid score`."""
    return [(queryid, docid) for queryid, _, docid, score in _rows(path, 4, request, separator=None) if score != "0"]


def _queries(path: Path, request: Request) -> dict[str, str]:
    return {
        queryid: " ".join(text.split()) for queryid, text in _rows(path, 2, request, check=lambda row: check_query(Query(row[0], row[1])))
    }


def _documents(path: Path, docids: set[str], request: Request) -> Iterator[Document]:
    """The chosen rows of the docs file: docid, url, title, body."""
    with request.progress("reading MS MARCO documents", unit="documents") as advance:
        for docid, _, title, body in _rows(path, 4, request):
            advance(1)
            if docid not in docids:
                continue
            document = Document(docid, truncate_words(body.split(), request.max_words, request.notes), " ".join(title.split()))
            # The official file holds a few documents without a body: there is nothing to retrieve them by.
            if request.notes.valid(document):
                yield document
