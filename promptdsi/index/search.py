"""Search: the queries of a batch are encoded together, scored together, and each gets its hits with a snippet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.engine.quantized import single_threaded_blas
from promptdsi.errors import UsageError
from promptdsi.index.explain import explain_hits
from promptdsi.index.generation import Generation
from promptdsi.index.results import Hit, SearchRequest, SearchResult, SearchStopped

SNIPPET = 180  # characters
SCANNED_CHARACTERS, SCANNED_MATCHES = 20_000, 200  # of a text: bounds the time a snippet takes
WORD = re.compile(r"\w+")


def search_batch(
    generation: Generation, requests: Sequence[SearchRequest], *, stop: Callable[[], bool] = lambda: False
) -> list[SearchResult]:
    """The best documents of each request, ties by docid. `stop` is called between requests; if true, SearchStopped is raised."""
    for request in requests:
        _check_request(request)
    if not requests:
        return []
    with single_threaded_blas():
        queries = [request.query for request in requests]
        encoded = generation.encoder.encode(queries)
        top = generation.table.top(encoded.vectors, max(request.k for request in requests))
        results = []
        for position, (query, k, explain) in enumerate(requests):
            if stop():
                raise SearchStopped
            rows, scores = top.rows[position, :k].tolist(), top.scores[position, :k].tolist()
            hits = [_hit(generation, query, rank, row, score) for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)]
            if explain and hits:
                hits = explain_hits(generation, query, encoded.vectors[position], encoded.selection_of(position), rows, hits)
            results.append(SearchResult(hits, encoded.truncated[position]))
    return results


def _check_request(request: SearchRequest) -> None:
    if request.k < 1:
        raise UsageError(f"k={request.k}: k must be at least 1")
    if not isinstance(request.query, str) or not request.query.strip():
        raise UsageError("a query is empty: give a few words to look for")
    try:
        request.query.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"the query {request.query[:50]!a} is not UTF-8") from None


def _hit(generation: Generation, query: str, rank: int, row: int, score: float) -> Hit:
    entry = generation.origin(row).entry
    document = generation.document(row)
    title, text = (document.title, snippet(document.text, query)) if document else ("", "")
    return Hit(rank, generation.table.docids[row], score, title, text, entry.name, entry.since)


def find_words(text: str, words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The position of each whole-word, case-insensitive match."""
    lower = text.lower()
    if len(lower) != len(text):  # İ becomes two letters in lower case: such a letter stays as it is, so that positions fit
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    for word in words:
        start = lower.find(word)
        while start >= 0:
            before, after = lower[start - 1 : start], lower[start + len(word) : start + len(word) + 1]
            if not WORD.match(before) and not WORD.match(after):
                yield start, word
            start = lower.find(word, start + len(word))


def snippet(text: str, query: str, width: int = SNIPPET) -> str:
    """The part of a text that contains most words of the query, truncated at word boundaries.

    Examples
    --------
    >>> snippet("Tea is brewed with water. Coffee is ground first, then brewed slowly.", "ground coffee", 30)
    '… Coffee is ground first, then …'
    """
    text = " ".join(text[:SCANNED_CHARACTERS].split())
    if len(text) <= width:
        return text
    words = set(WORD.findall(query.lower())) - STOPWORDS
    matches = sorted(find_words(text, words))[:SCANNED_MATCHES]
    best = max(
        matches,
        key=lambda match: (len({word for start, word in matches if 0 <= start - match[0] < width}), -match[0]),
        default=(0, ""),
    )[0]
    sentence = text.rfind(". ", 0, best + 1)
    first = sentence + 2 if sentence >= 0 else 0
    if best - first > width // 3:
        first = text.rfind(" ", 0, max(0, best - width // 6)) + 1
    last = len(text) if first + width >= len(text) else text.rfind(" ", first + 1, first + width + 1)
    last = first + width if last <= first else last
    return ("… " if first else "") + text[first:last].strip() + (" …" if last < len(text) else "")
