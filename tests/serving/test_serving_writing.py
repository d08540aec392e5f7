"""Adding, deleting and undoing over HTTP: jobs, reports, mistakes, workers that die."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
import small

from promptdsi import Corpus, Document, Index
from promptdsi.index.store import Store
from promptdsi.serving import job_process


def lines(documents: list[Document]) -> bytes:
    return b"".join(
        json.dumps({"_id": document.docid, "title": document.title, "text": document.text}).encode() + b"\n" for document in documents
    )


def add(server: served.Served, documents: list[Document], **options: Any) -> httpx.Response:
    return server.client.post("/api/documents", content=lines(documents), headers={"Content-Type": "application/x-ndjson"}, params=options)


def test_documents_are_added_in_the_background_and_found(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    taken = add(writable, corpora[2].documents, name="d1")
    assert taken.status_code == 409 and taken.json()["error"]["code"] == "name"
    first = add(writable, corpora[2].documents, name="from the page")
    assert first.status_code == 202, first.text
    assert add(writable, corpora[3].documents, name="from the page").status_code == 409  # names are unique among jobs too
    second = add(writable, corpora[3].documents)
    job = writable.wait(first.json())
    assert job["state"] == "done", job
    assert job["report"]["added"] == len(corpora[2]) and job["report"]["generation"] == 3 and job["stage"]
    response = writable.search("water", k=1000)
    assert response["generation"] >= 3  # already when the job is called done
    assert {hit["docid"]: hit["corpus"] for hit in response["results"][0]["hits"]}[corpora[2].documents[0].docid] == "from the page"
    job = writable.wait(second.json())
    assert job["state"] == "done" and writable.search("water")["generation"] == 4
    index = Index.open(place, device="cpu")
    assert index.verify().problems == [] and index.generation == 4
    assert writable.client.get("/api/jobs").json()["jobs"][0]["id"] == job["id"]


def test_json_bodies_options_and_made_up_names(writable: served.Served) -> None:
    body = {"documents": [{"_id": "a/b ü.txt", "text": "Green tea wants cool water.", "tag": "kitchen"}]}
    job = writable.wait(writable.client.post("/api/documents", json=body, params={"fast": True}).json())
    assert job["state"] == "done" and job["report"]["fast"] and job["corpus"] == "added-1"
    document = writable.client.get("/api/documents/a%2Fb%20%C3%BC.txt").json()
    assert document["docid"] == "a/b ü.txt" and document["metadata"] == {"tag": "kitchen"}
    body["documents"][0]["text"] = "Black tea wants hot water."
    refused = writable.wait(writable.client.post("/api/documents", json=body).json())
    assert refused["state"] == "failed" and "other content" in refused["error"]["message"]
    replaced = writable.wait(writable.client.post("/api/documents", json=body, params={"update": True}).json())
    assert replaced["state"] == "done" and replaced["report"]["updated"] == 1
    same = writable.wait(writable.client.post("/api/documents", json=body).json())
    assert same["state"] == "done" and same["report"]["unchanged"] == 1 and same["report"]["added"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"_id": "x", "text": "one"}\n{"_id": "y"\n', "line 2, column"),
        (b'{"_id": "x", "text": ""}\n', 'line 1: "text" is empty'),
        (b'{"_id": "x", "text": "one"}\n{"_id": "x", "text": "two"}\n', "line 2: id 'x' appeared before"),
        (b'{"_id": "x", "text": "caf\xe9"}\n', "line 1: not UTF-8"),
        (b"\n", "there is no document"),
    ],
)
def test_errors_in_documents_name_the_line(server: served.Served, body: bytes, message: str) -> None:
    answer = server.client.post("/api/documents", content=body, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 422 and message in answer.json()["error"]["message"], answer.text
    assert "/tmp" not in answer.text and ".jsonl" not in answer.text
    assert server.client.get("/api/jobs").json()["jobs"] == []


def test_documents_are_named_by_docid_or_by_id_not_both(writable: served.Served) -> None:
    texts = [{"docid": "by-docid", "text": "Green tea wants cool water."}, {"_id": "by-id", "text": "Black tea wants hot water."}]
    both = {"docid": "one", "_id": "two", "text": "White tea."}
    for documents in ([both], [*texts, both]):
        for refused in (
            writable.client.post("/api/documents", json={"documents": documents}),
            writable.client.post(
                "/api/documents",
                content="\n".join(map(json.dumps, documents)),
                headers={"Content-Type": "application/x-ndjson"},
            ),
        ):
            assert refused.status_code == 422 and "has both `docid` and `_id`" in refused.json()["error"]["message"], refused.text
    missing = writable.client.post("/api/documents", json={"documents": [{"text": "White tea."}]})
    assert missing.status_code == 422 and missing.json()["error"]["message"].startswith("documents.0.docid: ")
    assert writable.wait(writable.client.post("/api/documents", json={"documents": texts}, params={"fast": True}).json())["state"] == "done"
    lines = json.dumps({"docid": "by-line", "text": "Mint tea."}) + "\n"
    job = writable.client.post("/api/documents?fast=1", content=lines, headers={"Content-Type": "application/x-ndjson"}).json()
    assert writable.wait(job)["state"] == "done"
    for docid in ("by-docid", "by-id", "by-line"):
        document = writable.client.get(f"/api/documents/{docid}").json()
        assert document["docid"] == docid and document["metadata"] == {}


def test_a_worker_that_dies_leaves_the_index_as_it_was(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    import psutil

    before = small.signature(place)
    job = add(writable, corpora[2].documents).json()
    end = time.monotonic() + 60
    while not (workers := [child for child in psutil.Process().children() if "promptdsi.serving.job_process" in child.cmdline()]):
        assert time.monotonic() < end
    workers[0].kill()
    ended = writable.wait(job)
    assert ended["state"] == "failed" and "signal 9" in ended["error"]["message"]
    assert small.signature(place) == before
    assert writable.wait(add(writable, corpora[2].documents).json())["state"] == "done"


@pytest.mark.parametrize(("added", "advice"), [(False, "add the documents again"), (True, "there is nothing to repeat")])
def test_a_stopped_job_says_whether_its_documents_are_in(
    added: bool, advice: str, place: Path, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever others commit meanwhile."""
    add_documents = Index.add

    def stopped(index: Index, corpus: Corpus, **options: Any) -> None:
        Index.open(place, device="cpu").delete(corpora[0].documents[0].docid)
        if added:
            add_documents(index, corpus, **options)
        raise KeyboardInterrupt

    documents = [[*document[:3], {}] for document in corpora[2].documents]
    job = {"documents": documents, "name": "d2", "device": "cpu", "fast": True, "update": False}
    monkeypatch.setattr(sys, "argv", ["job_process", str(place)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    monkeypatch.setattr(Index, "add", stopped)
    for module, name in ((job_process.os, "nice"), (job_process.signal, "signal")):  # they are this process's too
        monkeypatch.setattr(module, name, lambda *_: None)
    assert job_process.main() == 1
    assert advice in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["hint"]


def test_delete_and_undo(writable: served.Served, corpora: list[Corpus]) -> None:
    docid = corpora[0].documents[0].docid
    before = writable.search("water", k=1000)["results"]
    deleted = writable.client.delete(f"/api/documents/{docid}")
    assert deleted.status_code == 200 and deleted.json() == {"generation": 3, "documents": len(corpora[0]) + len(corpora[1]) - 1}
    left = writable.search("water", k=1000)
    assert left["generation"] == 3 and docid not in {hit["docid"] for hit in left["results"][0]["hits"]}
    again = writable.client.delete(f"/api/documents/{docid}")
    assert again.status_code == 404 and again.json()["error"]["code"] == "deleted"
    back = writable.client.post("/api/undelete", json={"docids": [docid]})
    assert back.status_code == 200 and back.json()["generation"] == 4
    assert writable.search("water", k=1000)["results"] == before
    assert writable.client.post("/api/undelete", json={"docids": [docid]}).status_code == 409
    assert writable.client.post("/api/undelete", json={"docids": ["nobody"]}).status_code == 404


def test_rollback_and_its_undo(writable: served.Served, corpora: list[Corpus]) -> None:
    before = writable.search("water", k=1000)["results"]
    back = writable.client.post("/api/rollback", json={"generation": 1})
    assert back.status_code == 200 and back.json() == {"generation": 3, "documents": len(corpora[0])}
    assert writable.search("water", k=1000)["results"] == writable.search("water", k=1000, at=1)["results"] != before
    undone = writable.client.post("/api/rollback", json={"generation": 2})
    assert undone.status_code == 200 and undone.json()["generation"] == 4
    assert writable.search("water", k=1000)["results"] == before
    assert writable.client.post("/api/rollback", json={"generation": 4}).status_code == 400  # it is there already
    assert writable.client.post("/api/rollback").json() == {"generation": 5, "documents": len(corpora[0])}  # the one before
    assert writable.client.post("/api/rollback", json={}).status_code == 409  # there is none before
    assert writable.client.post("/api/rollback", json={"generation": 9}).json()["error"]["code"] == "no_generation"


def test_while_another_process_writes_the_answer_is_busy(writable: served.Served, place: Path, corpora: list[Corpus]) -> None:
    with Store(place).writing():
        answer = writable.client.delete(f"/api/documents/{corpora[0].documents[0].docid}")
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "busy" and answer.headers["Retry-After"]
