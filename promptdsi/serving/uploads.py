"""Documents that arrive over HTTP, read as strictly as a file: JSON lines, or a list inside a JSON body."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from promptdsi.corpus.corpus import Document, ReadNotes
from promptdsi.corpus.reading import documents as read_documents
from promptdsi.errors import DataError
from promptdsi.serving.error_responses import APIError
from promptdsi.serving.schemas import AddBody


def from_lines(body: bytes, unit: str = "line") -> list[Document]:
    """Documents of JSON lines; an error names the line and column."""
    with tempfile.TemporaryFile() as file:  # a file without a name: nothing of it can be left behind
        file.write(body)
        file.seek(0)
        try:
            documents = list(read_documents(Path(f"/dev/fd/{file.fileno()}"), ReadNotes()))
        except DataError as error:
            column = f", column {error.column}" if error.column is not None and unit == "line" else ""
            position = f"{unit} {error.line}{column}: " if error.line is not None else ""
            raise APIError(422, "documents", f"{position}{error.problem}", "nothing was added") from None
    if not documents:
        raise APIError(422, "documents", "there is no document", "send one JSON object a line, with `_id` and `text`")
    return documents


def from_object(body: bytes) -> list[Document]:
    """Documents of a JSON body, by the same reader."""
    try:
        documents = AddBody.model_validate_json(body).documents
    except ValidationError as error:
        raise RequestValidationError([{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]) from None
    lines = [json.dumps(document.model_dump(by_alias=True)).encode("ascii") + b"\n" for document in documents]
    return from_lines(b"".join(lines), "document")
