"""The `rows` blob of a corpus: its rows, and beside them the codes that a search reads first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.quantized import PANEL, QuantizedRows, RowBlock, quantize
from promptdsi.errors import PromptDSIError
from promptdsi.index.store import Store

KINDS = [np.int8, np.int32, np.float32, np.float32, np.float32]  # of the fields of `QuantizedRows`


def put_rows(store: Store, rows: NDArray[np.float32], *, since: int) -> str:
    """`since` makes the blobs of two corpora differ: what is erased from one must stay in the other."""
    from safetensors.numpy import save

    try:
        tensors = {"rows": np.ascontiguousarray(rows), "panel": np.array([PANEL], np.int32)} | quantize(rows)._asdict()
    except ValueError as error:
        raise PromptDSIError(f"{error}: the training came apart; nothing is kept") from None
    return store.blobs.put(save(tensors, {"since": str(since)}), "safetensors")


def get_rows(store: Store, name: str) -> RowBlock:
    """Mapped, not read. Indexes written before codes lay in panels get them here, in memory."""
    held = store.blobs.arrays(name)
    rows = held["rows"]
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise ValueError(f"rows of {rows.dtype} in {rows.ndim} dimensions")
    return RowBlock(rows, codes_beside(held) or quantize(rows))


def codes_beside(held: Mapping[str, NDArray[Any]]) -> QuantizedRows | None:
    """The codes in a blob; None where it has none in panels of the size we scan."""
    rows = held["rows"]
    if not np.array_equal(held.get("panel", ()), [PANEL]):
        return None
    codes = QuantizedRows(**{part: held[part] for part in QuantizedRows._fields})
    if [one.shape for one in codes] != [(rows.size,), *[rows.shape[:1]] * 4] or [one.dtype for one in codes] != KINDS:
        raise ValueError("codes that are not those of the rows")
    return codes
