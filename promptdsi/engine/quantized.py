"""Rows as a search reads them: mapped from their files, quantized to int8, and scanned by several threads.

int8 rows are a quarter of the bytes to read, and the error of each score is bounded. All searches share one pool of threads, which wait
without spinning when there is nothing to do.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.checks import parse_json
from promptdsi.engine.graph import IR, OPSET, Session
from promptdsi.errors import DataError
from promptdsi.files import open_plain
from promptdsi.model.path import Floats, cores

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I8": np.int8}
DTYPES |= {"U16": np.uint16, "U8": np.uint8}
LARGEST_HEADER = 16 << 20  # bytes, of some hundred thousand tensors
MOST_HEADER_MEMORY = 256 << 20
MOST_DIMENSIONS = 8
LONGEST_NAME = 300  # characters
LARGEST = 127
# A quantized query is unsigned, 1 to 127 with zero at `ZERO_POINT`: products of unsigned and signed bytes are the fast ones, and with
# seven bits the sum of two products fits the 16 bits that processors without VNNI accumulate in.
ZERO_POINT = 64
SMALL_BLOCK = 2_048  # rows: smaller blocks are merged
PANEL = 16_384  # rows per panel, the unit a thread scans; smaller panels are read more slowly


class QuantizedRows(NamedTuple):
    """Rows v approximated by v̂ = `scale` · int8. The field names are those of the tensors on disk.

    The integers are stored in panels of `PANEL` rows (the last may be shorter), and within a panel dimension by dimension, (D, n): that
    layout lets a product with one query run at memory bandwidth. `error` and `length` are rounded up, so bounds computed from them hold.
    """

    panels: NDArray[np.int8]  # (n D,)
    shift: NDArray[np.int32]  # (n,), `ZERO_POINT` times the sum of a row's integers
    scale: Floats  # (n,)
    error: Floats  # (n,), |v − v̂|
    length: Floats  # (n,), |v̂|

    def split(self) -> Iterator[QuantizedRows]:
        """The same rows, one panel at a time."""
        count = len(self.shift)
        for first in range(0, count, PANEL):
            rows, width = slice(first, first + PANEL), len(self.panels) // count
            panel = self.panels[first * width : (first + PANEL) * width]
            yield QuantizedRows(panel, self.shift[rows], self.scale[rows], self.error[rows], self.length[rows])

    def part(self, low: int, high: int) -> QuantizedRows:
        """Some consecutive rows: whole panels, which are not copied, or rows of one panel."""
        count, rows = len(self.shift), slice(low, high)
        first, width = low // PANEL * PANEL, len(self.panels) // count
        panels = self.panels[low * width : high * width]
        if low % PANEL or high % PANEL:
            panel = self.panels[first * width : (first + PANEL) * width].reshape(width, -1)
            panels = panel[:, low - first : high - first].reshape(-1)
        return QuantizedRows(panels, self.shift[rows], self.scale[rows], self.error[rows], self.length[rows])

    @classmethod
    def concat(cls, parts: Sequence[QuantizedRows]) -> QuantizedRows:
        """The rows of all parts; panels are laid out anew."""
        integers = np.concatenate([panel.panels.reshape(-1, len(panel.shift)).T for part in parts for panel in part.split()])  # (n, D)
        panels = [integers[first : first + PANEL].T.reshape(-1) for first in range(0, len(integers), PANEL)]
        return cls(np.concatenate(panels), *(np.concatenate(part) for part in list(zip(*parts, strict=True))[1:]))


class RowBlock(NamedTuple):
    """Rows stored together. Without quantized rows they are searched by float32 products only."""

    rows: Floats  # (n, D)
    quantized: QuantizedRows | None = None

    def panels(self) -> Iterator[RowBlock]:
        """The block's panels, the unit that chunks are made of."""
        firsts = range(0, len(self.rows), PANEL)
        parts = self.quantized.split() if self.quantized else [None] * len(firsts)
        for first, part in zip(firsts, parts, strict=True):
            yield RowBlock(self.rows[first : first + PANEL], part)

    def part(self, low: int, high: int) -> Iterator[RowBlock]:
        """Some consecutive rows, as blocks: whole panels stay mapped, only rows of the panels at both ends are copied."""
        first, last = -(-low // PANEL) * PANEL, high // PANEL * PANEL
        for begin, end in itertools.pairwise(sorted({low, min(first, high), max(last, low), high})):
            yield RowBlock(self.rows[begin:end], self.quantized.part(begin, end) if self.quantized else None)

    def bounds(self) -> tuple[Floats, Floats]:
        """Length and error of each row as the scan sees it (n,); float32 rows have no error."""
        if self.quantized:
            return self.quantized.length, self.quantized.error
        # A float32 sum of D squares is off by less than D · 2⁻²³ of itself: added, the bound holds.
        length = np.sqrt(np.einsum("nd,nd->n", self.rows, self.rows) * np.float32(1 + self.rows.shape[1] * 2.0**-23))
        return round_up(length), np.zeros_like(length)


def quantize(rows: Floats) -> QuantizedRows:
    """Quantize rows (n, D); they must be finite."""
    if not np.isfinite(rows).all():
        raise ValueError("rows hold NaN or Inf")
    parts = [_quantize_panel(rows[first : first + PANEL]) for first in range(0, max(len(rows), 1), PANEL)]
    return QuantizedRows(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _quantize_panel(rows: Floats) -> QuantizedRows:
    exact = rows.astype(np.float64)
    scale = (np.abs(exact).max(1, initial=0) / LARGEST).astype(np.float32)
    integers = np.rint(exact / np.where(scale > 0, scale, 1)[:, None].astype(np.float64)).clip(-LARGEST, LARGEST)
    approximate = integers * scale[:, None].astype(np.float64)
    error, length = np.linalg.norm(exact - approximate, axis=1), np.linalg.norm(approximate, axis=1)
    shift = (ZERO_POINT * integers.sum(1)).astype(np.int32)
    return QuantizedRows(integers.astype(np.int8).T.reshape(-1), shift, scale, round_up(error), round_up(length))


def round_up(values: NDArray[Any]) -> Floats:
    """float32 values that are not below the given ones."""
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))


SCORE = f"""
<ir_version: {IR}, opset_import: ["": {OPSET}]>
score (uint8[1, D] query, int8[D, n] rows, int32[n] shift, float[n] scale) => (float[1, n] scores)
{{
    shifted = MatMulInteger (query, rows)
    products = Sub (shifted, shift)
    real = Cast <to = 1> (products)
    scores = Mul (real, scale)
}}
"""


class QuantizedQuery:
    """One query against quantized rows: approximate scores, and a bound on their error."""

    def __init__(self, query: Floats) -> None:
        exact = query.astype(np.float64)
        largest = float(np.abs(exact).max(initial=0))
        self.scale = largest / (ZERO_POINT - 1) if largest else 1.0
        integers = np.rint(exact / self.scale)
        self.integers = (integers + ZERO_POINT).astype(np.uint8)[None]  # (1, D)
        rest = exact - self.scale * integers
        self.error, self.length = math.sqrt(rest @ rest), math.sqrt(exact @ exact)

    def score(self, panel: QuantizedRows, scores: Floats) -> None:
        """Write the approximate scores of one panel's rows into `scores` (n,)."""
        rows = panel.panels.reshape(-1, len(panel.shift))
        inputs = {"query": self.integers, "rows": rows, "shift": panel.shift, "scale": panel.scale}
        np.multiply(_score_session().run(None, inputs)[0][0], np.float32(self.scale), out=scores)

    def error_bound(self, length: Any, error: Any) -> Any:
        """Bound on a score's error for rows of this length and error: |q·v − q̂·v̂| ≤ |q − q̂|·|v̂| + |q|·|v − v̂|."""
        # The two millionths cover the rounding of the approximate score and of the exact score it is compared with.
        return length * np.float32(self.error + 2e-6 * self.length) + error * np.float32(self.length * (1 + 2e-6))


@cache
def _score_session() -> Session:
    from onnx import parser

    return Session(parser.parse_model(SCORE).SerializeToString(), threads=1)


def merge_small_blocks(blocks: Sequence[RowBlock]) -> list[RowBlock]:
    """The same rows with small consecutive blocks copied into one.

    A thousand small corpora are then searched as fast as a large one, and keep no file open.
    """
    merged: list[RowBlock] = []
    small: list[RowBlock] = []
    for block in [*(block for block in blocks if len(block.rows)), None]:
        if block is not None and len(block.rows) < SMALL_BLOCK:
            small.append(block)
            continue
        if small:
            quantized = [part.quantized for part in small if part.quantized]
            rows = np.concatenate([part.rows for part in small])
            merged.append(RowBlock(rows, QuantizedRows.concat(quantized) if len(quantized) == len(small) else None))
            small = []
        if block is not None:
            merged.append(block)
    return merged or list(blocks[:1])


# Files and threads -------------------------------------------------------------------------------------------------------


def mapped_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The file's tensors by name, read-only. The header is checked against the file size first: it may be damaged or forged."""
    with open_plain(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        first = 8 + int.from_bytes(file.read(8), "little")
        if not 8 < first <= min(size, LARGEST_HEADER):
            raise DataError("is damaged (no safetensors header); run `promptdsi verify`", path=path)
        try:
            header = parse_json(file.read(first - 8), most=MOST_HEADER_MEMORY)
            header.pop("__metadata__", None)
            sizes = sum(end - begin for begin, end in (entry["data_offsets"] for entry in header.values()))
            if sizes > size or any(len(name) > LONGEST_NAME for name in header):
                raise ValueError("its tensors overlap, or a name is too long")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return {name: _array(content, first, entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DataError(f"is damaged ({str(error)[:200]}); run `promptdsi verify`", path=path) from None


def _array(content: mmap.mmap, first: int, entry: dict[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    if len(entry["shape"]) > MOST_DIMENSIONS or any(type(length) is not int or not 0 <= length < 2**48 for length in entry["shape"]):
        raise ValueError("a tensor of a shape that none has")
    dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
    count = math.prod(shape)
    fits = type(begin) is int and type(end) is int and 0 <= begin <= end <= len(content) - first
    # Kernels may load several numbers at once, which some processors allow at multiples of their size only: every writer aligns them.
    if not fits or end - begin != count * dtype.itemsize or (first + begin) % dtype.itemsize:
        raise ValueError(f"a tensor of shape {shape} does not fit")
    return np.frombuffer(content, dtype, count, first + begin).reshape(shape)


def share(count: int, size: int, function: Callable[[slice], Any], *, threads: int) -> None:
    """Call `function` on slices of 0 … count, each about `size` long, from several threads."""
    parts = threads * -(-count // (threads * size))  # a multiple of the threads: with equal parts they finish at the same time
    length = -(-count // max(parts, 1))
    firsts = iter(range(0, count, max(length, 1)))

    def work() -> None:
        # Threads take slices from one queue, so a thread that the system delays does not delay the others.
        for first in firsts:
            function(slice(first, min(first + length, count)))

    helpers = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for _ in firsts:  # if this thread failed, empty the queue: the helpers stop after their current slice
            pass
        errors = [helper.exception() for helper in helpers if not helper.cancel()]  # waits for those that have begun
    for error in errors:
        if error is not None:
            raise error


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="promptdsi-search")  # more would only wait for each other


class _SingleThreadedBlas:
    """While any thread is inside, numpy computes a product in the thread that calls it.

    OpenBLAS's own threads would keep spinning after a product, on cores that the encoder needs.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limit = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._limit.enter_context(_openblas().limit(limits=1))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._limit.close()


single_threaded_blas = _SingleThreadedBlas()


@cache
def _openblas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")  # numpy's; torch has another
