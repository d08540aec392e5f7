"""The server answers as the index does: searches, documents, generations, retention, the map; alone and many at once."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
import small

from promptdsi import Corpus, Index


def test_search_answers_as_the_index_does(server: served.Served, original: Path) -> None:
    index = Index.open(original, device="cpu")
    many = server.search(small.QUERIES, k=7, explain=True)
    assert many["generation"] == index.generation
    for query, result in zip(small.QUERIES, many["results"], strict=True):
        expected_hits = [hit.to_dict() for hit in index.search(query, k=7, explain=True)]
        assert result["query"] == query and not result["truncated"]
        for hit, expected in zip(result["hits"], expected_hits, strict=True):
            assert hit["score"] == pytest.approx(expected["score"], rel=1e-5)
            assert hit["confidence"] == pytest.approx(expected["confidence"], rel=1e-3)
            left_out = {"score": 0, "confidence": 0, "why": 0}
            assert {**hit, **left_out} == {**json.loads(json.dumps(expected)), **left_out}
            assert hit["why"]["words"] == [[word, pytest.approx(weight)] for word, weight in expected["why"]["words"]]
            assert [hit["why"][key] for key in ("rank_by_rows", "rank_by_words")] == [
                expected["why"][key] for key in ("rank_by_rows", "rank_by_words")
            ]
            assert hit["why"]["rank_without"] == expected["why"]["rank_without"]
            assert [neighbor["docid"] for neighbor in hit["why"]["neighbors"]] == [
                neighbor["docid"] for neighbor in expected["why"]["neighbors"]
            ]
    alone = server.search(small.QUERIES[0], k=3)["results"]
    assert len(alone) == 1 and [hit["docid"] for hit in alone[0]["hits"]] == [hit["docid"] for hit in many["results"][0]["hits"][:3]]
    assert "why" not in alone[0]["hits"][0]


def test_hits_below_a_confidence_are_left_out(server: served.Served) -> None:
    every = server.search("what is water made of", k=24)["results"][0]
    confidences = [hit["confidence"] for hit in every["hits"]]
    bound = sorted(confidences)[-3]
    some = server.search("what is water made of", k=24, min_confidence=bound)["results"][0]
    assert [hit["docid"] for hit in some["hits"]] == [hit["docid"] for hit in every["hits"] if hit["confidence"] >= bound]
    assert len(some["hits"]) == 3 and some["certain"]
    assert server.search("what is water made of", min_confidence=1)["results"][0]["hits"] == []
    for wrong in (-0.1, 1.1, "0.5", True):
        assert server.client.post("/api/search", json={"query": "water", "min_confidence": wrong}).status_code == 422


def test_searches_are_filtered_and_may_stand_in_the_url(server: served.Served, original: Path) -> None:
    where = ["subject!=water", "docid=a*,c*"]
    index = Index.open(original, device="cpu")
    expected = [hit.docid for hit in index.search("what is water made of", where="docid=a*,c*", k=5)]
    posted = server.search("what is water made of", k=5, where=["docid=a*,c*"])
    assert [hit["docid"] for hit in posted["results"][0]["hits"]] == expected and expected
    by_url = server.client.get("/api/search", params={"q": "what is water made of", "k": 5, "where": where})
    assert by_url.status_code == 200 and [hit["docid"] for hit in by_url.json()["results"][0]["hits"]] == expected
    assert server.client.get("/api/search", params={"q": "water", "where": "year"}).status_code in (400, 422)
    assert server.client.get("/api/search").status_code == 422
    facets = server.client.get("/api/facets").json()
    assert facets["generation"] == index.generation and [facet["field"] for facet in facets["facets"]] == [
        field for field, _ in index.facets()
    ]


def test_a_query_about_nothing_is_not_certain(server: served.Served) -> None:
    water, nothing = server.search(["what is water made of", "zzyzx qwerty"])["results"]
    assert water["certain"] and not nothing["certain"] and len(nothing["hits"]) == 10


def test_a_query_longer_than_the_model_reads_is_marked_truncated(server: served.Served) -> None:
    assert server.search("water " * 200)["results"][0]["truncated"]


def test_search_as_of_an_older_generation(server: served.Served, corpora: list[Corpus]) -> None:
    now, then = server.search("water", k=1000), server.search("water", k=1000, at=1)
    assert (now["generation"], then["generation"]) == (2, 1)
    new = {document.docid for document in corpora[1].documents}
    assert new <= {hit["docid"] for hit in now["results"][0]["hits"]}
    assert not new & {hit["docid"] for hit in then["results"][0]["hits"]}
    missing = server.client.post("/api/search", json={"query": "water", "at": 9})
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "no_generation"


def test_documents_by_docid(server: served.Served, corpora: list[Corpus]) -> None:
    expected = corpora[1].documents[0]
    document = server.client.get(f"/api/documents/{expected.docid}").json()
    assert (document["docid"], document["title"], document["text"], document["corpus"], document["since"]) == (
        *expected[:1],
        expected.title,
        expected.text,
        "d1",
        2,
    )
    assert server.client.get(f"/api/documents/{expected.docid}", params={"at": 1}).status_code == 404
    wrong = server.client.get(f"/api/documents/{expected.docid[:-1]}")
    assert wrong.status_code == 404 and expected.docid in wrong.json()["error"]["hint"]


def test_the_index_and_its_generations_are_described(server: served.Served, corpora: list[Corpus]) -> None:
    info = server.client.get("/api/index").json()
    assert info["name"] == "index" and info["generation"] == 2 and info["writable"]
    assert [(entry["name"], entry["documents"]) for entry in info["corpora"]] == [("d0", len(corpora[0])), ("d1", len(corpora[1]))]
    assert "/" not in info["backbone"]
    history = server.client.get("/api/generations").json()
    assert history["current"] == 2 and [entry["kind"] for entry in history["generations"]] == ["create", "add"]
    assert history["generations"][1]["added"] == len(corpora[1]) and history["generations"][1]["corpus"] == "d1"


def test_retention_comes_from_recorded_evaluations(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    assert writable.client.get("/api/retention").json() == {"records": []}
    result = Index.open(place, device="cpu").evaluate(corpora[0], record=True)
    (record,) = writable.client.get("/api/retention").json()["records"]
    ranks = [min(query.ranks) for query in result.query_ranks]
    assert record == {
        "generation": 2,
        "corpus": "d0",
        "split": "test",
        "n": len(ranks),
        "hits1": round(sum(rank <= 1 for rank in ranks) / len(ranks), 4),
        "hits10": round(sum(rank <= 10 for rank in ranks) / len(ranks), 4),
    }


def test_requests_that_arrive_together_are_encoded_together_and_answered_as_alone(server: served.Served) -> None:
    queries = [f"{word} number {place}" for place, word in enumerate(["water", "tea", "sound", "light"] * 12)]
    alone = [server.search(query, k=1 + place % 5)["results"][0] for place, query in enumerate(queries)]
    batches = server.app.state.service.metrics.batches
    before = batches._sum.get(), sum(bucket.get() for bucket in batches._buckets)

    async def search_all() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            requests = [client.post("/api/search", json={"query": query, "k": 1 + place % 5}) for place, query in enumerate(queries)]
            return [answer.json()["results"][0] for answer in await asyncio.gather(*requests)]

    batched = asyncio.run(search_all())
    for single, other in zip(alone, batched, strict=True):
        assert [hit["docid"] for hit in single["hits"]] == [hit["docid"] for hit in other["hits"]]
        assert [hit["score"] for hit in single["hits"]] == pytest.approx([hit["score"] for hit in other["hits"]], rel=1e-5)
    searched, passes = batches._sum.get() - before[0], sum(bucket.get() for bucket in batches._buckets) - before[1]
    assert searched == len(queries) and passes < len(queries) / 1.5


def test_a_small_search_passes_large_ones(server: served.Served) -> None:
    def send_search() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            large.append(client.post("/api/search", json={"query": ["water"] * 48, "k": 24, "explain": True}).status_code)

    large: list[int] = []
    threads = [threading.Thread(target=send_search) for _ in range(2)]
    for thread in threads:
        thread.start()
    served.wait_until(lambda: server.app.state.service.batcher.depth == 96)
    server.search("water")
    assert not large  # none of them is done
    for thread in threads:
        thread.join()
    assert set(large) <= {200, 503}  # 503 where a busy machine needs more than thirty seconds


def test_a_batch_that_takes_long_does_not_hold_up_the_others(server: served.Served, monkeypatch: pytest.MonkeyPatch) -> None:
    released, computing, search_batch = threading.Event(), threading.Event(), Index.search_batch

    def slow_search_batch(index: Index, requests: Any, **options: Any) -> Any:
        if requests[0].query == "long":
            computing.set()
            released.wait(60)
        return search_batch(index, requests, **options)

    monkeypatch.setattr(Index, "search_batch", slow_search_batch)
    client = threading.Thread(target=server.search, args=("long",))
    client.start()
    try:
        assert computing.wait(60)
        assert server.search("water")  # while the other is still computed
    finally:
        released.set()
        client.join()


def test_work_stops_when_the_client_goes(server: served.Served) -> None:
    batches = server.app.state.service.metrics.batches
    before = batches._sum.get()
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.5) as client:
        client.post("/api/search", json={"query": ["water"] * 256, "k": 24, "explain": True})
    served.wait_until(lambda: not server.app.state.service.batcher.depth)
    assert batches._sum.get() - before < 256
