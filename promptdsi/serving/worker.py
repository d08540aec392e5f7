"""Worker threads: blocking calls of the server, off the event loop, one after another in a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
SECONDS_TO_CLOSE = 1.0  # after 5 s to drain and 2 s to stop a job, a server ends within the ten seconds it promises
log = logging.getLogger("promptdsi.serving")


class Worker:
    """A thread that runs one call at a time, from the first call to `close`.

    A daemon thread, unlike those of an executor: a call that cannot be interrupted, such as checking gigabytes, must not keep the
    process alive after `close` has waited for it long enough.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"promptdsi-{name}", daemon=True)

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function in the thread and return its result. If the caller is cancelled first, a call that waits is dropped."""
        if self._thread.ident is None:
            self._thread.start()
        future: Future[Result] = Future()
        self._calls.put((future, lambda: function(*arguments)))
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """End the thread after the call it is in."""
        self._calls.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, SECONDS_TO_CLOSE)
        if self._thread.is_alive():
            log.warning("the thread %s is still busy; it ends with the process", self._thread.name)

    def _loop(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del call, future, function  # an idle worker must not keep a generation open through the arguments of its last call
