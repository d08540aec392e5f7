"""What every request passes before its route: access, host and origin, the number, size and speed of requests.

A plain ASGI middleware: it reads the body itself, within bounds, before any other code sees the request.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptdsi.serving.error_responses import APIError, overloaded, to_api_error
from promptdsi.serving.service import Service

log = logging.getLogger("promptdsi.serving")
HEALTH = ("/healthz", "/readyz")  # answered however many other requests there are
PUBLIC = ("/", *HEALTH, "/docs", "/openapi.json", "/favicon.ico")  # show nothing of the index: the page fetches its data later
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
        started, status, request_id = time.perf_counter(), 0, secrets.token_hex(8)  # status 0 until the response has begun

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                caching = "no-cache" if scope["path"] == "/" or scope["path"].startswith("/page/") else "no-store"
                MutableHeaders(scope=message).update({**HEADERS, "Cache-Control": caching, "X-Request-ID": request_id})
            await send(message)

        async def send_error(error: APIError) -> None:
            fields = {"code": error.code, "message": error.message, "hint": error.hint, "request_id": request_id}
            await JSONResponse({"error": fields}, error.status, error.headers)(scope, receive, send_with_headers)

        try:
            self._check(scope)
            await self._answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and could not wait for this request any longer
            if not status:
                await send_error(APIError(503, "stopping", "the server is being stopped"))
            raise
        except Exception as error:
            response = to_api_error(error, self.service.live.path, writing=writes(scope["method"], scope["path"]))
            if response.status >= 500 and not isinstance(error, APIError):
                log.error("request %s failed", request_id, exc_info=error)
            if status:
                raise
            await send_error(response)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.service.metrics.requests.labels(method, route, str(status or 500)).inc()
            self.service.metrics.seconds.labels(route).observe(time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in one of the slots for requests that are answered at once."""
        if self.active >= self.service.limits.requests and scope["path"] not in HEALTH:
            raise overloaded("too many requests are being answered")
        self.active += 1
        try:
            body = await self._read_body(scope, receive)
            await run_until_disconnect(self.app, scope, body, receive, send)
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
        if scope["method"] not in ("POST", "DELETE") or scope["path"] in PUBLIC:
            return b""  # these routes take no body, so none is waited for
        limit, declared = self.service.limits.body, Headers(scope=scope).get("content-length", "0")
        hint = "ask for less at once, or send documents in several requests"
        too_large = APIError(413, "too_large", f"the body is larger than {limit:,} bytes", hint)
        if len(declared) > 15 or (declared.isdigit() and int(declared) > limit):
            raise too_large
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.service.limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise APIError(400, "gone", "the client has disconnected")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise APIError(408, "slow", "the body did not arrive in time", headers={"Connection": "close"}) from None
        return bytes(body)


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
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if messages:
            return messages.pop()
        await asyncio.wait([watcher])
        return {"type": "http.disconnect"}

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        application.cancel()

    application = asyncio.ensure_future(app(scope, replay, send))
    watcher = asyncio.create_task(watch())
    try:
        await application
    except asyncio.CancelledError:
        if not watcher.done():  # it is the server that stops
            raise
    finally:
        watcher.cancel()
        application.cancel()
