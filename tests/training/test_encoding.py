"""Texts to vectors: several batches at once give what one after the other gives, and int8 products come close."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from promptdsi.training import encoding
from promptdsi.training.encoding import (
    EncodingCache,
    document_vectors,
    encode_batches,
    encode_unprompted,
    query_vectors,
    selection_vectors,
    use_cache,
)

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


def test_documents_are_cached_as_wholes_and_prompted_queries_never() -> None:
    ids = texts(9)
    plain, prompted = tiny.model("none"), tiny.begun("s++")
    windows = [[ids[0], ids[1]], [ids[2]]]
    cache = EncodingCache()
    with torch.no_grad(), use_cache(cache):
        first, again = (document_vectors(plain, windows, TOKENIZER) for _ in range(2))
        other = document_vectors(plain, [[ids[0]], [ids[1], ids[2]]], TOKENIZER)  # the same windows of other documents
        assert [len(vectors) for vectors, _ in cache.results.values()] == [2, 2] and cache.seconds_saved > 0
        query_vectors(prompted, ids, TOKENIZER)
        selection_vectors(prompted, ids, TOKENIZER)
    assert torch.equal(first, again) and not torch.equal(first, other) and len(cache.results) == 2
    assert torch.equal(first, document_vectors(plain, windows, TOKENIZER))


MIXED_PRECISION = """
import torch, tiny
from promptdsi.training import encoding
words = [f"w{number}" for number in range(50)]
tokenizer, model = tiny.tokenizer(words), tiny.begun("topic")
ids = tokenizer.encode([" ".join(words[start::7]) for start in range(40)], max_tokens=16).ids
exact = encoding.query_vectors(model, ids, tokenizer), encoding.selection_vectors(model, ids, tokenizer)
encoding.autocast = lambda device: torch.autocast(device.type, dtype=torch.bfloat16)  # as on an accelerator
mixed = encoding.query_vectors(model, ids, tokenizer), encoding.selection_vectors(model, ids, tokenizer)
assert mixed[0].dtype == torch.float32 and not torch.equal(mixed[0], exact[0])
torch.testing.assert_close(mixed[0], exact[0], atol=0.05, rtol=0.05)
assert torch.equal(mixed[1], exact[1])  # prompts are chosen in full precision
"""


def test_encoding_on_an_accelerator_computes_in_bfloat16_and_selects_in_full_precision() -> None:
    """In a child process, without AMX: virtual machines may announce it and kill whoever uses it (SIGILL)."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": os.pathsep.join(sys.path)}
    outcome = subprocess.run([sys.executable, "-c", MIXED_PRECISION], env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, f"exit code {outcome.returncode}\n{outcome.stderr}"
