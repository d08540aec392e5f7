"""The index as an MCP server: an assistant may search it and read documents, nothing else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from promptdsi import __version__
from promptdsi.errors import PromptDSIError
from promptdsi.index.index import Index
from promptdsi.index.results import MOST_CONDITIONS, SearchRequest
from promptdsi.serving.error_responses import to_api_error
from promptdsi.serving.schemas import Condition, Docid, QueryText

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MAX_HITS = 50  # more would only fill the assistant's context
HitCount = Annotated[int, Field(ge=1, le=MAX_HITS, description="number of hits")]
Conditions = Annotated[Sequence[Condition], Field(max_length=MOST_CONDITIONS, description="conditions that all must hold")]


def create_server(path: str | Path, **options: Any) -> MCPServer[Any]:
    """A server with the tools `search` and `get_document`; it answers from the newest generation."""
    mark = Index.commit_mark(path)
    index = Index.open(path, **options)
    folder = index.path
    server = MCPServer(
        "promptdsi",
        version=__version__,
        instructions=f"Finds passages in the index {folder.absolute().name} of {len(index):,} documents; ask in plain language.",
        log_level="WARNING",
    )
    lock = threading.Lock()  # tools run in threads: each takes one generation and answers from it alone

    @contextlib.contextmanager
    def newest() -> Iterator[Index]:
        """The newest generation; its errors become messages without a path."""
        nonlocal index, mark
        try:
            with lock:
                latest = Index.commit_mark(path)
                if latest != mark:
                    index, mark = index.reopen(), latest
                current = index
            yield current
        except PromptDSIError as error:
            raise ToolError(to_api_error(error, folder).message) from None

    @server.tool(annotations=READ_ONLY)
    def search(query: QueryText, k: HitCount = 10, where: Conditions = ()) -> dict[str, Any]:
        """Find the documents that answer a question: rank, docid, title, a snippet, and how likely each is right (`confidence`, 0 to 1).

        `passage` gives the characters of the document's text that matched, null where that is all of it. If `certain` is false, the hits
        are only the nearest there are, and the index probably has no answer. `where` filters by metadata: "year>=2020", "docid=notes/*".
        """
        with newest() as current:
            (result,) = current.search_batch([SearchRequest(query, k, where=tuple(where))])
            hits = [hit.to_dict() for hit in result.hits]
            return {"generation": current.generation, "certain": result.certain, "hits": hits}

    @server.tool(annotations=READ_ONLY)
    def get_document(docid: Docid) -> dict[str, Any]:
        """The full text of a document, by the docid that search gave."""
        with newest() as current:
            location = current.locate(docid)
            if location is None or location.deleted:
                raise ToolError(f"there is no document {docid!r}")
            document = current.get(docid)
            return {"docid": docid, "title": document.title, "text": document.text, "metadata": dict(document.metadata)}

    return server
