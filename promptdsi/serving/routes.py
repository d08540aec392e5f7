"""The routes of the API: one function each, a few lines over the index."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Security
from fastapi import Path as InPath
from fastapi.responses import Response
from fastapi.security import HTTPBearer

from promptdsi import __version__
from promptdsi.index import removal
from promptdsi.index.hits import Hit, Wanted
from promptdsi.index.snapshot import Snapshot, close_to
from promptdsi.serving import schemas
from promptdsi.serving.errors import APIError
from promptdsi.serving.jobs import Job
from promptdsi.serving.service import Service, Shared
from promptdsi.serving.uploads import from_lines, from_object

SMALL = 200  # hits of an answer that is written where it stands
At = Annotated[schemas.Generation | None, Query(description="as of this generation")]
Docid = Annotated[str, InPath(examples=["weather-jet-stream"])]
LINES = {"schema": {"type": "string"}, "example": '{"_id": "note-1", "title": "Tea", "text": "Green tea wants water of 75 degrees."}\n'}
LIST = {"type": "array", "minItems": 1, "items": schemas.NewDocument.model_json_schema()}
OBJECT = {"type": "object", "properties": {"documents": LIST}, "required": ["documents"], "additionalProperties": False}
BODIES = {"required": True, "content": {"application/json": {"schema": OBJECT}, "application/x-ndjson": LINES}}
# The guard has checked the token by then; here it is only told to whoever reads the description.
token = Security(HTTPBearer(auto_error=False, description="the write token"))
reading, writing, health = APIRouter(tags=["read"]), APIRouter(tags=["write"], dependencies=[token]), APIRouter(tags=["health"])


@reading.post("/api/search", response_model=schemas.SearchResponse)
async def search(wanted: schemas.SearchRequest, shared: Shared) -> Response:
    """Find documents for one query or many. Queries that arrive together are encoded together."""
    snapshot = await shared.held.at(wanted.at)
    found = await shared.batcher.rank_queries(snapshot, [Wanted(query, wanted.k, wanted.explain) for query in wanted.queries])
    if len(wanted.queries) * wanted.k <= SMALL:  # a thread would take longer to wake than this takes
        return Response(rendered(snapshot, wanted.queries, found), media_type="application/json")
    return Response(await asyncio.to_thread(rendered, snapshot, wanted.queries, found), media_type="application/json")


def rendered(snapshot: Snapshot, queries: list[str], found: list[list[Hit]]) -> bytes:
    """The answer to a search as JSON."""
    results = []
    for query, hits in zip(queries, found, strict=True):
        cut = bool(snapshot.encoder.cut([query]))
        results.append({"query": query, "cut": cut, "hits": [hit.to_json() for hit in hits]})
    return json.dumps({"generation": snapshot.manifest.number, "results": results}, ensure_ascii=False, allow_nan=False).encode()


@reading.get("/api/documents/{docid:path}")
async def document(docid: Docid, shared: Shared, at: At = None) -> schemas.Document:
    """What the index stores of a document."""
    snapshot = await shared.held.at(at)
    row = await live(snapshot, docid)
    found, entry = await asyncio.to_thread(snapshot.document, row), snapshot.place(row).entry
    return schemas.Document(
        docid=docid,
        title=found.title if found else "",
        text=found.text if found else "",
        metadata=dict(found.metadata) if found else {},
        corpus=entry.name,
        since=entry.since,
        generation=snapshot.manifest.number,
    )


@reading.get("/api/index")
async def index(shared: Shared) -> schemas.IndexInfo:
    """What is served."""
    manifest, params = shared.held.newest.manifest, shared.held.newest.manifest.params
    gone = manifest.deleted_positions()
    corpora = [
        schemas.CorpusInfo(name=entry.name, since=entry.since, documents=entry.count - len(deleted), fast=entry.fast)
        for entry, deleted in zip(manifest.corpora, gone, strict=True)
    ]
    bounds = {"query": schemas.MAX_QUERY, "k": schemas.MAX_K, "batch": schemas.MAX_BATCH, "hits": schemas.MAX_HITS}
    return schemas.IndexInfo(
        name=shared.held.name,
        generation=manifest.number,
        documents=manifest.documents,
        corpora=corpora,
        method=manifest.method,
        prompts=params.get("prompts", "none"),
        backbone=Path(params.get("backbone", "")).name,  # a folder of this machine is nobody's business
        width=manifest.config["width"],
        store=manifest.store,
        writable=shared.access.allow_write,
        limits=bounds | {"body": shared.limits.body},
        version=__version__,
    )


@reading.get("/api/generations")
async def generations(shared: Shared) -> schemas.Generations:
    """Every generation, oldest first: what made it, and how many documents can be found in it."""
    found = [schemas.GenerationInfo(**one) for one in await shared.held.generations()]
    return schemas.Generations(current=shared.held.newest.manifest.number, generations=found)


@reading.get("/api/retention")
async def retention(shared: Shared) -> schemas.Retention:
    """How well each corpus was found after each step, from what `promptdsi eval --record` kept."""
    return schemas.Retention(records=[schemas.Retained(**one) for one in await shared.held.retention()])


@reading.get("/api/map")
async def document_map(shared: Shared, at: At = None) -> schemas.MapInfo:
    """Documents on a plane, those with near rows near each other, and the topics they form."""
    return schemas.MapInfo(**(await shared.held.map(at))._asdict())


@reading.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(shared: Shared) -> Response:
    """Counters in Prometheus' text form."""
    return Response(shared.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@writing.post("/api/documents", status_code=202, openapi_extra={"requestBody": BODIES})
async def add(
    request: Request,
    shared: Shared,
    name: Annotated[str | None, Query(min_length=1, max_length=200, description="of the corpus; made up where it is missing")] = None,
    fast: Annotated[bool, Query(description="do not train now; `promptdsi tune` does it later")] = False,
    update: Annotated[bool, Query(description="replace documents that are in the index with other content")] = False,
) -> schemas.Job:
    """Learn documents as a new corpus, in the background: the answer is a job to watch.

    They come as JSON, or one a line as `application/x-ndjson`, read as strictly as a file.
    """
    kind, body = request.headers.get("content-type", "").partition(";")[0].strip().lower(), await request.body()
    if kind == "application/x-ndjson":
        documents = await asyncio.to_thread(from_lines, body)
    elif kind == "application/json":
        documents = await asyncio.to_thread(from_object, body)
    else:
        raise APIError(415, "form", "documents come as application/json or application/x-ndjson")
    job = shared.jobs.begin(free_name(shared, name), documents, fast=fast, update=update)
    return told(job, shared)


@writing.delete("/api/documents/{docid:path}")
async def delete(docid: Docid, shared: Shared) -> schemas.Changed:
    """Hide a document; `undelete` shows it again."""
    await live(shared.held.newest, docid)
    await asyncio.to_thread(removal.delete, shared.held.store, [docid])
    return await changed(shared)


@writing.post("/api/undelete")
async def undelete(wanted: schemas.Undelete, shared: Shared) -> schemas.Changed:
    """Show documents again that were deleted and not purged."""
    known = shared.held.newest.row_of
    if unknown := [docid for docid in wanted.docids if docid not in known]:
        raise await not_found(shared.held.newest, unknown[0])
    await asyncio.to_thread(removal.undelete, shared.held.store, wanted.docids)
    return await changed(shared)


@reading.get("/api/jobs")
async def jobs(shared: Shared) -> schemas.Jobs:
    """Additions, newest first."""
    return schemas.Jobs(jobs=[told(job, shared) for job in shared.jobs.all()])


@reading.get("/api/jobs/{identity}")
async def job(identity: str, shared: Shared) -> schemas.Job:
    """How far an addition is."""
    found = shared.jobs.get(identity)
    if found is None:
        raise APIError(404, "no_job", "there is no such job", "jobs end with the server, and the oldest are forgotten")
    return told(found, shared)


@health.get("/healthz")
async def healthz() -> dict[str, str]:
    """The server is alive."""
    return {"status": "alive"}


@health.get("/readyz", responses={503: {"model": schemas.Failure}})
async def readyz(shared: Shared) -> dict[str, str]:
    """The index is open and its checksums are right."""
    if shared.broken:
        raise APIError(503, "broken", "the index cannot be served", "the server's log has more")
    assert shared.held.newest
    return {"status": "ready"}


async def changed(shared: Service) -> schemas.Changed:
    """After a change of ours: what is served now."""
    await shared.held.refresh()
    manifest = shared.held.newest.manifest
    return schemas.Changed(generation=manifest.number, documents=manifest.documents)


def told(job: Job, shared: Service) -> schemas.Job:
    """A job as clients see it; a report does not name documents that were purged since."""
    facts = job.to_json()
    if facts["report"]:
        known = shared.held.newest.row_of
        facts["report"] = facts["report"] | {"unfindable": [docid for docid in facts["report"]["unfindable"] if docid in known]}
    return schemas.Job(**facts)


async def live(snapshot: Snapshot, docid: str) -> int:
    """The row of a document that can be found."""
    row = snapshot.live(docid)
    if row is not None:
        return row
    if docid in snapshot.row_of:
        raise APIError(404, "deleted", f"the document {docid!r} is deleted", "undelete shows it again")
    raise await not_found(snapshot, docid)


async def not_found(snapshot: Snapshot, docid: str) -> APIError:
    hint = (await asyncio.to_thread(close_to, docid, snapshot.row_of)).removeprefix("; ") or None
    return APIError(404, "not_found", f"there is no document {docid[:80]!r} in generation {snapshot.manifest.number}", hint)


def free_name(shared: Service, name: str | None) -> str:
    """The name of a corpus that arrives: as given, if no other has it."""
    taken = {entry.name for entry in shared.held.newest.manifest.corpora} | {job.corpus for job in shared.jobs.all() if not job.over}
    if name is None:
        return next(made for number in range(1, len(taken) + 2) if (made := f"added-{number}") not in taken)
    if not name.strip() or not name.isprintable():
        raise APIError(422, "name", "the name of the corpus has characters that cannot be seen")
    if name in taken:
        raise APIError(409, "name", f"there is a corpus named {name!r} already", "give this one another name")
    return name
