"""`promptdsi search` and `get`."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterator
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from promptdsi.cli.console import At, Engine, IndexPath, Json, On, Output, Runtime, open_index, print_json, strip_control_chars
from promptdsi.errors import UsageError
from promptdsi.wording import agreeing

if TYPE_CHECKING:
    from promptdsi.index.results import Hit, SearchResult

BATCH_SIZE = 64
INDENT = " " * 12
FEW = 50  # passages of a first corpus: with more there are queries enough to estimate confidences


def search(
    index: IndexPath,
    queries: Annotated[list[str], typer.Argument(help="Queries; `-` reads them from standard input, one a line.", metavar="QUERY…")],
    *,
    k: Annotated[int, typer.Option("-k", help="Number of documents to retrieve.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Explain the rank of each document.")] = False,
    min_confidence: Annotated[
        float, typer.Option("--min-confidence", min=0, max=1, help="Leave out documents whose confidence is lower.")
    ] = 0.0,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="FIELD=VALUE", help="Only documents that meet this (= != < <= > >=; a,b: either; docid=notes/*)."),
    ] = None,
    at: At = None,
    engine: Engine = "auto",
    on: On = None,
    runtime: Runtime,
    output: Output,
) -> None:
    """Search an index. With --json one line of JSON per query."""
    from promptdsi.index.results import SearchRequest

    opened = open_index(index, check=True, at=at, engine=engine, device=runtime.device, threads=runtime.threads, on=on)
    conditions = tuple(where or ())
    if len(queries) > 1 and not any(len(query.split()) > 1 for query in queries):
        output.say(f"searched for {len(queries):,} queries; put words in quotes to search for them together")
    has_no_confidence = False
    for batch in _batches(queries):
        results = opened.search_batch([SearchRequest(query, k, explain, min_confidence, conditions) for query in batch])
        if truncated := sum(result.truncated for result in results):
            limit = opened.info().max_tokens
            output.say(agreeing(truncated, f"queries are longer than {limit} tokens and were truncated"))
        if not has_no_confidence and any(hit.confidence is None for result in results for hit in result.hits):
            has_no_confidence = True
            few = opened.manifest.corpora[0].row_count < FEW
            reason = "had too few passages to estimate them when it was created" if few else "was made by a release that had none"
            output.say(f"scores are shown, not confidences: the index {reason}")
        for query, result in zip(batch, results, strict=True):
            if output.json:
                hits = [hit.to_dict() for hit in result.hits]
                print_json({"query": query, "generation": opened.generation, "certain": result.certain, "hits": hits})
            else:
                show_hits(
                    query,
                    result,
                    alone=len(queries) == 1 and queries[0] != "-",
                    prompts=opened.info().prompts != "none",
                    filter="these conditions" if conditions else "that confidence" if min_confidence else "",
                )


def get(index: IndexPath, docid: Annotated[str, typer.Argument(help="Id of the document.")], at: At = None, json: Json = False) -> None:
    """Print a document as the index stores it."""
    opened = open_index(index, check=True, at=at, device="cpu")
    document, location = opened.get(docid), opened.locate(docid)
    assert location is not None
    if json:
        fields: dict[str, Any] = {"docid": docid, "title": document.title, "text": document.text, "metadata": dict(document.metadata)}
        print_json(fields | {"corpus": location.corpus, "since": location.since, "generation": opened.generation})
        return
    print(strip_control_chars("  ".join(word for word in (docid, document.title, f"[{location.corpus}]") if word)))
    print(strip_control_chars(document.text) if document.text else f"(the index stores no text: --store {opened.info().store})")
    for key, value in document.metadata.items():
        print(strip_control_chars(f"{key}: {value}"))


def _batches(words: list[str]) -> Iterator[list[str]]:
    """Batches of queries, in order."""
    for queries in _read_stdin() if words == ["-"] else [words]:
        yield from (queries[start : start + BATCH_SIZE] for start in range(0, len(queries), BATCH_SIZE))


def _read_stdin() -> Iterator[list[str]]:
    """Lines of standard input that are not blank, as they arrive: a program may wait for each result before it sends the next query."""
    rest, raw = b"", cast(BufferedReader, sys.stdin.buffer)
    for chunk in itertools.chain(iter(lambda: raw.read1(1 << 16), b""), (b"\n",)):
        *lines, rest = (rest + chunk).split(b"\n")
        try:
            yield [text for line in lines if (text := line.decode("utf-8").strip())]
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: the line {error.object[:50]!a} is not UTF-8") from None


def show_hits(query: str, result: SearchResult, *, alone: bool = False, filter: str = "", prompts: bool = False) -> None:
    """Print hits: rank, confidence or score, title, corpus and snippet; with `prompts` also that none was used."""
    hits = result.hits
    width = max(20, min(shutil.get_terminal_size().columns, 110) - len(INDENT))
    if not alone:
        print(strip_control_chars(query))
    if not hits:
        print(f"    no document meets {filter}" if filter else "    no documents: the index is empty")
    elif not result.certain:
        print("    nothing certain; nearest:")
    for hit in hits:
        name = hit.title or hit.docid
        value = f"{hit.score:.3f}" if hit.confidence is None else f"{probability(hit.confidence):>5}"
        print(strip_control_chars(f"{hit.rank:>3}  {value}  {name}" + (f"  {hit.docid}" if hit.title else "") + f"  [{hit.corpus}]"))
        if place := ", ".join(part for part in (f"page {hit.page}" if hit.page else "", hit.heading) if part):
            print(strip_control_chars(f"{INDENT}{place}"))
        for line in textwrap.wrap(strip_control_chars(hit.snippet), width):
            print(f"{INDENT}{line}")
        for line in _reasons(hit):
            print(strip_control_chars(f"{INDENT}· {line}"))
    if prompts and hits and hits[0].why and hits[0].why.prompt is None:
        print(f"{INDENT}no prompt was used: scores are those of the encoder alone")
    print(end="" if alone else "\n", flush=True)


def probability(share: float) -> str:
    """A probability in percent; it is never 0 or 1.

    Examples
    --------
    >>> probability(0.001), probability(0.417), probability(0.9999)
    ('<1%', '42%', '>99%')
    """
    return "<1%" if share < 0.01 else ">99%" if share > 0.99 else f"{share:.0%}"


def _reasons(hit: Hit) -> Iterator[str]:
    why = hit.why
    if why is None:
        return
    if why.rank_by_words is not None:
        words = ", ".join(f"{word} {weight:.3f}" for word, weight in why.words[:8]) or "none"
        yield f"row {why.learned:.3f} (alone rank {why.rank_by_rows}) + words {hit.score - why.learned:.3f} (alone {why.rank_by_words})"
        yield f"words in common: {words}"
    if why.prompt is not None:
        topic = f" ({', '.join(why.topic[:5])})" if why.topic else ""
        similarity = f", key similarity {why.similarity:.3f}" if why.similarity is not None else ""
        yield f"prompt {why.prompt}{topic}{similarity}; without it rank {why.rank_without}, score {why.score_without:.3f}"
    if why.query is not None:
        yield f"most similar training query ({why.query_similarity:.3f}): {why.query}"
    if why.newer:
        more = f" and {why.newer_count - len(why.newer)} more" if why.newer_count > len(why.newer) else ""
        yield f"newer documents ranked before it: {', '.join(why.newer)}{more}"
    if why.neighbors:
        yield f"most similar documents: {', '.join(f'{neighbor.docid} ({neighbor.similarity:.3f})' for neighbor in why.neighbors[:3])}"
