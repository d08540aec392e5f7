"""The query engine's encoder gives what the model gives, for every family, strategy and option."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from all_strategies import ALL

from promptdsi.engine.query_encoder import EncoderSessions, OnnxEncoder, TorchEncoder
from promptdsi.model.config import PROMPT_LAYERS
from promptdsi.model.dsi import DSI
from promptdsi.model.prompts import make_strategy, strategies
from promptdsi.model.prompts.strategy import ArrayPool
from promptdsi.model.tokenizer import Ids, Tokenized

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"family": "roberta", "position_offset": 2, "pad_id": 1, "activation": "relu"},
    "mpnet": {"family": "mpnet", "position_offset": 2, "pad_id": 1, "relative_buckets": 8, "activation": "gelu_new"},
}
QUERIES = ["5 6 7 8 9 10 11", "12 13", "14", "15 16 17 18", "19 20 21 22 23 24 25 26 27 28"]


class NumberTokenizer:
    """A tokenizer for queries that are written as token ids."""

    def encode(self, texts: list[str], *, max_tokens: int) -> Tokenized:
        ids: list[Ids] = [np.array([int(word) for word in text.split()], np.int32) for text in texts]
        return Tokenized([query[:max_tokens] for query in ids], [len(query) > max_tokens for query in ids])


def engine_of(model: DSI, *, int8: bool = False) -> OnnxEncoder:
    """The engine for a model, from what an index stores of it."""
    weights = {name: tensor.numpy() for name, tensor in model.encoder.state_dict().items()}
    strategy = make_strategy(model.strategy.name, **model.strategy.get_params())
    strategy.pool = ArrayPool({name: tensor.numpy() for name, tensor in model.strategy.state().items()}, strategy.blocks)
    layers = strategy.prompt_layers if strategy.prompts else ()
    path: dict[str, Any] = {"pooling": model.pooling, "prefix_space": model.prefix_space}
    sessions = EncoderSessions(model.encoder.config, weights, layers, **path, threads=1, int8=int8)
    tokenizer: Any = NumberTokenizer()
    return OnnxEncoder(sessions, tokenizer, strategy, max_tokens=16, normalize=model.normalize, selection=model.selection, **path)


@torch.no_grad()
def expected(model: DSI, queries: list[str], *, prompted: bool = True) -> Any:
    """Each query alone through the model."""
    vectors = []
    for query in queries:
        tokens = tiny.Tokens(torch.tensor([[int(word) for word in query.split()]]))
        vectors.append((model(tokens).vectors if prompted else model.unprompted(tokens))[0])
    return torch.stack(vectors).numpy()


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", ALL)
def test_vectors_are_the_models(strategy: str, family: str, pooling: str) -> None:
    model = tiny.begun(strategy, encoder_changes=FAMILIES[family], pooling=pooling, normalize=pooling == "mean")
    engine = engine_of(model)
    for prompted in (True, False):
        np.testing.assert_allclose(
            engine.encode(QUERIES, prompted=prompted).vectors, expected(model, QUERIES, prompted=prompted), atol=2e-6
        )


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ({"prompt_layers": (1,)}, {}),
        ({"prompt_layers": (3,)}, {"pooling": "first"}),
        ({"prompt_layers": (2, 3)}, {}),
        ({"prompt_layers": (1, 3)}, {"prefix_space": "pre"}),
        ({"center": True}, {"selection": "two-pass"}),
        ({"null_prompt": True, "center": True}, {}),
    ],
    ids=["first layer", "last layer", "two layers", "before the projections", "two passes", "null prompt"],
)
@pytest.mark.parametrize("strategy", ["s++", "coda"])
def test_vectors_are_the_models_with_every_option(strategy: str, options: dict[str, Any], keywords: dict[str, Any]) -> None:
    model = tiny.begun(strategy, options=options, **keywords)
    np.testing.assert_allclose(engine_of(model).encode(QUERIES).vectors, expected(model, QUERIES), atol=2e-6)


@pytest.mark.parametrize("keywords", [{}, {"selection": "two-pass"}, {"prefix_space": "pre"}], ids=["one pass", "two passes", "before"])
@pytest.mark.parametrize("strategy", ["l2p", "topic"])
def test_vectors_are_the_models_with_several_prompts(strategy: str, keywords: dict[str, Any]) -> None:
    model = tiny.begun(strategy, options={"top_k": 2, "prompt_layers": (1, 3)}, **keywords)
    np.testing.assert_allclose(engine_of(model).encode(QUERIES).vectors, expected(model, QUERIES), atol=2e-6)


def test_the_choice_is_the_models() -> None:
    model = tiny.begun("s++", options={"null_prompt": True})
    engine, tokens = engine_of(model), tiny.Tokens(torch.tensor([[5, 6, 7]]))
    chosen = engine.encode(["5 6 7"]).selection
    with torch.no_grad():
        selection = model(tokens).selection
    assert chosen is not None and chosen.ids is not None and chosen.similarity is not None
    assert selection.ids is not None and selection.similarity is not None
    assert chosen.ids[0] == int(selection.ids[0])
    assert chosen.similarity[0] == pytest.approx(float(selection.similarity[0]), abs=1e-6)


def test_every_strategy_has_the_default_prompt_layers() -> None:
    assert all(kind().prompt_layers == PROMPT_LAYERS for kind in strategies().values())


def test_many_queries_are_encoded_in_batches_and_come_back_in_order() -> None:
    model = tiny.begun("l2p")
    engine = engine_of(model)
    queries = [" ".join(str(5 + (number * place) % 50) for place in range(1, 2 + number % 14)) for number in range(400)]
    alone = np.concatenate([engine.encode([query]).vectors for query in queries[:50]])
    np.testing.assert_allclose(engine.encode(queries).vectors[:50], alone, atol=2e-6)
    assert engine.encode([]).vectors.shape == (0, tiny.WIDTH)


def test_int8_is_near_and_not_the_same() -> None:
    model = tiny.model("none")
    exact, near = engine_of(model).encode(QUERIES).vectors, engine_of(model, int8=True).encode(QUERIES).vectors
    cosines = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosines.min() > 0.97
    assert np.abs(exact - near).max() > 1e-6


@pytest.mark.parametrize("strategy", ALL)
def test_both_encoders_return_the_same_record(strategy: str) -> None:
    model = tiny.begun(strategy)
    engine = engine_of(model)
    tokenizer: Any = NumberTokenizer()
    tokenizer.pad = tiny.tokenizer([]).pad
    both = [encoder.encode([*QUERIES, " ".join(["7"] * 20)]) for encoder in (engine, TorchEncoder(model, tokenizer, max_tokens=16))]
    np.testing.assert_allclose(both[0].vectors, both[1].vectors, atol=2e-6)
    assert both[0].truncated == both[1].truncated == [False] * len(QUERIES) + [True]
    if both[0].selection is None or both[1].selection is None:
        assert strategy == "none" and both[0].selection is both[1].selection
    else:
        np.testing.assert_array_equal(both[0].selection.ids, both[1].selection.ids)
        np.testing.assert_allclose(both[0].selection.similarity, both[1].selection.similarity, atol=1e-6)


def test_importing_strategies_imports_no_torch() -> None:
    script = "import sys; from promptdsi.model.prompts import strategies; strategies(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "False"
