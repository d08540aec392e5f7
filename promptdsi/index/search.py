"""Reading an opened generation: search, explanations of ranks, similar documents, evaluation.

The queries of a batch are encoded together and scored together; each gets its hits with a snippet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.extract import PAGES
from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.corpus.passages import HEADING
from promptdsi.engine.passage_store import Retrieved, StoredPassage
from promptdsi.engine.quantized import single_threaded_blas
from promptdsi.errors import DataError, UsageError
from promptdsi.evaluation.evaluate import EvalResult, load_queries, rank_queries, write_run
from promptdsi.index.eval_records import write_record
from promptdsi.index.generation import Generation
from promptdsi.index.results import EvalRecord, Hit, Neighbor, SearchRequest, SearchResult, SearchStopped, Why
from promptdsi.model.config import NO_PROMPT
from promptdsi.model.path import Floats, Selection, unit

FAR = 50_000  # characters before a place in which its heading is looked for
NEIGHBORS = 5
NEWER = 5  # newer documents that are listed; all are counted
SNIPPET = 180  # characters
SCANNED_CHARACTERS, SCANNED_MATCHES = 20_000, 200  # of a text: bounds the time a snippet takes
WORD = re.compile(r"\w+")


def search_batch(
    generation: Generation, requests: Sequence[SearchRequest], *, stop: Callable[[], bool] = lambda: False
) -> list[SearchResult]:
    """The best documents of each request, ties by docid. `stop` is called between requests; if true, SearchStopped is raised."""
    for request in requests:
        if request.k < 1:
            raise UsageError(f"k={request.k}: k must be at least 1")
        if not isinstance(request.query, str) or not request.query.strip():
            raise UsageError("a query is empty: give a few words to look for")
        try:
            request.query.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"the query {request.query[:50]!a} is not UTF-8") from None
    if not requests:
        return []
    with single_threaded_blas(), generation.manifest.as_data_error(generation.store.folder):
        queries = [request.query for request in requests]
        encoded = generation.encoder.encode(queries)
        if not np.isfinite(encoded.vectors).all():
            raise ValueError("the encoder computes NaN or Inf")
        ranked = _ranked(generation, requests, encoded.vectors)
        results = []
        for position, (request, retrieved) in enumerate(zip(requests, ranked, strict=True)):
            if stop():
                raise SearchStopped
            hits = _hits(generation, request, retrieved)
            certain = not hits or hits[0].confidence is None or hits[0].confidence >= generation.calibration.bound  # type: ignore[union-attr]
            shown = [number for number, hit in enumerate(hits) if hit.confidence is None or hit.confidence >= request.min_confidence]
            hits = [hits[number] for number in shown]
            if request.explain and hits:
                passages = [retrieved.passages[number] for number in shown]
                hits = explain_hits(generation, request, encoded.vectors[position], encoded.selection_of(position), passages, hits)
            if not all(map(_is_finite, hits)):
                raise ValueError("rows hold NaN or Inf")
            results.append(SearchResult(hits, encoded.truncated[position], certain))
    return results


def _is_finite(hit: Hit) -> bool:
    """Whether the scores of a hit are numbers: JSON can hold no others."""
    numbers = [hit.score, hit.confidence]
    if why := hit.why:
        numbers += [why.learned, why.similarity, why.score_without, why.query_similarity, *(each.similarity for each in why.neighbors)]
    return all(number is None or math.isfinite(number) for number in numbers)


def _ranked(generation: Generation, requests: Sequence[SearchRequest], vectors: Floats) -> list[Retrieved]:
    """The best passages of each request; those with the same conditions are searched together."""
    ranked: dict[int, Retrieved] = {}
    for where in dict.fromkeys(request.where for request in requests):
        numbers = [number for number, request in enumerate(requests) if request.where == where]
        # One more than asked for: the confidence of a first hit depends on how far the second lies behind.
        most = 1 + max(requests[number].k for number in numbers)
        retrieved = generation.passages.top_k(vectors[numbers], [requests[number].query for number in numbers], most, where)
        ranked.update(zip(numbers, retrieved, strict=True))
    return [ranked[number] for number in range(len(requests))]


def _hits(generation: Generation, request: SearchRequest, retrieved: Retrieved) -> list[Hit]:
    confidences: Sequence[float | None] = [None] * len(retrieved.passages)
    if generation.calibration:
        confidences = generation.calibration.confidence(retrieved.scores, retrieved.coverage, retrieved.information)
    numbered = zip(range(1, request.k + 1), retrieved.passages, retrieved.scores, confidences, strict=False)
    return [_hit(generation, request.query, *values) for values in numbered]


def _hit(generation: Generation, query: str, rank: int, passage: StoredPassage, score: float, confidence: float | None) -> Hit:
    arrival, document, span = generation.arrival_of(passage.document), generation.document(passage.document), passage.span
    title = text = heading = ""
    page = None
    if document:
        start, end = span or (0, len(document.text))
        title, part, heading = document.title, document.text[start:end], heading_at(document.text, start) if span else ""
        page = page_at(document.metadata, start + (best_match(part, query) if PAGES in document.metadata else 0))
        begins = HEADING.match(part)  # it is shown above the snippet
        text = snippet((part[begins.end() :].strip() if begins else "") or part, query)
    return Hit(rank, passage.docid, score, confidence, title, text, span, heading, page, arrival.name, arrival.since)


def heading_at(text: str, position: int) -> str:
    """The heading that a place in a text stands under, or begins with.

    Examples
    --------
    >>> heading_at("# Tea\\nHot water.\\n# Rice\\nCold water.", 26)
    'Rice'
    """
    begins = HEADING.match(text, position)
    headings = [begins] if begins else list(HEADING.finditer(text, max(0, position - FAR), position))
    return (headings[-1]["marked"] or headings[-1]["underlined"]).strip() if headings else ""


def page_at(metadata: Mapping[str, Any], position: int) -> int | None:
    """The number of the page, from 1, on which a character of a document's text stands; None where the document has no pages.

    Examples
    --------
    >>> page_at({"pages": [0, 5]}, 6)
    2
    """
    starts = metadata.get(PAGES)
    if not isinstance(starts, list) or not starts or not all(isinstance(start, int) for start in starts):
        return None  # a field of that name may come from anywhere
    return max(1, sum(bool(start <= position) for start in starts))


def nearest_rows(generation: Generation, rows: list[int], k: int = NEIGHBORS) -> list[list[Neighbor]]:
    """The k most similar live documents of each row, the row itself excluded; most similar first."""

    def neighbor(passage: StoredPassage, similarity: float) -> Neighbor:
        document = generation.document(passage.document)
        corpus = generation.arrival_of(passage.document).name
        return Neighbor(passage.docid, document.title if document else "", similarity, corpus)

    return [[neighbor(*pair) for pair in pairs] for pairs in generation.passages.neighbors(rows, k)]


def similar_documents(generation: Generation, docid: str, k: int) -> list[Neighbor]:
    """The k live documents whose rows are most similar to a document's."""
    generation.get(docid)  # raises where there is no such document
    row = generation.live_row(docid)
    assert row is not None
    return nearest_rows(generation, [row], k)[0]


def explain_hits(
    generation: Generation,
    request: SearchRequest,
    vector: Floats,
    selection: Selection | None,
    passages: Sequence[StoredPassage],
    hits: list[Hit],
) -> list[Hit]:
    """The hits of one query with `why` filled in; `vector` and `selection` are the query's."""
    store, rows, query, where = generation.passages, [passage.row for passage in passages], request.query, request.where
    unprompted = generation.encoder.encode([query], prompted=False).vectors[0]  # (D,)
    both = np.stack([vector, unprompted])
    by_rows, ranks = (each.tolist() for each in store.ranks(both, None, [rows, rows], where))
    learned, scores = (each.tolist() for each in store.scores(both, None, [rows, rows]))
    by_words: list[int | None] = [None] * len(rows)
    if generation.manifest.statistics is not None:
        by_words = store.ranks(np.zeros_like(both[:1]), [query], [rows], where)[0].tolist()
    matched = store.matches(query, rows)
    prompt = int(selection.ids) if selection and selection.ids != NO_PROMPT else None  # type: ignore[arg-type]
    similarity = float(selection.similarity) if selection else None  # type: ignore[arg-type]
    topics = generation.manifest.metadata.get("topics")  # only strategies whose prompts stand for topics have them
    words = topics["words"] if topics else []
    topic = words[prompt] if prompt is not None and prompt < len(words) else []
    neighbors, stored = nearest_rows(generation, rows), _nearest_queries(generation, passages, vector)
    explained = []
    for position, hit in enumerate(hits):
        newer = [other.docid for other in hits[:position] if other.since > hit.since]
        why = Why(
            learned=learned[position],
            words=matched[position],
            rank_by_rows=by_rows[position],
            rank_by_words=by_words[position],
            prompt=prompt,
            similarity=similarity,
            topic=topic,
            rank_without=ranks[position],
            score_without=scores[position],
            query=stored[position][0],
            query_similarity=stored[position][1],
            newer=newer[:NEWER],
            newer_count=len(newer),
            neighbors=neighbors[position],
        )
        explained.append(hit._replace(why=why))
    return explained


def _nearest_queries(generation: Generation, passages: Sequence[StoredPassage], vector: Floats) -> list[tuple[str | None, float | None]]:
    """For each hit its stored training query most similar to the search query, where the index stores any."""
    stored = [
        [entry["text"] for entry in generation.stored_queries(generation.corpus_of(passage.document)[1]).get(passage.docid, [])]
        for passage in passages
    ]
    texts = [text for queries in stored for text in queries]
    cosines = iter((unit(generation.encoder.encode(texts).vectors) @ unit(vector)).tolist() if texts else [])
    return [max(((text, next(cosines)) for text in queries), key=lambda pair: pair[1], default=(None, None)) for queries in stored]


def evaluate_split(generation: Generation, corpus: Corpus, split: str, run: Path | None, run_k: int, *, record: bool) -> EvalResult:
    """Exact ranks of the relevant documents of a split's queries; `run` is a TREC run file to write, `record` stores the ranks."""
    queries = load_queries(corpus, split)
    docids = list(dict.fromkeys(docid for query in queries for docid in query.relevant))
    live = dict(zip(docids, generation.passages.contains(docids), strict=True))
    with generation.manifest.as_data_error(generation.store.folder):
        result = rank_queries(generation.ranker, queries, in_index=live.__getitem__)
    if not result.query_ranks:
        what = f"has no annotated {split} queries" if not queries else f"has no {split} query whose document is in the index"
        raise DataError(f"the corpus {corpus.name} {what}", path=generation.store.folder)
    if run is not None:
        if not run.parent.is_dir():
            raise DataError("is no folder to write a run file to", path=run.parent)
        texts = [query.text for query in result.queries]
        write_run(run, result.queries, generation.ranker.search(texts, k=run_k), tag="promptdsi")
    if record:
        ranks = [min(query.ranks) for query in result.query_ranks]
        write_record(generation.store, EvalRecord(generation.manifest.number, corpus.name, split, ranks))
    return result


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


def best_match(text: str, query: str, width: int = SNIPPET) -> int:
    """Where the part of a text begins that has most words of the query within `width` characters; 0 where there is none."""
    words = set(WORD.findall(query.lower())) - STOPWORDS
    matches = sorted(find_words(text[:SCANNED_CHARACTERS], words))[:SCANNED_MATCHES]
    return max(
        matches,
        key=lambda match: (len({word for start, word in matches if 0 <= start - match[0] < width}), -match[0]),
        default=(0, ""),
    )[0]


def _as_clause(heading: re.Match[str]) -> str:
    """A heading within a snippet, without its marks."""
    name = (heading["marked"] or heading["underlined"]).strip()
    return f"{name}:" if name[-1:].isalnum() else name


def snippet(text: str, query: str, width: int = SNIPPET) -> str:
    """The part of a text that contains most words of the query, truncated at word boundaries.

    Examples
    --------
    >>> snippet("Tea is brewed with water. Coffee is ground first, then brewed slowly.", "ground coffee", 30)
    '… Coffee is ground first, then …'
    >>> snippet("# House rules\\n\\nShoes stay at the door.", "shoes")
    'House rules: Shoes stay at the door.'
    """
    text = " ".join(HEADING.sub(_as_clause, text[:SCANNED_CHARACTERS]).split())
    if len(text) <= width:
        return text
    best = best_match(text, query, width)
    sentence = text.rfind(". ", 0, best + 1)
    first = sentence + 2 if sentence >= 0 else 0
    if best - first > width // 3:
        first = text.rfind(" ", 0, max(0, best - width // 6)) + 1
    last = len(text) if first + width >= len(text) else text.rfind(" ", first + 1, first + width + 1)
    last = first + width if last <= first else last
    return ("… " if first else "") + text[first:last].strip() + (" …" if last < len(text) else "")
