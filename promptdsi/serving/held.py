"""The index as a server holds it: the newest generation, a few older ones, and how a newer one takes over.

Every request takes one snapshot and answers from it alone, so an answer never mixes two generations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

from promptdsi.errors import PromptDSIError
from promptdsi.evaluation.metrics import Judged, values
from promptdsi.index.index import Index
from promptdsi.index.manifest import Manifest
from promptdsi.index.records import records
from promptdsi.index.snapshot import Snapshot, open_snapshot
from promptdsi.serving.errors import APIError
from promptdsi.serving.maps import Map, draw_map

LOOK = 0.2  # seconds between looks at CURRENT
OLDER = 2  # generations of the past kept open beside the newest
MAPS = 4
log = logging.getLogger("promptdsi.serving")


class Held:
    """One index, open for any number of requests."""

    def __init__(self, path: str | Path, *, device: str = "auto") -> None:
        self.path, self.device = Path(path).expanduser(), device
        self.problem: str | None = None  # why the newest generation could not be opened, if so
        self._index: Index | None = None
        self._newest: Snapshot | None = None
        self._older: OrderedDict[int, Snapshot] = OrderedDict()
        self._maps: OrderedDict[int, Map] = OrderedDict()
        self._opening = asyncio.Lock()
        self._drawing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def ready(self) -> bool:
        return self._newest is not None

    @property
    def index(self) -> Index:
        """For writing: delete and undelete."""
        if self._index is None:
            raise not_ready()
        return self._index

    @property
    def newest(self) -> Snapshot:
        if self._newest is None:
            raise not_ready()
        return self._newest

    def open(self) -> None:
        """Open and check the newest generation; the server is ready only afterwards."""
        index = Index.open(self.path, device=self.device)
        index.search("a first query, so that nobody waits for what is set up once")
        self._index, self._newest = index, index.snapshot

    async def watch(self) -> None:
        """Follow the index for as long as the server lives: whatever writes to it, a new generation is served soon."""
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(APIError):
                await self.refresh()

    async def refresh(self) -> None:
        """Serve the newest generation. One that cannot be opened is told, and the one before stays."""
        try:
            number = await asyncio.to_thread(self.index.store.current)
            if number == self.newest.manifest.number:
                self.problem = None
                return
            async with self._opening:
                if number != self.newest.manifest.number:
                    self._newest = await asyncio.to_thread(open_snapshot, self.index.store, device=self.device)
                    self._forget()
            self.problem = None
        except (PromptDSIError, OSError) as error:
            if self.problem is None:
                log.error("the newest generation cannot be opened, generation %s stays: %s", self.newest.manifest.number, error)
            self.problem = str(error)

    def _forget(self) -> None:
        """Drop older generations and maps: a purge may have taken from them what they still hold."""
        self._older.clear()
        self._maps.clear()

    async def at(self, number: int | None) -> Snapshot:
        """The snapshot that answers: the newest, or an older generation, opened if need be."""
        if number is None or number == self.newest.manifest.number:
            return self.newest
        async with self._opening:
            if number in self._older:
                self._older.move_to_end(number)
                return self._older[number]
            if not 1 <= number <= self.newest.manifest.number:
                raise APIError(404, "no_generation", f"there is no generation {number}", f"the newest is {self.newest.manifest.number}")
            opened = await asyncio.to_thread(open_snapshot, self.index.store, at=number, device=self.device)
            self._older[number] = opened
            while len(self._older) > OLDER:
                self._older.popitem(last=False)
            return opened

    async def map(self, number: int | None) -> Map:
        """Documents on a plane, drawn once per generation."""
        snapshot = await self.at(number)
        number = snapshot.manifest.number
        async with self._drawing:
            if number not in self._maps:
                self._maps[number] = await asyncio.to_thread(draw_map, snapshot)
                while len(self._maps) > MAPS:
                    self._maps.popitem(last=False)
            return self._maps[number]

    async def generations(self) -> list[dict[str, Any]]:
        return [told(manifest) for manifest in await asyncio.to_thread(self.index.log)]

    async def retention(self) -> list[dict[str, Any]]:
        """Hits@1 and Hits@10 of what `eval --record` kept."""
        return [measured(one) for one in await asyncio.to_thread(records, self.index.store)]


def not_ready() -> APIError:
    return APIError(503, "not_ready", "the index is being opened and checked", "try again in a second", {"Retry-After": "1"})


def told(manifest: Manifest) -> dict[str, Any]:
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
    judged = [Judged([rank], [1]) for rank in record["ranks"]]
    hits = {f"hits{k}": round(float(values(f"Hits@{k}", judged).mean()), 4) for k in (1, 10)}
    return {name: record[name] for name in ("generation", "corpus", "split")} | {"n": len(judged)} | hits
