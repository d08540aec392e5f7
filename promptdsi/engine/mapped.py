"""Tensors of a safetensors file as arrays over the memory-mapped file: nothing is read until it is used."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.errors import DataError

DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I8": np.int8, "I32": np.int32, "I64": np.int64}
LARGEST_HEADER = 100_000_000  # bytes, the bound the safetensors library itself sets


def mapped_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The file's tensors by name, read-only. The header is checked against the file size first: it may be damaged or forged."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        first = 8 + int.from_bytes(file.read(8), "little")
        if not 8 < first <= min(size, LARGEST_HEADER):
            raise DataError("is damaged (no safetensors header); run `promptdsi verify`", path=path)
        try:
            header = json.loads(file.read(first - 8))
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return {name: _array(content, first, entry) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DataError(f"is damaged ({error}); run `promptdsi verify`", path=path) from None


def _array(content: mmap.mmap, first: int, entry: dict[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    count = math.prod(shape)
    sizes = (begin, end, *shape)
    fits = all(type(size) is int and size >= 0 for size in sizes) and begin <= end <= len(content) - first
    if not fits or end - begin != count * dtype.itemsize:
        raise ValueError(f"a tensor of shape {shape} does not fit")
    return np.frombuffer(content, dtype, count, first + begin).reshape(shape)
