"""JSON Lines: one record per line. A file of documents is a corpus; BEIR folders consist of such files.

`documents` runs in bounded memory: per document it keeps an id and a hash, to detect duplicates.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.reading import Line, ReadNotes, decode, excerpt, parse_lines
from promptdsi.corpus.records import EMPTY, SPLITS, Document, Query, check_characters, check_document, check_query
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

NAME = "jsonl"
MAX_DEPTH = 100
STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')  # strings match first, so that brackets inside them do not count
Record = TypeVar("Record", Document, Query)


def recognizes(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def read(path: Path, notes: ReadNotes, *, max_unknown: int = 0, splits: Sequence[str] = SPLITS) -> Corpus:
    return Corpus(list(documents(path, notes)))


def write(corpus: Corpus, path: Path) -> None:
    if corpus.queries or corpus.qrels:
        raise ValueError("a lone JSONL file holds documents only; write a BEIR folder to keep the queries")
    lines = b"".join(map(document_line, corpus.documents))
    with atomic_write(path) as file:
        file.write(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)


def documents(path: Path, notes: ReadNotes) -> Iterator[Document]:
    """Documents of a JSONL file, each id once."""
    return _unique(path, notes, document_from, "documents repeated with equal content, kept once")


def queries(path: Path, notes: ReadNotes) -> Iterator[Query]:
    """Queries of a JSONL file, each id once."""
    return _unique(path, notes, query_from, "queries repeated with equal content, kept once")


def document_from(fields: dict[str, Any]) -> Document:
    """Turn a parsed line into a Document, or raise ValueError. Empties `fields`; unknown ones become metadata."""
    docid, text = _take(fields, "_id"), _take(fields, "text")
    title = fields.pop("title", None)
    document = Document(docid, text, "" if title is None else title, fields or EMPTY)
    check_document(document)
    return document


def query_from(fields: dict[str, Any]) -> Query:
    """Turn a parsed line into a Query, or raise ValueError. Empties `fields`; unknown ones become metadata."""
    queryid, text = _take(fields, "_id"), _take(fields, "text")
    query = Query(queryid, text, fields.pop("kind", "annotated"), fields or EMPTY)
    check_query(query)
    return query


def document_line(document: Document) -> bytes:
    check_document(document)
    return _line({"_id": document.docid, "title": document.title, "text": document.text, **document.metadata})


def query_line(query: Query) -> bytes:
    check_query(query)
    return _line({"_id": query.queryid, "text": query.text, "kind": query.kind, **query.metadata})


def _line(record: dict[str, Any]) -> bytes:
    check_characters(record)
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def _take(fields: dict[str, Any], name: str) -> Any:
    try:
        return fields.pop(name)
    except KeyError:
        names = ", ".join(excerpt(field, 30) for field in list(fields)[:6]) or "no fields"
        raise ValueError(f'no "{name}"; the line has {names}') from None


def _unique(path: Path, notes: ReadNotes, make: Callable[[dict[str, Any]], Record], repeated: str) -> Iterator[Record]:
    seen: dict[str, int] = {}  # id → hash of its content: tells an equal repeat from a contradiction
    for number, record in parse_lines(path, notes, lambda line: make(parse_json(line, path))):
        content = _content_hash(record)
        earlier = seen.get(record[0])
        if earlier is None:
            seen[record[0]] = content
            yield record
        elif earlier == content:
            notes.count(repeated)
        else:
            notes.refuse(DataError(f"id {record[0]!r} appeared before with other content", path=path, line=number))


def parse_json(line: Line, path: Path) -> dict[str, Any]:
    """Return the JSON object of a line, or raise an error with its column."""
    text = decode(line, path)
    try:
        if line.raw.count(b"[") + line.raw.count(b"{") > MAX_DEPTH:
            check_depth(text)
        record = _DECODER.decode(text)
        if "\\u" in text:  # decoding refused these characters already, except as escapes
            check_characters(record)
    except json.JSONDecodeError as error:
        problem = f"not JSON: {error.msg}; the line starts {excerpt(text)}"
        raise DataError(problem, path=path, line=line.number, column=error.colno) from None
    except ValueError as error:
        raise DataError(f"{error}; the line starts {excerpt(text)}", path=path, line=line.number) from None
    if not isinstance(record, dict):
        raise DataError(f"expected a JSON object, the line starts {excerpt(text)}", path=path, line=line.number)
    return record


def check_depth(text: str) -> None:
    """Raise ValueError for JSON nested deeper than `MAX_DEPTH`, before the parser recurses into it."""
    depth = 0
    for character in STRUCTURE.findall(text):
        depth += (character in "[{") - (character in "]}")
        if depth > MAX_DEPTH:
            raise ValueError("the JSON is nested too deeply")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {excerpt(text, 20)} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _content_hash(record: Document | Query) -> int:
    extra = json.dumps(dict(record.metadata), sort_keys=True) if record.metadata else ""
    return hash((record[1], record[2], extra))
