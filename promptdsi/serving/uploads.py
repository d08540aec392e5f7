"""Documents that arrive over HTTP, read as strictly as a file: JSON lines, or a list inside a JSON body."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from promptdsi.corpus.formats.jsonl import documents
from promptdsi.corpus.reading import ReadNotes
from promptdsi.corpus.records import Document
from promptdsi.errors import DataError
from promptdsi.serving.errors import APIError
from promptdsi.serving.schemas import AddRequest


def from_lines(body: bytes, what: str = "line") -> list[Document]:
    """Documents of JSON lines; a mistake is told with its line and column."""
    with tempfile.TemporaryFile() as file:  # without a name: whatever happens, nothing stays
        file.write(body)
        file.seek(0)
        try:
            found = list(documents(Path(f"/dev/fd/{file.fileno()}"), ReadNotes()))
        except DataError as error:
            column = f", column {error.column}" if error.column is not None and what == "line" else ""
            place = f"{what} {error.line}{column}: " if error.line is not None else ""
            raise APIError(422, "documents", f"{place}{error.problem}", "nothing was added") from None
    if not found:
        raise APIError(422, "documents", "there is no document", "send one JSON object a line, with `_id` and `text`")
    return found


def from_object(body: bytes) -> list[Document]:
    """Documents of a JSON body, by the same reader."""
    try:
        given = AddRequest.model_validate_json(body).documents
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None
    return from_lines(b"".join(json.dumps(one.model_dump(by_alias=True)).encode("ascii") + b"\n" for one in given), "document")
