"""The passages of a generation give the same bits however many shards they lie in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sharded
from hypothesis import given, settings
from hypothesis import strategies as st

from promptdsi import Corpus, Index, UsageError
from promptdsi.engine.quantized import PANEL, RowBlock, quantize
from promptdsi.engine.row_table import RowTable


@pytest.fixture(scope="module", params=[True, False], ids=["words", "rows alone"])
def index(request: pytest.FixtureRequest, corpora: list[Corpus], backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = sharded.build(tmp_path_factory.mktemp("sharded") / "index", corpora, backbone, words=request.param)
    return Index.open(path, device="cpu")


@given(data=st.data())
@settings(max_examples=12)
def test_any_number_of_shards_gives_the_same_bits(index: Index, data: st.DataObject) -> None:
    """Search with and without conditions, ranks, scores and words; more shards than documents is fine too."""
    at = data.draw(st.sampled_from([None, None, 3]), "generation")
    opened = Index.open(index.path, device="cpu", at=at, check=False)
    shards, unsharded = (
        sharded.in_process(opened, data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, 60]), "shards")),
        opened.opened.passages,
    )
    queries = data.draw(st.lists(st.sampled_from(sharded.QUERIES), min_size=1, max_size=9), "queries")
    where, k = data.draw(st.sampled_from(sharded.FILTERS if at is None else [()]), "where"), data.draw(st.integers(1, 40), "k")
    vectors = opened.opened.encoder.encode(queries).vectors
    retrieved = unsharded.top_k(vectors, queries, k, where)
    assert shards.top_k(vectors, queries, k, where) == retrieved
    rows = [[passage.row for passage in result.passages] for result in retrieved]
    for words in (queries, None):
        for equal in (
            lambda store, words=words: store.ranks(vectors, words, rows, where),
            lambda store, words=words: store.scores(vectors, words, rows),
        ):
            assert [each.tolist() for each in equal(shards)] == [each.tolist() for each in equal(unsharded)]
    assert [ranks.tolist() for ranks in unsharded.ranks(vectors, queries, rows, where)] == [list(range(1, len(each) + 1)) for each in rows]
    assert shards.matches(queries[0], rows[0]) == unsharded.matches(queries[0], rows[0])


@pytest.mark.parametrize("count", [2, 5])
def test_documents_are_located_counted_and_compared_over_shards(index: Index, count: int) -> None:
    shards, unsharded = sharded.in_process(index, count), index.opened.passages
    docids = ["tie-3", "tie-9", "later-0", "later-2", "unknown"]
    assert shards.locate(docids) == unsharded.locate(docids)
    assert shards.contains(docids) == unsharded.contains(docids) == [True, False, True, False, False]
    assert shards.field_counts() == unsharded.field_counts()
    assert shards.similar_docid("later-O") == unsharded.similar_docid("later-O") != ""
    place = unsharded.locate(["tie-3"])[0]
    assert place is not None and index.get("tie-3").text == "Green boats."
    near, expected = (store.neighbors([place.row], 4)[0] for store in (shards, unsharded))
    assert np.allclose([cosine for _, cosine in near], [cosine for _, cosine in expected], atol=1e-6)
    vectors = index.opened.encoder.encode(sharded.QUERIES).vectors
    rows = np.delete(index.opened.table.vectors(range(len(index.opened.table))), sorted(index.opened.table.deleted), axis=0)
    exact = np.log(np.exp(20.0 * vectors.astype(np.float64) @ rows.astype(np.float64).T).sum(1))
    assert np.allclose(shards.log_sum_exp(vectors, 20.0), exact, rtol=1e-6)
    assert np.allclose(unsharded.log_sum_exp(vectors, 20.0), exact, rtol=1e-6)


def test_a_field_that_only_another_shard_has_is_no_error(index: Index) -> None:
    shards, vectors = sharded.in_process(index, 6), index.opened.encoder.encode(["tea"]).vectors
    assert shards.call("missing_fields", ("color=green",)).count({"color"}) > 0
    assert shards.top_k(vectors, ["tea"], 3, ("color=green",))[0].passages
    with pytest.raises(UsageError) as unsharded:
        index.search("tea", where="flavor=mild")
    with pytest.raises(UsageError, match="no document has a field 'flavor'") as merged:
        shards.top_k(vectors, ["tea"], 3, ("flavor=mild",))
    assert str(merged.value) == str(unsharded.value)


@given(low=st.integers(0, 2 * PANEL + 100), count=st.integers(1, 2 * PANEL + 100))
@settings(max_examples=15)
def test_parts_of_mapped_rows_are_searched_as_the_rows_themselves(low: int, count: int) -> None:
    block, high = BLOCK, min(low + count, len(BLOCK.rows))
    docids = [f"{row:06d}" for row in range(low, high)]
    parts = RowTable(list(block.part(low, high)), docids, set()).top(QUERY, 5)
    copied = block.rows[low:high].copy()
    expected = RowTable([RowBlock(copied, quantize(copied))], docids, set()).top(QUERY, 5)
    assert parts.rows.tolist() == expected.rows.tolist() and parts.scores.tolist() == expected.scores.tolist()


RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((2 * PANEL + 101, 4)).astype(np.float32)
BLOCK, QUERY = RowBlock(ROWS, quantize(ROWS)), RANDOM.standard_normal((1, 4)).astype(np.float32)


def test_without_a_cluster_nothing_imports_ray(index: Index) -> None:
    program = (
        f"import sys\nfrom promptdsi import Index\nIndex.open({str(index.path)!r}, device='cpu').search('tea')\n"
        "assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent.parent)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ray:local", "is no cluster"),
        ("ray://local?shards=0", "is no cluster"),
        ("http://127.0.0.1:1", "is no cluster"),
        ("ray://cluster.example:6379", "set RAY_AUTH_MODE=token and RAY_USE_TLS=1"),
    ],
)
def test_a_url_that_is_no_cluster_or_would_be_an_open_one_is_refused(index: Index, url: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Index.open(index.path, on=url)
