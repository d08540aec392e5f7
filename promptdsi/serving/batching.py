"""Requests that arrive together are answered together: one pass through the encoder, one over the rows.

Whatever has arrived while the last batch was computed is the next one. A client that asks alone never waits for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from promptdsi.index.hits import Hit, Stopped, Wanted, answer
from promptdsi.index.snapshot import Snapshot
from promptdsi.serving.aside import Aside
from promptdsi.serving.errors import APIError, overloaded

TOGETHER = 256  # of work in one batch: a query with ten hits is one, each explanation as much as some more
EXPLAINED = 16
WAITING = 1024  # queries that may wait; twice as many may when they come a few at a time
FEW = 8
LINGER = 0.002  # seconds: when several asked together, their next questions come together too, if one waits for them
LONG = 0.25  # seconds a query may wait for the batch before it
PATIENCE = 30.0  # seconds a request waits for its answer
Answers = list[list[Hit]]


class Piece(NamedTuple):
    """As many queries of one request as are answered at once."""

    snapshot: Snapshot
    wanted: Sequence[Wanted]
    answers: asyncio.Future[Answers]
    since: float  # when it was put into the queue


class Batcher:
    """Requests stand in a bounded queue; a worker takes batches from it and computes one at a time, with every thread there is. Where
    one takes long, a second worker answers beside it what has waited.

    A large request is cut into pieces and stands in the queue with one at a time, so that small ones pass between them.
    """

    def __init__(self, *, together: int = TOGETHER, waiting: int = WAITING, patience: float = PATIENCE) -> None:
        self.together, self.waiting, self.patience = together, waiting, patience
        self.depth = 0  # queries that wait or are being answered
        self.observe: Callable[[int], None] = lambda size: None  # is told the size of every batch
        self._queue: deque[Piece] = deque()
        self._arrived = asyncio.Event()

    async def rank_queries(self, snapshot: Snapshot, wanted: Sequence[Wanted]) -> Answers:
        """The answers to a request's queries; refused at once where too many wait already."""
        if self.depth and self.depth + len(wanted) > self.waiting * (2 if len(wanted) <= FEW else 1):
            raise overloaded("too many queries are waiting")
        self.depth += len(wanted)
        answers: Answers = []
        try:
            async with asyncio.timeout(self.patience):
                while len(answers) < len(wanted):
                    loop, share = asyncio.get_running_loop(), wanted[len(answers) :][: self._share(wanted)]
                    piece = Piece(snapshot, share, loop.create_future(), loop.time())
                    self._queue.append(piece)
                    self._arrived.set()
                    answers += await piece.answers
        except TimeoutError:
            raise APIError(503, "timeout", "the search took too long", "try again, or ask for less at once") from None
        finally:
            self.depth -= len(wanted)
        return answers

    def _share(self, wanted: Sequence[Wanted]) -> int:
        """How many queries of a request are one piece."""
        return max(1, self.together // max(work(one) for one in wanted))

    async def run(self) -> None:
        """Answer for as long as the server lives."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work(Aside("search")))
            group.create_task(self._relieve(Aside("relief")))

    async def _work(self, thread: Aside) -> None:
        together = 0
        while True:
            await self._arrived.wait()
            if together > 1:
                await asyncio.sleep(LINGER)
            together = await self._answer_next(thread)

    async def _relieve(self, thread: Aside) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(LONG)
            if self._queue and asyncio.get_running_loop().time() - self._queue[0].since >= LONG:
                await self._answer_next(thread)

    async def _answer_next(self, thread: Aside) -> int:
        """Answer a batch; return how many asked for it."""
        batch = self._next()
        if batch:
            self.observe(sum(len(piece.wanted) for piece in batch))
            settle(batch, await thread.do(answered, batch))
        return len(batch)

    def _next(self) -> list[Piece]:
        """What stands first in the queue and asks the same generation; pieces whose client has gone are dropped."""
        batch: list[Piece] = []
        size = 0
        while self._queue:
            first = self._queue[0]
            if first.answers.done():
                self._queue.popleft()
                continue
            size += sum(work(one) for one in first.wanted)
            if batch and (first.snapshot is not batch[0].snapshot or size > self.together):
                break
            batch.append(self._queue.popleft())
        if not self._queue:
            self._arrived.clear()
        return batch


def work(wanted: Wanted) -> int:
    """How much a query asks for, in queries with ten hits."""
    return (EXPLAINED if wanted.explain else 1) * max(1, wanted.k // 10)


def answered(batch: Sequence[Piece]) -> list[Answers | Exception]:
    """The answers of each piece. If the batch fails, each is tried alone, so that one cannot spoil the others."""
    wanted = [one for piece in batch for one in piece.wanted]
    try:
        found = answer(batch[0].snapshot, wanted, stop=lambda: all(piece.answers.done() for piece in batch))
    except Stopped as error:  # every client has gone
        return [error] * len(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answered([piece])[0] for piece in batch]
    given: list[Answers | Exception] = []
    for piece in batch:
        given.append(found[: len(piece.wanted)])
        found = found[len(piece.wanted) :]
    return given


def settle(batch: Sequence[Piece], given: Sequence[Answers | Exception]) -> None:
    for piece, result in zip(batch, given, strict=True):
        if piece.answers.done():
            continue  # the client has gone meanwhile
        if isinstance(result, Exception):
            piece.answers.set_exception(result)
        else:
            piece.answers.set_result(result)
