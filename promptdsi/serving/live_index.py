"""The index of a server: its newest generation, a few older ones, and how the server moves on to a new one.

Every request takes one `Index` and answers from it alone, so a response never mixes two generations.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from promptdsi.errors import PromptDSIError
from promptdsi.index.index import Index
from promptdsi.index.manifest import Manifest
from promptdsi.index.results import FolderSummary
from promptdsi.serving.error_responses import RETRY_AFTER, APIError, overloaded
from promptdsi.serving.worker import Worker

SECONDS_BETWEEN_LOOKS = 0.2  # for a new generation
SECONDS_BETWEEN_RETRIES = 2.0  # of an index that cannot be opened
OLDER = 2  # generations kept open beside the newest
SLOW = 4  # requests that may wait for an older generation
SECONDS_FOR_SLOW = 60.0
log = logging.getLogger("promptdsi.serving")


class History(NamedTuple):
    """What is known of an index from all its manifests."""

    as_of: Index
    generations: list[dict[str, Any]]
    folders: list[FolderSummary]


class LiveIndex:
    """One index, open for any number of requests at a time."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.path, self.options = Path(path).expanduser(), options  # of `Index.open`
        self.name = self.path.absolute().name
        self.problem: str | None = None  # why the newest generation could not be opened
        self.shards: list[bool] = []  # whether each answers, where the index is on a cluster
        self._newest: Index | None = None
        self._mark: bytes | None = None
        self._older: OrderedDict[int, Index] = OrderedDict()
        self._history: History | None = None
        self._refreshing, self._turn = asyncio.Lock(), asyncio.Lock()
        self._waiting = 0
        # Two threads: a new generation is served in time while an older one keeps the other busy.
        self._follower, self._opener = Worker("serve-follow"), Worker("serve-open")

    @property
    def ready(self) -> bool:
        return self._newest is not None

    @property
    def newest(self) -> Index:
        if self._newest is None:
            raise APIError(503, "not_ready", "the index is being opened and checked", "try again in a second", RETRY_AFTER)
        return self._newest

    async def follow(self) -> None:
        """Open the index and serve each new generation soon after it is committed, by whatever process, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS if self.problem is None else SECONDS_BETWEEN_RETRIES)

    async def close(self) -> None:
        """End the threads and release the generations: the engine's threads end with them."""
        await asyncio.gather(self._follower.close(), self._opener.close())
        self._newest = self._history = None
        self._older.clear()

    async def refresh(self) -> None:
        """Serve the newest generation. If it cannot be opened, `problem` says why and the generation before stays."""
        async with self._refreshing:
            try:
                mark = await self._follower.run(Index.commit_mark, self.path)
                if mark != self._mark:
                    self._newest = await self._follower.run(self._open_newest, self._newest)
                    self._mark = mark
                    # A purge may have erased what older generations still hold open, and another index may be in this folder now.
                    self._older.clear()
                if self._newest and self.options.get("on"):
                    self.shards = await self._follower.run(self._newest.opened.shards_ready)
                self.problem = None
            except Exception as error:
                if self.problem != str(error):
                    state = f"generation {self._newest.generation} stays" if self._newest else "nothing is served"
                    expected = isinstance(error, PromptDSIError | OSError)
                    log.error("the newest generation cannot be opened, %s: %s", state, error, exc_info=not expected)
                self.problem = str(error)

    def _open_newest(self, served: Index | None) -> Index:
        """The newest generation, warmed up; files of the one served so far are not verified again."""
        index = served.reopen() if served else Index.open(self.path, **self.options)
        index.locate("")  # the lookup by docid is built on first use, like the encoder
        index.search("a first query, so that no client waits for what is set up once", k=1)
        return index

    async def at(self, generation: int | None) -> Index:
        """The index at a generation, None being the newest; an older one is opened if need be."""
        newest = self.newest
        if generation is None or generation == newest.generation:
            return newest
        if not 1 <= generation <= newest.generation:
            raise APIError(404, "no_generation", f"there is no generation {generation}", f"the newest is {newest.generation}")
        return await self._open_older(generation)

    async def _open_older(self, generation: int) -> Index:
        """An older generation: opened one at a time, a few waiting, as it takes seconds and must not take every request slot."""
        if generation not in self._older:
            if self._waiting >= SLOW:
                raise overloaded("too many requests wait for older generations")
            self._waiting += 1
            try:
                async with asyncio.timeout(SECONDS_FOR_SLOW), self._turn:
                    if generation not in self._older:
                        newest = self.newest
                        index = await self._opener.run(lambda: newest.reopen(at=generation))
                        if newest is not self._newest:
                            return index  # not kept: a purge may have made the new generation, and this holds what it erased
                        self._older[generation] = index
            except TimeoutError:
                raise APIError(503, "timeout", "this took too long", "try again in a minute") from None
            finally:
                self._waiting -= 1
        self._older.move_to_end(generation)
        index = self._older[generation]
        if len(self._older) > OLDER:
            self._older.popitem(last=False)
        return index

    async def generations(self) -> list[dict[str, Any]]:
        """Every generation, oldest first; read once per change."""
        return (await self._read_history()).generations

    async def folders(self) -> list[FolderSummary]:
        """The folders that the documents came from; read once per change."""
        return (await self._read_history()).folders

    async def _read_history(self) -> History:
        newest = self.newest
        if self._history is None or self._history.as_of is not newest:
            manifests = await asyncio.to_thread(newest.log)
            searchable = [summarize(manifest) for manifest in manifests if isinstance(manifest, Manifest)]  # pruned ones cannot be searched
            self._history = History(newest, searchable, Manifest.folders(manifests))
        return self._history


def summarize(manifest: Manifest) -> dict[str, Any]:
    """The fields of a `GenerationSummary`."""
    event = manifest.event
    removed = event.get("documents", 0) if manifest.kind in ("delete", "purge") else event.get("deleted", 0)
    fields = {"generation": manifest.number, "parent": manifest.parent, "kind": manifest.kind, "time": manifest.time}
    return dict(event) | fields | {"documents": manifest.documents, "removed": removed}
