"""The `rows` blob of a corpus: its rows, and beside them the codes that a search reads first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.codes import Codes, coded
from promptdsi.engine.table import Block
from promptdsi.index.store import Store


def put_rows(store: Store, rows: NDArray[np.float32], *, since: int) -> str:
    """`since` makes the blobs of two corpora differ: what is erased from one must stay in the other."""
    from safetensors.numpy import save

    tensors = {"rows": np.ascontiguousarray(rows)} | coded(rows)._asdict()
    return store.blobs.put(save(tensors, {"since": str(since)}), "safetensors")


def get_rows(store: Store, name: str) -> Block:
    """Mapped, not read. Indexes that releases before 0.2 wrote have no codes: they are made here, in memory."""
    held = store.blobs.arrays(name)
    rows = held["rows"]
    return Block(rows, Codes(**{part: held[part] for part in Codes._fields}) if "codes" in held else coded(rows))
