"""Queries to vectors without torch: the one path of `model/dsi.py`, tokens → lower layers → selection → prefix → upper layers → pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.graph import Part, build
from promptdsi.engine.selection import Chosen, Floats, Pool, unit
from promptdsi.engine.session import Session
from promptdsi.model.config import EncoderConfig
from promptdsi.model.tokens import Ids, Tokenizer
from promptdsi.training.batches import by_length

AT_ONCE = 2048  # tokens of one batch, padding counted: attention needs (B, H, T, T), and more at once is not quicker


class Layout(NamedTuple):
    """How the tokens of a batch lie: one below the other (n,), and as (B, T) for attention."""

    lengths: NDArray[np.int64]  # (B,)
    starts: NDArray[np.int64]  # (B,), each query's first token among the n
    place: NDArray[np.int64]  # (B, T), the token at each place; padding repeats the query's last
    token: NDArray[np.int64]  # (n,), where each token lies among the B T places
    padded: NDArray[np.bool_] | None  # (B, T), None where nothing is

    @classmethod
    def of(cls, ids: Sequence[Ids]) -> Layout:
        lengths = np.array([len(one) for one in ids], np.int64)
        starts = np.concatenate([[0], lengths.cumsum()[:-1]])
        longest = int(lengths.max())
        along = np.arange(longest)
        place = starts[:, None] + np.minimum(along, lengths[:, None] - 1)
        real = along < lengths[:, None]
        return cls(lengths, starts, place, np.flatnonzero(real), None if real.all() else ~real)


class Layers:
    """The encoder itself, ready to run: the layers below the first prompted one, and the others. Generations may share it.

    `threads` is how many a single product may use; `int8` computes products with small whole numbers: quicker, and a little off.
    """

    def __init__(
        self,
        config: EncoderConfig,
        weights: Mapping[str, Any],
        prompted: tuple[int, ...],
        *,
        firsts_only: bool,
        threads: int | None = None,
        int8: bool = False,
    ) -> None:
        self.config, self.weights = config, weights
        last, first = config.layers, min(prompted, default=config.layers + 1)

        def run(part: Part) -> Session | None:
            return Session(build(config, weights, part, int8=int8), threads) if part.first <= part.last else None

        self.lower = run(Part(1, first - 1, (), firsts_only and first > last))
        self.upper = run(Part(first, last, tuple(sorted(prompted)), firsts_only))


class QueryEncoder:
    """Encoder, prompts and tokeniser of one generation. Threads may share it."""

    def __init__(
        self,
        layers: Layers,
        tokenizer: Tokenizer,
        pool: Pool,
        *,
        pooling: str,
        normalise: bool,
        max_tokens: int,
        two_pass: bool = False,
        project: bool = False,
    ) -> None:
        self.layers, self.tokenizer, self.pool = layers, tokenizer, pool
        self.config, self.weights = layers.config, layers.weights
        self.pooling, self.normalise, self.max_tokens, self.two_pass, self.project = pooling, normalise, max_tokens, two_pass, project

    def encode(self, queries: Sequence[str], *, prompted: bool = True) -> Floats:
        """Query vectors, ready to be scored: (n, D)."""
        ids = self.tokenizer.encode(queries, max_tokens=self.max_tokens).ids
        found = np.empty((len(ids), self.config.width), np.float32)
        for batch in by_length([len(one) for one in ids], AT_ONCE):  # queries of like length together: little padding in attention
            found[batch] = self._vectors([ids[place] for place in batch], prompted)[0]
        return found

    def cut(self, queries: Sequence[str]) -> int:
        """How many queries are longer than is read of them."""
        return self.tokenizer.encode(queries, max_tokens=self.max_tokens).cut

    def choose(self, query: str) -> Chosen | None:
        """What the strategy chooses for one query; None without prompts."""
        ids = self.tokenizer.encode([query], max_tokens=self.max_tokens).ids
        return self._vectors(ids, True)[1]

    def _vectors(self, ids: Sequence[Ids], prompted: bool) -> tuple[Floats, Chosen | None]:
        layout = Layout.of(ids)
        fed = self._fed(layout)
        states = self._run(self.layers.lower, fed | {"states": self._embedded(ids)}) if self.layers.lower else self._embedded(ids)
        if self.layers.upper is None:
            return self._pooled(states, layout), None
        fed = fed | {"states": states}
        chosen: Chosen | None = None
        if prompted or self.two_pass:
            query = self._pooled(self._upper(fed, layout, None), layout) if self.two_pass else mean_over_tokens(states, layout)
            chosen = self.pool.choose(query) if prompted else None
        return self._pooled(self._upper(fed, layout, chosen), layout), chosen

    def _upper(self, fed: dict[str, Any], layout: Layout, chosen: Chosen | None) -> Floats:
        """The prompted layers and those above. Queries that see no prefix get one that attention cannot see."""
        count, rows = len(layout.lengths), self.pool.rows
        prefix = chosen.prefix if chosen else np.zeros((count, len(self.pool.layers), 2, rows, self.config.width), np.float32)
        hidden = chosen.hidden if chosen else np.ones(count, bool)
        seen = np.zeros((count, 1, 1, rows), np.float32)
        if hidden is not None:
            seen[hidden] = -np.inf
        own = fed["bias"]
        shape = np.broadcast_shapes(own.shape[:3], (count, 1, 1))
        bias = np.concatenate([np.broadcast_to(seen, (*shape, rows)), np.broadcast_to(own, (*shape, own.shape[3]))], 3)
        layers = {f"prefix_{number}": self._projected(prefix[:, place], number) for place, number in enumerate(self.pool.layers)}
        return self._run(self.layers.upper, fed | layers | {"prefix_bias": bias})

    def _projected(self, prefix: Floats, number: int) -> Floats:
        """The prefix of one layer (B, 2, P, D), through that layer's key and value projections where prompts stand before them."""
        if not self.project:
            return np.ascontiguousarray(prefix)
        name, width = f"layers.{number - 1}.query_key_value", self.config.width
        weight, offset = (self.weights[f"{name}.{part}"].reshape(3, width, -1) for part in ("weight", "bias"))
        return np.stack([prefix[:, half] @ weight[1 + half].T + offset[1 + half, :, 0] for half in (0, 1)], 1)

    def _run(self, part: Session | None, fed: dict[str, Any]) -> Floats:
        assert part is not None, "there is nothing to run"
        found: Floats = part.run(["out"], {name: fed[name] for name in part.wanted})[0]
        return found

    def _embedded(self, ids: Sequence[Ids]) -> Floats:
        """Words and positions, normed: (n, D)."""
        start = self.config.position_offset
        places = np.concatenate([np.arange(start, start + len(one)) for one in ids])
        states = self.weights["word.weight"][np.concatenate(ids)] + self.weights["position.weight"][places]
        states -= states.mean(1, keepdims=True)
        states /= np.sqrt(np.square(states).mean(1, keepdims=True) + self.config.norm_eps)
        found: Floats = states * self.weights["norm.weight"] + self.weights["norm.bias"]
        return found

    def _fed(self, layout: Layout) -> dict[str, Any]:
        longest = layout.place.shape[1]
        bias = np.zeros((1, 1, 1, longest), np.float32)
        if layout.padded is not None:
            bias = np.where(layout.padded, np.float32(-np.inf), np.float32(0))[:, None, None]  # (B, 1, 1, T)
        if self.config.relative_buckets:
            buckets = relative_buckets(longest, self.config.relative_buckets)  # (T, T)
            bias = bias + self.weights["relative.weight"][buckets].transpose(2, 0, 1)[None]  # (B, H, T, T)
        return {"place": layout.place, "token": layout.token, "bias": bias, "firsts": layout.starts}

    def _pooled(self, states: Floats, layout: Layout) -> Floats:
        pooled = states if self.pooling == "first" else mean_over_tokens(states, layout)
        return unit(pooled) if self.normalise else pooled


def mean_over_tokens(states: Floats, layout: Layout) -> Floats:
    """The mean over each query's tokens: (n, D) → (B, D)."""
    return np.asarray(np.add.reduceat(states, layout.starts, 0) / layout.lengths[:, None], np.float32)


def relative_buckets(count: int, buckets: int, max_distance: int = 128) -> NDArray[np.int64]:
    """T5's buckets, as MPNet uses them: half for each direction, half of those exact, the rest logarithmic."""
    place = np.arange(count)
    distance = place[:, None] - place[None, :]  # (T, T), query minus key
    half = buckets // 2
    exact = half // 2
    away = np.abs(distance)
    logs = np.log(np.maximum(away, 1).astype(np.float32) / exact) / np.log(max_distance / exact)
    far = np.minimum(exact + (logs * (half - exact)).astype(np.int64), half - 1)
    return np.asarray((distance < 0) * half + np.where(away < exact, away, far), np.int64)
