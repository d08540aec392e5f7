"""The server as one application: routes, the page, errors as JSON, and the guard before all of them.

    app = create_app("my-index")              # read only, for this machine
    uvicorn.run(app, host="127.0.0.1")

`promptdsi serve` does this with the tokens and bounds of the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from promptdsi import __version__
from promptdsi.engine.session import cores
from promptdsi.serving import routes, schemas
from promptdsi.serving.errors import APIError
from promptdsi.serving.guard import Guard, Limits
from promptdsi.serving.service import Service
from promptdsi.serving.tokens import Access

PAGE = Path(__file__).parent / "page"
LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
READING, WRITING = (401, 403, 404, 408, 413, 421, 422, 429, 500, 503), (400, 409, 415, 507)
ABOUT = "Search an index that lives in a model's weights, see what each generation learned, and add to it."


def create_app(
    index: str | Path,
    *,
    access: Access | None = None,
    hosts: frozenset[str] | None = LOCAL,
    limits: Limits | None = None,
    engine: str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> FastAPI:
    """An application over the index in a folder. It is opened when the server starts, not here.

    `threads` compute a batch, by default one a core and eight at most.
    """
    shared = Service(index, access or Access(), limits or Limits(), engine, device, threads or min(8, cores()))
    app = FastAPI(title="PromptDSI", version=__version__, description=ABOUT, lifespan=shared.running, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.service = shared
    app.include_router(routes.reading, responses=failures((*READING, 400)))
    app.include_router(routes.writing, responses=failures(READING + WRITING))
    app.include_router(routes.health)
    app.add_api_route("/", page, include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.add_exception_handler(APIError, answered_with)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_middleware(
        Guard, access=shared.access, hosts=hosts, limits=shared.limits, metrics=shared.metrics, folder=shared.held.path
    )  # fmt: skip
    return app


def failures(codes: tuple[int, ...]) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": schemas.Failure} for code in codes}


async def page() -> Response:
    return FileResponse(PAGE / "index.html")


async def answered_with(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return JSONResponse(error.body(request.scope["request_id"]), error.status, headers=error.headers)


async def invalid(request: Request, error: Exception) -> Response:
    """A request that does not fit the description: the first mistake, and where it stands."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith(("function-", "constrained-")))
    found = APIError(422, "invalid", f"{where}: {first['msg']}" if where else str(first["msg"]), "see /openapi.json")
    return await answered_with(request, found)


async def refused(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: unknown addresses, wrong methods."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(allowed(request)))
    code = {404: "not_found", 405: "method"}.get(error.status_code, "http")
    return await answered_with(request, APIError(error.status_code, code, str(error.detail), headers=headers))


def allowed(request: Request) -> set[str]:
    """Every method an address knows; the framework names those of the first route alone."""
    found: set[str] = set()
    for route in (*routes.reading.routes, *routes.writing.routes, *routes.health.routes, *request.app.routes):
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found
