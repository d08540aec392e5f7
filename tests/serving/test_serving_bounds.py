"""What the server does not do: too much, too large, too slow, too many at once (R27)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import served

from promptdsi.serving import connections
from promptdsi.serving.access import Limits

SCHEDULING_SECONDS = 3.0  # for a busy machine to run client and server


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[served.Served]:
    """A server that does not wait long for a body."""
    with served.serving(path, limits=Limits(body_seconds=1.0)) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "status"),
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
def test_bounds_of_a_search(server: served.Served, body: object, status: int) -> None:
    answer = server.client.post("/api/search", json=body)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert set(answer.json()["error"]) == {"code", "message", "hint", "request_id"}


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff\xfe", b'{"query": "\\ud800"}', b"[" * 100_000, b'{"query": NaN}', b"null", b""],
    ids=["cut off", "not UTF-8", "half a surrogate", "nested deeply", "NaN", "null", "empty"],
)
def test_bodies_that_are_no_request(server: served.Served, body: bytes) -> None:
    answer = server.client.post("/api/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["message"]


def test_a_body_too_large_is_refused_before_it_is_read(server: served.Served) -> None:
    promised = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 8388609\r\n\r\n"
    answer = served.exchange(server, promised)
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
    with served.serving(path, access=served.BOTH, limits=Limits(requests=2, body_seconds=5.0)) as running, contextlib.ExitStack() as stack:
        for target in ("POST /healthz", "GET /api/index", "POST /api/search", "POST /"):
            for _ in range(3):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
                slow.sendall(f"{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n".encode())
        time.sleep(0.5)
        assert running.search("water")["results"]


def test_of_a_million_errors_the_first_is_reported(server: served.Served) -> None:
    began = time.process_time()  # of the server's threads too, and not of other processes
    many = json.dumps({str(number): 0 for number in range(300_000)}).encode()
    answer = server.client.post("/api/search", content=many, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and "no field '0'" in answer.json()["error"]["message"]
    wrong = json.dumps({"documents": [0] * 300_000}).encode()
    answer = server.client.post("/api/documents", content=wrong, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert time.process_time() - began < 5


def test_a_body_that_does_not_arrive_is_not_waited_for(server: served.Served) -> None:
    begun = time.monotonic()
    answer = served.exchange(server, b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408") and time.monotonic() - begun < 1.0 + SCHEDULING_SECONDS


def test_headers_that_do_not_arrive_are_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_HEADERS", 0.5)
    monkeypatch.setattr(connections, "SECONDS_BETWEEN_CHECKS", 0.1)
    with served.serving(path) as running:
        begun = time.monotonic()
        assert served.exchange(running, b"GET /healthz HTTP/1.1\r\nHost: loc") == b""
        assert served.exchange(running, b"") == b""
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as connection:  # a second request on one connection
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"alive" not in answer:
                answer += connection.recv(65536)
            connection.sendall(b"GET /hea")
            while connection.recv(65536):
                pass
        assert time.monotonic() - begun < 3 * 0.6 + SCHEDULING_SECONDS
        assert running.search("water")["results"]


def test_too_many_requests_at_once_get_429(path: Path) -> None:
    """A request takes a place while it is computed, not while its body arrives."""
    with served.serving(path, limits=Limits(requests=2, body_seconds=120.0)) as running, contextlib.ExitStack() as stack:
        for _ in range(4):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            slow.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        served.wait_until(lambda: len(running.middleware.receiving) == 4)
        assert running.client.get("/api/search?q=water").status_code == 200
        with running.middleware._slot("127.0.0.1"), running.middleware._slot("127.0.0.1"):  # as two that are being computed
            answer = running.client.get("/api/search?q=water")
            assert answer.status_code == 429 and answer.json()["error"]["code"] == "overloaded" and answer.headers["Retry-After"] == "1"
            for other in ("/healthz", "/readyz", "/metrics", "/", "/api/index"):
                assert running.client.get(other).status_code == 200
        assert running.client.get("/api/search?q=water").status_code == 200


def test_a_queue_that_is_full_answers_429(path: Path) -> None:
    with served.serving(path) as running:
        batcher = running.app.state.service.batcher
        batcher.max_waiting = 30
        statuses: list[int] = []

        def send_search() -> None:
            with httpx.Client(base_url=running.url, timeout=60) as client:
                statuses.append(client.post("/api/search", json={"query": ["water"] * 20, "explain": True, "k": 24}).status_code)

        threads = [threading.Thread(target=send_search) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}, statuses
        assert running.search("water")["results"]
