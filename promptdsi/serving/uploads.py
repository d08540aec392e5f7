"""Documents that arrive over HTTP, read as strictly as a file: JSON lines, or a list inside a JSON body."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptdsi.corpus.formats.jsonl import documents
from promptdsi.corpus.notes import ReadNotes
from promptdsi.corpus.records import Document
from promptdsi.errors import DataError
from promptdsi.serving.errors import APIError


def from_lines(body: bytes, what: str = "line") -> list[Document]:
    """Documents of JSON lines; a mistake is told with its line and column."""
    with tempfile.NamedTemporaryFile(prefix="promptdsi-", suffix=".jsonl") as file:  # gone as soon as it was read
        file.write(body)
        file.flush()
        try:
            found = list(documents(Path(file.name), ReadNotes()))
        except DataError as error:
            column = f", column {error.column}" if error.column is not None and what == "line" else ""
            place = f"{what} {error.line}{column}: " if error.line is not None else ""
            raise APIError(422, "documents", f"{place}{error.problem}", "nothing was added") from None
    if not found:
        raise APIError(422, "documents", "there is no document", "send one JSON object a line, with `_id` and `text`")
    return found


def from_list(given: Sequence[dict[str, Any]]) -> list[Document]:
    """Documents of a JSON body, by the same reader."""
    return from_lines(b"".join(json.dumps(one).encode("ascii") + b"\n" for one in given), "document")
