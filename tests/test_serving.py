"""The server answers as the index does: searches, documents, generations, additions, deletions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
import small

from promptdsi import Corpus, Document, Index
from promptdsi.index.store import Store


@pytest.fixture(scope="module")
def server(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[served.Served]:
    """A server nobody writes to."""
    path = small.copied(original, tmp_path_factory.mktemp("served") / "index")
    with served.serving(path) as running:
        yield running


@pytest.fixture
def writable(place: Path) -> Iterator[served.Served]:
    with served.serving(place) as running:
        yield running


def lines(documents: list[Document]) -> bytes:
    return b"".join(json.dumps({"_id": one.docid, "title": one.title, "text": one.text}).encode() + b"\n" for one in documents)


def add(server: served.Served, documents: list[Document], **options: Any) -> httpx.Response:
    return server.client.post("/api/documents", content=lines(documents), headers={"Content-Type": "application/x-ndjson"}, params=options)


# Reading ------------------------------------------------------------------------------------------------------------------


def test_search_answers_as_the_index_does(server: served.Served, original: Path) -> None:
    index = Index.open(original, device="cpu")
    many = server.search(small.QUERIES, k=7, explain=True)
    assert many["generation"] == index.generation
    for query, result in zip(small.QUERIES, many["results"], strict=True):
        own = [hit.to_json() for hit in index.search(query, k=7, explain=True)]
        assert result["query"] == query and not result["cut"]
        for hit, expected in zip(result["hits"], own, strict=True):
            assert hit["score"] == pytest.approx(expected["score"], rel=1e-5)
            assert {**hit, "score": 0, "why": 0} == {**expected, "score": 0, "why": 0}
            assert hit["why"]["rank_without"] == expected["why"]["rank_without"]
            assert [one["docid"] for one in hit["why"]["neighbours"]] == [one["docid"] for one in expected["why"]["neighbours"]]
    alone = server.search(small.QUERIES[0], k=3)["results"]
    assert len(alone) == 1 and [hit["docid"] for hit in alone[0]["hits"]] == [hit["docid"] for hit in many["results"][0]["hits"][:3]]
    assert "why" not in alone[0]["hits"][0]


def test_a_query_the_model_cannot_read_whole_is_said_to_be_cut(server: served.Served) -> None:
    assert server.search("water " * 200)["results"][0]["cut"]


def test_search_as_of_an_older_generation(server: served.Served, corpora: list[Corpus]) -> None:
    now, then = server.search("water", k=1000), server.search("water", k=1000, at=1)
    assert (now["generation"], then["generation"]) == (2, 1)
    new = {document.docid for document in corpora[1].documents}
    assert new <= {hit["docid"] for hit in now["results"][0]["hits"]}
    assert not new & {hit["docid"] for hit in then["results"][0]["hits"]}
    missing = server.client.post("/api/search", json={"query": "water", "at": 9})
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "no_generation"


def test_documents_by_docid(server: served.Served, corpora: list[Corpus]) -> None:
    known = corpora[1].documents[0]
    found = server.client.get(f"/api/documents/{known.docid}").json()
    assert (found["docid"], found["title"], found["text"], found["corpus"], found["since"]) == (
        *known[:1],
        known.title,
        known.text,
        "d1",
        2,
    )
    assert server.client.get(f"/api/documents/{known.docid}", params={"at": 1}).status_code == 404
    wrong = server.client.get(f"/api/documents/{known.docid[:-1]}")
    assert wrong.status_code == 404 and known.docid in wrong.json()["error"]["hint"]


def test_what_is_served_is_told(server: served.Served, corpora: list[Corpus]) -> None:
    told = server.client.get("/api/index").json()
    assert told["name"] == "index" and told["generation"] == 2 and told["writable"]
    assert [(one["name"], one["documents"]) for one in told["corpora"]] == [("d0", len(corpora[0])), ("d1", len(corpora[1]))]
    assert "/" not in told["backbone"]
    history = server.client.get("/api/generations").json()
    assert history["current"] == 2 and [one["kind"] for one in history["generations"]] == ["create", "add"]
    assert history["generations"][1]["added"] == len(corpora[1]) and history["generations"][1]["corpus"] == "d1"


def test_retention_comes_from_recorded_evaluations(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    assert writable.client.get("/api/retention").json() == {"records": []}
    asked = Index.open(place, device="cpu").evaluate(corpora[0], keep=True)
    (told,) = writable.client.get("/api/retention").json()["records"]
    ranks = [min(one.ranks) for one in asked.judged]
    assert told == {
        "generation": 2,
        "corpus": "d0",
        "split": "test",
        "n": len(ranks),
        "hits1": round(sum(rank <= 1 for rank in ranks) / len(ranks), 4),
        "hits10": round(sum(rank <= 10 for rank in ranks) / len(ranks), 4),
    }


def test_the_map_shows_every_document_and_near_rows_near(server: served.Served, corpora: list[Corpus]) -> None:
    told = server.client.get("/api/map").json()
    assert told["documents"] == told["shown"] == len(told["points"]) == len(corpora[0]) + len(corpora[1])
    assert {one["docid"] for one in told["points"]} == {one.docid for corpus in corpora[:2] for one in corpus.documents}
    assert all(-1 <= one["x"] <= 1 and -1 <= one["y"] <= 1 for one in told["points"])
    assert {told["corpora"][one["corpus"]] for one in told["points"]} == {"d0", "d1"}
    counts = [0] * len(told["topics"])
    for one in told["points"]:
        counts[one["topic"]] += 1
    assert counts == [topic["count"] for topic in told["topics"]] == sorted(counts, reverse=True)
    chance = 10 / (told["shown"] - 1)
    assert told["kept"] > 1.3 * chance
    assert server.client.get("/api/map", params={"at": 1}).json()["shown"] == len(corpora[0])


def test_requests_that_arrive_together_are_encoded_together_and_answered_as_alone(server: served.Served) -> None:
    queries = [f"{word} number {place}" for place, word in enumerate(["water", "tea", "sound", "light"] * 12)]
    alone = [server.search(query, k=1 + place % 5)["results"][0] for place, query in enumerate(queries)]
    batches = server.app.state.service.metrics.batches
    before = batches._sum.get(), sum(bucket.get() for bucket in batches._buckets)

    async def together() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            wanted = [client.post("/api/search", json={"query": query, "k": 1 + place % 5}) for place, query in enumerate(queries)]
            return [answer.json()["results"][0] for answer in await asyncio.gather(*wanted)]

    found = asyncio.run(together())
    for one, other in zip(alone, found, strict=True):
        assert [hit["docid"] for hit in one["hits"]] == [hit["docid"] for hit in other["hits"]]
        assert [hit["score"] for hit in one["hits"]] == pytest.approx([hit["score"] for hit in other["hits"]], rel=1e-5)
    asked, passes = batches._sum.get() - before[0], sum(bucket.get() for bucket in batches._buckets) - before[1]
    assert asked == len(queries) and passes < len(queries) / 1.5


# Following the index ------------------------------------------------------------------------------------------------------


def test_a_generation_of_another_writer_is_served_within_a_second(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    Index.open(place, device="cpu").add(corpora[2])
    committed = time.monotonic()
    while writable.search("water")["generation"] < 3:
        assert time.monotonic() - committed < 1.0
        time.sleep(0.01)
    docid = corpora[2].documents[0].docid
    assert docid in {hit["docid"] for hit in writable.search("water", k=1000)["results"][0]["hits"]}


def test_a_generation_that_cannot_be_opened_leaves_the_one_before(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    before = writable.search("water", k=1000)
    blobs = set((place / "blobs").iterdir())
    Index.open(place, device="cpu").add(corpora[2])
    # The server may have opened it by now; a second one is damaged before its name is known.
    store = Store(place)
    manifest = store.manifest(3)
    (place / "blobs" / manifest.corpora[2].rows).write_bytes(b"damaged")
    store.commit(manifest.next("delete", tombstones=(0,)))
    assert (set((place / "blobs").iterdir())) > blobs
    end = time.monotonic() + 5
    while "promptdsi_stale 1.0" not in writable.client.get("/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.05)
    after = writable.search("water", k=1000)
    assert after["generation"] in (2, 3)
    assert after == before or after["generation"] == 3
    assert writable.client.get("/readyz").status_code == 200


def test_another_index_in_the_same_place_is_noticed(writable: served.Served, place: Path, corpora: list[Corpus], backbone: str) -> None:
    """Also when it stands at the same generation: what counts is what CURRENT says, not a number."""
    first = corpora[2].documents[0]
    shutil.rmtree(place)
    other = small.create(place, corpora[2], backbone)
    other.add(corpora[3])
    end = time.monotonic() + 10
    while writable.client.get("/api/index").json()["documents"] != len(other):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert writable.client.get(f"/api/documents/{first.docid}").json()["text"] == first.text
    assert writable.client.get(f"/api/documents/{corpora[0].documents[0].docid}").status_code == 404


def test_nothing_that_was_purged_stays_open(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[1].documents[0].docid
    writable.search("water", k=1000)
    writable.search("water", k=1000, at=1)
    Index.open(place, device="cpu").purge(docid)
    end = time.monotonic() + 5
    while writable.search("water", k=1000)["generation"] < 3:
        assert time.monotonic() < end
    while deleted := [name for name in open_files(place) if name.endswith(".sqlite (deleted)")]:
        assert time.monotonic() < end, deleted
        time.sleep(0.05)


def open_files(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return [name for name in found if name.startswith(str(folder))]


def test_files_do_not_pile_up_over_generations(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[0].documents[0].docid
    counts = []
    for _ in range(8):
        assert writable.client.delete(f"/api/documents/{docid}").status_code == 200
        assert writable.client.post("/api/undelete", json={"docids": [docid]}).status_code == 200
        writable.search("water", k=1000)
        counts.append(len(open_files(place)))
    assert max(counts[2:]) <= counts[1] + 2, counts


def test_a_purge_that_is_under_way_is_respected(writable: served.Served, place: Path, corpora: list[Corpus], monkeypatch: Any) -> None:
    """An older generation is opened without what the newest says is to be erased, even before its manifest is rewritten."""
    from promptdsi.index import purge

    docid = corpora[1].documents[0].docid
    monkeypatch.setattr(purge, "finish_purge", lambda store, manifest: manifest)  # cut off right after the commit
    with contextlib.suppress(Exception):
        Index.open(place, device="cpu").purge(docid)
    end = time.monotonic() + 5
    while writable.search("water")["generation"] < 3:
        assert time.monotonic() < end
    assert writable.client.get(f"/api/documents/{docid}", params={"at": 2}).status_code == 404
    assert docid not in writable.client.get("/api/map", params={"at": 2}).text


def test_an_index_that_is_mended_is_served_again(place: Path) -> None:
    mark = (place / "CURRENT").read_bytes()
    (place / "CURRENT").unlink()
    with served.serving(place) as running:
        assert running.client.get("/readyz").status_code == 503
        (place / "CURRENT").write_bytes(mark)
        end = time.monotonic() + 10
        while running.client.get("/readyz").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert running.search("water")["results"]


def test_a_small_search_passes_large_ones(server: served.Served) -> None:
    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            large.append(client.post("/api/search", json={"query": ["water"] * 96, "k": 24, "explain": True}).status_code)

    large: list[int] = []
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    began = time.monotonic()
    server.search("water")
    waited = time.monotonic() - began
    assert not large  # they are not done, and yet
    assert waited < 10
    for thread in threads:
        thread.join()
    assert set(large) <= {200, 503}  # 503 where the machine is too busy for so much in thirty seconds


def test_work_stops_when_the_client_goes(server: served.Served) -> None:
    batches = server.app.state.service.metrics.batches
    before = batches._sum.get()
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.5) as client:
        client.post("/api/search", json={"query": ["water"] * 256, "k": 24, "explain": True})
    end = time.monotonic() + 10
    while server.app.state.service.batcher.depth:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert batches._sum.get() - before < 256


def test_what_is_purged_is_no_longer_served(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    docid = corpora[1].documents[0].docid
    assert writable.client.get(f"/api/documents/{docid}", params={"at": 2}).status_code == 200
    assert writable.client.get("/api/map").status_code == 200
    Index.open(place, device="cpu").purge(docid)
    end = time.monotonic() + 5
    while writable.search("water")["generation"] < 3:
        assert time.monotonic() < end
    for at in (None, 1, 2, 3):
        answer = writable.client.get(f"/api/documents/{docid}", params={"at": at} if at else {})
        assert answer.status_code == 404
        told = writable.client.get("/api/map", params={"at": at} if at else {}).text
        assert docid not in told


# Writing ------------------------------------------------------------------------------------------------------------------


def test_documents_are_added_in_the_background_and_found(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    answer = add(writable, corpora[2].documents, name="from the page")
    assert answer.status_code == 202, answer.text
    job = writable.wait(answer.json())
    assert job["state"] == "done", job
    assert job["report"]["added"] == len(corpora[2]) and job["report"]["generation"] == 3 and job["stage"]
    found = writable.search("water", k=1000)
    assert found["generation"] == 3  # already when the job is called done
    assert {hit["docid"]: hit["corpus"] for hit in found["results"][0]["hits"]}[corpora[2].documents[0].docid] == "from the page"
    own = Index.open(place, device="cpu")
    assert own.verify().problems == [] and own.generation == 3
    assert writable.client.get("/api/jobs").json()["jobs"][0]["id"] == job["id"]


def test_json_bodies_options_and_made_up_names(writable: served.Served) -> None:
    body = {"documents": [{"_id": "a/b ü.txt", "text": "Green tea wants cool water.", "tag": "kitchen"}]}
    job = writable.wait(writable.client.post("/api/documents", json=body, params={"fast": True}).json())
    assert job["state"] == "done" and job["report"]["fast"] and job["corpus"] == "added-1"
    found = writable.client.get("/api/documents/a%2Fb%20%C3%BC.txt").json()
    assert found["docid"] == "a/b ü.txt" and found["metadata"] == {"tag": "kitchen"}
    body["documents"][0]["text"] = "Black tea wants hot water."
    refused = writable.wait(writable.client.post("/api/documents", json=body).json())
    assert refused["state"] == "failed" and "other content" in refused["error"]["message"]
    replaced = writable.wait(writable.client.post("/api/documents", json=body, params={"update": True}).json())
    assert replaced["state"] == "done" and replaced["report"]["updated"] == 1
    same = writable.wait(writable.client.post("/api/documents", json=body).json())
    assert same["state"] == "done" and same["report"]["unchanged"] == 1 and same["report"]["added"] == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"_id": "x", "text": "one"}\n{"_id": "y"\n', "line 2, column"),
        (b'{"_id": "x", "text": ""}\n', 'line 1: "text" is empty'),
        (b'{"_id": "x", "text": "one"}\n{"_id": "x", "text": "two"}\n', "line 2: id 'x' appeared before"),
        (b'{"_id": "x", "text": "caf\xe9"}\n', "line 1: not UTF-8"),
        (b"\n", "there is no document"),
    ],
)
def test_mistakes_in_documents_are_told_with_their_line(server: served.Served, body: bytes, said: str) -> None:
    answer = server.client.post("/api/documents", content=body, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 422 and said in answer.json()["error"]["message"], answer.text
    assert "/tmp" not in answer.text and ".jsonl" not in answer.text
    assert server.client.get("/api/jobs").json()["jobs"] == []


def test_names_are_unique_also_among_jobs_that_wait(writable: served.Served, corpora: list[Corpus]) -> None:
    taken = add(writable, corpora[2].documents, name="d1")
    assert taken.status_code == 409 and taken.json()["error"]["code"] == "name"
    first = add(writable, corpora[2].documents, name="new")
    assert add(writable, corpora[3].documents, name="new").status_code == 409
    second = add(writable, corpora[3].documents)
    assert [writable.wait(job.json())["state"] for job in (first, second)] == ["done", "done"]
    assert writable.search("water")["generation"] == 4


def test_a_worker_that_dies_leaves_the_index_as_it_was(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    import psutil

    before = small.signature(place)
    job = add(writable, corpora[2].documents).json()
    end = time.monotonic() + 30
    while not (workers := [one for one in psutil.Process().children() if "promptdsi.serving.worker" in one.cmdline()]):
        assert time.monotonic() < end
    workers[0].kill()
    ended = writable.wait(job)
    assert ended["state"] == "failed" and "signal 9" in ended["error"]["message"]
    assert small.signature(place) == before
    assert writable.wait(add(writable, corpora[2].documents).json())["state"] == "done"


def test_delete_and_undo(writable: served.Served, corpora: list[Corpus]) -> None:
    docid = corpora[0].documents[0].docid
    before = writable.search("water", k=1000)["results"]
    gone = writable.client.delete(f"/api/documents/{docid}")
    assert gone.status_code == 200 and gone.json() == {"generation": 3, "documents": len(corpora[0]) + len(corpora[1]) - 1}
    left = writable.search("water", k=1000)
    assert left["generation"] == 3 and docid not in {hit["docid"] for hit in left["results"][0]["hits"]}
    again = writable.client.delete(f"/api/documents/{docid}")
    assert again.status_code == 404 and again.json()["error"]["code"] == "deleted"
    back = writable.client.post("/api/undelete", json={"docids": [docid]})
    assert back.status_code == 200 and back.json()["generation"] == 4
    assert writable.search("water", k=1000)["results"] == before
    assert writable.client.post("/api/undelete", json={"docids": [docid]}).status_code == 409
    assert writable.client.post("/api/undelete", json={"docids": ["nobody"]}).status_code == 404


def test_another_writer_is_told_and_nothing_waits(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    with Store(place).writing():
        answer = writable.client.delete(f"/api/documents/{corpora[0].documents[0].docid}")
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "busy" and answer.headers["Retry-After"]
