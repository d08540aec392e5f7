"""The server under people who do not belong, wrong and hostile requests, load it cannot carry, and its own end."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import served
import small

from promptdsi import Corpus, Index
from promptdsi.errors import DataError
from promptdsi.serving import protocol
from promptdsi.serving.errors import APIError
from promptdsi.serving.guard import Limits
from promptdsi.serving.tokens import Access, access_for, read_tokens

BOTH = Access(read=served.READ, write=served.WRITE, allow_write=True)


@pytest.fixture(scope="module")
def path(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.copied(original, tmp_path_factory.mktemp("abused") / "index")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[served.Served]:
    with served.serving(path, limits=Limits(body_seconds=1.0)) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def spoken(server: served.Served, raw: bytes, seconds: float = 10) -> bytes:
    """What the server answers to bytes of ours, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(raw)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


# R26: who may --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "read", "write"), [(None, 401, 401), ("wrong-token-of-length", 401, 401), (served.READ, 200, 403), (served.WRITE, 200, 404)]
)
def test_read_and_write_tokens_are_separate(path: Path, token: str | None, read: int, write: int) -> None:
    with served.serving(path, access=BOTH) as running, httpx.Client(base_url=running.url) as client:
        headers = bearer(token) if token else {}
        for address in ("/api/index", "/api/generations", "/api/map", "/api/jobs", "/metrics", "/api/retention"):
            assert client.get(address, headers=headers).status_code == read, address
        assert client.post("/api/search", json={"query": "water"}, headers=headers).status_code == read
        assert client.delete("/api/documents/nobody", headers=headers).status_code == write
        assert client.post("/api/undelete", json={"docids": ["nobody"]}, headers=headers).status_code == write
        for address in ("/", "/healthz", "/readyz"):  # they hold nothing of the index
            assert client.get(address, headers=headers).status_code == 200


def test_writing_is_off_unless_it_is_enabled(path: Path) -> None:
    before = Index.open(path, device="cpu").generation
    with served.serving(path, access=Access()) as running:
        assert running.search("water")["generation"] == before
        assert not running.client.get("/api/index").json()["writable"]
        for method, address in (("DELETE", "/api/documents/x"), ("POST", "/api/documents"), ("POST", "/api/undelete")):
            answer = running.client.request(method, address, json={"docids": ["x"]})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "read_only"
    assert Index.open(path, device="cpu").generation == before


def test_other_addresses_need_a_token(run: object, path: Path, tmp_path: Path) -> None:
    refused = run("serve", path, "--host", "0.0.0.0")  # type: ignore[operator]
    assert refused.returncode == 2 and "token-file" in refused.stderr
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# for tests\nread {served.READ}\n")
    assert access_for("0.0.0.0", allow_write=False, token_file=tokens).read == served.READ
    no_write = run("serve", path, "--allow-write", "--token-file", tokens)  # type: ignore[operator]
    assert no_write.returncode == 2 and "write TOKEN" in no_write.stderr
    made_up = access_for("127.0.0.1", allow_write=True, token_file=None)
    assert made_up.read is None and made_up.write is not None and len(made_up.write) >= 32
    twice = f"read {served.READ}\nread {served.WRITE}"
    for wrong in (
        b"read short",
        f"both {served.READ}".encode(),
        f"read {served.READ}\nwrite {served.READ}".encode(),
        twice.encode(),
        b"read " + b"\xff" * 20,
    ):
        tokens.write_bytes(wrong)
        with pytest.raises(DataError):
            read_tokens(tokens)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by measuring, which a busy machine spoils: only `hmac.compare_digest` decides, and both tokens are always compared."""
    compared: list[bytes] = []

    def no(given: bytes, token: bytes) -> bool:
        compared.append(token)
        return False

    monkeypatch.setattr(hmac, "compare_digest", no)
    with pytest.raises(APIError):
        BOTH.check(f"Bearer {served.WRITE}", writing=False)
    assert compared == [served.WRITE.encode(), served.READ.encode()]
    monkeypatch.setattr(hmac, "compare_digest", lambda given, token: True)
    BOTH.check("bearer anything", writing=True)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_foreign_host_names_are_not_answered(server: served.Served, host: str) -> None:
    for address in ("/", "/api/index", "/healthz"):
        answer = server.client.get(address, headers={"Host": host})
        assert answer.status_code == 421 and answer.json()["error"]["code"] == "wrong_host"
    assert server.client.get("/healthz", headers={"Host": f"localhost:{server.port}"}).status_code == 200


def test_pages_of_other_sites_cannot_even_make_the_server_work(server: served.Served) -> None:
    answer = server.client.get("/api/map", headers={"Sec-Fetch-Site": "cross-site"})  # as an <img> elsewhere would ask
    assert answer.status_code == 403
    assert server.client.get("/api/index", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert server.client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page is fine


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://localhost"])
def test_other_sites_are_not_answered_and_cors_is_off(server: served.Served, origin: str) -> None:
    answer = server.client.post("/api/search", json={"query": "water"}, headers={"Origin": origin})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "foreign_origin"
    asked = server.client.options("/api/search", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert asked.status_code >= 400
    own = server.client.post("/api/search", json={"query": "water"}, headers={"Origin": server.url})
    assert own.status_code == 200
    for given in (answer, asked, own):
        assert not [name for name in given.headers if name.startswith("access-control")]


# R27: how much ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"query": "x" * 4096}, 200),
        ({"query": "x" * 4097}, 422),
        ({"query": "x", "k": 1000}, 200),
        ({"query": "x", "k": 1001}, 422),
        ({"query": "x", "k": 0}, 422),
        ({"query": "x", "k": -1}, 422),
        ({"query": ["x"] * 256}, 200),
        ({"query": ["x"] * 256, "k": 100}, 422),  # each within its bound, together too much
        ({"query": ["x"] * 257}, 422),
        ({"query": []}, 422),
        ({"query": ""}, 422),
        ({"query": " \t"}, 422),
        ({"query": "\x1c"}, 400),  # blank to Python, not to the pattern
        ({"query": "x", "at": 0}, 422),
        ({"query": "x", "at": 10**30}, 422),
        ({"query": "x", "more": 1}, 422),
        ({"query": 7}, 422),
        ({}, 422),
        ([], 422),
    ],
)
def test_what_a_search_may_ask_for(server: served.Served, wanted: object, status: int) -> None:
    answer = server.client.post("/api/search", json=wanted)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert set(answer.json()["error"]) == {"code", "message", "hint", "request_id"}


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"query": "\\ud800"}', b"[" * 100_000, b'{"query": NaN}', b"null", b""])
def test_bodies_that_are_no_request(server: served.Served, body: bytes) -> None:
    answer = server.client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["message"]


def test_a_body_too_large_is_refused_before_it_is_read(server: served.Served) -> None:
    promised = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 8388609\r\n\r\n"
    answer = spoken(server, promised)
    assert answer.startswith(b"HTTP/1.1 413") and b'"too_large"' in answer


def test_a_body_too_large_in_pieces_is_refused_at_the_bound(server: served.Served) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        while sent < 32 << 20:
            sent += 1 << 18
            yield b"x" * (1 << 18)

    try:
        answer = server.client.post("/api/documents", content=pieces(), headers={"Content-Type": "application/x-ndjson"})
        assert answer.status_code == 413
    except httpx.TransportError:  # the server has answered and hung up while we were still sending
        assert sent < 32 << 20
    assert server.search("water")["results"]


def test_who_may_not_ask_takes_no_place(path: Path) -> None:
    """Bodies of routes that take none, and of clients without a token, are not waited for."""
    with served.serving(path, access=BOTH, limits=Limits(requests=2, body_seconds=5.0)) as running, contextlib.ExitStack() as stack:
        for target in ("POST /healthz", "GET /api/index", "POST /api/search", "POST /"):
            for _ in range(3):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
                slow.sendall(f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n".encode())
        time.sleep(0.5)
        assert running.search("water")["results"]


def test_mistakes_by_the_million_are_told_by_the_first(server: served.Served) -> None:
    began = time.monotonic()
    many = json.dumps({str(number): 0 for number in range(300_000)}).encode()
    answer = server.client.post("/api/search", content=many, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and "no field '0'" in answer.json()["error"]["message"]
    wrong = json.dumps({"documents": [0] * 300_000}).encode()
    answer = server.client.post("/api/documents", content=wrong, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert time.monotonic() - began < 5


def test_a_body_that_does_not_arrive_is_not_waited_for(server: served.Served) -> None:
    begun = time.monotonic()
    answer = spoken(server, b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408") and time.monotonic() - begun < 5


def test_headers_that_do_not_arrive_are_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SECONDS_FOR_HEADERS", 0.5)
    with served.serving(path) as running:
        begun = time.monotonic()
        assert spoken(running, b"GET /healthz HTTP/1.1\r\nHost: loc") == b""
        assert spoken(running, b"") == b""
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:  # a second request on one connection
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"alive" not in answer:
                answer += connection.recv(65536)
            connection.sendall(b"GET /hea")
            while connection.recv(65536):
                pass
        assert time.monotonic() - begun < 8
        assert running.search("water")["results"]


def test_too_many_at_once_are_told_to_come_back(path: Path) -> None:
    with served.serving(path, limits=Limits(requests=2, body_seconds=5.0)) as running, contextlib.ExitStack() as stack:
        for _ in range(2):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            slow.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            time.sleep(0.5)  # it is let in before the next one asks
        answer = running.client.get("/api/index")
        assert answer.status_code == 429 and answer.json()["error"]["code"] == "overloaded" and answer.headers["Retry-After"] == "1"
        assert running.client.get("/healthz").status_code == 200  # whoever watches the server still hears from it
        stack.close()
        end = time.monotonic() + 5
        while running.client.get("/api/index").status_code != 200:
            assert time.monotonic() < end


def test_a_queue_that_is_full_answers_429(path: Path) -> None:
    with served.serving(path) as running:
        batcher = running.app.state.service.batcher
        batcher.waiting = 30
        statuses: list[int] = []

        def ask() -> None:
            with httpx.Client(base_url=running.url, timeout=60) as client:
                statuses.append(client.post("/api/search", json={"query": ["water"] * 20, "explain": True, "k": 24}).status_code)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}, statuses
        assert running.search("water")["results"]


# R28: how it speaks, and ends ---------------------------------------------------------------------------------------------


def test_errors_are_json_and_give_nothing_away(server: served.Served, path: Path) -> None:
    asked = [
        server.client.get("/nothing/here"),
        server.client.get("/api/documents/../../etc/passwd"),
        server.client.get("/page/..%2f..%2fapp.py"),
        server.client.get("/page/../app.py"),
        server.client.put("/api/search"),
        server.client.patch("/api/documents/x"),
        server.client.get("/api/jobs/none"),
        server.client.get("/api/map", params={"at": "x"}),
        server.client.post("/api/documents", content=b"x", headers={"Content-Type": "text/plain"}),
    ]
    for answer in asked:
        assert 400 <= answer.status_code < 500
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "hint", "request_id"} and error["request_id"] == answer.headers["X-Request-ID"]
        for secret in (str(path), "Traceback", "site-packages", served.WRITE, 'File "'):
            assert secret not in answer.text
    assert asked[5].status_code == 405 and asked[5].headers["Allow"] == "DELETE, GET"


def test_what_nobody_foresaw_is_an_error_without_details(server: served.Served, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    def fails() -> None:
        raise RuntimeError(f"secret of {path}")

    monkeypatch.setattr(server.app.state.service.held, "generations", fails)
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
    assert server.client.get("/").headers["Cache-Control"] == "no-cache"  # asked for again each time: a new release is seen at once


def test_metrics_are_prometheus_text(server: served.Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    server.search("water")
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {sample.name: sample for family in text_string_to_metric_families(answer.text) for sample in family.samples}
    assert found["promptdsi_generation"].value == 2 and found["promptdsi_batch_queries_count"].value >= 1
    counted = [
        sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "promptdsi_requests_total" and sample.labels == {"method": "POST", "route": "/api/search", "status": "200"}
    ]
    assert counted and counted[0] >= 1


def waiting(client: httpx.Client, figure: str) -> float:
    return float(client.get("/metrics").text.partition(f"\n{figure} ")[2].split()[0])


def test_sigterm_answers_what_was_asked_and_ends_in_time(place: Path) -> None:
    with served.process(place) as (running, url), httpx.Client(base_url=url, timeout=30) as client:
        served.ready(client)
        found: list[int] = []

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=30) as own:
                found.append(own.post("/api/search", json={"query": ["water"] * 24, "explain": True, "k": 24}).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        while not waiting(client, "promptdsi_queue_queries"):
            assert asking.is_alive()
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        asking.join()
        assert running.wait(10) == 0 and time.monotonic() - began < 10
        assert found == [200]
        with pytest.raises(httpx.TransportError):
            client.get("/healthz")


def test_sigterm_does_not_wait_for_what_takes_too_long(place: Path) -> None:
    with served.process(place) as (running, url), httpx.Client(base_url=url, timeout=60) as client:
        served.ready(client)
        told: list[httpx.Response] = []

        def ask(wanted: dict[str, object]) -> None:
            with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=url, timeout=60) as own:
                told.append(own.post("/api/search", json=wanted))

        threads = [threading.Thread(target=ask, args=({"query": ["water"] * 256, "explain": True, "k": 24},)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while waiting(client, "promptdsi_queue_queries") < 3 * 256:
            assert any(thread.is_alive() for thread in threads)
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        running.wait(12)
        assert time.monotonic() - began < 10
        for thread in threads:
            thread.join()
        assert all(answer.status_code == 200 or answer.json()["error"]["code"] for answer in told)


def test_sigterm_while_documents_are_added_leaves_the_index_as_it_was(place: Path, corpora: list[Corpus]) -> None:
    before = small.signature(place)
    with served.process(place, "--allow-write", "--quiet") as (running, address):  # the made-up token is told all the same
        url, _, token = address.partition("/#token=")
        client = httpx.Client(base_url=url, timeout=30, headers=bearer(token))
        served.ready(client)
        body = b"".join(json.dumps({"_id": one.docid, "text": one.text}).encode() + b"\n" for one in corpora[2].documents)
        answer = client.post("/api/documents", content=body, headers={"Content-Type": "application/x-ndjson"})
        assert answer.status_code == 202, answer.text
        while client.get("/api/jobs").json()["jobs"][0]["stage"] is None:
            time.sleep(0.05)
        client.close()
        running.send_signal(signal.SIGTERM)
        running.wait(10)
    after = Index.open(place, device="cpu")
    assert small.signature(place) == before or after.generation == 3  # the whole of it, if it was quicker than the signal
    assert after.verify().problems == []
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _is_worker(name, place)]


def _is_worker(pid: str, place: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"promptdsi.serving.worker" in words and str(place).encode() in words


def test_a_taken_port_is_one_sentence(run: object, path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run("serve", path, "--port", str(taken.getsockname()[1]))  # type: ignore[operator]
    assert refused.returncode == 1 and "cannot listen" in refused.stderr and "Traceback" not in refused.stderr


def test_no_index_is_one_sentence(run: object, tmp_path: Path) -> None:
    refused = run("serve", tmp_path / "nothing")  # type: ignore[operator]
    assert refused.returncode == 1 and "no index is here" in refused.stderr


# R29: the page's own rules (what it does is tested in a browser) ------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere(server: served.Served) -> None:
    root = Path(protocol.__file__).parent / "page"
    answer = server.client.get("/")
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    for file in root.iterdir():
        text = file.read_text("utf-8")
        assert server.client.get(f"/page/{file.name}").status_code == 200
        assert "innerHTML" not in text and "eval(" not in text and "document.write" not in text
        for address in ("http://", "https://", "//cdn"):
            found = [line for line in text.splitlines() if address in line and "www.w3.org/2000/svg" not in line]
            assert not found, f"{file.name}: {found[0]}"
