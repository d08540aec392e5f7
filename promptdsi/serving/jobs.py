"""Adding documents takes a while: a job is begun, watched, and ends with a report or an error. One runs at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptdsi.corpus.records import Document
from promptdsi.index.store import Store
from promptdsi.serving.errors import overloaded

WAITING = 4  # jobs that may wait behind the one that runs
KEPT = 20  # jobs that are remembered once they have ended
SECONDS_TO_STOP = 3.0  # then it is killed, which harms an index as little
LINE = 1 << 20  # bytes a line of a worker may have
log = logging.getLogger("promptdsi.serving")


@dataclass
class Job:
    """One corpus on its way into the index."""

    corpus: str
    documents: int
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "waiting"  # running, done, failed
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")

    def to_json(self) -> dict[str, Any]:
        names = ("id", "state", "corpus", "documents", "stage", "done", "total", "unit", "report", "error")
        seconds = (self.ended or time.monotonic()) - self.began
        return {name: getattr(self, name) for name in names} | {"seconds": round(seconds, 2)}

    def hear(self, told: dict[str, Any]) -> None:
        """Take over what the worker says."""
        for name in ("stage", "done", "total", "unit", "report", "error"):
            if name in told:
                setattr(self, name, told[name])

    def end(self, error: dict[str, Any] | None = None) -> None:
        self.error = self.error or error
        self.state, self.ended = "failed" if self.error else "done", time.monotonic()


class Jobs:
    """The jobs of one index. `committed` is awaited before a job is called done: its documents can be found then."""

    def __init__(self, folder: Path, *, device: str, committed: Callable[[], Awaitable[None]]) -> None:
        self.folder, self.device, self.committed = folder, device, committed
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def all(self) -> list[Job]:
        """Newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, identity: str) -> Job | None:
        return self._jobs.get(identity)

    @property
    def open(self) -> int:
        """Jobs that wait or run."""
        return sum(not job.over for job in self._jobs.values())

    def begin(self, name: str, documents: Sequence[Document], *, fast: bool, update: bool) -> Job:
        if self.open > WAITING:
            raise overloaded("too many additions are waiting")
        job = Job(name, len(documents))
        self._jobs[job.id] = job
        for old in [one.id for one in self._jobs.values() if one.over][: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[old]
        facts = [[one.docid, one.text, one.title, dict(one.metadata)] for one in documents]
        said = {"name": name, "documents": facts, "fast": fast, "update": update, "device": self.device}
        task = asyncio.create_task(self._run(job, json.dumps(said).encode()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, job: Job, said: bytes) -> None:
        try:
            async with self._turn:
                job.state = "running"
                await self._work(job, said)
                await self.committed()
            job.end()
        except asyncio.CancelledError:
            job.end({"code": "stopped", "message": "the server was stopped while the documents were learned", "hint": None})
            raise
        except Exception:
            log.exception("job %s failed", job.id)
            job.end({"code": "internal", "message": "something went wrong inside the server", "hint": "its log has more"})

    async def _work(self, job: Job, said: bytes) -> None:
        pipe, before = asyncio.subprocess.PIPE, await self._generation()
        words = (sys.executable, "-m", "promptdsi.serving.worker", str(self.folder))
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE)
        assert process.stdin and process.stdout and process.stderr
        try:
            trace = asyncio.create_task(process.stderr.read())
            with contextlib.suppress(ConnectionError):  # a worker that died at once says so by its end
                process.stdin.write(said)
                await process.stdin.drain()
                process.stdin.close()
            async for line in process.stdout:
                job.hear(json.loads(line))
            code = await process.wait()
            if job.report is None and job.error is None:
                log.error("the worker of job %s ended with %s:\n%s", job.id, code, (await trace).decode("utf-8", "replace"))
                what = f"was ended by signal {-code}" if code < 0 else "failed"
                how = "the index is as it was" if await self._generation() == before else "the index has a new generation all the same"
                job.error = {"code": "worker", "message": f"learning {what}; {how}", "hint": "the server's log has more"}
            await trace
        finally:
            if process.returncode is None:
                await stop(process)

    async def _generation(self) -> int:
        return await asyncio.to_thread(Store(self.folder).current)

    async def close(self) -> None:
        """Stop what runs; the index stays as it was."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), SECONDS_TO_STOP)
        except TimeoutError:
            process.kill()
            await process.wait()
