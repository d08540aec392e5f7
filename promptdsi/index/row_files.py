"""The file of a corpus's rows: the rows and their quantized codes, in panels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.quantized import PANEL, QuantizedRows, quantize
from promptdsi.files import tensor_header

CODE_TYPES = [np.int8, np.int32, np.float32, np.float32, np.float32]  # of the fields of `QuantizedRows`


def write_row_file(file: IO[bytes], rows: NDArray[np.float32], origin: dict[str, str]) -> None:
    """Write rows and codes as the safetensors library would if they were all in memory."""
    counts: dict[str, tuple[str, list[int]]] = {name: ("F32", [len(rows)]) for name in ("scale", "error", "length")}
    counts |= {"rows": ("F32", list(rows.shape)), "panels": ("I8", [rows.size]), "shift": ("I32", [len(rows)]), "panel": ("I32", [1])}
    order, header = tensor_header(counts, origin)
    file.write(header)
    position = dict(zip(order, accumulate((_bytes(*counts[name]) for name in order), initial=len(header)), strict=False))
    for first in range(0, max(len(rows), 1), PANEL):
        part = np.ascontiguousarray(rows[first : first + PANEL])
        for name, array in ({"rows": part} | quantize(part)._asdict()).items():
            file.seek(position[name])
            position[name] += file.write(array.data)
    file.seek(position["panel"])
    file.write(np.array([PANEL], np.int32).data)


def _bytes(kind: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * int(kind[1:]) // 8


def stored_codes(arrays: Mapping[str, NDArray[Any]]) -> QuantizedRows | None:
    """The codes of a rows blob; None where it has none in panels of the size a search scans."""
    rows = arrays["rows"]
    if not np.array_equal(arrays.get("panel", ()), [PANEL]):
        return None
    codes = QuantizedRows(**{part: arrays[part] for part in QuantizedRows._fields})
    if [part.shape for part in codes] != [(rows.size,), *[rows.shape[:1]] * 4] or [part.dtype for part in codes] != CODE_TYPES:
        raise ValueError("codes that are not those of the rows")
    return codes
