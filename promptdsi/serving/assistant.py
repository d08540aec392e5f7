"""The index as an MCP server: an assistant may search it and read documents, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from promptdsi import __version__
from promptdsi.errors import PromptDSIError
from promptdsi.index.index import Index
from promptdsi.serving.errors import described
from promptdsi.serving.schemas import Docid, Query

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MOST = 50  # documents in an answer: more would only fill the assistant's memory


def create_server(path: str | Path, *, device: str = "auto") -> MCPServer[Any]:
    """A server with the tools `search` and `get_document`; it answers from the newest generation."""
    index = Index.open(path, device=device)
    documents = f"{len(index):,} documents"
    server = MCPServer(
        "promptdsi",
        version=__version__,
        instructions=f"Finds passages in the index {index.store.folder.absolute().name} of {documents}; ask in plain language.",
        log_level="WARNING",
    )

    def newest() -> Index:
        index.refresh()
        return index

    @server.tool(annotations=READ_ONLY)
    def search(query: Query, k: Annotated[int, Field(ge=1, le=MOST, description="how many documents")] = 10) -> dict[str, Any]:
        """Find the documents that answer a question: rank, docid, score, title and the passage with the question's words."""
        try:
            opened = newest()
            hits = [hit.to_json() for hit in opened.search(query, k=k)]
        except PromptDSIError as error:
            raise ToolError(described(error, index.store.folder).message) from None
        return {"generation": opened.generation, "hits": hits}

    @server.tool(annotations=READ_ONLY)
    def get_document(docid: Docid) -> dict[str, Any]:
        """The whole text of a document, by the docid that search gave."""
        try:
            found = newest().get(docid)
        except PromptDSIError as error:
            raise ToolError(described(error, index.store.folder).message) from None
        return {"docid": found.docid, "title": found.title, "text": found.text, "metadata": dict(found.metadata)}

    return server
