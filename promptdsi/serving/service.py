"""What the routes share: the live index, the batches of searches, the jobs and the metrics, from start to shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from promptdsi.serving.access import Access, Limits
from promptdsi.serving.batching import Batcher
from promptdsi.serving.jobs import Jobs
from promptdsi.serving.live_index import LiveIndex
from promptdsi.serving.uploads import UploadReader

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
log = logging.getLogger("promptdsi.serving")


class Metrics:
    """The figures at /metrics, in a registry of their own so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("method", "route", "status")
        self.requests = Counter("promptdsi_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram("promptdsi_request_seconds", "Time to answer", ("route",), buckets=SECONDS, registry=self.registry)
        self.batches = Histogram("promptdsi_batch_queries", "Queries encoded in one batch", buckets=SIZES, registry=self.registry)

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A figure that is computed whenever /metrics is read."""
        Gauge(f"promptdsi_{name}", description, registry=self.registry).set_function(value)


class Service:
    """One served index."""

    def __init__(
        self, path: str | Path, access: Access, limits: Limits, engine: str, device: str, threads: int, on: str | None = None
    ) -> None:
        self.access, self.limits = access, limits
        self.live = live = LiveIndex(path, engine=engine, device=device, threads=threads, on=on)
        self.metrics, self.jobs = Metrics(), Jobs(live, device=device)
        self.batcher = Batcher(observe=self.metrics.batches.observe, share=limits.share)
        self.tasks: list[asyncio.Task[None]] = []
        self.uploads = UploadReader(limits.body)
        gauge = self.metrics.gauge
        gauge("queue_queries", "Queries that wait or are being computed", lambda: self.batcher.depth)
        gauge("jobs_open", "Additions that wait or run", lambda: len(self.jobs.open_corpora()))
        gauge("generation", "Generation that is served", lambda: live.newest.generation if live.ready else 0)
        gauge("documents", "Documents that can be found", lambda: len(live.newest) if live.ready else 0)
        if on is not None:
            gauge("shards", "Shards of the index", lambda: len(live.shards))
            gauge("shards_ready", "Shards that answer", lambda: sum(live.shards))
        gauge("stale", "1 while the newest generation cannot be opened", lambda: float(live.problem is not None))

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Open the index while the server listens already, follow it, and at shutdown end every task, job and thread."""
        self.tasks = [asyncio.create_task(work) for work in (self.live.follow(), self.batcher.run())]
        for task in self.tasks:
            task.add_done_callback(log_failure)
        try:
            yield
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(self.jobs.close(), *self.tasks, return_exceptions=True)
            await asyncio.gather(self.batcher.close(), self.live.close(), self.uploads.close())

    @property
    def broken(self) -> bool:
        """Whether nothing can be answered, and waiting will not help."""
        return (not self.live.ready and self.live.problem is not None) or any(task.done() for task in self.tasks)


def log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a task of the server has failed", exc_info=task.exception())


async def get_service(request: Request) -> Service:  # async: for a plain function each request would wait for a thread
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(get_service)]
