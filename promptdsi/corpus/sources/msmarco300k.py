"""MSMARCO 300k from the official document-ranking files that the user points at: docs, train and dev queries, qrels.

Documents are those a train or dev query points at, sampled to the size the paper's table implies (289,424 / 0.9); the
split is ours, by rule and seed, because the published id lists are not available.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from promptdsi.corpus.lines import decoded, raw_lines
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import Document, Query, check_document, check_query
from promptdsi.corpus.sources.papers import Construction, Labelled, cut, paper_stream, whole
from promptdsi.corpus.sources.source import Material, Request
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


def build(request: Request) -> Material:
    if request.raw is None:
        raise UsageError("msmarco300k is built from the official files: --raw FOLDER with " + ", ".join(FILES.values()))
    paths = {what: _file(request.raw, name) for what, name in FILES.items()}
    pointing = [(*query_ranks, False) for query_ranks in _qrels(paths["train qrels"], request.notes)]
    pointing += [(*query_ranks, True) for query_ranks in _qrels(paths["dev qrels"], request.notes)]
    query_ranks = list(dict.fromkeys(docid for _, docid, _ in pointing))
    wanted = set(seeded_order(query_ranks, request.seed, "msmarco")[:DOCUMENTS])
    documents = list(_documents(paths["docs"], wanted, request))
    present = {document.docid for document in documents}
    request.notes.count("judged documents are missing from the docs file", len(wanted - present))
    texts = _queries(paths["train queries"], request.notes) | _queries(paths["dev queries"], request.notes)
    labelled = []
    request.notes.count("judgements name unknown queries and were left out", sum(queryid not in texts for queryid, _, _ in pointing))
    for queryid, docid, official_dev in pointing:
        if docid in present and queryid in texts:
            labelled.append(Labelled(Query(f"ms-{queryid}", texts[queryid]), docid, official_dev))
    how = Construction(
        NAME, ORIGIN, LICENCE, seed=request.seed, chunk=request.chunk, max_words=request.max_words, max_new=MAX_NEW, max_tune=MAX_TUNE
    )
    stream = paper_stream(documents, labelled, how)
    return Material(whole(stream), ORIGIN, LICENCE, own_stream=stream)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"holds no {name} (plain or .gz)", path=folder)


def _rows(path: Path, cells: int, notes: ReadNotes, *, separator: str | None = "\t") -> Iterator[tuple[int, list[str]]]:
    for line in raw_lines(path):
        if line.raw.strip():
            try:
                row = decoded(line, path).split(separator)
                if len(row) != cells:
                    raise DataError(f"{len(row)} cells, the official format has {cells}", path=path, line=line.number)
            except DataError as error:
                notes.refuse(error)
                continue
            yield line.number, row


def _qrels(path: Path, notes: ReadNotes) -> list[tuple[str, str]]:
    """(query, document) of each positive row: `queryid 0 docid score`."""
    return [(row[0], row[2]) for _, row in _rows(path, 4, notes, separator=None) if row[3] != "0"]


def _queries(path: Path, notes: ReadNotes) -> dict[str, str]:
    found = {}
    for number, (queryid, text) in _rows(path, 2, notes):
        try:
            check_query(Query(queryid, text))
        except ValueError as error:
            notes.refuse(DataError(str(error), path=path, line=number))
            continue
        found[queryid] = " ".join(text.split())
    return found


def _documents(path: Path, wanted: set[str], request: Request) -> Iterator[Document]:
    """The wanted rows of the docs file: docid, url, title, body."""
    with request.progress("reading MS MARCO documents", unit="documents") as advance:
        for _, (docid, _, title, body) in _rows(path, 4, request.notes):
            advance(1)
            if docid not in wanted:
                continue
            document = Document(docid, cut(body.split(), request.max_words, request.notes), " ".join(title.split()))
            try:
                check_document(document)
            except ValueError as error:
                # The official file holds a few documents without a body; they cannot be retrieved by anything.
                request.notes.count(f"documents left out because {error}")
                continue
            yield document
