"""`promptdsi data`: turn a source into a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import Json, MaxUnknown, Offline, OnError, Quiet, Seed, print_json, print_notes, print_table, progress_for, say
from promptdsi.corpus.corpus import ReadNotes
from promptdsi.corpus.sources import DEFAULT_NEW, DEFAULT_SHARE, Request, build_stream
from promptdsi.corpus.streams import Stream, check_replaceable, totals
from promptdsi.errors import UsageError


def data(
    source: Annotated[
        str,
        typer.Argument(help="demo, squadx, nq320k, msmarco300k, irds:ID, or a corpus: BEIR folder, .jsonl, .tsv, folder of text files."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the stream to.")],
    new: Annotated[
        int | None, typer.Option("--new", min=0, help=f"New corpora after D0 (default {DEFAULT_NEW}; 0 makes all of it D0).")
    ] = None,
    share: Annotated[
        float | None, typer.Option("--share", help=f"Share of the documents in each new corpus (default {DEFAULT_SHARE}).")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="One corpus per value of this metadata field (domain shift).")] = None,
    by_date: Annotated[str | None, typer.Option("--by-date", help="Oldest first, by this metadata field (real arrival).")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Take a seeded sample of this many documents first.")] = None,
    raw: Annotated[Path | None, typer.Option("--raw", help="Folder with the official raw files (nq320k, msmarco300k).")] = None,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Documents per new corpus (nq320k, msmarco300k).")] = 2000,
    max_words: Annotated[
        int, typer.Option("--max-words", min=0, help="Truncate documents to this many words (nq320k, msmarco300k); 0 keeps all.")
    ] = 4096,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another stream in the output folder.")] = False,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Split a source into a stream D0, D1, … and print its sizes.

    The same command gives the same bytes; stream.json holds sizes, seed, origin, licence and checksums.
    """
    if on_error not in ("stop", "skip"):
        raise UsageError(f"--on-error {on_error}: expected stop or skip")
    notes = ReadNotes(skip=on_error == "skip")
    options = {"raw": raw, "seed": seed, "chunk": chunk, "max_words": max_words, "on_error": on_error, "max_unknown": max_unknown}
    request = Request(**options, offline=offline, quiet=quiet, notes=notes, progress=progress_for(quiet))  # type: ignore[arg-type]
    if not (output / "stream.json").is_file():
        check_replaceable(output, overwrite=overwrite)  # before the work, not after it
    with print_notes(notes, quiet=quiet):
        stream = build_stream(source, request, new=new, share=share, limit=limit, by=by, by_date=by_date)
    manifest = stream.write(output, overwrite=overwrite, progress=progress_for(quiet))
    if json:
        print_json(manifest)
    else:
        show_sizes(stream)
        say(f"written to {output}", quiet=quiet)


def show_sizes(stream: Stream) -> None:
    """Print the sizes, as in the paper's Table 1."""
    rows = stream.table()
    titles = {"corpus": "corpus", "documents": "documents", "train": "train queries", "dev": "dev queries", "test": "test queries"}
    named = [{titles.get(key, "pseudo-queries"): value for key, value in row.items()} for row in [*rows, totals(rows)]]
    print_table(f"stream {stream.name}", named, total=True)
