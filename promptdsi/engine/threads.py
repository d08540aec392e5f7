"""Threads of a search. All searches share one pool, whose threads wait without spinning when there is nothing to do."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(count: int, size: int, function: Callable[[slice], Any], *, threads: int) -> None:
    """Call `function` on slices of 0 … count, each about `size` long, from several threads."""
    parts = threads * -(-count // (threads * size))  # a multiple of the threads: with equal parts they finish at the same time
    length = -(-count // max(parts, 1))
    firsts = iter(range(0, count, max(length, 1)))

    def work() -> None:
        # Threads take slices from one queue, so a thread that the system delays does not delay the others.
        for first in firsts:
            function(slice(first, min(first + length, count)))

    helpers = [_helpers().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for _ in firsts:  # if this thread failed, empty the queue: the helpers stop after their current slice
            pass
        errors = [helper.exception() for helper in helpers if not helper.cancel()]  # waits for those that have begun
    for error in errors:
        if error is not None:
            raise error


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="promptdsi-search")


class _SingleThreadedBlas:
    """While any thread is inside, numpy computes a product in the thread that calls it.

    OpenBLAS's own threads would keep spinning after a product, on cores that the encoder needs.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limit = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._limit.enter_context(_openblas().limit(limits=1))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._limit.close()


single_threaded_blas = _SingleThreadedBlas()


@cache
def _openblas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")  # numpy's; torch has another
