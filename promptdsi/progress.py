"""Progress on standard error: a bar with rate and time left on a terminal, otherwise a line every ten seconds.

Long work takes `progress: Progress = silent` and does

    with progress("encoding", total=len(texts)) as advance:
        ...
        advance(len(batch))
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Advance = Callable[[int], None]
SECONDS_BETWEEN_LINES = 10.0


class Progress(Protocol):
    def __call__(self, what: str, *, total: int | None = None, unit: str = "") -> AbstractContextManager[Advance]: ...


@contextlib.contextmanager
def silent(what: str, *, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Show no progress: the default of the Python interface."""
    yield lambda amount: None


@contextlib.contextmanager
def shown(what: str, *, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Show a bar on a terminal, plain lines elsewhere."""
    with (_progress_bar if sys.stderr.isatty() else _lines)(what, total, unit) as advance:
        yield advance


@contextlib.contextmanager
def _progress_bar(what: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich import progress as rich_progress
    from rich.console import Console

    class Rate(rich_progress.ProgressColumn):
        def render(self, task: rich_progress.Task) -> str:
            return f"{task.speed or 0:,.1f} {unit}/s" if unit else f"{task.speed or 0:,.1f}/s"

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        Rate(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(what, total=total)
        yield lambda amount: display.advance(task, amount)


@contextlib.contextmanager
def _lines(what: str, total: int | None, unit: str) -> Iterator[Advance]:
    started = last = time.monotonic()
    done = 0

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            print(_line(what, done, total, unit, now - started), file=sys.stderr, flush=True)

    yield advance


def _line(what: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """A line of the log.

    Examples
    --------
    >>> _line("encoding", 50, 200, "queries", 10.0)
    'encoding: 50 of 200 queries, 5.0/s, 30 s left'
    """
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{what}: {done:,}" + (f" of {total:,}" if total is not None else "") + (f" {unit}" if unit else "")
    text += f", {rate:,.1f}/s"
    if total is not None and rate > 0:
        text += f", {(total - done) / rate:,.0f} s left"
    return text
