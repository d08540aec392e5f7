"""Adding documents takes a while: a job is started, polled, and ends with a report or an error. One runs at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field, create_model

from promptdsi.corpus.corpus import Document
from promptdsi.serving.error_responses import overloaded
from promptdsi.serving.live_index import LiveIndex
from promptdsi.serving.schemas import ErrorDetail

MAX_WAITING = 4  # jobs behind the one that runs
MAX_LISTED = 20  # jobs; the oldest are forgotten, and those have ended: jobs run in order
SECONDS_TO_STOP = 2.0  # after SIGTERM; then the process is killed, which leaves the index as it was too
MAX_LINE = 1 << 20  # bytes of one line from the process
log = logging.getLogger("promptdsi.serving")


class Job(BaseModel):
    """The adding of one corpus, as clients see it."""

    model_config = ConfigDict(validate_assignment=True)

    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    corpus: str
    documents: int
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    report: dict[str, Any] | None = None
    error: ErrorDetail | None = None
    _started: float = PrivateAttr(default_factory=time.monotonic)
    _ended: float | None = None

    @computed_field
    def seconds(self) -> float:
        return round((self._ended or time.monotonic()) - self._started, 2)

    @property
    def open(self) -> bool:
        """Whether it waits or runs."""
        return self._ended is None

    def fail(self, code: str, message: str, hint: str | None = None) -> None:
        self.error = self.error or ErrorDetail(code=code, message=message, hint=hint)


JobsResponse = create_model("JobsResponse", jobs=list[Job])


class Jobs:
    """The jobs of one index."""

    def __init__(self, live: LiveIndex, *, device: str) -> None:
        self.live, self.device = live, device
        self._jobs: deque[Job] = deque(maxlen=MAX_LISTED)
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def listed(self) -> list[Job]:
        """Newest first; their reports do not name documents that were purged since."""
        jobs = [job.model_copy() for job in reversed(self._jobs)]
        for job in jobs:
            if job.report:
                job.report = job.report | {"unfindable": [docid for docid in job.report["unfindable"] if self.live.newest.locate(docid)]}
        return jobs

    def open_corpora(self) -> set[str]:
        """The corpora of the jobs that wait or run; no two have one name."""
        return {job.corpus for job in self._jobs if job.open}

    def start(self, corpus: str, documents: Sequence[Document], *, fast: bool, update: bool) -> Job:
        if len(self.open_corpora()) > MAX_WAITING:
            raise overloaded("too many additions are waiting")
        job = Job(corpus=corpus, documents=len(documents))
        self._jobs.append(job)
        order = {"name": corpus, "documents": documents, "fast": fast, "update": update, "device": self.device}
        task = asyncio.create_task(self._run(job, json.dumps(order, default=dict).encode()))  # metadata may be any mapping
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Job, order: bytes) -> None:
        try:
            async with self._turn:
                job.state = "running"
                await self._run_process(job, order)
                await self.live.refresh()  # before the job is called done: its documents can be found then
        except asyncio.CancelledError:
            job.fail("stopped", "the server was stopped while the documents were learned")
            raise
        except Exception:
            log.exception("job %s failed", job.id)
            job.fail("internal", "something went wrong inside the server", "its log has more")
        finally:
            job.state, job._ended = "failed" if job.error else "done", time.monotonic()

    async def _run_process(self, job: Job, order: bytes) -> None:
        pipe, before = asyncio.subprocess.PIPE, self.live.newest.generation
        command = (sys.executable, "-m", "promptdsi.serving.job_process", str(self.live.path))
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE)
        assert process.stdin and process.stdout and process.stderr
        try:
            stderr = asyncio.create_task(process.stderr.read())
            with contextlib.suppress(ConnectionError):  # a process that died at once is reported below
                process.stdin.write(order)
                await process.stdin.drain()
                process.stdin.close()
            async for line in process.stdout:
                for name, value in json.loads(line).items():  # progress, and at the end the report or the error
                    setattr(job, name, value)
            code, traceback = await process.wait(), (await stderr).decode("utf-8", "replace")
            if job.report is None and job.error is None:
                log.error("the process of job %s ended with %s:\n%s", job.id, code, traceback)
                cause = f"was ended by signal {-code}" if code < 0 else "failed"
                await self.live.refresh()
                unchanged = self.live.newest.generation == before and self.live.problem is None
                state = "the index is as it was" if unchanged else "the index has a new generation all the same"
                job.fail("worker", f"learning {cause}; {state}", "the server's log has more")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), SECONDS_TO_STOP)
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def close(self) -> None:
        """Stop the job that runs and those that wait; the index stays as it was."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
