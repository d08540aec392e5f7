"""A real server on this machine's loopback, for the tests: uvicorn in a thread, or `promptdsi serve` as its own process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from promptdsi.serving.access import Access
from promptdsi.serving.app import create_app, listen, uvicorn_config
from promptdsi.serving.middleware import ServingMiddleware

READ, WRITE = "a-token-that-reads", "a-token-that-writes"
WRITABLE = Access(write=WRITE, allow_write=True)
BOTH = Access(read=READ, write=WRITE, allow_write=True)
HEADERS = {"Authorization": f"Bearer {WRITE}"}


class Served:
    """A running server: where it is, the application itself, and a client with the write token."""

    def __init__(self, url: str, server: uvicorn.Server, client: httpx.Client) -> None:
        self.url, self.server, self.client = url, server, client
        self.app: Any = server.config.app

    @property
    def middleware(self) -> ServingMiddleware:
        layer = self.app.middleware_stack
        while not isinstance(layer, ServingMiddleware):
            layer = layer.app
        return layer

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def search(self, query: str | list[str], **options: Any) -> Any:
        answer = self.client.post("/api/search", json={"query": query, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, job: dict[str, Any], seconds: float = 180) -> dict[str, Any]:
        """A job when it is over."""
        end = time.monotonic() + seconds
        while job["state"] in ("waiting", "running"):
            assert time.monotonic() < end, job
            time.sleep(0.05)
            job = self.client.get(f"/api/jobs/{job['id']}").json()
        return job


@contextlib.contextmanager
def serving(path: Path, **options: Any) -> Iterator[Served]:
    """Serve an index from a thread, until the block ends."""
    options.setdefault("access", WRITABLE)
    before = set(threading.enumerate())
    app = create_app(path, device="cpu", **options)
    server = uvicorn.Server(uvicorn_config(app))
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, headers=HEADERS, timeout=60) as client:
            ready(client)
            yield Served(url, server, client)
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
        assert threads_since(before) == []


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Poll until a condition holds; the time allowed is generous, for a busy machine."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)


def threads_since(before: set[threading.Thread]) -> list[str]:
    """Names of our threads started since then and still alive; the search helpers of the engine serve the whole process and stay."""
    names = [thread.name for thread in set(threading.enumerate()) - before]
    return [name for name in names if name.startswith("promptdsi-") and not name.startswith("promptdsi-search")]


def ready(client: httpx.Client, seconds: float = 120) -> None:
    """Wait until the index is open, or cannot be opened."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            answer = client.get("/readyz")
            if answer.status_code == 200 or answer.json()["error"]["code"] == "broken":
                return
        time.sleep(0.02)
    raise AssertionError("the server did not get ready")


@contextlib.contextmanager
def process(path: Path, *words: str, program: Sequence[str] = ("-m", "promptdsi")) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`promptdsi serve` as a process of its own, and the address it names."""
    command = [sys.executable, *program, "serve", str(path), "--port", "0", "--device", "cpu", *words]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        line = running.stderr.readline()
        assert " on http://" in line, line + running.stderr.read()
        yield running, line.split(" on ")[1].split()[0]
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()
        running.stderr.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def exchange(server: Served, raw: bytes, seconds: float = 30) -> bytes:
    """Send raw bytes and return the server's response, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(raw)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer
