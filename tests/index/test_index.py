"""The index as a person uses it: what search, get, delete, rollback and explain promise (R16 to R19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import tiny

from promptdsi import Corpus, DataError, Document, Index
from promptdsi.errors import UsageError
from promptdsi.index import generation
from promptdsi.index.search import snippet

QUERY = "how does a telescope work"


def docids(index: Index, query: str = QUERY) -> list[str]:
    return [hit.docid for hit in index.search(query, k=1000)]


def extra(*texts: str, name: str = "extra") -> Corpus:
    return Corpus([Document(f"{name}-{place}", text, f"Title {place}") for place, text in enumerate(texts)], name=name)


def test_create_add_search(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    assert index.generation == 2 and len(index) == 24 and index.store.numbers() == [1, 2]
    assert sorted(docids(index)) == sorted(document.docid for corpus in corpora[:2] for document in corpus.documents)
    hits = index.search(QUERY, k=24)
    assert [hit.rank for hit in hits] == list(range(1, 25)) and [hit.score for hit in hits] == sorted(
        (hit.score for hit in hits), reverse=True
    )
    new = next(hit for hit in hits if hit.corpus == "d1")
    assert (new.since, new.title, new.snippet[:5]) == (
        2,
        index.get(new.docid).title,
        snippet(index.get(new.docid).text[slice(*(new.passage or (None,)))], QUERY)[:5],
    )
    assert {hit.since for hit in hits if hit.corpus == "d0"} == {1}
    document = corpora[0].documents[3]
    assert index.get(document.docid) == document
    with pytest.raises(DataError, match="holds no document 'nobody'"):
        index.get("nobody")
    report = index.add(corpora[2])
    assert (report.generation, report.added, report.corpus, report.dev_queries) == (3, 3, "d2", 3)
    assert index.generation == 3 and len(index) == 27 and index.report == report


def test_results_do_not_depend_on_who_asks_how(place: Path, corpora: list[Corpus], run: Any) -> None:
    """Alone, in a batch of any order, from Python, from the command line, after opening again (R16)."""
    import json

    queries = [pair.query.text for pair in corpora[0].pairs("test")][:9]
    queries += ["tea", "a much longer query about how bridges carry loads"]
    index = Index.open(place, device="cpu")
    alone = [index.search(query, k=5) for query in queries]
    outcome = run("search", place, "-k", "5", "--json", "--device", "cpu", *queries)
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    others = [
        index.search(queries, k=5),
        index.search(queries[::-1], k=5)[::-1],
        Index.open(place, device="cpu").search(queries, k=5),
    ]
    for answers in others:
        for hits, other in zip(alone, answers, strict=True):
            assert [hit.docid for hit in hits] == [hit.docid for hit in other]
            np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in other], rtol=1e-5)
    for query, hits, line in zip(queries, alone, lines, strict=True):
        assert line["query"] == query and line["generation"] == 2
        assert [hit["docid"] for hit in line["hits"]] == [hit.docid for hit in hits]
        np.testing.assert_allclose([hit["score"] for hit in line["hits"]], [hit.score for hit in hits], rtol=1e-5)
        assert set(line["hits"][0]) == {
            "rank",
            "docid",
            "score",
            "confidence",
            "title",
            "snippet",
            "passage",
            "heading",
            "page",
            "corpus",
            "since",
        }


def test_odd_questions_have_defined_answers(place: Path) -> None:
    index = Index.open(place, device="cpu")
    for k in (0, -3):
        with pytest.raises(UsageError, match=f"k={k}"):
            index.search("tea", k=k)
    assert len(index.search("tea", k=10**6)) == 24
    for empty in ("", "   ", "\n"):
        with pytest.raises(UsageError, match="a query is empty"):
            index.search(empty)
    assert index.search([]) == []
    long = index.search("water " * 170_000, k=3)  # a megabyte: cut to what the model reads
    assert [hit.docid for hit in long] == [hit.docid for hit in index.search("water " * 40, k=3)]


def test_equal_scores_stand_in_docid_order(tmp_path: Path, backbone: str) -> None:
    """Equal documents have equal rows (R17)."""
    texts = [Document(docid, "the same words for all of them", "") for docid in ("m", "b", "z", "a")]
    index = small.create(tmp_path / "index", Corpus(texts), backbone, fit_epochs=0)
    assert docids(index, "same words") == ["a", "b", "m", "z"]


def test_a_deleted_document_never_appears_and_changes_no_score(place: Path) -> None:
    index = Index.open(place, device="cpu")
    before = {hit.docid: hit.score for hit in index.search(QUERY, k=100)}
    victims = docids(index)[:2]
    index.delete(victims)
    after = {hit.docid: hit.score for hit in index.search(QUERY, k=100)}
    assert after == {docid: score for docid, score in before.items() if docid not in victims}
    assert len(index) == 22
    with pytest.raises(DataError, match="is deleted; `undelete` shows it again"):
        index.get(victims[0])
    with pytest.raises(DataError, match="deleted already"):
        index.delete(victims[0])
    with pytest.raises(DataError, match="holds no document 'nobody'"):
        index.delete(["nobody"])
    index.undelete(victims)
    assert {hit.docid: hit.score for hit in index.search(QUERY, k=100)} == before
    with pytest.raises(DataError, match="is not deleted"):
        index.undelete(victims[0])


def test_rollback_is_a_new_generation_equal_to_the_target(place: Path, corpora: list[Corpus]) -> None:
    index = Index.open(place, device="cpu")
    two = small.signature(index)
    index.add(corpora[2])
    three = small.signature(index)
    manifest = index.rollback()
    assert (manifest.number, manifest.kind, manifest.event) == (4, "rollback", {"to": 2}) and small.signature(index) == two
    index.rollback(3)
    assert index.generation == 5 and small.signature(index) == three
    for at, expected in ((2, two), (3, three), (4, two)):
        assert small.signature(Index.open(place, at=at, device="cpu")) == expected
    assert index.rollback().event == {"to": 2}  # of what is shown, which is generation 3's
    assert index.rollback().event == {"to": 1} and index.generation == 7  # a change further back, not forth again
    with pytest.raises(UsageError, match="there is nothing to go back to"):
        index.rollback()
    index.rollback(5)
    with pytest.raises(UsageError, match="has generations 1 to 8, not 9"):
        index.rollback(9)
    with pytest.raises(UsageError, match="has generations 1 to 8, not 0"):
        Index.open(place, at=0)
    pinned = Index.open(place, at=2, device="cpu")
    with pytest.raises(UsageError, match="opened at generation 2: that one is read only"):
        pinned.delete(corpora[0].documents[0].docid)
    index.rollback(2)
    index.add(corpora[2])  # its name is free again
    assert small.signature(index)[:5] and len(index) == 27


def test_explain(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, prompts="topic", prompt_options={"prompt_length": 4}, keep_queries=True)
    index.add(corpora[1], keep_queries=True)
    query = corpora[0].pairs("train")[0].query.text
    hits = index.search(query, k=24, explain=True)
    method = index.opened.method
    plain = method.model_.rows.scores(method.encode([query], prompted=False))[0]
    best = {docid: max(float(plain[row]) for row in method.model_.rows.rows_of(docid)) for docid in method.model_.rows.row_of}
    order = sorted(best, key=lambda docid: (-best[docid], docid))
    for hit in hits:
        why = hit.why
        assert why is not None and why.prompt is not None and -1 <= (why.similarity or 0) <= 1.0001
        assert why.rank_without == order.index(hit.docid) + 1
        assert why.score_without <= best[hit.docid] + 1e-4
        assert hit.score == pytest.approx(why.learned + sum(weight for _, weight in why.words), abs=1e-5)
        assert why.newer == [other.docid for other in hits[: hit.rank - 1] if other.since > hit.since]
    target = next(hit for hit in hits if hit.docid == corpora[0].pairs("train")[0].docid)
    assert target.why is not None and target.why.query == query and target.why.query_similarity == pytest.approx(1, abs=1e-4)
    bare = small.create(tmp_path / "bare", corpora[0], backbone).search(query, k=1, explain=True)[0]
    assert bare.why is not None and bare.why.prompt is None and bare.why.query is None and bare.why.rank_without == 1
    assert index.search(query, k=1)[0].why is None


def test_explanations_belong_to_their_hits_where_others_are_left_out(place: Path) -> None:
    index = Index.open(place, device="cpu")
    everything = {hit.docid: hit for hit in index.search(QUERY, k=24, explain=True)}
    confidences = sorted(hit.confidence for hit in everything.values() if hit.confidence is not None)
    assert len(confidences) == 24, "the index is calibrated"
    for bound in (confidences[6], confidences[18]):
        hits = index.search(QUERY, k=24, explain=True, min_confidence=bound)
        assert {hit.docid for hit in hits} == {docid for docid, hit in everything.items() if (hit.confidence or 0) >= bound}
        for hit in hits:
            assert hit.why is not None and everything[hit.docid].why is not None
            assert (hit.why.learned, hit.why.words) == (everything[hit.docid].why.learned, everything[hit.docid].why.words)  # type: ignore[union-attr]


def test_an_index_of_passages_without_words_can_be_upgraded(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    index = small.create(tmp_path / "index", corpora[0], backbone, words=False)
    assert index.manifest.statistics is None and index.manifest.corpora[0].row_count > len(corpora[0])
    index.upgrade()
    title = corpora[0].documents[5].title
    assert index.search(title)[0].docid == corpora[0].documents[5].docid and index.verify().problems == []
    index.add(corpora[1])
    assert len(index.search(title, k=100)) == 24


def test_opening_maps_weights_and_writes_nothing(place: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in place.rglob("*")}
    generation._shared_sessions.clear()  # an index with the same encoder may be open elsewhere
    index = Index.open(place, device="cpu")
    index.search(["tea", "bread"], explain=True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in place.rglob("*")} == before
    assert str(place / "blobs" / index.manifest.encoder) in Path("/proc/self/maps").read_text()


def test_tiny_is_enough_for_a_single_document(tmp_path: Path) -> None:
    folder = str(tiny.backbone_folder(tmp_path / "backbone", ["tea", "water"]))
    index = small.create(tmp_path / "index", Corpus([Document("only", "tea water")]), folder)
    assert [hit.docid for hit in index.search("tea")] == ["only"]
    index.delete("only")
    assert index.search("tea") == [] and len(index) == 0
    index.add(extra("water tea"))
    assert [hit.docid for hit in index.search("tea")] == ["extra-0"]


def test_a_hit_names_the_page_of_its_snippet_and_shows_headings_once(tmp_path: Path, backbone: str) -> None:
    first, second = "# Keys\n\nThe spare key is with the neighbour.\n\n", "# Water\n\nThe main valve is below the sink."
    manual = Document("manual", first + second, "Keys", {"pages": [0, len(first)]})
    index = small.create(tmp_path / "index", Corpus([manual, Document("tea", "Tea wants hot water.")]), backbone)
    hits = {query: next(hit for hit in index.search(query) if hit.docid == "manual") for query in ("spare key", "valve below the sink")}
    assert [hit.page for hit in hits.values()] == [1, 2]
    assert all(hit.snippet == "The spare key is with the neighbour. Water: The main valve is below the sink." for hit in hits.values())


def test_what_the_query_engine_cannot_do_is_refused_at_create(corpora: list[Corpus], backbone: str, tmp_path: Path) -> None:
    options = {"prompt_layers": [1, 2], "reselect_per_layer": True}
    with pytest.raises(UsageError, match="reselect_per_layer is for promptdsi bench alone"):
        small.create(tmp_path / "index", corpora[0], backbone, prompts="l2p", prompt_options=options)
    assert not (tmp_path / "index").exists()
    with pytest.raises(UsageError, match="it needs selection=single"):
        small.method("promptdsi", backbone, prompts="l2p", prompt_options=options, selection="two-pass").check()
