"""A map of an index: documents on a plane, those with similar rows close to each other, and the topics they form.

The topics are clusters of the documents shown, so there are some whatever the prompts of the index are.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.corpus import whole_text
from promptdsi.engine.quantized import single_threaded_blas
from promptdsi.index.index import Index
from promptdsi.training.topics import top_words

MAX_POINTS = 2000  # of more documents an even sample is shown
MIN_POINTS = 12  # fewer documents have no topics, and stand in a circle
MAX_TOPICS = 16
NEAREST_ROWS, NEAREST_POINTS = 5, 10
Floats = NDArray[np.float32]


def draw_map(index: Index) -> dict[str, Any]:
    """Place documents on a plane: the fields of a `MapResponse`. Equal generations give equal maps."""
    from threadpoolctl import threadpool_limits

    sample, info = index.sample(MAX_POINTS), index.info()
    vectors = sample.vectors / np.maximum(np.linalg.norm(sample.vectors, axis=1, keepdims=True), 1e-12)  # (n, D)
    # Searches go on meanwhile, and threads that wait for each other would take many times as long.
    with single_threaded_blas(), threadpool_limits(limits=1, user_api="openmp"):
        coordinates = plane(vectors)
        labels, topics = find_topics(vectors, [whole_text(document) if document else "" for document in sample.documents])
        recall = neighbor_recall(vectors, coordinates)
    points = [
        {"docid": docid, "title": document.title if document else "", "x": x, "y": y, "corpus": corpus, "topic": label}
        for docid, document, corpus, (x, y), label in zip(
            sample.docids, sample.documents, sample.corpora, coordinates.astype(float).round(4).tolist(), labels, strict=True
        )
    ]
    return {
        "generation": info.generation,
        "documents": info.documents,
        "shown": len(points),
        "neighbor_recall": recall,
        "corpora": [corpus.corpus for corpus in info.corpora],
        "topics": topics,
        "points": points,
    }


def plane(vectors: Floats) -> Floats:
    """Unit vectors (n, D) on a plane by t-SNE: (n, 2) within ±1. Two principal components would keep a few per cent of the variance."""
    count = len(vectors)
    if count < MIN_POINTS:
        angles = 2 * np.pi * np.arange(count) / max(1, count)
        return 0.6 * np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    reduced = PCA(min(50, *vectors.shape), svd_solver="full").fit_transform(vectors)
    reduced += 1e-6 * np.random.default_rng(0).standard_normal(reduced.shape)  # so that equal documents do not share one point
    points = TSNE(2, perplexity=min(30.0, count / 4), init="pca", random_state=0, n_jobs=1).fit_transform(reduced)
    points -= (points.max(0) + points.min(0)) / 2
    return np.asarray(points / max(float(np.abs(points).max()), 1e-12), dtype=np.float32)


def neighbor_recall(vectors: Floats, points: Floats) -> float:
    """How far the map can be trusted: the share of each document's nearest rows that are among its nearest points."""
    if len(vectors) <= NEAREST_POINTS + 1:
        return 1.0
    from sklearn.neighbors import NearestNeighbors

    by_row = NearestNeighbors(n_neighbors=NEAREST_ROWS).fit(vectors).kneighbors(return_distance=False)
    by_point = NearestNeighbors(n_neighbors=NEAREST_POINTS).fit(points).kneighbors(return_distance=False)
    shares = [len(set(rows) & set(nearby)) / NEAREST_ROWS for rows, nearby in zip(by_row, by_point, strict=True)]
    return round(float(np.mean(shares)), 3)


def find_topics(vectors: Floats, texts: list[str]) -> tuple[list[int | None], list[dict[str, Any]]]:
    """The topic of each document, and the topics with words and sizes, largest first; none for few documents or without text."""
    if len(vectors) < MIN_POINTS or not any(texts):
        return [None] * len(vectors), []
    from sklearn.cluster import KMeans

    clusters = max(2, min(MAX_TOPICS, round(math.sqrt(len(vectors) / 2))))
    raw = KMeans(clusters, n_init=4, random_state=0).fit_predict(vectors).tolist()
    by_size = sorted(Counter(raw).items(), key=lambda item: (-item[1], item[0]))
    renumbered = {label: number for number, (label, _) in enumerate(by_size)}
    labels = [renumbered[label] for label in raw]
    words = top_words(texts, np.array(labels), len(renumbered))
    return list(labels), [{"words": list(terms)[:6], "count": size} for terms, (_, size) in zip(words, by_size, strict=True)]
