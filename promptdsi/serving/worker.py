"""Adds a corpus in a process of its own: searching goes on beside it, and if it dies the index is as it was.

    python -m promptdsi.serving.worker INDEX < job.json

The job comes by standard input, so that no file of documents can be left behind; what happens goes to standard output, one
JSON object a line: progress, and at the end a report or an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Corpus
from promptdsi.corpus.records import Document
from promptdsi.errors import DataError
from promptdsi.index.lock import Busy
from promptdsi.index.results import Report
from promptdsi.progress import Advance
from promptdsi.serving.errors import described

SECONDS_BETWEEN_LINES = 0.2
NICE = 5  # whoever searches goes first
SECONDS_TO_WAIT = 10.0  # for another writer: deleting a document takes a moment
NAMED = 100  # documents a report names; all are counted


def main() -> int:
    path = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, _stopped)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    job = json.load(sys.stdin)
    try:
        from promptdsi.index.index import Index
        from promptdsi.index.store import Store

        corpus = Corpus([Document(*one) for one in job["documents"]], name=job["name"])
        Store(path).current()  # one sentence if the index has gone, before anything is loaded
        index = Index.open(path, check=False, device=job["device"])
        report = patiently(lambda: index.add(corpus, fast=job["fast"], update=job["update"], progress=as_lines))
    except KeyboardInterrupt:
        tell(error={"code": "stopped", "message": "the server was stopped; the index is as it was", "hint": "add the documents again"})
        return 1
    except Exception as error:
        found = described(error, path)
        if found.status == 500:
            raise  # the server's log gets the trace, its clients a plain sentence
        hint = "tick “replace documents that changed”" if isinstance(error, DataError) and "--update" in found.message else found.hint
        tell(error={"code": found.code, "message": found.message, "hint": hint})
        return 1
    facts = report.to_json()
    tell(report=facts | {"unfindable": facts["unfindable"][:NAMED], "unfindable_count": len(facts["unfindable"])})
    return 0


def patiently(work: Callable[[], Report]) -> Report:
    """Do it; while another writer is at work, try again for some seconds."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while True:
        try:
            return work()
        except Busy:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def as_lines(what: str, *, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Progress as JSON lines, some a second."""
    done, last = 0, time.monotonic()
    tell(stage=what, done=0, total=total, unit=unit)

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            tell(stage=what, done=done, total=total, unit=unit)

    yield advance
    tell(stage=what, done=done, total=total, unit=unit)


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _stopped(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
