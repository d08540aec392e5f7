"""Names the server still uses for `promptdsi.index.search`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from promptdsi.index.results import Hit, SearchRequest, Why
from promptdsi.index.results import SearchRequest as Wanted
from promptdsi.index.results import SearchStopped as Stopped
from promptdsi.index.search import search_batch
from promptdsi.index.snapshot import Snapshot

__all__ = ["Hit", "Stopped", "Wanted", "Why", "answer", "search"]


def answer(snapshot: Snapshot, wanted: Sequence[SearchRequest], *, stop: Callable[[], bool] = lambda: False) -> list[list[Hit]]:
    return [result.hits for result in search_batch(snapshot, wanted, stop=stop)]


def search(snapshot: Snapshot, queries: Sequence[str], *, k: int, explain: bool = False) -> list[list[Hit]]:
    return answer(snapshot, [SearchRequest(query, k, explain) for query in queries])
