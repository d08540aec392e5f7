"""What stands before every route: who may ask, from where, how much at once, how large and how slowly.

A plain ASGI wrapper: it reads the body itself, within bounds, before any other code sees the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptdsi.serving.errors import APIError, described, overloaded, too_large
from promptdsi.serving.metrics import Metrics
from promptdsi.serving.tokens import Access

log = logging.getLogger("promptdsi.serving")
OPEN = ("/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico")  # hold nothing of the index: the page asks for its data later
WATCHED = ("/healthz", "/readyz")  # answered however many others ask
METHODS = ("GET", "HEAD", "POST", "DELETE")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Limits:
    """How large and how slow a request may be, and how many may be answered at once."""

    body: int = 8 << 20
    requests: int = 64
    body_seconds: float = 15.0


class Guard:
    """Wraps the application. `hosts` are the names the server answers to; None answers to any."""

    def __init__(
        self, app: ASGIApp, *, access: Access, hosts: frozenset[str] | None, limits: Limits, metrics: Metrics, folder: Path
    ) -> None:
        self.app, self.access, self.hosts, self.limits = app, access, hosts, limits
        self.metrics, self.folder = metrics, folder
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        scope["request_id"] = secrets.token_hex(8)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                kept = "no-cache" if scope["path"] == "/" or scope["path"].startswith("/page/") else "no-store"
                own = {**HEADERS, "Cache-Control": kept, "X-Request-ID": scope["request_id"]}
                message["headers"] = [*message.get("headers", ()), *((key.lower().encode(), value.encode()) for key, value in own.items())]
            await send(message)

        try:
            await self._guarded(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.answered(method, route, status, time.perf_counter() - started)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            self._admit(scope)
            with self._place(scope["path"]):
                body = await self._body(scope, receive)
                await attended(self.app, scope, body, receive, noted)
        except asyncio.CancelledError:  # the server ends, and could not wait for this any longer
            if not begun:
                await refuse(APIError(503, "stopping", "the server is being stopped"), scope["request_id"], send, scope["method"])
            raise
        except Exception as error:
            found = described(error, self.folder, writing=writes(scope["method"], scope["path"]))
            if found.status >= 500 and not isinstance(error, APIError):
                log.error("request %s failed", scope["request_id"], exc_info=error)
            if begun:
                raise
            await refuse(found, scope["request_id"], send, scope["method"])

    @contextlib.contextmanager
    def _place(self, path: str) -> Iterator[None]:
        """One of the places for requests that are being answered."""
        if self.active >= self.limits.requests and path not in WATCHED:
            raise overloaded("too many requests are being answered")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def _admit(self, scope: Scope) -> None:
        """Raise unless this request may be looked at further; nothing of its body has been read yet."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts is not None and name_of(host) not in self.hosts:
            raise APIError(421, "wrong_host", "this server does not answer to that host name", "see promptdsi serve --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise APIError(403, "foreign_origin", "requests from other sites are not answered")
        path = scope["path"]
        if path not in OPEN and not path.startswith("/page/"):
            if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                raise APIError(403, "foreign_origin", "requests from other sites are not answered")
            self.access.check(headers.get("authorization"), writing=writes(scope["method"], path))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, within its bound of size and time; a length that is only promised is refused before it is read."""
        promised = Headers(scope=scope).get("content-length", "0")
        if scope["method"] not in ("POST", "DELETE") or scope["path"] in OPEN:
            return b""  # they take none, and nobody waits for one
        if len(promised) > 15 or (promised.isdigit() and int(promised) > self.limits.body):
            raise too_large(self.limits.body)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise APIError(400, "gone", "the client has gone")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > self.limits.body:
                        raise too_large(self.limits.body)
        except TimeoutError:
            raise APIError(408, "slow", "the body did not arrive in time", headers={"Connection": "close"}) from None
        return b"".join(parts)


def writes(method: str, path: str) -> bool:
    """Whether a request is to change the index. Searching is a POST that changes nothing."""
    return method not in ("GET", "HEAD", "OPTIONS") and path != "/api/search"


def name_of(host: str) -> str:
    """The name in a Host header, without its port.

    Examples
    --------
    >>> name_of("localhost:8000"), name_of("[::1]:8000"), name_of("Example.org")
    ('localhost', '[::1]', 'example.org')
    """
    return (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()


async def attended(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application with a body that was read already; if the client goes, it is cancelled."""
    given, gone = False, asyncio.Event()

    async def again() -> Message:
        nonlocal given
        if given:
            await gone.wait()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    answering = asyncio.ensure_future(app(scope, again, send))

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        answering.cancel()

    watching = asyncio.create_task(watch())
    try:
        await answering
    except asyncio.CancelledError:
        if not gone.is_set():
            raise
    finally:
        watching.cancel()
        answering.cancel()


async def refuse(error: APIError, request_id: str, send: Send, method: str) -> None:
    body = json.dumps(error.body(request_id), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})
