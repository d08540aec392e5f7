"""The MCP server: an assistant can search and read, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from promptdsi import Corpus, Index
from promptdsi.serving.mcp import create_server


def call(server: Any, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(server) as client:
            return await work(client)

    return asyncio.run(run())


def test_an_assistant_may_search_and_read_and_nothing_else(original: Path) -> None:
    tools = call(create_server(original, device="cpu"), lambda client: client.list_tools()).tools
    assert {tool.name for tool in tools} == {"search", "get_document"}
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)


def test_answers_are_those_of_the_index(original: Path, corpora: list[Corpus]) -> None:
    server, index = create_server(original, device="cpu"), Index.open(original, device="cpu")
    result = call(server, lambda client: client.call_tool("search", {"query": "water", "k": 3}))
    assert result.structured_content["generation"] == index.generation
    expected = [hit.to_dict() for hit in index.search("water", k=3)]
    assert result.structured_content["hits"] == json.loads(json.dumps(expected))
    assert result.structured_content["certain"] is True
    assert all(0 < hit["confidence"] < 1 and len(hit["passage"]) == 2 for hit in result.structured_content["hits"])
    nothing = call(server, lambda client: client.call_tool("search", {"query": "zzyzx qwerty", "k": 3}))
    assert nothing.structured_content["certain"] is False and len(nothing.structured_content["hits"]) == 3
    document = corpora[0].documents[0]
    read = call(server, lambda client: client.call_tool("get_document", {"docid": document.docid}))
    assert read.structured_content["text"] == document.text


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("get_document", {"docid": "nobody"}),
        ("search", {"query": ""}),
        ("search", {"query": "water", "k": 0}),
        ("search", {"query": "\x1c"}),
    ],
)
def test_errors_name_no_path(original: Path, tool: str, arguments: dict[str, Any]) -> None:
    answer = call(create_server(original, device="cpu"), lambda client: client.call_tool(tool, arguments))
    assert answer.is_error and answer.content[0].text and str(original) not in answer.content[0].text


def test_a_new_generation_is_answered_from(place: Path, corpora: list[Corpus]) -> None:
    server = create_server(place, device="cpu")
    Index.open(place, device="cpu").add(corpora[2])
    result = call(server, lambda client: client.call_tool("search", {"query": "water", "k": 50}))
    assert result.structured_content["generation"] == 3
    assert corpora[2].documents[0].docid in {hit["docid"] for hit in result.structured_content["hits"]}


def test_the_command_speaks_over_standard_input_and_output(original: Path) -> None:
    words = ["-m", "promptdsi", "mcp", str(original), "--device", "cpu"]
    server = stdio_client(StdioServerParameters(command=sys.executable, args=words))
    result = call(server, lambda client: client.call_tool("search", {"query": "water", "k": 1}))
    assert json.loads(result.content[0].text)["hits"][0]["rank"] == 1
