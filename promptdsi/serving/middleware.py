"""What every request passes before its route: access, host and origin, the number, size and speed of requests.

A plain ASGI middleware: it reads the body itself, within bounds, before any other code sees the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptdsi.serving.error_responses import APIError, overloaded, to_api_error, too_large
from promptdsi.serving.service import Service

log = logging.getLogger("promptdsi.serving")
HEALTH = ("/healthz", "/readyz")  # answered however many other requests there are
PUBLIC = ("/", *HEALTH, "/openapi.json", "/favicon.ico")  # show nothing of the index: the page fetches its data later
METHODS = ("GET", "HEAD", "POST", "DELETE")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ServingMiddleware:
    """Wraps the application. `hosts` are the host names the server answers to; None means any."""

    def __init__(self, app: ASGIApp, *, service: Service, hosts: frozenset[str] | None) -> None:
        self.app, self.service, self.hosts = app, service, hosts
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0  # 0 until the response has begun
        scope["request_id"] = secrets.token_hex(8)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                caching = "no-cache" if scope["path"] == "/" or scope["path"].startswith("/page/") else "no-store"
                added = {**HEADERS, "Cache-Control": caching, "X-Request-ID": scope["request_id"]}
                message["headers"] = [*message.get("headers", ()), *encoded(added)]
            await send(message)

        try:
            await self._handle(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and could not wait for this request any longer
            if not status:
                await send_error(APIError(503, "stopping", "the server is being stopped"), scope, send_with_headers)
            raise
        except Exception as error:
            response = to_api_error(error, self.service.live.path, writing=writes(scope["method"], scope["path"]))
            if response.status >= 500 and not isinstance(error, APIError):
                log.error("request %s failed", scope["request_id"], exc_info=error)
            if status:
                raise
            await send_error(response, scope, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.service.metrics.count_request(method, route, status or 500, time.perf_counter() - started)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check(scope)
        with self._slot(scope["path"]):
            body = await self._read_body(scope, receive)
            await run_until_disconnect(self.app, scope, body, receive, send)

    @contextlib.contextmanager
    def _slot(self, path: str) -> Iterator[None]:
        """One of the slots for requests that are answered at once."""
        if self.active >= self.service.limits.requests and path not in HEALTH:
            raise overloaded("too many requests are being answered")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def _check(self, scope: Scope) -> None:
        """Raise unless host, origin and token are right; nothing of the body has been read yet."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts is not None and host_name(host) not in self.hosts:
            raise APIError(421, "wrong_host", "this server does not answer to that host name", "see promptdsi serve --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise APIError(403, "foreign_origin", "requests from other sites are not answered")
        path = scope["path"]
        if path not in PUBLIC and not path.startswith("/page/"):
            if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                raise APIError(403, "foreign_origin", "requests from other sites are not answered")
            self.service.access.check(headers.get("authorization"), writing=writes(scope["method"], path))

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, within its bounds of size and time; a declared length that is too large is refused before anything is read."""
        declared = Headers(scope=scope).get("content-length", "0")
        if scope["method"] not in ("POST", "DELETE") or scope["path"] in PUBLIC:
            return b""  # these routes take no body, so none is waited for
        if len(declared) > 15 or (declared.isdigit() and int(declared) > self.service.limits.body):
            raise too_large(self.service.limits.body)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self.service.limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise APIError(400, "gone", "the client has disconnected")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > self.service.limits.body:
                        raise too_large(self.service.limits.body)
        except TimeoutError:
            raise APIError(408, "slow", "the body did not arrive in time", headers={"Connection": "close"}) from None
        return b"".join(parts)


def writes(method: str, path: str) -> bool:
    """Whether a request may change the index. Searching is a POST that changes nothing."""
    return method not in ("GET", "HEAD", "OPTIONS") and path != "/api/search"


def host_name(host: str) -> str:
    """The name in a Host header, without its port.

    Examples
    --------
    >>> host_name("localhost:8000"), host_name("[::1]:8000"), host_name("Example.org")
    ('localhost', '[::1]', 'example.org')
    """
    return (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()


async def run_until_disconnect(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run the application with a body that was read already; if the client disconnects, it is cancelled."""
    body_sent, disconnected = False, asyncio.Event()

    async def replay() -> Message:
        nonlocal body_sent
        if body_sent:
            await disconnected.wait()
            return {"type": "http.disconnect"}
        body_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    application = asyncio.ensure_future(app(scope, replay, send))

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnected.set()
        application.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await application
    except asyncio.CancelledError:
        if not disconnected.is_set():
            raise
    finally:
        watcher.cancel()
        application.cancel()


async def send_error(error: APIError, scope: Scope, send: Send) -> None:
    body = json.dumps(error.body(scope["request_id"]), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    await send({"type": "http.response.start", "status": error.status, "headers": encoded(headers)})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
