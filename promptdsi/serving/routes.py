"""The routes of the API: one function each, a few lines over the index."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Security
from fastapi import Path as PathParameter
from fastapi.responses import Response
from fastapi.security import HTTPBearer

from promptdsi import __version__
from promptdsi.index.index import Index
from promptdsi.index.results import Location, SearchRequest, SearchResult
from promptdsi.serving import schemas
from promptdsi.serving.error_responses import APIError
from promptdsi.serving.jobs import Job, JobsResponse
from promptdsi.serving.service import Service, ServiceDep
from promptdsi.serving.uploads import from_lines, from_object

SMALL = 200  # hits of a response that is encoded on the event loop: waking a thread would take longer
At = Annotated[schemas.Generation | None, Query(description="as of this generation")]
Docid = Annotated[str, PathParameter(examples=["weather-jet-stream"])]
LINES = {"schema": {"type": "string"}, "example": '{"_id": "note-1", "title": "Tea", "text": "Green tea wants water of 75 degrees."}\n'}
LIST = {"type": "array", "minItems": 1, "items": schemas.NewDocument.model_json_schema()}
OBJECT = {"type": "object", "properties": {"documents": LIST}, "required": ["documents"], "additionalProperties": False}
BODIES = {"required": True, "content": {"application/json": {"schema": OBJECT}, "application/x-ndjson": LINES}}
# The middleware has checked the token by then; this only puts it into the OpenAPI description.
token = Security(HTTPBearer(auto_error=False, description="the write token"))
reading, writing, health = APIRouter(tags=["read"]), APIRouter(tags=["write"], dependencies=[token]), APIRouter(tags=["health"])


@reading.post("/api/search", response_model=schemas.SearchResponse)
async def search(body: schemas.SearchBody, service: ServiceDep) -> Response:
    """Search for one query or many. Queries that arrive at the same time are encoded in one batch."""
    index = await service.live.at(body.at)
    results = await service.batcher.search(index, [SearchRequest(query, body.k, body.explain) for query in body.queries])
    if len(body.queries) * body.k <= SMALL:
        content = search_json(index, body.queries, results)
    else:
        content = await asyncio.to_thread(search_json, index, body.queries, results)
    return Response(content, media_type="application/json")


def search_json(index: Index, queries: list[str], results: list[SearchResult]) -> bytes:
    """A `SearchResponse` as JSON."""
    entries = [
        {"query": query, "truncated": result.truncated, "hits": [hit.to_json() for hit in result.hits]}
        for query, result in zip(queries, results, strict=True)
    ]
    return json.dumps({"generation": index.generation, "results": entries}, ensure_ascii=False, allow_nan=False).encode()


@reading.get("/api/documents/{docid:path}")
async def get_document(docid: Docid, service: ServiceDep, at: At = None) -> schemas.DocumentResponse:
    """What the index stores of a document."""
    index = await service.live.at(at)
    location = await locate(index, docid)
    document = await asyncio.to_thread(index.get, docid)
    return schemas.DocumentResponse(**document._asdict() | location._asdict(), generation=index.generation)


@reading.get("/api/index")
async def describe_index(service: ServiceDep) -> schemas.IndexResponse:
    """What is served: documents, corpora, model and limits."""
    info = service.live.newest.info()
    corpora = [schemas.CorpusResponse(name=corpus.corpus, fast=not corpus.trained, **corpus._asdict()) for corpus in info.corpora]
    limits = {"query": schemas.MAX_QUERY, "k": schemas.MAX_K, "batch": schemas.MAX_BATCH, "hits": schemas.MAX_HITS}
    served = {
        "name": service.live.name,
        "corpora": corpora,
        "backbone": Path(info.backbone).name,  # without the folders of this machine
        "writable": service.access.allow_write,
        "limits": limits | {"body": service.limits.body},
        "version": __version__,
    }
    return schemas.IndexResponse(**info._asdict() | served)


@reading.get("/api/generations")
async def list_generations(service: ServiceDep) -> schemas.GenerationsResponse:
    """Every generation, oldest first: what made it, and how many documents can be found in it."""
    generations = await service.live.generations()
    return schemas.GenerationsResponse(current=service.live.newest.generation, generations=generations)


@reading.get("/api/retention")
async def list_retention(service: ServiceDep) -> schemas.RetentionResponse:
    """Hits@1 and Hits@10 of each corpus at each generation, as recorded by `promptdsi eval --record`."""
    return schemas.RetentionResponse(records=await service.live.retention())


@reading.get("/api/map")
async def get_map(service: ServiceDep, at: At = None) -> schemas.MapResponse:
    """Documents on a plane, those with similar rows close to each other, and the topics they form."""
    return await service.live.map(at)


@reading.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(service: ServiceDep) -> Response:
    """Figures in Prometheus' text format."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@writing.post("/api/documents", status_code=202, openapi_extra={"requestBody": BODIES})
async def add(
    request: Request,
    service: ServiceDep,
    name: Annotated[str | None, Query(min_length=1, max_length=200, description="of the corpus; generated if missing")] = None,
    fast: Annotated[bool, Query(description="do not train now; `promptdsi tune` does it later")] = False,
    update: Annotated[bool, Query(description="replace documents that are in the index with other content")] = False,
) -> Job:
    """Add documents as a new corpus, in the background: the response is a job to poll.

    They come as JSON, or one a line as `application/x-ndjson`, read as strictly as a file.
    """
    content_type, body = request.headers.get("content-type", "").partition(";")[0].strip().lower(), await request.body()
    if content_type == "application/x-ndjson":
        documents = await asyncio.to_thread(from_lines, body)
    elif content_type == "application/json":
        documents = await asyncio.to_thread(from_object, body)
    else:
        raise APIError(415, "form", "documents come as application/json or application/x-ndjson")
    return service.jobs.start(corpus_name(service, name), documents, fast=fast, update=update)


@writing.delete("/api/documents/{docid:path}")
async def delete(docid: Docid, service: ServiceDep) -> schemas.ChangeResponse:
    """Delete a document; `undelete` brings it back."""
    await locate(service.live.newest, docid)
    await asyncio.to_thread(lambda: writable(service).delete(docid))
    return await after_change(service)


@writing.post("/api/undelete")
async def undelete(body: schemas.UndeleteBody, service: ServiceDep) -> schemas.ChangeResponse:
    """Bring back documents that were deleted and not purged."""
    for docid in body.docids:
        await locate(service.live.newest, docid, deleted=True)
    await asyncio.to_thread(lambda: writable(service).undelete(body.docids))
    return await after_change(service)


@reading.get("/api/jobs")
async def list_jobs(service: ServiceDep) -> JobsResponse:
    """Additions, newest first."""
    return JobsResponse(jobs=[without_purged(job, service) for job in service.jobs.all()])


@reading.get("/api/jobs/{job_id}")
async def get_job(job_id: str, service: ServiceDep) -> Job:
    """The progress of an addition, at the end its report or error."""
    job = service.jobs.get(job_id)
    if job is None:
        raise APIError(404, "no_job", "there is no such job", "jobs end with the server, and the oldest are forgotten")
    return without_purged(job, service)


@health.get("/healthz")
async def healthz() -> dict[str, str]:
    """The server is alive."""
    return {"status": "alive"}


@health.get("/readyz", responses={503: {"model": schemas.ErrorResponse}})
async def readyz(service: ServiceDep) -> dict[str, str]:
    """The index is open and its checksums are right."""
    if service.broken:
        raise APIError(503, "broken", "the index cannot be served", "the server's log has more")
    assert service.live.newest
    return {"status": "ready"}


async def after_change(service: Service) -> schemas.ChangeResponse:
    """After a change by this server: what is served now."""
    await service.live.refresh()
    return schemas.ChangeResponse(generation=service.live.newest.generation, documents=len(service.live.newest))


def without_purged(job: Job, service: Service) -> Job:
    """A job whose report does not name documents that were purged since."""
    if not job.report:
        return job
    unfindable = [docid for docid in job.report["unfindable"] if service.live.newest.locate(docid)]
    return job.model_copy(update={"report": job.report | {"unfindable": unfindable}})


def writable(service: Service) -> Index:
    """The index opened for one write: the one that answers requests stays at its generation."""
    return Index.open(service.live.path, check=False)


async def locate(index: Index, docid: str, *, deleted: bool = False) -> Location:
    """The corpus of a document, or an error if there is none; a deleted document counts only if `deleted`."""
    location = index.locate(docid)
    if location is None:
        hint = (await asyncio.to_thread(index.suggest, docid)).removeprefix("; ") or None
        raise APIError(404, "not_found", f"there is no document {docid[:80]!r} in generation {index.generation}", hint)
    if location.deleted and not deleted:
        raise APIError(404, "deleted", f"the document {docid!r} is deleted", "undelete brings it back")
    return location


def corpus_name(service: Service, name: str | None) -> str:
    """The name of a new corpus: the one given, if it is free, or a generated one."""
    taken = {corpus.corpus for corpus in service.live.newest.info().corpora} | {job.corpus for job in service.jobs.all() if job.open}
    if name is None:
        return next(free for number in range(1, len(taken) + 2) if (free := f"added-{number}") not in taken)
    if not name.strip() or not name.isprintable():
        raise APIError(422, "name", "the name of the corpus has characters that cannot be seen")
    if name in taken:
        raise APIError(409, "name", f"there is a corpus named {name!r} already", "give this one another name")
    return name
