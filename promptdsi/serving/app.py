"""The server as one ASGI application, and running it with uvicorn: bounds on slow connections, an orderly end.

    app = create_app("my-index")              # read only, for this machine
    uvicorn.run(app, host="127.0.0.1")

`promptdsi serve` does this with the tokens and limits of the command line.
"""

from __future__ import annotations

import functools
import json
import re
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from promptdsi import __version__
from promptdsi.errors import PromptDSIError
from promptdsi.serving import api_page, routes
from promptdsi.serving.access import Access, Limits
from promptdsi.serving.connections import ClientConnection
from promptdsi.serving.error_responses import APIError
from promptdsi.serving.middleware import ServingMiddleware
from promptdsi.serving.schemas import ErrorResponse
from promptdsi.serving.service import Service

SECONDS_TO_DRAIN = 5  # for requests; background work gets the rest of the ten seconds within which the server ends
SEND_BUFFER = 256 << 10  # bytes that the system takes for a client that does not read; otherwise several MiB
OTHER_FILES = 128  # open files of a server beside its connections
BACKLOG = 256  # connections that are accepted in one turn of the event loop
MAX_THREADS = 8  # per batch by default; the index uses at most one per core
PAGE = Path(__file__).parent / "page"
HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
HOST_OF_EXAMPLES = "localhost:8000"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
ERRORS = {
    400: "the index cannot do this, such as search with a condition that has no operator",
    401: "a token is missing or wrong",
    403: "the token may not do this, the server is read only, or the request comes from another site",
    404: "there is no such document, generation, job or address",
    408: "the body did not arrive in time",
    413: "the body is too large",
    421: "the server does not answer to this host name",
    422: "the request does not fit this description",
    429: "too much at once; the header Retry-After says when to try again",
    500: "an error of the server, which its log explains",
    503: "the index is not open yet, cannot be read, or the search took too long",
}
WRITE_ERRORS = {
    409: "the index refuses the change, or another process is writing to it",
    415: "a content type that is not read",
    507: "the index could not be written",
}
DESCRIPTION = "Search an index that lives in a model's weights, see what each generation learned, and add to it."


def create_app(
    index: str | Path,
    *,
    access: Access | None = None,
    hosts: frozenset[str] | None = LOCAL_HOSTS,
    limits: Limits | None = None,
    engine: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    on: str | None = None,
) -> FastAPI:
    """An application over the index in a folder. The index is opened when the server starts, not here.

    `threads` compute a batch (default: one per core, at most eight); `on` is a cluster whose processes hold the rows.
    """
    service = Service(index, access or Access(), limits or Limits(), engine, device, threads or MAX_THREADS, on)
    pages: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}  # we have our own
    app = FastAPI(title="PromptDSI", version=__version__, description=DESCRIPTION, lifespan=service.lifespan, **pages)
    app.router.redirect_slashes = False
    app.state.service = service
    app.include_router(routes.reading, responses=error_responses(ERRORS))
    app.include_router(routes.writing, responses=error_responses(dict(sorted((ERRORS | WRITE_ERRORS).items()))))
    app.include_router(routes.health)
    app.add_api_route("/", get_page, include_in_schema=False)
    app.add_api_route("/docs", get_api_page, include_in_schema=False)
    app.add_api_route("/openapi.json", get_api_description, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_exception_handler(RequestValidationError, raise_validation_error)
    app.add_exception_handler(HTTPException, raise_http_error)
    app.add_middleware(ServingMiddleware, service=service, hosts=hosts)
    return app


def error_responses(meanings: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Statuses as the OpenAPI description has them."""
    return {status: {"model": ErrorResponse, "description": meaning} for status, meaning in meanings.items()}


async def get_page() -> Response:
    return FileResponse(PAGE / "index.html")


async def get_api_page(request: Request) -> Response:
    host = request.url.netloc if HOST.fullmatch(request.url.netloc) else HOST_OF_EXAMPLES
    return HTMLResponse(rendered(request.app).replace(f"http://{HOST_OF_EXAMPLES}", f"{request.url.scheme}://{host}"))


async def get_api_description(request: Request) -> Response:
    return Response(description_of(request.app), media_type="application/json")


# Anyone may ask for these two as often as they like, so they are made once.
@functools.lru_cache(maxsize=1)
def rendered(app: FastAPI) -> str:
    return api_page.render(app.openapi(), f"http://{HOST_OF_EXAMPLES}")


@functools.lru_cache(maxsize=1)
def description_of(app: FastAPI) -> bytes:
    return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()


# The middleware turns exceptions into responses; these two the framework would otherwise answer in a form of its own.
async def raise_validation_error(request: Request, error: Exception) -> Response:
    """A request that does not fit the OpenAPI description: its first error, and where that is."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        problem = str(first["ctx"]["error"]).removesuffix(" at")  # Python says where: “… starting at” a character
        raise APIError(422, "invalid", f"the body is not JSON: {problem} at character {field}")
    if first["loc"] == ("body",) and first["type"] in ("model_attributes_type", "model_type", "missing"):
        raise APIError(422, "invalid", "the body is not a JSON object", "with the header Content-Type: application/json; see /docs")
    if first.get("ctx", {}).get("pattern") == r"\S":
        reason = "is blank"
    raise APIError(422, "invalid", f"{field}: {reason}" if field else reason, "see /docs")


async def raise_http_error(request: Request, error: Exception) -> Response:
    """Unknown addresses and wrong methods; of the methods allowed the framework names only those of the first route that matches."""
    assert isinstance(error, HTTPException)
    headers, message = dict(error.headers or {}), str(error.detail)
    if error.status_code == 404:
        message = "there is nothing at this address"
    if error.status_code == 405:
        every = (*routes.reading.routes, *routes.writing.routes, *routes.health.routes, *request.app.routes)
        matching = [route for route in every if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
        message = f"this address takes {headers['Allow']}, not {request.method}"
    code = {404: "not_found", 405: "method"}.get(error.status_code, "http")
    raise APIError(error.status_code, code, message, "see /docs", headers)


def uvicorn_config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ClientConnection,
        ws="none",
        lifespan="on",
        log_level="error",  # not a line for each request of a stranger that is no HTTP
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=15,
        backlog=BACKLOG,
        timeout_graceful_shutdown=SECONDS_TO_DRAIN,
    )


def run(app: FastAPI, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, then finish the requests under way, within bounds."""
    bound_connections(app.state.service)
    with closing(listen(host, port)) as listener, suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        on_listening(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")
        uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])


def bound_connections(service: Service) -> None:
    """No more connections than files can be open: a server that cannot open another answers nobody."""
    try:
        import resource
    except ImportError:  # Windows has no such bound
        return
    needed = 2 * service.limits.connections + OTHER_FILES  # each may have a file of the page open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        service.limits = replace(service.limits, connections=max(1, (soft - OTHER_FILES) // 2))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error of one sentence."""
    # With an explicit protocol: only then does asyncio send small responses at once, instead of 40 ms later.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PromptDSIError(f"cannot listen on {host} port {port}: {error.strerror}; give another with --host or --port") from None
    return listener
