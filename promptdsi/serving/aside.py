"""Work beside the event loop, in threads nobody waits for at the end: what is not done when the server stops is not needed."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Aside:
    """One thread that does one thing after another."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def do(self, function: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
        """Call a function there, and wait for what it gives."""
        loop = asyncio.get_running_loop()
        given: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: BaseException | None) -> None:
            if given.done():
                return  # whoever asked has gone
            if error is not None:
                given.set_exception(error)
            else:
                given.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            if not given.cancelled():
                try:
                    result = function(*arguments, **keywords)
                except BaseException as raised:
                    error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        self._work.put(work)
        return await given

    def _run(self) -> None:
        while True:
            self._work.get()()
