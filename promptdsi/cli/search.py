"""`promptdsi search` and `get`: ask an index."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import Device, Engine, Json, Offline, Quiet, Threads, harmless, print_json, say
from promptdsi.cli.learn import IndexPath
from promptdsi.errors import UsageError

if TYPE_CHECKING:
    from promptdsi.index.results import Hit

AT_ONCE = 64
INDENT = " " * 12
At = Annotated[int | None, typer.Option("--at", help="Answer as this generation did.", metavar="GENERATION")]


def search(
    index: IndexPath,
    queries: Annotated[list[str], typer.Argument(help="Queries; `-` reads them from standard input, one a line.", metavar="QUERY…")],
    k: Annotated[int, typer.Option("-k", help="How many documents to show.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each document stands where it does.")] = False,
    at: At = None,
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Find documents. One line of JSON per query with --json."""
    from promptdsi.index.index import Index

    opened = Index.open(index, at=at, engine=engine, device=device, threads=threads)
    snapshot = opened.snapshot
    for batch in _batches(queries):
        found = opened.search(batch, k=k, explain=explain)  # first, because it says what is wrong with a query
        if cut := sum(snapshot.encoder.tokenizer.encode(batch, max_tokens=snapshot.encoder.max_tokens).truncated):
            limit = snapshot.manifest.params["encoding"]["max_tokens"]
            say(f"{cut:,} queries are longer than {limit} tokens; their ends were not read", quiet=quiet)
        for query, hits in zip(batch, found, strict=True):
            if json:
                print_json({"query": query, "generation": opened.generation, "hits": [hit.to_json() for hit in hits]})
            else:
                show_hits(query, hits, alone=len(queries) == 1 and queries[0] != "-")


def get(index: IndexPath, docid: Annotated[str, typer.Argument(help="Id of the document.")], at: At = None, json: Json = False) -> None:
    """Print what the index stores of a document."""
    from promptdsi.index.index import Index

    opened = Index.open(index, at=at, device="cpu")
    found = opened.get(docid)
    row = opened.snapshot.live(docid)
    assert row is not None
    entry = opened.snapshot.place(row).entry
    if json:
        facts: dict[str, Any] = {"docid": docid, "title": found.title, "text": found.text, "metadata": dict(found.metadata)}
        print_json(facts | {"corpus": entry.name, "since": entry.since, "generation": opened.generation})
        return
    print(harmless("  ".join(word for word in (docid, found.title, f"[{entry.name}]") if word)))
    print(harmless(found.text) if found.text else f"(the index keeps no text: --store {opened.snapshot.manifest.store})")
    for key, value in found.metadata.items():
        print(harmless(f"{key}: {value}"))


def _batches(words: list[str]) -> Iterator[list[str]]:
    """Queries as they come, some at a time; blank lines of standard input are no queries."""
    if words != ["-"]:
        yield from (words[start : start + AT_ONCE] for start in range(0, len(words), AT_ONCE))
        return
    for lines in _arriving():
        batch = [line.strip() for line in lines if line.strip()]
        yield from (batch[start : start + AT_ONCE] for start in range(0, len(batch), AT_ONCE))


def _arriving() -> Iterator[list[str]]:
    """Lines of standard input as soon as they are there: whoever waits for an answer before asking again gets it."""
    raw = getattr(sys.stdin, "buffer", None)
    if raw is None:
        yield list(sys.stdin)
        return
    rest = b""
    while chunk := raw.read1(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield [_text(line) for line in lines]
    yield [_text(rest)]


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"standard input: the line {line[:50]!a} is not UTF-8") from None


def show_hits(query: str, hits: list[Hit], *, alone: bool = False) -> None:
    """Hits for a person: rank, score, title, where it came from, and the passage."""
    width = max(20, min(shutil.get_terminal_size().columns, 110) - len(INDENT))
    if not alone:
        print(harmless(query))
    if not hits:
        print("    nothing: the index holds no documents")
    for hit in hits:
        name = hit.title or hit.docid
        print(harmless(f"{hit.rank:>3}  {hit.score:.3f}  {name}" + (f"  {hit.docid}" if hit.title else "") + f"  [{hit.corpus}]"))
        for line in textwrap.wrap(harmless(hit.snippet), width):
            print(f"{INDENT}{line}")
        for line in _reasons(hit):
            print(harmless(f"{INDENT}· {line}"))
    if hits and hits[0].why and hits[0].why.prompt is None:
        print(f"{INDENT}no prompt was used: scores are those of the encoder alone")
    print(end="" if alone else "\n", flush=True)


def _reasons(hit: Hit) -> Iterator[str]:
    why = hit.why
    if why is None:
        return
    if why.prompt is not None:
        topic = f" ({', '.join(why.topic[:5])})" if why.topic else ""
        close = f", key similarity {why.similarity:.3f}" if why.similarity is not None else ""
        yield f"prompt {why.prompt}{topic}{close}; without it rank {why.rank_without}, score {why.score_without:.3f}"
    if why.query is not None:
        yield f"nearest kept query ({why.query_similarity:.3f}): {why.query}"
    if why.newer:
        more = f" and {why.newer_count - len(why.newer)} more" if why.newer_count > len(why.newer) else ""
        yield f"newer documents before it: {', '.join(why.newer)}{more}"
    if why.neighbors:
        yield f"nearest documents: {', '.join(f'{one.docid} ({one.similarity:.3f})' for one in why.neighbors[:3])}"
