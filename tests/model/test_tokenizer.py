"""Token ids of many texts: stored in one array, tokenized in pieces, and the same as text by text."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import tiny

from promptdsi.model import tokenizer as module
from promptdsi.model.tokenizer import TokenIds, lengths_of

WORDS = [f"w{number}" for number in range(200)]
TOKENIZER = tiny.tokenizer(WORDS)


def texts(count: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, length)) for length in draw.integers(1, 20, count)]


def test_pieces_of_any_size_give_the_ids_of_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = texts(50)
    alone = [TOKENIZER.encode([query], max_tokens=16) for query in queries]
    windows, longer = TOKENIZER.windows(queries, size=8, most=2)
    starts = TOKENIZER.token_starts(queries)
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(module, "CHARACTERS_AT_ONCE", 60)  # less than some single text
    ids, truncated = TOKENIZER.encode(queries, max_tokens=16)
    assert isinstance(ids, TokenIds) and len(ids) == 50
    assert all(np.array_equal(query, single.ids[0]) for query, single in zip(ids, alone, strict=True))
    assert truncated == [single.truncated[0] for single in alone] and 0 < sum(truncated) < 50
    assert lengths_of(ids).tolist() == lengths_of(list(ids)).tolist() == [len(query) for query in ids]
    assert np.array_equal(ids[-1], ids[49]) and [len(query) for query in ids[2:5]] == [len(ids[number]) for number in (2, 3, 4)]
    assert np.shares_memory(ids[3], ids.flat)
    again, longer_again = TOKENIZER.windows(queries, size=8, most=2)
    assert longer == longer_again > 0
    assert all(np.array_equal(a, b) for text, other in zip(windows, again, strict=True) for a, b in zip(text, other, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(starts, TOKENIZER.token_starts(queries), strict=True))
    assert len(TOKENIZER.encode([], max_tokens=16).ids) == 0 and TOKENIZER.windows([], size=8, most=2) == ([], 0)


def test_ids_of_many_queries_take_few_bytes() -> None:
    """Of some 12 tokens of four bytes each; as arrays of their own they took 170, and 560 while they were made."""
    queries = texts(20_000)
    tracemalloc.start()
    try:
        ids = TOKENIZER.encode(queries, max_tokens=32).ids
        stored, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = lengths_of(ids).sum() / len(ids)
    assert stored / len(ids) < 4 * tokens + 20 and most / len(ids) < 4 * (4 * tokens + 20)
