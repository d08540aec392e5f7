"""`promptdsi queries`: write pseudo-queries for the documents of a corpus."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from promptdsi.cli.console import (
    Device,
    Json,
    MaxUnknown,
    Offline,
    OnError,
    Quiet,
    Seed,
    Threads,
    print_json,
    print_notes,
    progress_for,
    say,
    use_threads,
)
from promptdsi.corpus import Corpus
from promptdsi.corpus.corpus import ReadNotes
from promptdsi.corpus.generators import Generator, make_generator, options_of
from promptdsi.corpus.pseudo import GeneratedQueries, QueryCache, add_queries, exclusive_lock, generate_queries, with_queries
from promptdsi.corpus.streams import CACHE_FOLDER
from promptdsi.errors import DataError, UsageError
from promptdsi.model.devices import torch_device
from promptdsi.progress import Progress

LISTED = 10  # documents without queries that are named; all are counted


def queries(
    corpus: Annotated[Path, typer.Argument(help="BEIR folder to add to; with -o any corpus.")],
    generator: Annotated[str, typer.Option("--generator", "-g", help="spans (no model), smollm2, or doc2query-t5.")] = "spans",
    per_document: Annotated[
        int | None, typer.Option("--per-document", "-n", min=1, help="At most this many per document (default: the generator's).")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="For doc2query-t5: a Hugging Face id or a local folder.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a new BEIR folder instead of adding to the corpus.")] = None,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Generate queries from each document and add them as train queries of kind pseudo.

    Interrupted, the same command continues where it stopped; run again, it adds nothing twice.
    """
    keywords: dict[str, Any] = {"seed": seed}
    keywords |= {"per_document": per_document} if per_document is not None else {}
    keywords |= {"model": model} if model is not None else {}
    if "device" in options_of(generator):
        keywords |= {"device": torch_device(device), "offline": offline, "quiet": quiet}
        use_threads(threads)
    if on_error not in ("stop", "skip"):
        raise UsageError(f"--on-error {on_error}: expected stop or skip")
    notes = ReadNotes()
    writer = make_generator(generator, **keywords)
    started = time.perf_counter()
    with print_notes(notes, quiet=quiet):
        reading: dict[str, Any] = {"on_error": on_error, "max_unknown": max_unknown, "notes": notes}
        if output is None:
            written = add_queries(corpus, writer, progress=progress_for(quiet), **reading)
        else:
            written = _to_new_folder(Corpus.read(corpus, **reading), output, writer, progress_for(quiet))
    _report(written, generator, output or corpus, time.perf_counter() - started, quiet=quiet, json=json)


def _to_new_folder(corpus: Corpus, output: Path, writer: Generator, progress: Progress) -> GeneratedQueries:
    # Documents are written last: a folder with only our other files is an interrupted run, which is completed.
    if output.exists() and any(entry.name not in (CACHE_FOLDER, "qrels", "queries.jsonl") for entry in output.iterdir()):
        raise DataError("exists and is not empty", path=output)
    with exclusive_lock(output / CACHE_FOLDER):
        written = generate_queries(corpus, writer, QueryCache(output / CACHE_FOLDER, writer), progress=progress)
        with_queries(corpus, written).write(output)
    return written._replace(pairs=[pair for pair in written.pairs if pair.query.queryid not in {q.queryid for q in corpus.queries}])


def _report(written: GeneratedQueries, generator: str, where: Path, seconds: float, *, quiet: bool, json: bool) -> None:
    if json:
        fields = {"generator": generator, "added": len(written.pairs), "documents": written.generated_now, "seconds": round(seconds, 3)}
        print_json(fields | {"without": written.without})
        return
    added = f"{len(written.pairs):,} queries added to {where}"
    say(f"{added} ({written.generated_now:,} documents generated now, {seconds:.1f} s)", quiet=quiet)
    if written.without:
        names = ", ".join(written.without[:LISTED]) + (", …" if len(written.without) > LISTED else "")
        say(f"{generator} gave nothing for {len(written.without):,} documents: {names}", quiet=quiet)
