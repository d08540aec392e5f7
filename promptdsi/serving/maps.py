"""A map of what an index holds: documents on a plane, those with near rows near each other, and the topics they form.

Topics are those of the map's own documents, so every index can be looked at, whatever its prompts are.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.records import whole_text
from promptdsi.engine.selection import unit
from promptdsi.engine.threads import one_thread_each
from promptdsi.index.snapshot import Snapshot
from promptdsi.training.topics import top_words

MOST = 2000  # documents on a map; of more, an even sample is shown
LEAST = 12  # fewer documents have no topics, and stand in a circle
TOPICS = 16
NEAR, NEARBY = 5, 10


class Map(NamedTuple):
    """Points lie within −1 and 1; `kept` is the share of each document's five nearest by rows that are among its ten nearest here."""

    generation: int
    documents: int
    shown: int
    kept: float
    corpora: list[str]
    topics: list[dict[str, Any]]
    points: list[dict[str, Any]]


def draw_map(snapshot: Snapshot, most: int = MOST) -> Map:
    """Place documents on a plane. Equal generations give equal maps."""
    from threadpoolctl import threadpool_limits

    # Searches go on meanwhile; and threads that wait for each other take many times as long.
    with one_thread_each(), threadpool_limits(limits=1, user_api="openmp"):
        return _drawn(snapshot, most)


def _drawn(snapshot: Snapshot, most: int) -> Map:
    table = snapshot.table
    live = [row for row in range(len(table)) if row not in table.deleted]
    if len(live) > most:
        live = [live[place] for place in np.linspace(0, len(live) - 1, most).astype(int)]
    places, documents = [snapshot.place(row) for row in live], [snapshot.document(row) for row in live]
    units = unit_rows(snapshot, live)
    spots = plane(units)
    labels, topics = find_topics(units, [whole_text(document) if document else "" for document in documents])
    points = [
        {
            "docid": table.docids[row],
            "title": document.title if document else "",
            "x": round(float(x), 4),
            "y": round(float(y), 4),
            "corpus": place.number,
            "topic": label,
        }
        for row, document, place, (x, y), label in zip(live, documents, places, spots, labels, strict=True)
    ]
    names = [entry.name for entry in snapshot.manifest.corpora]
    return Map(snapshot.manifest.number, snapshot.manifest.documents, len(points), kept_near(units, spots), names, topics, points)


def unit_rows(snapshot: Snapshot, rows: list[int]) -> NDArray[np.float32]:
    """The directions of some rows: (n, D)."""
    return unit(snapshot.table.vectors(rows))


def plane(units: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit rows (n, D) on a plane by t-SNE: (n, 2) within ±1. Two principal components would show a few per cent of what there is."""
    count = len(units)
    if count < LEAST:
        turns = 2 * np.pi * np.arange(count) / max(1, count)
        return 0.6 * np.stack([np.cos(turns), np.sin(turns)], 1).astype(np.float32)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    reduced = PCA(min(50, *units.shape), svd_solver="full").fit_transform(units)
    reduced += 1e-6 * np.random.default_rng(0).standard_normal(reduced.shape)  # equal documents need not stand on one point
    spots = TSNE(2, perplexity=min(30.0, count / 4), init="pca", random_state=0, n_jobs=1).fit_transform(reduced)
    spots -= (spots.max(0) + spots.min(0)) / 2
    return np.asarray(spots / max(float(np.abs(spots).max()), 1e-12), dtype=np.float32)


def kept_near(units: NDArray[np.float32], spots: NDArray[np.float32]) -> float:
    """How far the map can be believed."""
    if len(units) <= NEARBY + 1:
        return 1.0
    from sklearn.neighbors import NearestNeighbors

    by_row = NearestNeighbors(n_neighbors=NEAR).fit(units).kneighbors(return_distance=False)
    by_map = NearestNeighbors(n_neighbors=NEARBY).fit(spots).kneighbors(return_distance=False)
    return round(float(np.mean([len(set(own) & set(near)) / NEAR for own, near in zip(by_row, by_map, strict=True)])), 3)


def find_topics(units: NDArray[np.float32], texts: list[str]) -> tuple[list[int | None], list[dict[str, Any]]]:
    """The topic of each document, largest first, with words and sizes; none where there are few documents or no text."""
    if len(units) < LEAST or not any(texts):
        return [None] * len(units), []
    from sklearn.cluster import KMeans

    number = max(2, min(TOPICS, round(math.sqrt(len(units) / 2))))
    raw = KMeans(number, n_init=4, random_state=0).fit_predict(units).tolist()
    place = {label: rank for rank, (label, _) in enumerate(sorted(Counter(raw).items(), key=lambda item: (-item[1], item[0])))}
    labels = [place[label] for label in raw]
    words, counts = top_words(texts, np.array(labels), len(place)), Counter(labels)
    return list(labels), [{"words": list(own)[:6], "count": counts[topic]} for topic, own in enumerate(words)]
