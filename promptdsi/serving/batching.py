"""Searches that arrive at the same time are computed in one batch: one pass through the encoder, one over the rows.

A batch is whatever arrived while the one before was computed, so a client that searches alone never waits for others.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from promptdsi.index.index import Index
from promptdsi.index.results import SearchRequest, SearchResult, SearchStopped
from promptdsi.serving.error_responses import APIError, overloaded
from promptdsi.serving.worker import Worker

BATCH_COST = 256  # of one batch: a query with ten hits costs 1
EXPLAIN_COST = 16  # times as much as the same query without explanations
MAX_WAITING = 1024  # queries in the queue; twice as many for requests of a few
FEW = 8
SECONDS_TO_GATHER = 0.002  # clients that were answered in one batch send their next queries together, if one waits for them
SECONDS_TO_RELIEF = 0.25  # a query may wait for the batch before it
SECONDS_TO_ANSWER = 30.0


@dataclass(frozen=True)
class PendingSearch:
    """Queries of one request that wait to be computed together."""

    address: str  # of the client
    index: Index
    requests: Sequence[SearchRequest]
    results: asyncio.Future[list[SearchResult]]
    since: float  # when it was put into the queue


class Batcher:
    """A bounded queue of searches, and the two workers that compute them batch by batch.

    The second worker takes over what has waited while a batch takes long. A large request is split, with one part
    in the queue at a time, so that small requests pass between its parts. Addresses take turns, so that a client waits for
    its own requests and not for another's.
    """

    def __init__(self, *, observe: Callable[[int], None], share: Callable[[str, int], int]) -> None:
        self.observe = observe  # called with the size of every batch
        self.share = share  # how many of all places in the queue an address may take
        self.max_waiting = MAX_WAITING
        self.waiting = Counter[str]()  # queries that wait or are being computed, by address
        self._queues: OrderedDict[str, deque[PendingSearch]] = OrderedDict()  # by address; first whose turn it is
        self._arrived = asyncio.Event()
        self._main, self._relief = Worker("serve-search"), Worker("serve-relief")

    @property
    def depth(self) -> int:
        """Queries that wait or are being computed."""
        return self.waiting.total()

    async def search(self, index: Index, requests: Sequence[SearchRequest], *, address: str = "") -> list[SearchResult]:
        """The results of a request's queries; refused at once where too many wait already."""
        most = self.max_waiting * (2 if len(requests) <= FEW else 1)
        for waiting, bound in ((self.depth, most), (self.waiting[address], self.share(address, most))):
            if waiting and waiting + len(requests) > bound:
                raise overloaded("too many queries are waiting")
        self.waiting[address] += len(requests)
        size = max(1, BATCH_COST // max(map(cost, requests)))
        loop, results = asyncio.get_running_loop(), list[SearchResult]()
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                for first in range(0, len(requests), size):
                    pending = PendingSearch(address, index, requests[first : first + size], loop.create_future(), loop.time())
                    self._queues.setdefault(address, deque()).append(pending)
                    self._arrived.set()
                    results += await pending.results
        except TimeoutError:
            raise APIError(503, "timeout", "the search took too long", "try again, or ask for less at once") from None
        finally:
            self.waiting[address] -= len(requests)
            self.waiting += Counter()  # forgets addresses without a query
        return results

    async def run(self) -> None:
        """Compute batches until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_main())
            group.create_task(self._run_relief())

    async def close(self) -> None:
        for pending in itertools.chain(*self._queues.values()):
            pending.results.cancel()
        await asyncio.gather(self._main.close(), self._relief.close())

    async def _run_main(self) -> None:
        clients = 0
        while True:
            await self._arrived.wait()
            if clients > 1:
                await asyncio.sleep(SECONDS_TO_GATHER)
            clients = await self._compute_next(self._main)

    async def _run_relief(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(SECONDS_TO_RELIEF)
            since = min((queue[0].since for queue in self._queues.values()), default=math.inf)
            if asyncio.get_running_loop().time() - since >= SECONDS_TO_RELIEF:
                await self._compute_next(self._relief)

    async def _compute_next(self, worker: Worker) -> int:
        """Compute a batch; return how many requests took part."""
        batch = self._take()
        if batch:
            self.observe(sum(len(pending.requests) for pending in batch))
            for pending, outcome in zip(batch, await worker.run(compute, batch), strict=True):
                if pending.results.done():
                    continue  # the client has disconnected meanwhile
                if isinstance(outcome, Exception):
                    pending.results.set_exception(outcome)
                else:
                    pending.results.set_result(outcome)
        return len(batch)

    def _take(self) -> list[PendingSearch]:
        """Searches for the same generation, from each address in turn; those of disconnected clients are dropped."""
        batch: list[PendingSearch] = []
        total, turns = 0, deque(self._queues)
        while turns:
            address = turns.popleft()
            queue = self._queues[address]
            while queue and queue[0].results.done():
                queue.popleft()
            if not queue:
                del self._queues[address]
                continue
            size = sum(map(cost, queue[0].requests))
            if batch and (queue[0].index is not batch[0].index or total + size > BATCH_COST):
                continue  # its turn comes first in the next batch
            batch.append(queue.popleft())
            total += size
            self._queues.move_to_end(address)
            turns.append(address)
        if not self._queues:
            self._arrived.clear()
        return batch


def cost(request: SearchRequest) -> int:
    """The cost of a search, in queries with ten hits."""
    return (EXPLAIN_COST if request.explain else 1) * max(1, request.k // 10)


def compute(batch: Sequence[PendingSearch]) -> list[list[SearchResult] | Exception]:
    """The results of each search. If the batch fails, each is computed alone, so that one cannot fail the others."""
    requests = [request for pending in batch for request in pending.requests]
    try:
        results = iter(batch[0].index.search_batch(requests, stop=lambda: all(pending.results.done() for pending in batch)))
    except SearchStopped as error:  # every client has disconnected
        return [error] * len(batch)
    except Exception as error:
        return [error] if len(batch) == 1 else [compute([pending])[0] for pending in batch]
    return [[next(results) for _ in pending.requests] for pending in batch]
