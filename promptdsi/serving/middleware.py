"""What every request passes before its route: access, host and origin, the number, size and speed of requests.

A plain ASGI middleware: it reads the body itself, within bounds, before any other code sees the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptdsi.serving.access import network_of
from promptdsi.serving.error_responses import APIError, overloaded, to_api_error
from promptdsi.serving.service import Service

log = logging.getLogger("promptdsi.serving")
# These show nothing of the index: the page fetches its data later.
PUBLIC = ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/favicon.ico")
HEALTH = ("/healthz", "/readyz", "/metrics")
# Requests of one address that are answered at a time, where the others wait for their turn: a flood must not fill the event loop.
# Searches and what has a body are not among them: they take slots, and beyond those are refused.
TURNS = {"health": 2, "page": 2, "api": 8}
SMALL = 64 << 10  # bytes of a body that are always received
METHODS = ("GET", "HEAD", "POST", "DELETE")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class IncomingBody(NamedTuple):
    """A body that is being received, and from where."""

    address: str
    body: bytearray


class ServingMiddleware:
    """Wraps the application. `hosts` are the host names the server answers to; None means any."""

    def __init__(self, app: ASGIApp, *, service: Service, hosts: frozenset[str] | None) -> None:
        self.app, self.service, self.hosts = app, service, hosts
        self.active = Counter[str]()  # requests that are being computed, by address
        self.turns: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()  # by address and kind
        self.receiving: dict[asyncio.Timeout, IncomingBody] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["address"] = address = self._address(scope)
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
            async with self._turn(address, "page"):
                await asyncio.sleep(0)  # other work passes: refusals cost little, but there may be thousands
                await send_error(response)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.service.metrics.requests.labels(method, route, str(status or 500)).inc()
            self.service.metrics.seconds.labels(route).observe(time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. It takes a slot or a turn only while it is computed, not while its client sends or reads."""
        address = scope["state"]["address"]
        with contextlib.ExitStack() as slot:

            async def send_without_slot(message: Message) -> None:
                slot.close()
                await send(message)

            if kind := kind_of(scope):
                turn, body = self._turn(address, kind), b""
                await turn.acquire()
                slot.callback(turn.release)
            else:
                self._check_slots(address)
                body = await self._read_body(scope, receive, address)
                slot.enter_context(self._slot(address))
            await run_until_disconnect(self.app, scope, body, receive, send_without_slot)

    def _turn(self, address: str, kind: str) -> asyncio.Semaphore:
        return self.turns.setdefault((address, kind), asyncio.Semaphore(TURNS[kind]))

    @contextlib.contextmanager
    def _slot(self, address: str) -> Iterator[None]:
        """One of the slots for requests that are computed at once."""
        self._check_slots(address)
        self.active[address] += 1
        try:
            yield
        finally:
            self.active[address] -= 1
            self.active += Counter()  # forgets addresses without a request

    def _check_slots(self, address: str) -> None:
        limits = self.service.limits
        if self.active.total() >= limits.requests or self.active[address] >= limits.share(address, limits.requests):
            raise overloaded("too many requests are being answered")

    def _address(self, scope: Scope) -> str:
        """Whom a request counts for: its sender, or whom a proxy sends it for."""
        peer = scope["client"][0].removeprefix("::ffff:") if scope.get("client") else ""
        if peer in self.service.limits.proxies:
            # The last entry is the proxy's; those before it may be anybody's invention.
            peer = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).rpartition(",")[2].strip() or peer
        return network_of(peer)

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
        if not is_public(path):
            if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                raise APIError(403, "foreign_origin", "requests from other sites are not answered")
            self.service.access.check(headers.get("authorization"), writing=writes(scope["method"], path))

    async def _read_body(self, scope: Scope, receive: Receive, address: str) -> bytes:
        """The body, within its bounds of size and time; a declared length that is too large is refused before anything is read."""
        if scope["method"] not in ("POST", "DELETE"):
            return b""  # these routes take no body, so none is waited for
        limit, declared = self.service.limits.body, Headers(scope=scope).get("content-length", "0")
        hint = "ask for less at once, or send documents in several requests"
        too_large = APIError(413, "too_large", f"the body is larger than {limit:,} bytes", hint)
        if len(declared) > 15 or (declared.isdigit() and int(declared) > limit):
            raise too_large
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.service.limits.body_seconds) as deadline:
                self.receiving[deadline] = IncomingBody(address, body)
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise APIError(400, "gone", "the client has disconnected")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise too_large
                    if len(body) > SMALL:
                        self._bound_bodies()
        except TimeoutError:
            raise APIError(408, "slow", "the body did not arrive in time", headers={"Connection": "close"}) from None
        finally:
            self.receiving.pop(deadline, None)
        return bytes(body)

    def _bound_bodies(self) -> None:
        """Where bodies take too much memory, stop receiving the oldest of the address that sends most."""
        sizes = Counter[str]()
        for address, body in self.receiving.values():
            sizes[address] += len(body)
        if sizes.total() > self.service.limits.bodies:
            most = sizes.most_common(1)[0][0]
            oldest = next(deadline for deadline, (address, body) in self.receiving.items() if address == most and len(body) > SMALL)
            del self.receiving[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())


def is_public(path: str) -> bool:
    """Whether a path needs no token."""
    return path in PUBLIC or path.startswith("/page/")


def kind_of(scope: Scope) -> str | None:
    """The kind of a request that waits for its turn; None for one that takes a slot."""
    if scope["path"] in HEALTH:
        return "health"
    if is_public(scope["path"]):
        return "page"
    return "api" if scope["method"] in ("GET", "HEAD") and scope["path"] != "/api/search" else None


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
