"""Rows as small whole numbers: a quarter of the bytes to read in a search, and a bound that says how far off each score can be."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.selection import Floats
from promptdsi.engine.threads import share

LARGEST = 127
AT_ONCE = 16_384  # rows coded together
PART = 8_192  # rows a thread takes at a time
WORTH_A_THREAD = 8 << 20  # bytes: for fewer a second thread takes longer to wake than it saves


class Codes(NamedTuple):
    """A row is `scale · codes`, off by a vector of length `error`; `length` is that of `scale · codes`. Both are rounded up."""

    codes: NDArray[np.int8]  # (n, D)
    scale: Floats  # (n,)
    error: Floats  # (n,)
    length: Floats  # (n,)


def coded(rows: Floats) -> Codes:
    """The codes of rows (n, D), which must be finite."""
    if not np.isfinite(rows).all():
        raise ValueError("rows hold NaN or Inf")
    parts = [_coded(rows[first : first + AT_ONCE]) for first in range(0, max(len(rows), 1), AT_ONCE)]
    return Codes(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _coded(rows: Floats) -> Codes:
    exact = rows.astype(np.float64)
    scale = (np.abs(exact).max(1, initial=0) / LARGEST).astype(np.float32)
    codes = np.rint(exact / np.where(scale > 0, scale, 1)[:, None].astype(np.float64)).clip(-LARGEST, LARGEST)
    near = codes * scale[:, None].astype(np.float64)
    error, length = np.linalg.norm(exact - near, axis=1), np.linalg.norm(near, axis=1)
    return Codes(codes.astype(np.int8), scale, _up(error), _up(length))


def _up(values: NDArray[np.float64]) -> Floats:
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))


class Scan:
    """One query against codes: scores that are near, and how far off they can be."""

    def __init__(self, query: Floats) -> None:
        exact = query.astype(np.float64)
        largest = float(np.abs(exact).max(initial=0))
        scale = largest / LARGEST if largest else 1.0
        self.scale = scale
        self.codes = np.rint(exact / scale).astype(np.int8)[None]  # (1, D)
        left = exact - scale * self.codes[0]
        self.off, self.length = math.sqrt(left @ left), math.sqrt(exact @ exact)

    def near(self, rows: Codes, scores: Floats, *, threads: int = 1) -> None:
        """Fill in the scores of rows (n,)."""
        import numkong

        def look(here: slice) -> None:
            own = scores[here]
            numkong.cdist(self.codes, rows.codes[here], "dot", out=own[None])  # whole numbers
            own *= rows.scale[here]
            own *= np.float32(self.scale)

        share(len(scores), PART, look, threads=min(threads, 1 + rows.codes.nbytes // WORTH_A_THREAD))

    def slack(self, length: Any, error: Any) -> Any:
        """How far off the score of a row with this length and error can be: |q·v − near| ≤ |q − q̂|·|v̂| + |q|·|v − v̂|."""
        # The millionths cover the rounding of `near`, and of the exact score it is compared with.
        return length * np.float32(self.off + 2e-6 * self.length) + error * np.float32(self.length * (1 + 2e-6))
