"""The index as an MCP server: an assistant may search it and read documents, nothing else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from promptdsi import __version__
from promptdsi.errors import PromptDSIError
from promptdsi.index import hits
from promptdsi.index.index import Index
from promptdsi.index.snapshot import Snapshot
from promptdsi.serving.errors import described
from promptdsi.serving.schemas import Docid, Query

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MOST = 50  # documents in an answer: more would only fill the assistant's memory


def create_server(path: str | Path, **how: Any) -> MCPServer[Any]:
    """A server with the tools `search` and `get_document`; it answers from the newest generation."""
    index = Index.open(path, **how)
    documents = f"{len(index):,} documents"
    server = MCPServer(
        "promptdsi",
        version=__version__,
        instructions=f"Finds passages in the index {index.store.folder.absolute().name} of {documents}; ask in plain language.",
        log_level="WARNING",
    )

    turn = threading.Lock()  # tools run in threads: each takes one generation and answers from it alone

    def newest() -> Snapshot:
        with turn:
            index.refresh()
            return index.snapshot

    @server.tool(annotations=READ_ONLY)
    def search(query: Query, k: Annotated[int, Field(ge=1, le=MOST, description="how many documents")] = 10) -> dict[str, Any]:
        """Find the documents that answer a question: rank, docid, score, title and the passage with the question's words."""
        with explained(index):
            snapshot = newest()
            return {"generation": snapshot.manifest.number, "hits": [hit.to_json() for hit in hits.search(snapshot, [query], k=k)[0]]}

    @server.tool(annotations=READ_ONLY)
    def get_document(docid: Docid) -> dict[str, Any]:
        """The whole text of a document, by the docid that search gave."""
        with explained(index):
            snapshot = newest()
            row = snapshot.live(docid)
            found = snapshot.document(row) if row is not None else None
        if row is None:
            raise ToolError(f"there is no document {docid!r}")
        title, text, metadata = (found.title, found.text, dict(found.metadata)) if found else ("", "", {})
        return {"docid": docid, "title": title, "text": text, "metadata": metadata}

    return server


@contextlib.contextmanager
def explained(index: Index) -> Iterator[None]:
    """Errors of the index as sentences without a path."""
    try:
        yield
    except PromptDSIError as error:
        raise ToolError(described(error, index.store.folder).message) from None
