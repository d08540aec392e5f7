"""Exact search in rows: codes and their bounds, the table, and the files both are mapped from."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from threadpoolctl import threadpool_info

from promptdsi import DataError
from promptdsi.engine.quantized import (
    PANEL,
    SMALL_BLOCK,
    QuantizedQuery,
    QuantizedRows,
    RowBlock,
    mapped_tensors,
    merge_small_blocks,
    quantize,
    share,
    single_threaded_blas,
)
from promptdsi.engine.row_table import SCAN_BYTES, SCAN_QUERIES, RowTable

finite = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@given(st.lists(st.lists(finite, min_size=6, max_size=6), min_size=1, max_size=12), st.lists(finite, min_size=6, max_size=6))
def test_no_score_is_further_off_than_its_bound(rows: list[list[float]], query: list[float]) -> None:
    matrix, vector = np.array(rows, np.float32), np.array(query, np.float32)
    scan, codes = QuantizedQuery(vector), quantize(matrix)
    scores, bound = np.empty(len(rows), np.float32), scan.error_bound(codes.length, codes.error)
    scan.score(codes, scores)
    exact = matrix.astype(np.float64) @ vector.astype(np.float64)
    assert (np.abs(scores - exact) <= bound + 1e-30).all()


@pytest.mark.parametrize("width", [1, 3, 384])
def test_the_largest_codes_do_not_overflow(width: int) -> None:
    """Sums of two products of bytes may have 16 bits for their own."""
    rows, query = np.ones((40, width), np.float32), np.ones(width, np.float32)
    rows[::2] = -1
    for signs in (query, -query):
        scores = np.empty(40, np.float32)
        QuantizedQuery(signs).score(quantize(rows), scores)
        np.testing.assert_allclose(scores, rows @ signs, rtol=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.sampled_from([1, 2, 5, PANEL]))
def test_codes_of_several_blocks_become_those_of_one(sizes: list[int], panel: int) -> None:
    rows = np.random.default_rng(0).standard_normal((sum(sizes), 4), np.float32)
    with pytest.MonkeyPatch.context() as small:
        small.setattr("promptdsi.engine.quantized.PANEL", panel)
        quantized = quantize(rows)
        for merged, expected in zip(
            QuantizedRows.concat([quantize(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]), quantized, strict=True
        ):
            np.testing.assert_array_equal(merged, expected)
        assert sum(len(part.shift) for part in quantized.split()) == len(rows)
        assert all(len(part.panels) == 4 * len(part.shift) <= 4 * panel for part in quantized.split())


def table_of(blocks: list[np.ndarray[Any, Any]], deleted: set[int], docids: list[str] | None = None) -> RowTable:
    count = sum(len(block) for block in blocks)
    return RowTable(
        [RowBlock(block, quantize(block)) for block in blocks],
        docids or [f"d{64_007 * row % 100_003:06d}" for row in range(count)],
        deleted,
    )


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    st.integers(1, 60),
    st.integers(1, 2 * SCAN_QUERIES),
    st.floats(0, 0.9),
    st.booleans(),
    st.integers(0, 6),
    st.sampled_from([1, 3, 16, PANEL]),
)
def test_search_finds_exactly_what_sorting_all_scores_finds(
    seed: int, sizes: list[int], k: int, queries: int, deleted: float, coarse: bool, pieces: int, panel: int
) -> None:
    random = np.random.default_rng(seed)
    blocks = [random.standard_normal((size, 8), np.float32) for size in sizes]
    if coarse:  # many equal scores: ties go by docid
        blocks = [np.round(block) for block in blocks]
    vectors = random.standard_normal((queries, 8), np.float32).round(0 if coarse else 8)
    count = sum(sizes)
    deleted = set(np.flatnonzero(random.random(count) < deleted).tolist())
    with pytest.MonkeyPatch.context() as small:  # pieces end within blocks, and between them
        small.setattr("promptdsi.engine.quantized.PANEL", panel)
        small.setattr("promptdsi.engine.row_table.SCAN_ROWS", 1 << pieces)
        small.setattr("promptdsi.engine.row_table.PRODUCT_SCORES", 2 * SCAN_QUERIES << pieces)
        small.setattr("promptdsi.engine.top_k.CANDIDATES", pieces)
        small.setattr("promptdsi.engine.top_k.SCORES", pieces * sum(map(len, blocks)))
        _finds_what_sorting_finds(table_of(blocks, deleted), blocks, vectors, deleted, k)


def _finds_what_sorting_finds(
    table: RowTable, blocks: list[np.ndarray[Any, Any]], vectors: np.ndarray[Any, Any], deleted: set[int], k: int
) -> None:
    count, queries = len(table), len(vectors)
    scores = (vectors.astype(np.float64) @ np.concatenate(blocks).astype(np.float64).T).astype(np.float32)
    result = table.top(vectors, k)
    best: list[list[int]] = []
    for place in range(queries):
        order = sorted((row for row in range(count) if row not in deleted), key=lambda row: (-scores[place, row], table.docids[row]))
        assert result.rows[place].tolist() == order[:k]
        np.testing.assert_array_equal(result.scores[place], scores[place, order[:k]])
        best.append(order[:5])
    assert [each.tolist() for each in table.ranks(vectors, best, [None] * queries)] == [list(range(1, len(rows) + 1)) for rows in best]


def test_a_search_does_not_depend_on_who_asks_beside() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((70_000, 16), np.float32)  # more than one piece of either kind
    table, vectors = table_of([rows[:66_000], rows[66_000:]], {5, 69_999}), random.standard_normal((3 * SCAN_QUERIES, 16), np.float32)
    batch = table.top(vectors, 20)
    for place, query in enumerate(vectors):
        alone = table.top(query[None], 20)
        np.testing.assert_array_equal(alone.rows[0], batch.rows[place])
        np.testing.assert_array_equal(alone.scores[0], batch.scores[place])


def test_a_search_with_many_threads_finds_the_same() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((3 * SCAN_BYTES // 384 + 5, 384), np.float32)
    block, docids = RowBlock(rows, quantize(rows)), [f"d{row}" for row in range(len(rows))]
    for query in random.standard_normal((5, 384), np.float32):
        single, four = (RowTable([block], docids, {7}, threads=threads).top(query[None], 20) for threads in (1, 4))
        np.testing.assert_array_equal(single.rows, four.rows)
        np.testing.assert_array_equal(single.scores, four.scores)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 4))
def test_shared_work_is_done_once_by_somebody(count: int, size: int, threads: int) -> None:
    done = np.zeros(count, int)

    def work(part: slice) -> None:
        done[part] += 1

    share(count, size, work, threads=threads)
    assert (done == 1).all()


def test_what_goes_wrong_in_a_helper_is_not_lost() -> None:
    def work(part: slice) -> None:
        time.sleep(0.01)  # so that the helper gets a part
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    with pytest.raises(MemoryError):
        share(100, 1, work, threads=2)


def test_nobody_goes_on_where_the_caller_has_failed() -> None:
    done: list[int] = []

    def work(part: slice) -> None:
        time.sleep(0.01)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        done.append(part.start)

    with pytest.raises(KeyboardInterrupt):
        share(100, 1, work, threads=2)
    assert len(done) < 5


def test_products_have_their_threads_back_when_the_last_search_is_done() -> None:
    def allowed() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]

    before = allowed()
    assert before, "numpy's products are not computed by a library whose threads can be told"
    with single_threaded_blas():
        with single_threaded_blas():
            assert set(allowed()) == {1}
        assert set(allowed()) == {1}
    assert allowed() == before
    first, second = single_threaded_blas(), single_threaded_blas()  # two searches: who came first goes first
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert set(allowed()) == {1}
    second.__exit__(None, None, None)
    assert allowed() == before


def test_neighbours_are_the_nearest_by_cosine() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((50, 8), np.float32) * random.uniform(0.1, 5, (50, 1)).astype(np.float32)
    table = table_of([rows[:20], rows[20:]], {3, 30})
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for row, neighbors in zip([0, 25], table.neighbors([0, 25], 6), strict=True):
        order = sorted((other for other in range(50) if other not in (row, 3, 30)), key=lambda other: -float(units[other] @ units[row]))
        assert [other for other, _ in neighbors] == order[:6]
        assert neighbors[0][1] == pytest.approx(float(units[order[0]] @ units[row]), abs=1e-6)


@pytest.mark.parametrize("splits", [[], [7], [1, 2, 90], [64]])
def test_cosines_of_neighbours_do_not_depend_on_what_else_is_in_a_product(splits: list[int]) -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((1, 384), np.float32) + np.float32(0.2) * random.standard_normal((101, 384), np.float32)
    unsplit, parts = table_of([rows], set()), table_of(np.split(rows, splits), set())
    expected = unsplit.neighbors(range(101), 100)
    assert [parts.neighbors([row], 100)[0] for row in range(101)] == expected
    units = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    for row, neighbors in enumerate(expected):
        assert [cosine for _, cosine in neighbors] == pytest.approx([float(units[other] @ units[row]) for other, _ in neighbors], abs=3e-7)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_no_neighbour_is_lost_to_the_rounding_of_a_product(k: int) -> None:
    """A hundred rows at the same angle, whose cosines differ in their last bits only."""
    random = np.random.default_rng(2)
    direction = random.standard_normal(384)
    direction /= np.linalg.norm(direction)
    others = random.standard_normal((100, 384))
    others -= (others @ direction)[:, None] * direction
    rows = np.vstack([direction, 0.05 * direction + others / np.linalg.norm(others, axis=1, keepdims=True)]).astype(np.float32)
    exact = rows.astype(np.float64)
    query = (rows[0] / np.linalg.norm(rows[0])).astype(np.float64)
    cosines = np.array([math.fsum(row * query) / math.sqrt(math.fsum(row * row)) for row in exact]).astype(np.float32)
    expected = sorted(range(1, 101), key=lambda row: (-cosines[row], row))[:k]
    for splits in ([], [40], [1, 50, 99]):
        assert [row for row, _ in table_of(np.split(rows, splits), set()).neighbors([0], k)[0]] == expected


def test_many_small_corpora_are_searched_as_one_and_hold_no_file_open(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    blocks = []
    for number in range(60):
        save_file({"rows": random.standard_normal((7, 8), np.float32)}, tmp_path / f"{number}.safetensors")
        rows = mapped_tensors(tmp_path / f"{number}.safetensors")["rows"]
        blocks.append(RowBlock(rows, quantize(rows)))
    large = random.standard_normal((SMALL_BLOCK, 8), np.float32)
    every = [*blocks[:30], RowBlock(large, quantize(large)), *blocks[30:]]
    merged = merge_small_blocks(every)
    assert [len(block.rows) for block in merged] == [210, SMALL_BLOCK, 210]
    assert merged[1].rows is large  # stays where it is: mapped
    np.testing.assert_array_equal(np.concatenate([block.rows for block in every]), np.concatenate([block.rows for block in merged]))
    del blocks, every, rows
    opened = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and str(tmp_path) in os.readlink(link)]
    assert not opened


def test_blocks_without_rows_do_not_matter() -> None:
    some, none = (RowBlock(rows, quantize(rows)) for rows in (np.ones((SMALL_BLOCK, 8), np.float32), np.empty((0, 8), np.float32)))
    assert [len(block.rows) for block in merge_small_blocks([none, some, none, none, some])] == [SMALL_BLOCK, SMALL_BLOCK]
    assert [len(block.rows) for block in merge_small_blocks([none, none])] == [0]


@pytest.mark.parametrize("queries", [1, 5, 64])
def test_products_are_shared_by_all_threads_however_rows_lie(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows, vectors = random.standard_normal((30_000, 384), np.float32), random.standard_normal((queries, 384), np.float32)
    blocks = [RowBlock(part, quantize(part)) for part in np.split(rows, [9_000, 29_000])]
    used: list[int] = []
    monkeypatch.setattr("promptdsi.engine.row_table.share", lambda *work, threads: (used.append(threads), share(*work, threads=threads)))
    monkeypatch.setattr("promptdsi.engine.row_table.PRODUCT_SIZE", 1 << 20)
    monkeypatch.setattr("promptdsi.engine.row_table.PRODUCT_SCORES", 64 * len(rows))
    for _, scores, bound in RowTable(blocks, [str(row) for row in range(len(rows))], set(), threads=3).products(vectors):
        assert (np.abs(scores - vectors.astype(np.float64) @ rows.astype(np.float64).T) <= bound[:, None]).all()
    assert set(used) == {3}


def test_equal_rows_tie_wherever_they_stand() -> None:
    random = np.random.default_rng(0)
    row = random.standard_normal(384, np.float32)
    rows = np.concatenate([np.tile(row, (37, 1)), random.standard_normal((90, 384), np.float32) * 0.1])
    table = table_of([rows], set(), [f"d{number:03d}" for number in reversed(range(127))])
    for query in row + random.standard_normal((50, 384), np.float32):
        assert table.top(query[None], 37).rows[0].tolist() == list(range(36, -1, -1))


@pytest.mark.parametrize("queries", [1, SCAN_QUERIES + 2])
def test_rows_of_zeros_are_found_by_docid(queries: int) -> None:
    table = table_of([np.zeros((300, 8), np.float32)], {3}, [f"d{number:03d}" for number in range(300)])
    for vectors in (np.ones((queries, 8), np.float32), np.zeros((queries, 8), np.float32)):
        assert table.top(vectors, 10).rows.tolist() == [[0, 1, 2, 4, 5, 6, 7, 8, 9, 10]] * queries


def test_mapped_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    random = np.random.default_rng(0)
    written = {"a": random.standard_normal((3, 5), np.float32), "b": np.arange(7, dtype=np.int8), "c": np.zeros((0, 4), np.float32)}
    save_file(written, path, {"since": "1"})
    tensors = mapped_tensors(path)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {name: tensor.tolist() for name, tensor in written.items()}
    with pytest.raises(ValueError, match="read-only"):
        tensors["a"][0, 0] = 1


@given(st.binary(max_size=200), st.integers(0, 199), st.booleans())
def test_a_damaged_file_is_one_error_and_never_a_wrong_tensor(tmp_path_factory: Any, noise: bytes, position: int, truncated: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    written = {"a": np.arange(12, dtype=np.float32).reshape(3, 4)}
    save_file(written, path)
    content = path.read_bytes()
    path.write_bytes(content[:position] if truncated else content[:position] + noise + content[position + len(noise) :])
    try:
        tensors = mapped_tensors(path)
    except DataError:
        return
    assert all(tensor.nbytes <= len(content) + len(noise) for tensor in tensors.values())


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lies.safetensors"
    cases = (([4], [0, 99]), ([-4], [0, 16]), ([10**30], [0, 16]), ([True, 4], [0, 16]), ([4.0], [0, 16]), ([4], [16, 0]))
    for entry in ({"dtype": "F32", "shape": shape, "data_offsets": offsets} for shape, offsets in cases):
        header = json.dumps({"a": entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
        with pytest.raises(DataError, match="damaged"):
            mapped_tensors(path)
