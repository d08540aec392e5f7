"""Topics of D0, from its documents' vectors: engine `kmeans` (default, fast) or `bertopic` (the paper's, an extra).

Both are deterministic with a seed and give one label per document, −1 for outliers; words come from c-TF-IDF and serve
people, not the method.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.corpus.generators.stopwords import STOPWORDS
from promptdsi.errors import PromptDSIError, UsageError

WORDS = 10
# A word of fewer documents could reveal one: an index stores these words, and must be able to forget a document.
LEAST_DOCUMENTS = 3
# A topic of one document would keep the mean of that document's queries as its key; such a document is an outlier instead.
LEAST_IN_TOPIC = 2
WORD = re.compile(r"[^\W\d_]{2,}")


class Topics(NamedTuple):
    """`labels` (n,) numbers each document's topic, largest topic first, −1 = outlier; `words` are each topic's top terms."""

    labels: NDArray[np.int64]
    words: list[list[str]]
    weights: Sequence[Sequence[float]] = ()  # of the words, by c-TF-IDF; not stored in an index

    @property
    def counts(self) -> list[int]:
        return [int((self.labels == number).sum()) for number in range(len(self.words))]


def mine_topics(vectors: NDArray[np.float32], texts: Sequence[str], *, engine: str = "kmeans", seed: int = 0) -> Topics:
    """Cluster document vectors (n, D) and name the clusters."""
    check_engine(engine)
    if len(vectors) < 8:
        raise PromptDSIError(f"{len(vectors)} documents are too few to mine topics from; use another prompt strategy")
    raw = ENGINES[engine](vectors, seed)
    sizes = {label: size for label, size in Counter(int(label) for label in raw if label >= 0).items() if size >= LEAST_IN_TOPIC}
    if len(sizes) < 2:
        raise PromptDSIError(f"topic engine {engine} found {len(sizes)} topics in {len(vectors)} documents, at least two are needed")
    number_of = {label: number for number, (label, _) in enumerate(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))}
    labels = np.array([number_of.get(int(label), -1) for label in raw], dtype=np.int64)
    terms = top_words(texts, labels, len(number_of))
    return Topics(labels, [list(scores) for scores in terms], [list(scores.values()) for scores in terms])


def check_engine(engine: str) -> None:
    """Refuse an engine that does not exist or is not installed."""
    if engine not in ENGINES:
        raise UsageError(f"no topic engine {engine!r}; there are {', '.join(ENGINES)}")
    for library in ("bertopic", "hdbscan", "umap") if engine == "bertopic" else ():
        if find_spec(library) is None:
            raise PromptDSIError(f"topic engine bertopic needs {library}: pip install 'promptdsi[topics]'")


def _kmeans(vectors: NDArray[np.float32], seed: int) -> NDArray[Any]:
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    clusters = max(4, round(math.sqrt(len(vectors)) / 4))
    width = min(50, *vectors.shape)
    reduced = PCA(width, svd_solver="full" if len(vectors) < 5000 else "randomized", random_state=seed).fit_transform(vectors)
    model = MiniBatchKMeans(clusters, random_state=seed, n_init=5, batch_size=2048)
    labels = np.asarray(model.fit_predict(reduced))
    if (np.bincount(labels) >= LEAST_IN_TOPIC).sum() < 2:  # a handful of documents, most of them alone: two halves along the main direction
        labels = np.asarray(reduced[:, 0] > np.median(reduced[:, 0]), np.int64)
    return labels


def _bertopic(vectors: NDArray[np.float32], seed: int) -> NDArray[Any]:
    """UMAP and HDBSCAN with BERTopic's settings, as the paper uses them: 15 neighbors, 5 components, cosine."""
    from bertopic import BERTopic
    from hdbscan import HDBSCAN
    from umap import UMAP

    model = BERTopic(
        umap_model=UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=seed),
        hdbscan_model=HDBSCAN(
            min_cluster_size=min_cluster_size(len(vectors)), metric="euclidean", cluster_selection_method="eom", prediction_data=True
        ),
        calculate_probabilities=False,
    )
    # The words BERTopic extracts are not used, so it gets no text: ours come from the same formula below.
    labels, _ = model.fit_transform([f"document{number}" for number in range(len(vectors))], vectors)
    return np.asarray(labels)


def min_cluster_size(documents: int) -> int:
    """The paper's 150 on NQ320k's D0 of 98,743 documents and on any larger one; in proportion on a smaller one.

    Examples
    --------
    >>> [min_cluster_size(documents) for documents in (2_100, 49_372, 98_743, 289_424)]
    [10, 75, 150, 150]
    """
    return min(150, max(10, round(150 * documents / 98_743)))


ENGINES = {"kmeans": _kmeans, "bertopic": _bertopic}


def top_words(texts: Sequence[str], labels: NDArray[np.int64], topics: int) -> list[dict[str, float]]:
    """Each topic's strongest words by c-TF-IDF: term frequency in the topic × log(1 + A / f), A the mean number of words of a
    topic and f the term's total."""
    counts: list[Counter[str]] = [Counter() for _ in range(topics)]
    frequencies: list[Counter[str]] = [Counter() for _ in range(topics)]  # in how many documents
    for text, label in zip(texts, labels, strict=True):
        if label >= 0:
            words = [word for word in WORD.findall(text.lower()) if word not in STOPWORDS]
            counts[label].update(words)
            frequencies[label].update(set(words))
    total: Counter[str] = sum(counts, Counter())
    mean = int(sum(total.values()) / max(1, topics))
    strongest = []
    for terms, documents in zip(counts, frequencies, strict=True):
        size = max(1, sum(terms.values()))
        common = {word: count for word, count in terms.items() if documents[word] >= LEAST_DOCUMENTS}
        scores = {word: count / size * math.log(1 + mean / total[word]) for word, count in common.items()}
        strongest.append({word: scores[word] for word in sorted(scores, key=lambda word: (-scores[word], word))[:WORDS]})
    return strongest
