"""What the routes share: the index, the queue of searches, the jobs and the counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request

from promptdsi.serving.batching import Batcher
from promptdsi.serving.guard import Limits
from promptdsi.serving.held import Held, log
from promptdsi.serving.jobs import Jobs
from promptdsi.serving.metrics import Metrics
from promptdsi.serving.tokens import Access


class Service:
    """One index, served. Everything of it lives from the start of the server to its end."""

    def __init__(self, path: str | Path, access: Access, limits: Limits, engine: str, device: str, threads: int) -> None:
        self.access, self.limits = access, limits
        self.tasks: list[asyncio.Task[None]] = []
        self.held = Held(path, engine=engine, device=device, threads=threads)
        self.batcher, self.metrics = Batcher(), Metrics()
        self.jobs = Jobs(self.held.path, device=device, committed=self.held.refresh)
        self.batcher.observe = self.metrics.batches.observe
        watch, held = self.metrics.watch, self.held
        watch("queue_queries", "Queries that wait or are being answered", lambda: self.batcher.depth)
        watch("jobs_open", "Additions that wait or run", lambda: self.jobs.open)
        watch("generation", "Generation that answers", lambda: held.newest.manifest.number if held.ready else 0)
        watch("documents", "Documents that can be found", lambda: held.newest.manifest.documents if held.ready else 0)
        watch("stale", "1 while the newest generation cannot be opened", lambda: float(held.problem is not None))

    @contextlib.asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Open the index while the server listens already; answer, and follow the index, until the server stops."""
        self.tasks = [asyncio.create_task(work) for work in (self.held.follow(), self.batcher.run())]
        for task in self.tasks:
            task.add_done_callback(ended)
        try:
            yield
        finally:
            await self.jobs.close()
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def broken(self) -> bool:
        """Whether nothing can be answered, and waiting will not help."""
        return (not self.held.ready and self.held.problem is not None) or any(task.done() for task in self.tasks)


def ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a part of the server has ended", exc_info=task.exception())


async def service(request: Request) -> Service:  # not a plain function: each request would wait for a thread to call it
    found: Service = request.app.state.service
    return found


Shared = Annotated[Service, Depends(service)]
