"""Rows as small whole numbers: a quarter of the bytes to read in a search, and a bound that says how far off each score can be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.engine.graph import IR, OPSET
from promptdsi.engine.selection import Floats
from promptdsi.engine.session import Session

LARGEST = 127
# A query's codes go from 1 to 127, with `MIDDLE` for nought: products of unsigned and signed bytes are the quick ones, and with seven
# bits their sums never leave the 16 bits that processors without VNNI have for two of them.
MIDDLE = 64
PANEL = 16_384  # rows whose codes lie together, and what one thread scans at a time; with fewer, reading them is slower


class Codes(NamedTuple):
    """A row is `scale · codes`, off by a vector of length `error`; `length` is that of `scale · codes`. Both are rounded up.

    Codes lie in panels of `PANEL` rows, the last with what is left, and in a panel number by number, (D, n): so a product with a
    query reads them as quickly as memory gives them, which row by row it does not.
    """

    panels: NDArray[np.int8]  # (n D,)
    shift: NDArray[np.int32]  # (n,), `MIDDLE` times the sum of a row's codes
    scale: Floats  # (n,)
    error: Floats  # (n,)
    length: Floats  # (n,)

    def split(self) -> Iterator[Codes]:
        """The same, panel by panel."""
        count = len(self.shift)
        for first in range(0, count, PANEL):
            here, width = slice(first, first + PANEL), len(self.panels) // count
            own = self.panels[first * width : (first + PANEL) * width]
            yield Codes(own, self.shift[here], self.scale[here], self.error[here], self.length[here])

    @classmethod
    def joined(cls, parts: Sequence[Codes]) -> Codes:
        whole = np.concatenate([panel.panels.reshape(-1, len(panel.shift)).T for part in parts for panel in part.split()])
        panels = [whole[first : first + PANEL].T.reshape(-1) for first in range(0, len(whole), PANEL)]
        return cls(np.concatenate(panels), *(np.concatenate(part) for part in list(zip(*parts, strict=True))[1:]))


def coded(rows: Floats) -> Codes:
    """The codes of rows (n, D), which must be finite."""
    if not np.isfinite(rows).all():
        raise ValueError("rows hold NaN or Inf")
    parts = [_coded(rows[first : first + PANEL]) for first in range(0, max(len(rows), 1), PANEL)]
    return Codes(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _coded(rows: Floats) -> Codes:
    exact = rows.astype(np.float64)
    scale = (np.abs(exact).max(1, initial=0) / LARGEST).astype(np.float32)
    codes = np.rint(exact / np.where(scale > 0, scale, 1)[:, None].astype(np.float64)).clip(-LARGEST, LARGEST)
    near = codes * scale[:, None].astype(np.float64)
    error, length = np.linalg.norm(exact - near, axis=1), np.linalg.norm(near, axis=1)
    return Codes(codes.astype(np.int8).T.reshape(-1), (MIDDLE * codes.sum(1)).astype(np.int32), scale, _up(error), _up(length))


def _up(values: NDArray[np.float64]) -> Floats:
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))


NEAR = f"""
<ir_version: {IR}, opset_import: ["": {OPSET}]>
near (uint8[1, D] query, int8[D, n] codes, int32[n] shift, float[n] scale) => (float[1, n] scores)
{{
    shifted = MatMulInteger (query, codes)
    whole = Sub (shifted, shift)
    real = Cast <to = 1> (whole)
    scores = Mul (real, scale)
}}
"""


class Scan:
    """One query against codes: scores that are near, and how far off they can be."""

    def __init__(self, query: Floats) -> None:
        exact = query.astype(np.float64)
        largest = float(np.abs(exact).max(initial=0))
        self.scale = largest / (MIDDLE - 1) if largest else 1.0
        codes = np.rint(exact / self.scale)
        self.codes = (codes + MIDDLE).astype(np.uint8)[None]  # (1, D)
        left = exact - self.scale * codes
        self.off, self.length = math.sqrt(left @ left), math.sqrt(exact @ exact)

    def near(self, panel: Codes, scores: Floats) -> None:
        """Fill in the scores of one panel's rows (n,)."""
        codes = panel.panels.reshape(-1, len(panel.shift))
        fed = {"query": self.codes, "codes": codes, "shift": panel.shift, "scale": panel.scale}
        np.multiply(_near().run(None, fed)[0][0], np.float32(self.scale), out=scores)

    def slack(self, length: Any, error: Any) -> Any:
        """How far off the score of a row with this length and error can be: |q·v − near| ≤ |q − q̂|·|v̂| + |q|·|v − v̂|."""
        # The millionths cover the rounding of `near`, and of the exact score it is compared with.
        return length * np.float32(self.off + 2e-6 * self.length) + error * np.float32(self.length * (1 + 2e-6))


@cache
def _near() -> Session:
    from onnx import parser

    return Session(parser.parse_model(NEAR).SerializeToString(), threads=1)
