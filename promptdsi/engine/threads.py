"""Work of a search shared by threads that wait, and do not spin, when there is nothing to do. All searches use the same few."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any


def share(count: int, size: int, function: Callable[[slice], Any], *, threads: int) -> None:
    """Call `function` for parts of 0 … count, each about `size` long. Threads take part after part, so that one that is held up
    does not hold up the others."""
    parts = threads * -(-count // (threads * size))  # so that threads with equal parts end together
    length = -(-count // max(parts, 1))
    firsts = iter(range(0, count, max(length, 1)))

    def work() -> None:
        for first in firsts:
            function(slice(first, min(first + length, count)))

    helpers = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for _ in firsts:  # where this thread has failed, nobody goes on
            pass
        failed = [helper.exception() for helper in helpers if not helper.cancel()]  # waits for those that have begun
    for error in failed:
        if error is not None:
            raise error


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="promptdsi-search")


class _OneThreadEach:
    """While anybody is within, a product of numpy is computed by the thread that begins it. Threads of its own would go on waiting
    for the next product after the last, on cores that the encoder needs."""

    def __init__(self) -> None:
        self._lock, self._within, self._outside = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._within:
                self._outside.enter_context(_products().limit(limits=1))
            self._within += 1
        try:
            yield
        finally:
            with self._lock:
                self._within -= 1
                if not self._within:
                    self._outside.close()


one_thread_each = _OneThreadEach()


@cache
def _products() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")  # numpy's; torch has another
