"""Explanations: why a document has its rank, and which documents have the most similar rows."""

from __future__ import annotations

from promptdsi.index.results import Hit, Neighbor, Why
from promptdsi.index.snapshot import Snapshot
from promptdsi.model.arrays import Floats, unit
from promptdsi.model.config import NO_PROMPT
from promptdsi.model.prompts.strategy import Selection

NEIGHBORS = 5
NEWER = 5  # newer documents that are listed; all are counted


def nearest_rows(snapshot: Snapshot, rows: list[int], k: int = NEIGHBORS) -> list[list[Neighbor]]:
    """The k most similar live documents of each row, the row itself excluded; most similar first."""
    return [[_neighbor(snapshot, row, similarity) for row, similarity in pairs] for pairs in snapshot.table.neighbors(rows, k)]


def _neighbor(snapshot: Snapshot, row: int, similarity: float) -> Neighbor:
    document = snapshot.document(row)
    return Neighbor(snapshot.table.docids[row], document.title if document else "", similarity, snapshot.place(row).entry.name)


def explain_hits(
    snapshot: Snapshot, query: str, vector: Floats, selection: Selection | None, rows: list[int], hits: list[Hit]
) -> list[Hit]:
    """The hits of one query with `why` filled in; `vector` and `selection` are the query's, `rows` are the rows of the hits."""
    prompt = int(selection.ids) if selection and selection.ids != NO_PROMPT else None  # type: ignore[arg-type]
    similarity = float(selection.similarity) if selection else None  # type: ignore[arg-type]
    topics = snapshot.manifest.metadata.get("topics")  # only strategies whose prompts stand for topics have them
    words = topics["words"] if topics else []
    topic = words[prompt] if prompt is not None and prompt < len(words) else []
    unprompted = snapshot.encoder.encode([query], prompted=False).vectors[0]  # (D,)
    ranks = snapshot.table.ranks(unprompted, rows).tolist()
    scores = snapshot.table.scores(unprompted, rows).tolist()
    neighbors, stored = nearest_rows(snapshot, rows), _nearest_queries(snapshot, rows, hits, vector)
    explained = []
    for position, hit in enumerate(hits):
        newer = [other.docid for other in hits[:position] if other.since > hit.since]
        why = Why(
            prompt, similarity, topic, ranks[position], scores[position], *stored[position], newer[:NEWER], len(newer), neighbors[position]
        )
        explained.append(hit._replace(why=why))
    return explained


def _nearest_queries(snapshot: Snapshot, rows: list[int], hits: list[Hit], vector: Floats) -> list[tuple[str | None, float | None]]:
    """For each hit its stored training query most similar to the search query, where the index stores any."""
    stored = [
        [entry["text"] for entry in snapshot.kept_queries(snapshot.place(row).number).get(hit.docid, [])]
        for row, hit in zip(rows, hits, strict=True)
    ]
    texts = [text for queries in stored for text in queries]
    cosines = iter((unit(snapshot.encoder.encode(texts).vectors) @ unit(vector)).tolist() if texts else [])
    return [max(((text, next(cosines)) for text in queries), key=lambda pair: pair[1], default=(None, None)) for queries in stored]
