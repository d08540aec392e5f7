"""Lines of a plain or gzipped file, read within bounds and decoded strictly, and the JSON Lines of documents and queries.

Line ends are LF or CRLF; a byte-order mark at the start is dropped. Bytes that are not UTF-8, NUL, lines longer than
`MAX_LINE_BYTES` and archives that unpack past `MAX_UNPACKED_BYTES` are errors with file and line.
`documents` and `queries` run in bounded memory: per record they keep an id and a hash, to detect duplicates.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar, cast

from promptdsi.corpus.corpus import EMPTY, Document, Query, ReadNotes, check_characters, check_document, check_query
from promptdsi.errors import DataError
from promptdsi.files import atomic_write

MAX_LINE_BYTES = 64 << 20
MAX_UNPACKED_BYTES = 64 << 30  # a gzip file may not unpack past this
MAX_DEPTH = 100
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')  # strings match first, so that brackets inside them do not count
Parsed = TypeVar("Parsed")
Record = TypeVar("Record", Document, Query)


class Line(NamedTuple):
    number: int  # from 1
    offset: int  # of the first byte, in the unpacked file
    raw: bytes  # without its line end


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacking it if its name ends in .gz."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def plain_or_gz(path: Path) -> Path | None:
    """The plain file or its .gz, whichever exists; both at once are an error."""
    packed = path.with_name(path.name + ".gz")
    if path.exists() and packed.exists():
        raise DataError(f"stands beside {packed.name}; keep one of the two", path=path)
    return path if path.exists() else packed if packed.exists() else None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, packing it if its name ends in .gz."""
    with atomic_write(path) as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def raw_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file in constant memory."""
    bound = MAX_UNPACKED_BYTES if path.suffix.lower() == ".gz" else None
    number = offset = 0
    try:
        with open_bytes(path) as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise DataError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", path=path, line=number)
                start, offset = offset, offset + len(raw)
                if bound is not None and offset > bound:
                    raise DataError(f"unpacks to more than {bound:,} bytes; unpack it yourself if this is right", path=path, line=number)
                if number == 1 and raw.startswith(BYTE_ORDER_MARK):
                    raw, start = raw[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
                yield Line(number, start, raw.rstrip(b"\r\n"))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"is not a whole gzip file ({error})", path=path, line=number + 1) from None


def decode(line: Line, path: Path) -> str:
    """Return the line as text, or raise an error with the byte offset."""
    try:
        text = line.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line.raw[error.start]
        raise DataError(f"not UTF-8: byte 0x{byte:02x} at byte offset {line.offset + error.start}", path=path, line=line.number) from None
    if "\x00" in text:
        raise DataError("holds a NUL byte", path=path, line=line.number, column=text.index("\x00") + 1)
    return text


def parse_lines(path: Path, notes: ReadNotes, parse: Callable[[Line], Parsed]) -> Iterator[tuple[int, Parsed]]:
    """Yield line number and record of each line that is not blank; a ValueError of `parse` is refused with file and line."""
    for line in raw_lines(path):
        if not line.raw or line.raw.isspace():
            continue
        try:
            record = parse(line)
        except (ValueError, DataError) as error:
            notes.refuse(error if isinstance(error, DataError) else DataError(str(error), path=path, line=line.number))
        else:
            yield line.number, record


def excerpt(text: str, length: int = 60) -> str:
    """The start of a line, safe to print."""
    return repr(text[:length] + ("…" if len(text) > length else ""))


def documents(path: Path, notes: ReadNotes) -> Iterator[Document]:
    """Documents of a JSONL file, each id once."""
    return _unique(path, notes, document_from, "documents repeated with equal content, kept once")


def queries(path: Path, notes: ReadNotes) -> Iterator[Query]:
    """Queries of a JSONL file, each id once."""
    return _unique(path, notes, query_from, "queries repeated with equal content, kept once")


def document_from(fields: dict[str, Any]) -> Document:
    """Turn a parsed line into a Document, or raise ValueError. Empties `fields`; unknown ones become metadata."""
    # Our own output says `docid`; where both are given, `docid` is metadata.
    docid = _take(fields, "docid" if "docid" in fields and "_id" not in fields else "_id")
    text = _take(fields, "text")
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
        content = hash((record[1], record[2], json.dumps(dict(record.metadata), sort_keys=True) if record.metadata else ""))
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
