"""Texts to vectors: several batches at once give what one after the other gives, and int8 products come close."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from promptdsi.training import encoding
from promptdsi.training.encoding import EncodingCache, encode_batches, encode_unprompted, query_vectors, use_cache

WORDS = ["tea", "water", "owl", "night", "boat", "lock", "hot", "how", "why", "who"]
TOKENIZER = tiny.tokenizer(WORDS)
CPU = torch.device("cpu")


def texts(count: int) -> list[Any]:
    draw = np.random.default_rng(0)
    return TOKENIZER.encode([" ".join(draw.choice(WORDS, draw.integers(1, 14))) for _ in range(count)], max_tokens=16).ids


def test_batches_at_once_give_what_batches_in_turn_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TOKENS_PER_BATCH", 40)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    model, ids, threads = tiny.model("none"), texts(100), set()

    def encode(tokens: Any) -> torch.Tensor:
        threads.add(threading.current_thread().name)
        assert not torch.is_grad_enabled()
        return model.unprompted(tokens)

    with torch.no_grad():
        at_once = encode_batches(encode, ids, TOKENIZER, CPU)
        alone = torch.cat([model.unprompted(TOKENIZER.pad([text])) for text in ids])
    assert all(name.startswith("encoding") for name in threads)
    torch.testing.assert_close(at_once, alone, atol=1e-6, rtol=1e-5)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoding")]


def test_with_gradients_batches_go_one_after_the_other() -> None:
    model, seen = tiny.model("none"), []

    def encode(tokens: Any) -> torch.Tensor:
        seen.append(threading.current_thread())
        return model.unprompted(tokens)

    assert encode_batches(encode, texts(300), TOKENIZER, CPU).requires_grad
    assert set(seen) == {threading.main_thread()} and len(seen) > 1


def test_an_error_in_a_batch_is_raised_and_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TOKENS_PER_BATCH", 40)

    def fail(tokens: Any) -> torch.Tensor:
        raise ValueError("broken")

    with torch.no_grad(), pytest.raises(ValueError, match="broken"):
        encode_batches(fail, texts(100), TOKENIZER, CPU)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encoding")]


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_int8_products_come_close_and_a_search_does_not_use_them(pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny.model("none", pooling=pooling, normalize=True), texts(60)
    model.int8 = True
    exact = query_vectors(model, ids, TOKENIZER)
    few = encode_unprompted(model, ids, TOKENIZER, int8=True, what="encoding")
    assert torch.equal(few, exact)  # it would not pay
    monkeypatch.setattr(encoding, "LEAST_INT8_TOKENS", 1)
    with use_cache(EncodingCache()):
        coarse = encode_unprompted(model, ids, TOKENIZER, int8=True, what="encoding")
        assert torch.equal(query_vectors(model, ids, TOKENIZER), exact)  # a cache tells them apart
    assert not torch.equal(coarse, exact)
    assert float((coarse * exact).sum(1).min()) > 0.97
