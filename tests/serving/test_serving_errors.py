"""How the server speaks of what goes wrong, how it is watched, and how it ends (R28); what the page is made of (R29)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
import served
import small

from promptdsi import Corpus, Index
from promptdsi.serving import app


def test_errors_are_json_and_give_nothing_away(server: served.Served, path: Path) -> None:
    answers = [
        server.client.get("/nothing/here"),
        server.client.get("/api/documents/../../etc/passwd"),
        server.client.get("/page/..%2f..%2fapp.py"),
        server.client.get("/page/../app.py"),
        server.client.put("/api/search"),
        server.client.patch("/api/documents/x"),
        server.client.get("/api/jobs/none"),
        server.client.get("/api/facets", params={"at": "x"}),
        server.client.post("/api/documents", content=b"x", headers={"Content-Type": "text/plain"}),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "hint", "request_id"} and error["request_id"] == answer.headers["X-Request-ID"]
        for secret in (str(path), "Traceback", "site-packages", served.WRITE, 'File "'):
            assert secret not in answer.text
    assert answers[5].status_code == 405 and answers[5].headers["Allow"] == "DELETE, GET"


@pytest.mark.parametrize(
    ("method", "address", "body", "message", "hint"),
    [
        ("POST", "/api/search", b'{"query": "tea"', "the body is not JSON: Expecting ',' delimiter at character 15", None),
        ("POST", "/api/search", b"[]", "the body is not a JSON object", "with the header Content-Type: application/json; see /docs"),
        ("POST", "/api/search", b"", "the body is not a JSON object", "with the header Content-Type: application/json; see /docs"),
        (
            "POST",
            "/api/search",
            b'{"q": "tea"}',
            "there is no field 'q'; there are query, k, explain, min_confidence, where, at",
            "see /docs",
        ),
        ("POST", "/api/search", b'{"query": "tea', "the body is not JSON: Unterminated string starting at character 10", None),
        ("GET", "/api/search?q=%20", b"", "q: is blank", "see /docs"),
        (
            "GET",
            "/api/search?q=tea&wher=year>2020",
            b"",
            "there is no parameter 'wher'",
            "there are at, explain, k, min_confidence, q, where",
        ),
        ("GET", "/api/index?at=1", b"", "there is no parameter 'at'", "this address takes none"),
        ("GET", "/api/document/x", b"", "there is nothing at this address", "see /docs"),
        ("GET", "/api/documents", b"", "this address takes POST, not GET", "see /docs"),
    ],
)
def test_mistakes_are_explained(server: served.Served, method: str, address: str, body: bytes, message: str, hint: str | None) -> None:
    headers = {"Content-Type": "application/json"} if body else {}
    error = server.client.request(method, address, content=body, headers=headers).json()["error"]
    assert (error["message"], error["hint"]) == (message, hint)


def test_an_unexpected_error_gives_no_details(server: served.Served, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    def fails() -> None:
        raise RuntimeError(f"secret of {path}")

    monkeypatch.setattr(server.app.state.service.live, "generations", fails)
    answer = server.client.get("/api/generations")
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text and str(path) not in answer.text


def test_a_damaged_index_is_alive_but_not_ready(place: Path) -> None:
    blob = next(path for path in (place / "blobs").iterdir() if path.suffix == ".sqlite")
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with served.serving(place) as running:
        assert running.client.get("/healthz").status_code == 200
        for address in ("/readyz", "/api/index"):
            answer = running.client.get(address)
            assert answer.status_code == 503 and str(place) not in answer.text
        assert running.client.post("/api/search", json={"query": "x"}).status_code == 503


def test_answers_are_not_kept_by_browsers_or_proxies(server: served.Served) -> None:
    assert server.client.get("/api/index").headers["Cache-Control"] == "no-store"
    assert server.client.get("/").headers["Cache-Control"] == "no-cache"  # revalidated each time: a new release is seen at once


def test_metrics_are_prometheus_text(server: served.Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    server.search("water")
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {sample.name: sample for family in text_string_to_metric_families(answer.text) for sample in family.samples}
    assert samples["promptdsi_generation"].value == 2 and samples["promptdsi_batch_queries_count"].value >= 1
    counted = [
        sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "promptdsi_requests_total" and sample.labels == {"method": "POST", "route": "/api/search", "status": "200"}
    ]
    assert counted and counted[0] >= 1


def waiting(client: httpx.Client, figure: str) -> float:
    return float(client.get("/metrics").text.partition(f"\n{figure} ")[2].split()[0])


def test_sigterm_finishes_requests_under_way_and_ends_in_time(place: Path) -> None:
    with served.process(place) as (running, url), httpx.Client(base_url=url, timeout=30) as client:
        served.ready(client)
        statuses: list[int] = []

        def send_search() -> None:
            with httpx.Client(base_url=url, timeout=30) as other:
                statuses.append(other.post("/api/search", json={"query": ["water"] * 24, "explain": True, "k": 24}).status_code)

        thread = threading.Thread(target=send_search)
        thread.start()
        while not waiting(client, "promptdsi_queue_queries"):
            assert thread.is_alive()
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0 and time.monotonic() - began < 10
        thread.join()
        assert statuses == [200]
        with pytest.raises(httpx.TransportError):
            client.get("/healthz")


def test_sigterm_does_not_wait_for_what_takes_too_long(place: Path) -> None:
    with served.process(place) as (running, url), httpx.Client(base_url=url, timeout=60) as client:
        served.ready(client)
        answers: list[httpx.Response] = []

        def send_search(body: dict[str, object]) -> None:
            with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=url, timeout=60) as other:
                answers.append(other.post("/api/search", json=body))

        threads = [threading.Thread(target=send_search, args=({"query": ["water"] * 256, "explain": True, "k": 24},)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while waiting(client, "promptdsi_queue_queries") < 3 * 256:
            assert any(thread.is_alive() for thread in threads)
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        running.wait(60)
        assert time.monotonic() - began < 10  # without the bound it would be a minute
        for thread in threads:
            thread.join()
        assert all(answer.status_code == 200 or answer.json()["error"]["code"] for answer in answers)


def test_sigterm_while_documents_are_added_leaves_the_index_as_it_was(place: Path, corpora: list[Corpus]) -> None:
    before = small.signature(place)
    with served.process(place, "--allow-write", "--quiet") as (running, address):  # the generated token is printed all the same
        url, _, token = address.partition("/#token=")
        client = httpx.Client(base_url=url, timeout=30, headers=served.bearer(token))
        served.ready(client)
        body = b"".join(json.dumps({"_id": document.docid, "text": document.text}).encode() + b"\n" for document in corpora[2].documents)
        answer = client.post("/api/documents", content=body, headers={"Content-Type": "application/x-ndjson"})
        assert answer.status_code == 202, answer.text
        while client.get("/api/jobs").json()["jobs"][0]["stage"] is None:
            time.sleep(0.05)
        client.close()
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        running.wait(60)
        assert time.monotonic() - began < 10
    after = Index.open(place, device="cpu")
    assert small.signature(place) == before or after.generation == 3  # the whole of it, if it was quicker than the signal
    assert after.verify().problems == []
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _is_worker(name, place)]


def _is_worker(pid: str, place: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"promptdsi.serving.job_process" in words and str(place).encode() in words


def test_a_taken_port_is_one_sentence(run: object, path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run("serve", path, "--port", str(taken.getsockname()[1]))  # type: ignore[operator]
    assert refused.returncode == 1 and "cannot listen" in refused.stderr and "Traceback" not in refused.stderr


def test_no_index_is_one_sentence(run: object, tmp_path: Path) -> None:
    refused = run("serve", tmp_path / "nothing")  # type: ignore[operator]
    assert refused.returncode == 1 and "no index is here" in refused.stderr


def test_the_page_loads_nothing_from_elsewhere(server: served.Served) -> None:
    root = Path(app.__file__).parent / "page"
    answer = server.client.get("/")
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    for file in root.iterdir():
        text = file.read_text("utf-8")
        assert server.client.get(f"/page/{file.name}").status_code == 200
        assert "innerHTML" not in text and "eval(" not in text and "document.write" not in text
        for address in ("http://", "https://", "//cdn"):
            foreign = [line for line in text.splitlines() if address in line and "www.w3.org/2000/svg" not in line]
            assert not foreign, f"{file.name}: {foreign[0]}"
