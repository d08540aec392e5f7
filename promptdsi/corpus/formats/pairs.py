"""Tab-separated pairs, one query and the document it should retrieve per row: query, [docid,] [title,] text.

A header row naming the columns is detected. Without one, two values are query and text, three are query, docid, text.
A row without docid gets one from its text, so equal texts are one document. A row with an empty query only adds its document.
Queries go to the train split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from promptdsi.corpus.corpus import SPLITS, Corpus, Document, Judgement, Query, ReadNotes, check_document, check_query
from promptdsi.corpus.reading import Line, decode, parse_lines
from promptdsi.files import atomic_write

NAME = "pairs"
COLUMNS = ("query", "docid", "title", "text")
WITHOUT_HEADER = {2: ("query", "text"), 3: ("query", "docid", "text"), 4: COLUMNS}


def recognizes(path: Path) -> bool:
    return path.name.endswith((".tsv", ".tsv.gz"))


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    columns: tuple[str, ...] | None = None
    documents: dict[str, Document] = {}
    queries: dict[str, Query] = {}
    judgements: dict[tuple[str, str], Judgement] = {}

    def parse(line: Line) -> tuple[str, Document] | None:
        nonlocal columns
        values = decode(line, path).split("\t")
        if columns is None:
            if columns := _header(values):
                return None
            columns = WITHOUT_HEADER.get(len(values))
            if columns is None:
                raise ValueError(f"{len(values)} tab-separated cells; expected query and text, or query, docid and text")
        query_text, document = _row(values, columns)
        if documents.setdefault(document.docid, document) != document:
            raise ValueError(f"docid {document.docid!r} appeared before with other content")
        return query_text, document

    for _, row in parse_lines(path, notes, parse):
        if row is not None and row[0]:
            query_text, document = row
            query = Query(queryid_of(query_text), query_text)
            queries[query.queryid] = query
            judgement = Judgement(query.queryid, document.docid)
            notes.count("pairs repeated, kept once", judgement[:2] in judgements)
            judgements[judgement.queryid, judgement.docid] = judgement
    return Corpus(list(documents.values()), list(queries.values()), {"train": list(judgements.values())} if judgements else {})


def write(corpus: Corpus, path: Path) -> None:
    if set(corpus.qrels) - {"train"} or any(query.kind != "annotated" for query in corpus.queries):
        raise ValueError("TSV pairs hold annotated train queries only; write a BEIR folder to keep the rest")
    texts = {query.queryid: query.text for query in corpus.queries}
    train = corpus.qrels.get("train", [])
    if any(query.queryid != queryid_of(query.text) or query.metadata for query in corpus.queries) or any(j.score != 1 for j in train):
        raise ValueError("TSV pairs hold no query ids, scores or query metadata; write a BEIR folder to keep them")
    if set(texts) != {judgement.queryid for judgement in train}:
        raise ValueError("TSV pairs hold no query without a document; write a BEIR folder to keep it")
    queries: dict[str, list[str]] = {document.docid: [] for document in corpus.documents}
    for judgement in train:
        queries[judgement.docid].append(texts[judgement.queryid])
    with atomic_write(path) as file:
        file.write("\t".join(COLUMNS).encode() + b"\n")
        for document in corpus.documents:
            check_document(document)
            if document.metadata:
                raise ValueError("TSV pairs hold no metadata; write a BEIR folder to keep it")
            for query_text in queries[document.docid] or [""]:
                row = (query_text, document.docid, document.title, document.text)
                if any(character in value for value in row for character in "\t\r\n\x00"):
                    raise ValueError(f"document {document.docid!r} holds a tab or line break; write a BEIR folder to keep it")
                file.write("\t".join(row).encode("utf-8") + b"\n")


def queryid_of(text: str) -> str:
    """A stable id from a query's text."""
    return "q-" + hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _header(values: list[str]) -> tuple[str, ...] | None:
    names = tuple(value.strip().lower() for value in values)
    return names if set(names) <= set(COLUMNS) and {"query", "text"} <= set(names) and len(set(names)) == len(names) else None


def _row(values: list[str], columns: tuple[str, ...]) -> tuple[str, Document]:
    if len(values) != len(columns):
        raise ValueError(f"{len(values)} tab-separated cells, expected {len(columns)}: {', '.join(columns)}")
    row = dict(zip(columns, values, strict=True))
    docid = row.get("docid", "d-" + hashlib.sha256(row["text"].encode("utf-8")).hexdigest()[:16])
    document = Document(docid, row["text"], row.get("title", ""))
    check_document(document)
    if row["query"].strip():
        check_query(Query(queryid_of(row["query"]), row["query"]))
        return row["query"], document
    return "", document
