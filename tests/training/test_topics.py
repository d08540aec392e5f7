"""Topics mined from document vectors: deterministic, sorted by size, named by their words, never of one document."""

from __future__ import annotations

import numpy as np
import pytest

from promptdsi.errors import PromptDSIError, UsageError
from promptdsi.training.topics import mine_topics


def test_topics_are_deterministic_sorted_by_size_and_named() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16))
    kinds = np.repeat(np.arange(4), [40, 30, 20, 10])
    vectors = (centres[kinds] + 0.05 * rng.normal(size=(100, 16))).astype(np.float32)
    texts = [["star planet orbit", "bread oven flour", "violin string bow", "goal match referee"][kind] + " of the" for kind in kinds]
    topics = mine_topics(vectors, texts, seed=1)
    assert topics.counts == [40, 30, 20, 10]
    assert [sorted(words) for words in topics.words] == [
        ["orbit", "planet", "star"],
        ["bread", "flour", "oven"],
        ["bow", "string", "violin"],
        ["goal", "match", "referee"],
    ]
    again = mine_topics(vectors, texts, seed=1)
    assert np.array_equal(again.labels, topics.labels)
    with pytest.raises(UsageError, match="no topic engine 'x'"):
        mine_topics(vectors, texts, engine="x")
    with pytest.raises(PromptDSIError, match="too few to mine topics"):
        mine_topics(vectors[:3], texts[:3])


def test_no_topic_is_made_of_one_document() -> None:
    """Its key would be the mean of that document's queries, which a rehearsal-free method does not keep."""
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(4, 16)
    kinds = np.repeat(np.arange(4), [20, 20, 20, 1])
    vectors = (centres[kinds] + 0.05 * rng.normal(size=(61, 16))).astype(np.float32)
    topics = mine_topics(vectors, ["word"] * 61)
    assert len(topics.counts) == 3 and min(topics.counts) > 1 and (topics.labels == -1).sum() == 1
    few = np.concatenate([np.zeros((11, 16)), 10 * np.eye(3, 16)]).astype(np.float32) + 0.01 * rng.normal(size=(14, 16)).astype(np.float32)
    assert mine_topics(few, ["word"] * 14).counts == [7, 7]  # eleven alike and three alone: halves, not an error
