"""The index as a server holds it: the newest generation, a few older ones, and how a newer one takes over.

Every request takes one snapshot and answers from it alone, so an answer never mixes two generations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.metrics import QueryRanks, values
from promptdsi.index.eval_records import read_records
from promptdsi.index.hits import search
from promptdsi.index.manifest import Manifest
from promptdsi.index.snapshot import Snapshot, open_snapshot
from promptdsi.index.store import Store
from promptdsi.serving.aside import Aside
from promptdsi.serving.errors import APIError, overloaded
from promptdsi.serving.maps import Map, draw_map

LOOK = 0.2  # seconds between looks at CURRENT
RETRY = 2.0  # between attempts at an index that cannot be opened
OLDER = 2  # generations of the past kept open beside the newest
MAPS = 4
SLOW = 4  # requests that may wait for an older generation or a map
PATIENCE = 60.0  # seconds they wait
log = logging.getLogger("promptdsi.serving")


class Held:
    """One index, open for any number of requests."""

    def __init__(self, path: str | Path, *, engine: str = "auto", device: str = "auto", threads: int | None = None) -> None:
        self.store = Store(Path(path).expanduser())
        self.how = {"engine": engine, "device": device, "threads": threads}
        self.problem: str | None = None  # why the newest generation could not be opened, if so
        self._newest: Snapshot | None = None
        self._mark: bytes | None = None  # what CURRENT said when it was opened
        self._older: OrderedDict[int, Snapshot] = OrderedDict()
        self._maps: OrderedDict[int, Map] = OrderedDict()
        self._history: list[dict[str, Any]] | None = None
        self._following, self._slow = asyncio.Lock(), asyncio.Lock()
        self._waiting = 0
        # Threads of their own: a new generation is served in time whatever else is asked for.
        self._follower, self._opener = Aside("follow"), Aside("open")

    @property
    def path(self) -> Path:
        return self.store.folder

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def ready(self) -> bool:
        return self._newest is not None

    @property
    def newest(self) -> Snapshot:
        if self._newest is None:
            raise APIError(503, "not_ready", "the index is being opened and checked", "try again in a second", {"Retry-After": "1"})
        return self._newest

    async def follow(self) -> None:
        """Open the index and stay with it for as long as the server lives: whatever writes to it, a new generation is served soon."""
        while True:
            await self.refresh()
            await asyncio.sleep(LOOK if self.problem is None else RETRY)

    async def refresh(self) -> None:
        """Serve the newest generation. One that cannot be opened is told, and the one before stays."""
        async with self._following:
            try:
                mark = await self._follower.do(self.store.commit_mark)
                if mark != self._mark:
                    known = self._newest.manifest.blobs() if self._newest else set()
                    opened = await self._follower.do(ready_snapshot, self.store, self.how, known)
                    self._newest, self._mark, self._history = opened, mark, None
                    # A purge may have taken from the others what they still hold; and another index may lie here now.
                    self._older.clear()
                    self._maps.clear()
                self.problem = None
            except Exception as error:
                if self.problem != str(error):
                    what = f"generation {self._newest.manifest.number} stays" if self._newest else "nothing is served"
                    expected = isinstance(error, PromptDSIError | OSError)
                    log.error("the newest generation cannot be opened, %s: %s", what, error, exc_info=not expected)
                self.problem = str(error)

    async def at(self, number: int | None) -> Snapshot:
        """The snapshot that answers: the newest, or an older generation, opened if need be."""
        if number is None or number == self.newest.manifest.number:
            return self.newest
        if not 1 <= number <= self.newest.manifest.number:
            raise APIError(404, "no_generation", f"there is no generation {number}", f"the newest is {self.newest.manifest.number}")
        if number in self._older:
            self._older.move_to_end(number)
            return self._older[number]
        async with self._turn():
            if number not in self._older:
                newest = self.newest
                opened = await self._opener.do(open_older, self.store, newest, number, self.how)
                if newest is not self._newest:
                    return await self._opener.do(open_older, self.store, self.newest, number, self.how)  # not to be kept
                self._older[number] = opened
                while len(self._older) > OLDER:
                    self._older.popitem(last=False)
            return self._older[number]

    async def map(self, number: int | None) -> Map:
        """Documents on a plane, drawn once per generation."""
        snapshot = await self.at(number)
        number = snapshot.manifest.number
        if number in self._maps:
            return self._maps[number]
        async with self._turn():
            if number in self._maps:
                return self._maps[number]
            drawn = await self._opener.do(draw_map, snapshot)
            if snapshot is self._newest or self._older.get(number) is snapshot:  # or it may hold what was purged meanwhile
                self._maps[number] = drawn
                while len(self._maps) > MAPS:
                    self._maps.popitem(last=False)
            return drawn

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One at a time, a few waiting: opening and drawing take seconds, and must not take every place the server has."""
        if self._waiting >= SLOW:
            raise overloaded("too many older generations or maps are asked for")
        self._waiting += 1
        try:
            async with asyncio.timeout(PATIENCE), self._slow:
                yield
        except TimeoutError:
            raise APIError(503, "timeout", "this took too long", "try again in a minute") from None
        finally:
            self._waiting -= 1

    async def generations(self) -> list[dict[str, Any]]:
        """What made each generation, oldest first; read once per change."""
        if self._history is None:
            newest = self.newest
            history = [summary(manifest) for manifest in await asyncio.to_thread(self.store.history)]
            if newest is not self._newest:
                return history
            self._history = history
        return self._history

    async def retention(self) -> list[dict[str, Any]]:
        """Hits@1 and Hits@10 of what `eval --record` kept."""
        return await asyncio.to_thread(lambda: [measured(one._asdict()) for one in read_records(self.store)])


def ready_snapshot(store: Store, how: dict[str, Any], known: set[str]) -> Snapshot:
    """The newest generation, checked but for blobs that were checked before, and warm."""
    snapshot = open_snapshot(store, verified=known, **how)
    len(snapshot.row_of)  # made when it is first asked for
    search(snapshot, ["a first query, so that nobody waits for what is set up once"], k=1)
    return snapshot


def open_older(store: Store, newest: Snapshot, number: int, how: dict[str, Any]) -> Snapshot:
    """An older generation, without what a purge that is under way, or was cut off, is to erase."""
    known = newest.manifest.blobs()
    manifest = store.manifest(number)
    if manifest.blobs() & newest.manifest.erase.keys():
        return Snapshot(store, manifest.renamed(newest.manifest.erase), verified=known, **how)
    snapshot = open_snapshot(store, at=number, verified=known, **how)
    return snapshot if store.manifest(number) == snapshot.manifest else open_snapshot(store, at=number, verified=known, **how)


def summary(manifest: Manifest) -> dict[str, Any]:
    """A generation for people: what made it, and what it holds."""
    event = manifest.event
    return {
        "generation": manifest.number,
        "parent": manifest.parent,
        "kind": manifest.kind,
        "time": manifest.time,
        "corpus": event.get("corpus"),
        "added": event.get("added", 0),
        "updated": event.get("updated", 0),
        "removed": event.get("documents", 0) if manifest.kind in ("delete", "purge") else 0,
        "documents": manifest.documents,
        "seconds": event.get("seconds"),
        "drift": event.get("drift"),
        "to": event.get("to"),
    }


def measured(record: dict[str, Any]) -> dict[str, Any]:
    query_ranks = [QueryRanks([rank], [1]) for rank in record["ranks"]]
    hits = {f"hits{k}": round(float(values(f"Hits@{k}", query_ranks).mean()), 4) for k in (1, 10)}
    return {name: record[name] for name in ("generation", "corpus", "split")} | {"n": len(query_ranks)} | hits
