"""The Python client against a real server: every method, what it returns and what it raises."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import served
import small

from promptdsi import Corpus, Document, Index
from promptdsi.client import Client, RequestError
from promptdsi.errors import UsageError


@pytest.fixture
def client(server: served.Served) -> Client:
    return Client(server.url, token=served.WRITE)


def test_searches_are_those_of_the_index(client: Client, original: Path) -> None:
    index = Index.open(original, device="cpu")
    for expected, hit in zip(
        index.search(small.QUERIES[0], k=5, explain=True), client.search(small.QUERIES[0], k=5, explain=True), strict=True
    ):
        assert hit.why is not None and expected.why is not None
        assert hit._replace(score=0, confidence=0, why=None) == expected._replace(score=0, confidence=0, why=None)
        assert hit.score == pytest.approx(expected.score, rel=1e-5)
        assert hit.why.neighbors[0].docid == expected.why.neighbors[0].docid and hit.why.newer == expected.why.newer
    assert [hit.docid for hit in client.search("water", where="docid=a*,c*")] == [
        hit.docid for hit in index.search("water", where={"docid": ["a*", "c*"]})
    ]
    water, nothing = client.search_batch(["what is water made of", "zzyzx qwerty"], where={"docid": ["*"]}, k=3)
    assert water.certain and not nothing.certain and len(nothing.hits) == 3
    assert {hit.since for hit in client.search("water", at=1, k=1000)} == {1}


def test_documents_generations_and_the_rest_that_is_read(client: Client, original: Path, corpora: list[Corpus]) -> None:
    index = Index.open(original, device="cpu")
    assert client.get(corpora[1].documents[0].docid) == corpora[1].documents[0]
    assert client.facets() == index.facets()
    assert client.info()["documents"] == len(index) and client.ready()
    assert [generation["kind"] for generation in client.generations()] == ["create", "add"]
    assert client.folders() == []


def test_a_document_is_added_taught_deleted_and_brought_back(place: Path, tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("# Tea\n\nGreen tea wants water of 75 degrees.", "utf-8")
    with served.serving(place) as running:
        client = Client(f"{running.url}/#token={served.WRITE}")
        documents: list[Document | dict[str, str] | Path] = [
            Document("a/b ü", "The spare key is at number 12.", "Keys", {"place": "hall"}),
            {"docid": "lamp", "text": "The lamp in the hall takes a small bulb."},
            tmp_path / "tea.md",
        ]
        job = client.wait(client.add(documents, name="house", fast=True), seconds=180)
        assert (job.state, job.corpus, job.documents) == ("done", "house", 3) and job.report and job.report["fast"]
        assert client.get("a/b ü") == documents[0] and client.get("tea.md").title == "Tea"
        with pytest.raises(RequestError, match="other content"):
            client.wait(client.add([{"docid": "lamp", "text": "Another lamp."}]))
        assert client.teach("where does the neighbour live", "a/b ü").after == 1
        generation = client.delete("a/b ü")
        with pytest.raises(RequestError) as refused:
            client.get("a/b ü")
        assert (refused.value.status, refused.value.code, refused.value.hint) == (404, "deleted", "undelete brings it back")
        assert client.undelete("a/b ü") == generation + 1 and client.get("a/b ü") == documents[0]
        assert client.rollback(2) == generation + 2
        assert "lamp" not in {hit.docid for hit in client.search("lamp", k=1000)}


def test_mistakes_are_one_exception(server: served.Served, client: Client) -> None:
    with pytest.raises(RequestError, match="is not FIELD=VALUE") as refused:
        client.search("water", where="year")
    assert refused.value.status == 400 and refused.value.request_id
    with pytest.raises(RequestError, match="k: ") as refused:
        client.search("water", k=0)
    assert (refused.value.status, refused.value.code) == (422, "invalid")
    with pytest.raises(RequestError, match="this needs a token") as refused:
        Client(server.url).delete("x")
    assert refused.value.status == 401
    assert not Client("http://127.0.0.1:1", timeout=1).ready()
    with pytest.raises(RequestError, match="does not answer") as refused:
        Client("http://127.0.0.1:1", timeout=1).search("water")
    assert (refused.value.status, refused.value.code) == (0, "unreachable")
    for url in ("127.0.0.1:8000", "ftp://127.0.0.1", ""):
        with pytest.raises(UsageError, match="is no address"):
            Client(url)


class Crowded(http.server.BaseHTTPRequestHandler):
    """A server that has room for the third request only."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        room = self.requests % 3 == 0
        body = b'{"current": 1, "generations": []}' if room else b'{"error": {"code": "overloaded", "message": "no room", "hint": null}}'
        self.send_response(200 if room else 429)
        self.send_header("Content-Length", str(len(body)))
        if not room:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def crowded() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Crowded) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/behind/a/proxy"
        running.shutdown()
        thread.join()


def test_a_request_that_the_server_has_no_room_for_is_sent_again(crowded: str) -> None:
    assert Client(crowded).generations() == [] and Crowded.requests == 3
    with pytest.raises(RequestError, match="no room") as refused:
        Client(crowded, patience=-1).generations()
    assert refused.value.status == 429 and Crowded.requests == 4


def test_importing_the_client_loads_nothing_heavy() -> None:
    program = "import sys, promptdsi.client; assert not {'torch', 'numpy', 'httpx', 'fastapi', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)
