"""The routes of the API: one function each, a few lines over the index."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Security
from fastapi import Path as PathParameter
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest

from promptdsi import __version__
from promptdsi.errors import UsageError
from promptdsi.index.index import Index
from promptdsi.index.results import Location, SearchRequest
from promptdsi.serving import document_bodies, schemas
from promptdsi.serving.error_responses import RETRY_AFTER, APIError, without_path
from promptdsi.serving.jobs import Job, JobsResponse
from promptdsi.serving.service import Service, ServiceDep

SMALL = 200  # hits of a response that is encoded on the event loop: waking a thread would take longer
Fields = dict[str, Any]  # of a response; FastAPI validates them by the route's model
At = Annotated[schemas.Generation | None, Query(description="as of this generation")]
Docid = Annotated[str, PathParameter(examples=["weather-jet-stream"])]
ANY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
# The middleware has checked the token by then; this only puts it into the OpenAPI description.
token = Security(HTTPBearer(auto_error=False, description="the write token"))


async def check_parameters(request: Request) -> None:
    """An unknown parameter is an error: a misspelled condition that is ignored would find what it should have left out."""
    names = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    if unknown := sorted(set(request.query_params) - names):
        hint = f"there are {', '.join(sorted(names))}" if names else "this address takes none"
        raise APIError(422, "invalid", f"there is no parameter {unknown[0][:50]!r}", hint)


checked = Depends(check_parameters)
reading, writing = APIRouter(tags=["read"], dependencies=[checked]), APIRouter(tags=["write"], dependencies=[checked, token])
health = APIRouter(tags=["health"])


@reading.post("/api/search", response_model=schemas.SearchResponse)
async def search(body: schemas.SearchBody, service: ServiceDep, request: Request) -> Response:
    """Search for one query or many. Queries that arrive at the same time are encoded in one batch."""
    index = await service.live.at(body.at)
    requests = [SearchRequest(query, body.k, body.explain, body.min_confidence, tuple(body.where)) for query in body.queries]
    results = await service.batcher.search(index, requests, address=request.state.address)

    def to_json() -> bytes:
        entries = [
            {"query": query, "truncated": result.truncated, "certain": result.certain, "hits": [hit.to_dict() for hit in result.hits]}
            for query, result in zip(body.queries, results, strict=True)
        ]
        return json.dumps({"generation": index.generation, "results": entries}, ensure_ascii=False, allow_nan=False).encode()

    small = len(body.queries) * body.k <= SMALL
    return Response(to_json() if small else await asyncio.to_thread(to_json), media_type="application/json")


@reading.get("/api/search", response_model=schemas.SearchResponse)
async def search_by_url(
    service: ServiceDep,
    request: Request,
    q: Annotated[schemas.QueryText, Query(description="the query")],
    k: Annotated[int, Query(ge=1, le=schemas.MAX_K, description="number of hits")] = 10,
    explain: Annotated[bool, Query(description="explain the rank of each hit")] = False,
    min_confidence: Annotated[float, Query(ge=0, le=1, description="leave out hits whose confidence is lower")] = 0.0,
    where: Annotated[list[schemas.Condition], Query(max_length=schemas.MOST_CONDITIONS, description="conditions that all must hold")] = [],  # noqa: B006
    at: At = None,
) -> Response:
    """Search for one query, given in the URL; the response is that of the same search by POST."""
    body = schemas.SearchBody(query=q, k=k, explain=explain, min_confidence=min_confidence, where=where, at=at)
    return await search(body, service, request)


@reading.get("/api/facets", response_model=schemas.FacetsResponse)
async def list_facets(service: ServiceDep, at: At = None) -> Fields:
    """Fields of the metadata to filter by, each with its most frequent values and their numbers of documents."""
    index = await service.live.at(at)
    counted = await asyncio.to_thread(index.facets)
    return {"generation": index.generation, "facets": [{"field": field, "values": values} for field, values in counted]}


@reading.get("/api/documents/{docid:path}", response_model=schemas.DocumentResponse)
async def get_document(docid: Docid, service: ServiceDep, at: At = None) -> Fields:
    """What the index stores of a document."""
    index = await service.live.at(at)
    location = await locate(index, docid)
    document = await asyncio.to_thread(index.get, docid)
    return document._asdict() | location._asdict() | {"generation": index.generation}


@reading.get("/api/index", response_model=schemas.IndexResponse)
async def describe_index(service: ServiceDep) -> Fields:
    """What is served: documents, corpora, model and limits."""
    info = service.live.newest.info()
    limits = {"query": schemas.MAX_QUERY, "k": schemas.MAX_K, "batch": schemas.MAX_BATCH, "hits": schemas.MAX_HITS}
    return info._asdict() | {
        "name": service.live.name,
        "corpora": [corpus._asdict() | {"name": corpus.corpus, "fast": not corpus.trained} for corpus in info.corpora],
        "backbone": Path(info.backbone).name,  # without the folders of this machine
        "words": bool(info.params.get("encoding", {}).get("words")),
        "writable": service.access.allow_write,
        "limits": limits | {"body": service.limits.body},
        "version": __version__,
    }


@reading.get("/api/generations", response_model=schemas.GenerationsResponse)
async def list_generations(service: ServiceDep) -> Fields:
    """Every generation, oldest first: what made it, and how many documents can be found in it."""
    return {"generations": await service.live.generations(), "current": service.live.newest.generation}


@reading.get("/api/sync", response_model=schemas.SyncResponse)
async def list_folders(service: ServiceDep) -> Fields:
    """The folders that documents came from, and the generation that last brought the index in step with each.

    The folders are not read again: what changed in them since is not known here.
    """
    folders = [folder._asdict() | {"folder": Path(folder.folder).name} for folder in await service.live.folders()]
    return {"generation": service.live.newest.generation, "folders": folders}


@reading.get("/api/retention", response_model=schemas.RetentionResponse)
async def list_retention(service: ServiceDep) -> Fields:
    """Hits@1 and Hits@10 of each corpus at each generation, as recorded by `promptdsi eval --record`."""
    records = await asyncio.to_thread(service.live.newest.eval_records)

    def rates(ranks: list[int]) -> Fields:
        return {"n": len(ranks)} | {f"hits{k}": round(sum(rank <= k for rank in ranks) / len(ranks), 4) for k in (1, 10)}

    return {"records": [record._asdict() | rates(record.ranks) for record in records]}


@reading.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(service: ServiceDep) -> Response:
    """Figures in Prometheus' text format."""
    return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


@writing.post("/api/documents", status_code=202, openapi_extra={"requestBody": document_bodies.BODIES})
async def add(
    request: Request,
    service: ServiceDep,
    name: Annotated[str | None, Query(min_length=1, max_length=200, description="of the corpus; generated if missing")] = None,
    fast: Annotated[bool, Query(description="do not train now; `promptdsi tune` does it later")] = False,
    update: Annotated[bool, Query(description="replace documents that are in the index with other content")] = False,
) -> Job:
    """Add documents as a new corpus, in the background: the response is a job to poll.

    They come as JSON, or one a line as `application/x-ndjson`, read as strictly as a file: `docid` (or `_id`), `text`, `title`, and
    any further fields as metadata.
    """
    content_type = request.headers.get("content-type", "")
    documents = await asyncio.to_thread(document_bodies.documents_of, content_type, await request.body())
    taken = {corpus.corpus for corpus in service.live.newest.info().corpora} | service.jobs.open_corpora()
    if name is None:
        name = next(free for number in itertools.count(1) if (free := f"added-{number}") not in taken)
    if not name.strip() or not name.isprintable():
        raise APIError(422, "name", "the name of the corpus has characters that cannot be seen")
    if name in taken:
        raise APIError(409, "name", f"there is a corpus named {name!r} already", "give this one another name")
    return service.jobs.start(name, documents, fast=fast, update=update)


@writing.delete("/api/documents/{docid:path}", response_model=schemas.ChangeResponse)
async def delete(docid: Docid, service: ServiceDep) -> Fields:
    """Delete a document; `undelete` brings it back."""
    await locate(service.live.newest, docid)
    return await change(service, lambda index: index.delete(docid))


@writing.post("/api/undelete", response_model=schemas.ChangeResponse)
async def undelete(body: schemas.UndeleteBody, service: ServiceDep) -> Fields:
    """Bring back documents that were deleted and not purged."""
    for docid in body.docids:
        await locate(service.live.newest, docid, deleted=True)
    return await change(service, lambda index: index.undelete(body.docids))


@writing.post("/api/rollback", response_model=schemas.ChangeResponse)
async def rollback(service: ServiceDep, body: schemas.RollbackBody | None = None) -> Fields:
    """Go back to a generation, without a body to the one before the last change, by a new one that equals it. Every generation stays."""
    newest, target = service.live.newest.generation, body.generation if body else None
    if target is not None and target > newest:
        raise APIError(404, "no_generation", f"there is no generation {target}", f"the newest is {newest}")
    try:
        return await change(service, lambda index: index.rollback(target))
    except UsageError as error:  # with a body the request is wrong; without one the index is at its beginning
        raise APIError(400 if target is not None else 409, "usage", without_path(str(error), service.live.path)) from None


@writing.post("/api/feedback", response_model=schemas.FeedbackResponse)
async def feedback(body: schemas.FeedbackBody, service: ServiceDep) -> Fields:
    """Let a document learn a query that it was right for; no other document changes."""
    await locate(service.live.newest, body.docid)
    reports: list[Fields] = []
    changed = await change(service, lambda index: reports.append(index.teach([(body.query, body.docid)]).taught[0]._asdict()))
    return changed | {"rank_before": reports[0]["before"], "rank_after": reports[0]["after"]}


@writing.post("/api/read", response_model=schemas.ReadResponse, openapi_extra={"requestBody": {"required": True, "content": ANY}})
async def read_file(
    request: Request,
    service: ServiceDep,
    name: Annotated[schemas.Docid, Query(description="the file's name, whose suffix tells its kind", examples=["tea.pdf"])],
) -> Fields:
    """The document that a file is read as, by the same reader as `promptdsi add`; nothing is stored. The body is the file."""
    document, notes = await service.uploads.read(name, await request.body())
    return {"document": document._asdict(), "notes": notes}


@reading.get("/api/jobs", response_model=JobsResponse)
async def list_jobs(service: ServiceDep) -> Fields:
    """Additions, newest first."""
    return {"jobs": service.jobs.listed()}


@reading.get("/api/jobs/{job_id}")
async def get_job(job_id: Annotated[str, PathParameter(examples=["0f4c5b1214c8a2f7"])], service: ServiceDep) -> Job:
    """The progress of an addition, at the end its report or error."""
    job = next((job for job in service.jobs.listed() if job.id == job_id), None)
    if job is None:
        raise APIError(404, "no_job", "there is no such job", "jobs end with the server, and the oldest are forgotten")
    return job


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
    if not all(service.live.shards):
        missing = service.live.shards.count(False)
        raise APIError(503, "shards", f"{missing} of {len(service.live.shards)} shards do not answer", "try again in a second", RETRY_AFTER)
    return {"status": "ready"}


async def change(service: Service, write: Callable[[Index], object]) -> Fields:
    """Write to the index, opened for this once: the one that answers requests stays at its generation. Returns what is served then."""
    await asyncio.to_thread(lambda: write(Index.open(service.live.path, check=False)))
    await service.live.refresh()
    return {"generation": service.live.newest.generation, "documents": len(service.live.newest)}


async def locate(index: Index, docid: str, *, deleted: bool = False) -> Location:
    """The corpus of a document, or an error if there is none; a deleted document counts only if `deleted`."""
    location = index.locate(docid)
    if location is None:
        hint = (await asyncio.to_thread(index.suggest, docid)).removeprefix("; ") or None
        raise APIError(404, "not_found", f"there is no document {docid[:80]!r} in generation {index.generation}", hint)
    if location.deleted and not deleted:
        raise APIError(404, "deleted", f"the document {docid!r} is deleted", "undelete brings it back")
    return location
