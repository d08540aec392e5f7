"""The process of one job: adds a corpus while the server goes on searching. If it dies, the index is as it was.

    python -m promptdsi.serving.job_process INDEX < job.json

The job comes by standard input, so that no file of documents can be left behind. Progress, and at the end a report or an error, go
to standard output, one JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from promptdsi.corpus.corpus import Corpus, Document
from promptdsi.errors import DataError
from promptdsi.index.index import Index
from promptdsi.index.results import Busy
from promptdsi.progress import Advance
from promptdsi.serving.error_responses import to_api_error, without_path

SECONDS_BETWEEN_LINES = 0.2
NICENESS = 5  # searches go first
SECONDS_TO_RETRY = 10.0  # while another process writes: deleting a document takes a moment
MAX_UNFINDABLE = 100  # docids in a report; all are counted


def main() -> int:
    path = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    job, index, before = json.load(sys.stdin), None, 0
    try:
        corpus = Corpus([Document(*fields) for fields in job["documents"]], name=job["name"])
        index = Index.open(path, check=False, device=job["device"])
        before = index.generation
        report, end = None, time.monotonic() + SECONDS_TO_RETRY
        while report is None:
            try:
                report = index.add(corpus, fast=job["fast"], update=job["update"], progress=progress_lines)
            except Busy:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
    except KeyboardInterrupt:
        if index is not None and index.report is not None:  # what came after was merging small corpora
            state, advice = "the documents were added", "there is nothing to repeat"
        elif index is None or (not index.refresh() and index.generation == before):
            state, advice = "the index is as it was", "add the documents again"
        else:  # by another writer, or by this one just now
            state, advice = "the index has changed meanwhile", "add the documents again: those that are there already stay as they are"
        send(error={"code": "stopped", "message": f"the server was stopped; {state}", "hint": advice})
        return 1
    except Exception as error:
        response = to_api_error(error, path)
        if response.status == 500:
            raise  # the server's log gets the traceback, its clients a plain sentence
        changed = isinstance(error, DataError) and "--update" in response.message
        hint = "tick “replace documents that changed”" if changed else response.hint
        send(error={"code": response.code, "message": response.message, "hint": hint})
        return 1
    shown = {"unfindable": report.unfindable[:MAX_UNFINDABLE], "unfindable_count": len(report.unfindable)}
    send(report=asdict(report) | shown | {"not_merged": without_path(report.not_merged, path)})
    return 0


@contextlib.contextmanager
def progress_lines(what: str, *, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Progress as JSON lines, a few per second."""
    done, last = 0, time.monotonic()
    send(stage=what, done=0, total=total, unit=unit)

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            send(stage=what, done=done, total=total, unit=unit)

    yield advance
    send(stage=what, done=done, total=total, unit=unit)


def send(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
