"""The query engine's encoder gives what the model gives, for every family, strategy and option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from promptdsi.engine.encoder import Layers, QueryEncoder
from promptdsi.engine.selection import KNOWN, Pool
from promptdsi.model.config import PROMPT_LAYERS
from promptdsi.model.dsi import DSI
from promptdsi.model.prompts import strategies
from promptdsi.model.tokens import Ids, Tokenised

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"family": "roberta", "position_offset": 2, "pad_id": 1, "activation": "relu"},
    "mpnet": {"family": "mpnet", "position_offset": 2, "pad_id": 1, "relative_buckets": 8, "activation": "gelu_new"},
}
QUERIES = ["5 6 7 8 9 10 11", "12 13", "14", "15 16 17 18", "19 20 21 22 23 24 25 26 27 28"]


class Written:
    """A tokeniser for queries that are written as numbers of tokens."""

    def encode(self, texts: list[str], *, max_tokens: int) -> Tokenised:
        ids: list[Ids] = [np.array([int(word) for word in text.split()], np.int32) for text in texts]
        return Tokenised([one[:max_tokens] for one in ids], sum(len(one) > max_tokens for one in ids))


def engine_of(model: DSI, **keywords: Any) -> QueryEncoder:
    """The engine for a model, from what an index would hold of it."""
    weights = {name: tensor.numpy() for name, tensor in model.encoder.state_dict().items()}
    prompts = {name: tensor.numpy() for name, tensor in model.strategy.state().items() if tensor is not None}
    pool = Pool(prompts, model.strategy.prompt_layers, center=model.strategy.center)
    first = model.pooling == "first"
    layers = Layers(model.encoder.config, weights, pool.layers if len(pool) else (), firsts_only=first, threads=1, **keywords)
    return QueryEncoder(
        layers,
        Written(),  # type: ignore[arg-type]
        pool,
        pooling=model.pooling,
        normalise=model.normalise,
        max_tokens=16,
        two_pass=model.selection == "two-pass",
        project=model.prefix_space == "pre",
    )


@torch.no_grad()
def expected(model: DSI, queries: list[str], *, prompted: bool = True) -> Any:
    """Each query alone through the model."""
    found = []
    for query in queries:
        tokens = tiny.Tokens(torch.tensor([[int(word) for word in query.split()]]))
        found.append((model(tokens).vectors if prompted else model.unprompted(tokens))[0])
    return torch.stack(found).numpy()


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", KNOWN)
def test_vectors_are_the_models(strategy: str, family: str, pooling: str) -> None:
    model = tiny.begun(strategy, encoder_changes=FAMILIES[family], pooling=pooling, normalise=pooling == "mean")
    engine = engine_of(model)
    for prompted in (True, False):
        np.testing.assert_allclose(engine.encode(QUERIES, prompted=prompted), expected(model, QUERIES, prompted=prompted), atol=2e-6)


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
    np.testing.assert_allclose(engine_of(model).encode(QUERIES), expected(model, QUERIES), atol=2e-6)


def test_the_choice_is_the_models() -> None:
    model = tiny.begun("s++", options={"null_prompt": True})
    engine, tokens = engine_of(model), tiny.Tokens(torch.tensor([[5, 6, 7]]))
    chosen = engine.choose("5 6 7")
    with torch.no_grad():
        selection = model(tokens).selection
    assert chosen is not None and selection.ids is not None and chosen.hidden is not None
    assert selection.similarity is not None
    assert (-1 if chosen.hidden[0] else chosen.ids[0]) == int(selection.ids[0])
    assert chosen.similarity[0] == pytest.approx(float(selection.similarity[0]), abs=1e-6)


def test_every_strategy_of_ours_is_known_and_stands_where_the_engine_expects_it() -> None:
    assert set(KNOWN) == {name for name, kind in strategies().items() if kind.__module__.startswith("promptdsi.")}
    assert all(kind().prompt_layers == PROMPT_LAYERS for kind in strategies().values())


def test_many_queries_are_encoded_in_batches_and_come_back_in_order() -> None:
    model = tiny.begun("l2p")
    engine = engine_of(model)
    queries = [" ".join(str(5 + (number * place) % 50) for place in range(1, 2 + number % 14)) for number in range(400)]
    alone = np.concatenate([engine.encode([query]) for query in queries[:50]])
    np.testing.assert_allclose(engine.encode(queries)[:50], alone, atol=2e-6)
    assert engine.encode([]).shape == (0, tiny.WIDTH)


def test_int8_is_near_and_not_the_same() -> None:
    model = tiny.model("none")
    exact, near = engine_of(model).encode(QUERIES), engine_of(model, int8=True).encode(QUERIES)
    cosines = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert cosines.min() > 0.97
    assert np.abs(exact - near).max() > 1e-6
