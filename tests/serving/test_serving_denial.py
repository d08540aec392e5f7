"""One client cannot deny another: what is not read, comes slowly, is pipelined or sent in floods costs its sender alone (R35)."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attacks
import httpx
import pytest
import served

from promptdsi import Index
from promptdsi.errors import UsageError
from promptdsi.index.results import SearchRequest
from promptdsi.serving import access, app, connections, uploads
from promptdsi.serving.access import Limits, proxies_of
from promptdsi.serving.batching import Batcher
from promptdsi.serving.connections import MAX_PIPELINED


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of half a second instead of ten, so that tests see them pass."""
    monkeypatch.setattr(connections, "SECONDS_TO_TAKE", 0.5)
    monkeypatch.setattr(connections, "SECONDS_FOR_HEADERS", 0.5)
    monkeypatch.setattr(connections, "SECONDS_BETWEEN_CHECKS", 0.1)


def search_and_check_health(running: served.Served, times: int) -> None:
    """Search so often, each time on a connection of its own; every search and every check of health is answered."""
    for _ in range(times):
        with httpx.Client(base_url=running.url, timeout=20) as client:
            answer = client.post("/api/search", json={"query": "water"})
            assert answer.status_code == 200, answer.text
            for path in ("/healthz", "/readyz", "/metrics"):
                assert client.get(path).status_code == 200


def open_connections(running: served.Served) -> list[Any]:
    return list(running.server.server_state.connections)


def connection_of(running: served.Served, connection: socket.socket) -> Any:
    """The server's end of a connection."""
    served.wait_until(lambda: connection.getsockname() in [other.client for other in open_connections(running)])
    return next(other for other in open_connections(running) if other.client == connection.getsockname())


@pytest.mark.parametrize("attack", [attacks.never_read, attacks.send_headers_slowly, attacks.send_body_slowly])
def test_clients_that_do_not_read_or_send_slowly_are_given_up(path: Path, attack: attacks.Attack) -> None:
    """More of them than requests are answered at once: searches and health go on, and each is cut off in time."""
    with served.serving(path, limits=Limits(requests=4, body_seconds=0.5)) as running:
        attackers = attacks.Attackers(running.port, 60, pause=0.05, attacks={attack: 20})
        attackers.start()
        try:
            served.wait_until(lambda: len(open_connections(running)) > 20)
            search_and_check_health(running, 5)
            served.wait_until(lambda: attackers.closed.total() >= 20)
        finally:
            attackers.stop()
        served.wait_until(lambda: len(open_connections(running)) <= 1)  # the client that the test itself has
        assert not running.middleware.active and not running.middleware.receiving


def test_the_next_request_begins_when_the_answer_before_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_TAKE", 30.0)
    monkeypatch.setattr(app, "SEND_BUFFER", 4096)
    with served.serving(path) as running, contextlib.closing(attacks.connect(running.port)) as connection:
        body = b'{"query": ["%s"], "k": 1000}' % b'", "'.join([b"water"] * 10)
        request = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )
        connection.sendall((request + body) * 8)
        reading = connection_of(running, connection)
        served.wait_until(lambda: reading.flow.write_paused and not reading.busy)
        begun = running.server.server_state.total_requests
        assert running.search("water")["results"]
        time.sleep(0.2)
        assert reading.flow.write_paused and running.server.server_state.total_requests == begun + 1  # that search
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 8:
            answers += connection.recv(1 << 16)


def test_a_pipeline_beyond_a_few_requests_is_closed(path: Path) -> None:
    with served.serving(path) as running:
        few = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * MAX_PIPELINED
        last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert served.exchange(running, few + last).count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
        with contextlib.suppress(ConnectionResetError):  # a connection that is closed before everything is read
            assert served.exchange(running, few * 20).count(b"HTTP/1.1 200 OK") <= MAX_PIPELINED + 1
        assert running.search("water")["results"]


def test_connections_are_bounded_and_those_that_wait_make_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_FOR_HEADERS", 30.0)
    monkeypatch.setattr(access, "LOOPBACK", re.compile("127.0.0.1"))  # 127.0.0.2 is an address like any other
    with served.serving(path, limits=Limits(connections=20)) as running, contextlib.ExitStack() as stack:
        for source, number, total in (("127.0.0.2", 12, 6), ("127.0.0.1", 40, 20)):
            for _ in range(number):
                stack.callback(attacks.connect(running.port, source).close)
            served.wait_until(lambda total=total: len(open_connections(running)) == total)
            sources = Counter(connection.address for connection in open_connections(running))
            assert sources["127.0.0.2"] == 5, sources  # a quarter; the other connection is the test's own
            search_and_check_health(running, 2)
        assert running.client.get("/healthz").status_code == 200  # on the connection it has had all the time


def test_a_connection_for_which_there_is_no_room_gets_429(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.ClientConnection, "waits_for_client", False)  # as if all were being answered
    with served.serving(path, limits=Limits(connections=1)) as running:
        answer = served.exchange(running, b"")
        assert answer.startswith(b"HTTP/1.1 429") and b"Retry-After: 1\r\n" in answer and b"too many connections" in answer


def test_a_flood_of_searches_delays_only_its_sender(path: Path) -> None:
    """Behind a proxy, clients are told apart by the address that the proxy names."""
    with served.serving(path, limits=Limits(requests=16, proxies=proxies_of(["127.0.0.1"]))) as running:
        stop, statuses = threading.Event(), Counter[int]()

        def flood(number: int) -> None:
            # The addresses before the last are the client's own claims.
            headers = {"X-Forwarded-For": f"198.51.100.{number}, 203.0.113.9"}
            with httpx.Client(base_url=running.url, timeout=60, headers=headers) as client:
                for _ in range(1000):
                    if stop.is_set():
                        break
                    statuses[client.post("/api/search", json={"query": ["water"] * 10}).status_code] += 1

        with ThreadPoolExecutor(8) as pool:
            floods = [pool.submit(flood, number) for number in range(8)]
            served.wait_until(lambda: statuses[429] > 0)
            with httpx.Client(base_url=running.url, timeout=20, headers={"X-Forwarded-For": "203.0.113.10"}) as client:
                answers = [client.post("/api/search", json={"query": "water"}).status_code for _ in range(3)]
            stop.set()
            for future in floods:
                future.result()
        assert answers == [200] * 3 and set(statuses) == {200, 429}


def test_addresses_take_turns_in_the_queue(path: Path) -> None:
    index, sizes = Index.open(path, device="cpu"), list[int]()

    async def main() -> None:
        batcher = Batcher(observe=sizes.append, share=Limits().share)
        numbers = [("127.0.0.1", 60)] * 5 + [("192.0.2.1", 1)]
        searches = [
            asyncio.create_task(batcher.search(index, [SearchRequest("water", 10)] * number, address=address))
            for address, number in numbers
        ]
        await asyncio.sleep(0)
        work = asyncio.create_task(batcher.run())
        await asyncio.gather(*searches)
        work.cancel()
        await batcher.close()

    asyncio.run(main())
    assert sizes[0] == 4 * 60 + 1  # the last that came is in the first batch, which has no room for all that came before


def test_bodies_on_their_way_are_bounded_by_giving_up_the_oldest(path: Path) -> None:
    with served.serving(path, limits=Limits(bodies=1_000_000)) as running, contextlib.ExitStack() as stack:
        head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 400001\r\n\r\n"
        bodies = []
        for number in range(4):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=20))
            connection.sendall(head + b" " * 400_000)
            bodies.append(connection)
            most = 400_000 * min(number + 1, 2)
            served.wait_until(lambda most=most: sum(len(body) for _, body in running.middleware.receiving.values()) == most)
        for number, connection in enumerate(bodies):
            connection.sendall(b"1" if number > 1 else b"")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 422" if number > 1 else b"HTTP/1.1 408")


def test_answers_on_their_way_are_bounded_by_giving_up_the_oldest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_TAKE", 30.0)
    monkeypatch.setattr(app, "SEND_BUFFER", 4096)
    body = b'{"query": ["%s"], "k": 100}' % b'", "'.join([b"water"] * 60)
    request = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with served.serving(path, limits=Limits(unsent=1_200_000)) as running, contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(contextlib.closing(attacks.connect(running.port)))
            connection.sendall(request + body)
            served.wait_until(lambda connection=connection: connection_of(running, connection).transport.get_write_buffer_size() > 400_000)
            assert sum(other.transport.get_write_buffer_size() for other in open_connections(running)) <= 1_200_000
        answer = b""
        while not answer.endswith(b"}]}]}"):  # the last connection is not the one that was given up
            part = connection.recv(1 << 20)
            assert part
            answer += part


def test_files_that_take_long_to_read_hold_up_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child cannot even start in the time allowed here; a client that disconnects leaves no child behind."""
    monkeypatch.setattr(uploads, "SECONDS_FOR_FILE", 0.3)
    with served.serving(path) as running:

        def upload(_: int) -> httpx.Response:
            return httpx.post(f"{running.url}/api/read?name=tea.pdf", content=b"%PDF-1.7", headers=served.HEADERS, timeout=20)

        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(upload, range(8))
            search_and_check_health(running, 2)
            docid = running.search("water")["results"][0]["hits"][0]["docid"]
            assert running.client.get(f"/api/documents/{docid}").status_code == 200
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses[422] >= 1 and statuses[429] >= 1 and statuses.total() == 8, statuses
        assert time.monotonic() - began < 0.3 * uploads.MAX_WAITING_FILES + 5


def test_a_packed_file_is_bounded_by_what_it_unpacks_to(path: Path) -> None:
    packed = gzip.compress(b"tea " * (3 << 20))
    with served.serving(path) as running:
        answer = running.client.post("/api/read?name=tea.txt.gz", content=packed)
        assert answer.status_code == 422 and "unpacks to more than 8 MiB" in answer.json()["error"]["message"]


def test_a_proxy_is_named_by_its_address() -> None:
    assert proxies_of(["[::1]", "172.17.0.1"]) == {"::1", "172.17.0.1"}
    with pytest.raises(UsageError, match="localhost"):
        proxies_of(["localhost"])
