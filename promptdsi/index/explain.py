"""Explanations: why a document has its rank, and which documents have the most similar rows."""

from __future__ import annotations

from promptdsi.index.generation import Generation
from promptdsi.index.results import Hit, Neighbor, Why
from promptdsi.model.config import NO_PROMPT
from promptdsi.model.path import Floats, Selection, unit

NEIGHBORS = 5
NEWER = 5  # newer documents that are listed; all are counted


def nearest_rows(generation: Generation, rows: list[int], k: int = NEIGHBORS) -> list[list[Neighbor]]:
    """The k most similar live documents of each row, the row itself excluded; most similar first."""
    return [[_neighbor(generation, row, similarity) for row, similarity in pairs] for pairs in generation.table.neighbors(rows, k)]


def _neighbor(generation: Generation, row: int, similarity: float) -> Neighbor:
    document = generation.document(row)
    return Neighbor(generation.table.docids[row], document.title if document else "", similarity, generation.origin(row).entry.name)


def explain_hits(
    generation: Generation, query: str, vector: Floats, selection: Selection | None, rows: list[int], hits: list[Hit]
) -> list[Hit]:
    """The hits of one query with `why` filled in; `vector` and `selection` are the query's, `rows` are the rows of the hits."""
    prompt = int(selection.ids) if selection and selection.ids != NO_PROMPT else None  # type: ignore[arg-type]
    similarity = float(selection.similarity) if selection else None  # type: ignore[arg-type]
    topics = generation.manifest.metadata.get("topics")  # only strategies whose prompts stand for topics have them
    words = topics["words"] if topics else []
    topic = words[prompt] if prompt is not None and prompt < len(words) else []
    unprompted = generation.encoder.encode([query], prompted=False).vectors[0]  # (D,)
    ranks = generation.table.ranks(unprompted, rows).tolist()
    scores = generation.table.scores(unprompted, rows).tolist()
    neighbors, stored = nearest_rows(generation, rows), _nearest_queries(generation, rows, hits, vector)
    explained = []
    for position, hit in enumerate(hits):
        newer = [other.docid for other in hits[:position] if other.since > hit.since]
        why = Why(
            prompt, similarity, topic, ranks[position], scores[position], *stored[position], newer[:NEWER], len(newer), neighbors[position]
        )
        explained.append(hit._replace(why=why))
    return explained


def _nearest_queries(generation: Generation, rows: list[int], hits: list[Hit], vector: Floats) -> list[tuple[str | None, float | None]]:
    """For each hit its stored training query most similar to the search query, where the index stores any."""
    stored = [
        [entry["text"] for entry in generation.stored_queries(generation.origin(row).corpus).get(hit.docid, [])]
        for row, hit in zip(rows, hits, strict=True)
    ]
    texts = [text for queries in stored for text in queries]
    cosines = iter((unit(generation.encoder.encode(texts).vectors) @ unit(vector)).tolist() if texts else [])
    return [max(((text, next(cosines)) for text in queries), key=lambda pair: pair[1], default=(None, None)) for queries in stored]
