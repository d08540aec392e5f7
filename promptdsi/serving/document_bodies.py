"""Documents in the body of a request: a JSON object, or one JSON object a line, read as strictly as a file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from promptdsi.corpus.corpus import Document, ReadNotes
from promptdsi.corpus.reading import documents as read_documents
from promptdsi.errors import DataError
from promptdsi.serving import schemas
from promptdsi.serving.error_responses import APIError

LINE = '{"docid": "notes/tea.txt", "title": "Tea", "text": "Green tea wants water of 75 degrees."}\n'
LIST = {"type": "array", "minItems": 1, "items": schemas.NewDocument.model_json_schema()}
OBJECT = {"type": "object", "properties": {"documents": LIST}, "required": ["documents"], "additionalProperties": False}
# Of the OpenAPI description: the route reads its body itself.
BODIES = {
    "required": True,
    "content": {"application/json": {"schema": OBJECT}, "application/x-ndjson": {"schema": {"type": "string"}, "example": LINE}},
}


def documents_of(content_type: str, body: bytes) -> list[Document]:
    """The documents of a body, by its content type."""
    readers = {"application/x-ndjson": from_lines, "application/json": from_object}
    read = readers.get(content_type.partition(";")[0].strip().lower())
    if read is None:
        raise APIError(415, "form", "documents come as application/json or application/x-ndjson", "set the header Content-Type")
    return read(body)


def from_lines(body: bytes, unit: str = "line") -> list[Document]:
    """Documents of JSON lines, read as strictly as a file; an error names the line and column."""
    with tempfile.TemporaryFile() as file:  # a file without a name: nothing of it can be left behind
        file.write(body)
        file.seek(0)
        try:
            documents = list(read_documents(Path(f"/dev/fd/{file.fileno()}"), ReadNotes()))
        except DataError as error:
            column = f", column {error.column}" if error.column is not None and unit == "line" else ""
            position = f"{unit} {error.line}{column}: " if error.line is not None else ""
            problem = error.problem.replace('no "_id"', 'no "docid" or "_id"')
            raise APIError(422, "documents", f"{position}{problem}", "nothing was added") from None
    if not documents:
        raise APIError(422, "documents", "there is no document", "send one JSON object a line, with `docid` and `text`")
    if ambiguous := next((document for document in documents if "docid" in document.metadata), None):
        raise APIError(422, "documents", f"the document {ambiguous.docid[:80]!r} has both `docid` and `_id`", "send one of them")
    return documents


def from_object(body: bytes) -> list[Document]:
    """Documents of a JSON body, by the same reader."""
    try:
        documents = schemas.AddBody.model_validate_json(body).documents
    except ValidationError as error:
        raise RequestValidationError([{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]) from None
    lines = [json.dumps(document.model_dump()).encode("ascii") + b"\n" for document in documents]
    return from_lines(b"".join(lines), "document")
