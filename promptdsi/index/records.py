"""Records of evaluations: the rank of each query's answer, no text. They make the retention chart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptdsi.evaluation.metrics import QueryRanks
from promptdsi.files import atomic_write
from promptdsi.index.manifest import FORMAT, sealed, unsealed
from promptdsi.index.store import Store


def record(store: Store, *, generation: int, corpus: str, split: str, query_ranks: Sequence[QueryRanks]) -> Path:
    """Keep the best rank of each query; the same evaluation again replaces its record."""
    key = hashlib.sha256(f"{corpus}\0{split}".encode()).hexdigest()[:16]
    path = store.folder / "records" / f"{generation:06d}-{key}.json"
    ranks = [min(one.ranks) for one in query_ranks]
    content = {"format": FORMAT, "generation": generation, "corpus": corpus, "split": split, "ranks": ranks}
    with store.writing(), atomic_write(path) as file:
        file.write(sealed(content))
    return path


def records(store: Store) -> list[dict[str, Any]]:
    """All records, by generation, then by corpus."""
    paths = sorted(path for path in (store.folder / "records").glob("*.json"))
    return sorted((unsealed(path) for path in paths), key=lambda one: (one["generation"], one["corpus"], one["split"]))
