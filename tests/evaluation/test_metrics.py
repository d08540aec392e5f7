"""Metrics against ir_measures on random runs, ties and several relevant documents included; run files outside tools agree with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ir_measures
import numpy as np
import pytest
import small
from hypothesis import given

from promptdsi import Corpus, DataError, Document, Index, Judgement, Query
from promptdsi.errors import UsageError
from promptdsi.evaluation.evaluate import (
    DEFAULT,
    EvalQuery,
    QueryRanks,
    interval,
    load_queries,
    measure,
    rank_queries,
    strictly_decreasing,
    values,
    write_run,
)
from promptdsi.methods.base import Result

IR_MEASURES = {"Hits@1": "Success@1", "Hits@5": "Success@5", "Hits@10": "Success@10", "MRR@10": "RR@10", "nDCG@10": "nDCG@10"}


@given(
    st.integers(1, 25).flatmap(
        lambda n: st.tuples(st.lists(st.integers(0, 4), min_size=n, max_size=n), st.lists(st.integers(0, 2), min_size=n, max_size=n))
    )
)
def test_metrics_equal_ir_measures(example: tuple[list[int], list[int]]) -> None:
    """Scores with many ties; relevance 0, 1 or 2. Ranks are ours: docid order breaks ties."""
    scores, relevance = example
    if not any(relevance):
        return
    docids = [f"d{number:02}" for number in range(len(scores))]
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], docids[number]))
    rank = {number: rank for rank, number in enumerate(order, 1)}
    query_ranks = QueryRanks([rank[number] for number, gain in enumerate(relevance) if gain], [float(gain) for gain in relevance if gain])
    written = strictly_decreasing([float(scores[number]) for number in order])
    run = [ir_measures.ScoredDoc("q", docids[number], float(score)) for number, score in zip(order, written, strict=True)]
    qrels = [ir_measures.Qrel("q", docid, gain) for docid, gain in zip(docids, relevance, strict=True)]
    expected = ir_measures.calc_aggregate([ir_measures.parse_measure(name) for name in IR_MEASURES.values()], qrels, run)
    for ours, name in IR_MEASURES.items():
        assert values(ours, [query_ranks])[0] == pytest.approx(expected[ir_measures.parse_measure(name)], abs=1e-9), ours


def test_unknown_metrics_are_refused() -> None:
    for name in ("Hits", "Hits@0", "Recall@10", "hits@10"):
        with pytest.raises(UsageError, match="no metric"):
            values(name, [QueryRanks([1], [1])])


def test_intervals_cover_the_mean_they_should() -> None:
    """The 95 % interval of a coin's mean holds its truth in about 95 of 100 samples."""
    rng = np.random.default_rng(0)
    covered = [low <= 0.3 <= high for low, high in (interval((rng.random(200) < 0.3).astype(float), seed=n) for n in range(100))]
    assert 0.88 <= np.mean(covered) <= 1.0
    assert interval(np.ones(5)) == (1.0, 1.0) and measure("Hits@1", [QueryRanks([1], [1])] * 5).n == 5


def test_a_constant_scorer_scores_at_chance() -> None:
    """Ties by docid cannot favour the answer: over all answers, Hits@k of a constant scorer is k/N."""
    from promptdsi.model.rows import Rows

    rows = Rows(4)
    import torch

    rows.grow([f"d{number:02}" for number in np.random.default_rng(0).permutation(40)], torch.zeros(40, 4))
    rows.freeze()
    ranks = rows.ranks(torch.ones(40, 4), torch.arange(40))
    assert sorted(ranks.tolist()) == list(range(1, 41)) and float((ranks <= 10).float().mean()) == 0.25


def test_a_query_with_several_answers_is_a_hit_if_any_is_found(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    ordered = [hit.docid for hit in index.search("tea", k=24)]
    corpus = Corpus([], [Query("q", "tea"), Query("p", "tea", "pseudo")], name="x")
    corpus.qrels = {
        "test": [Judgement("q", ordered[11]), Judgement("q", ordered[2], 2), Judgement("q", "gone"), Judgement("p", ordered[0])]
    }
    result = index.evaluate(corpus)
    assert result.query_ranks == [QueryRanks([12, 3], [1.0, 2.0])] and result.left_out == 0
    index.delete(ordered[2])
    assert index.evaluate(corpus).query_ranks == [QueryRanks([11], [1.0])]
    index.delete(ordered[11])
    with pytest.raises(DataError, match="has no test query whose document is in the index"):
        index.evaluate(corpus)
    with pytest.raises(DataError, match="has no annotated dev queries"):
        index.evaluate(corpus, split="dev")
    with pytest.raises(UsageError, match="no split 'prod'"):
        load_queries(corpus, "prod")


def test_run_files_are_read_as_we_mean_them(place: Path, corpora: list[Corpus], run: Any, tmp_path: Path) -> None:
    corpora[0].write(tmp_path / "d0")
    outcome = run("eval", place, tmp_path / "d0", "--run", "out.run", "-k", "1000", "--json", "--device", "cpu")
    assert outcome.returncode == 0, outcome.stderr
    output = json.loads(outcome.stdout)
    assert output["split"] == "test" and output["generation"] == 2 and set(output["metrics"]) == set(DEFAULT)
    expected = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in IR_MEASURES.values()],
        [ir_measures.Qrel(judgement.queryid, judgement.docid, judgement.score) for judgement in corpora[0].qrels["test"]],
        ir_measures.read_trec_run(str(tmp_path / "out.run")),
    )
    for ours, name in IR_MEASURES.items():
        figures = output["metrics"][ours]
        assert figures["value"] == pytest.approx(expected[ir_measures.parse_measure(name)]) and figures["n"] == 21
        assert figures["low"] <= figures["value"] <= figures["high"]
    lines = (tmp_path / "out.run").read_text().splitlines()
    assert len(lines) == 21 * 24 and lines[0].split()[1::2] == ["Q0", "1", "promptdsi"]


def test_ids_that_break_a_run_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot hold the id 'a b'"):
        write_run(tmp_path / "r", [EvalQuery("q", "tea", {})], [Result(["a b"], [1.0])], tag="x")
    assert not (tmp_path / "r").exists()


def test_records_hold_ranks_and_no_text(place: Path, corpora: list[Corpus], run: Any, tmp_path: Path) -> None:
    corpora[1].write(tmp_path / "d1")
    for _ in range(2):  # the same evaluation again replaces its record
        assert run("eval", place, tmp_path / "d1", "--record", "--quiet", "--device", "cpu").returncode == 0
    index = Index.open(place, device="cpu")
    (record,) = index.eval_records()
    result = rank_queries(index.opened.method, load_queries(corpora[1], "test"))
    assert record == (2, "d1", "test", [query.ranks[0] for query in result.query_ranks])
    (path,) = (place / "records").iterdir()
    assert json.loads(path.read_text())["content"].keys() == {"format", "generation", "corpus", "split", "ranks"}


def test_documents_of_a_folder_are_evaluated_too(tmp_path: Path, backbone: str) -> None:
    index = small.create(tmp_path / "index", Corpus([Document("a", "tea"), Document("b", "bread")]), backbone)
    corpus = Corpus([], [Query("q", "tea")], {"test": [Judgement("q", "a")]})
    assert index.evaluate(corpus).query_ranks[0].ranks[0] in (1, 2)
