"""`promptdsi data`, `queries` and `backbone`: what an index is trained from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from promptdsi.cli.console import Offline, Output, ReadOptions, Runtime, Seed, print_json, print_table, use_threads
from promptdsi.corpus import Corpus
from promptdsi.corpus.generators import Generator, make_generator, options_of
from promptdsi.corpus.pseudo import GeneratedQueries, QueryCache, add_queries, exclusive_lock, generate_queries, with_queries
from promptdsi.corpus.sources import DEFAULT_NEW, DEFAULT_SHARE, Request, build_stream
from promptdsi.corpus.streams import CACHE_FOLDER, Stream, check_replaceable, totals
from promptdsi.errors import DataError
from promptdsi.progress import Progress
from promptdsi.wording import counted

LISTED = 10  # documents without queries that are named; all are counted


def data(
    source: Annotated[
        str,
        typer.Argument(help="demo, squadx, nq320k, msmarco300k, irds:ID, or a corpus: BEIR folder, .jsonl, .tsv, folder of files."),
    ],
    *,
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the stream to.")],
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
    read_options: ReadOptions,
    seed: Seed = 0,
    offline: Offline = False,
    output: Output,
) -> None:
    """Split a data set into a stream D0, D1, … and print its sizes.

    The same command gives the same bytes; stream.json holds sizes, seed, origin, licence and checksums.
    """
    if not (folder / "stream.json").is_file():
        check_replaceable(folder, overwrite=overwrite)  # before the work, not after it
    with read_options.reader(output) as keywords:
        request = Request(
            raw=raw, seed=seed, chunk=chunk, max_words=max_words, offline=offline, quiet=output.quiet, progress=output.progress, **keywords
        )
        stream = build_stream(source, request, new=new, share=share, limit=limit, by=by, by_date=by_date)
    manifest = stream.write(folder, overwrite=overwrite, progress=output.progress)
    if output.json:
        print_json(manifest)
    else:
        show_sizes(stream)
        output.say(f"written to {folder}")


def show_sizes(stream: Stream) -> None:
    """Print the sizes, as in the paper's Table 1."""
    rows = stream.table()
    titles = {"corpus": "corpus", "documents": "documents", "train": "train queries", "dev": "dev queries", "test": "test queries"}
    named = [{titles.get(key, "pseudo-queries"): value for key, value in row.items()} for row in [*rows, totals(rows)]]
    print_table(f"stream {stream.name}", named, total=True)


def queries(
    corpus: Annotated[Path, typer.Argument(help="BEIR folder to add to; with -o any corpus.")],
    *,
    generator: Annotated[str, typer.Option("--generator", "-g", help="spans (no model), smollm2, or doc2query-t5.")] = "spans",
    per_document: Annotated[
        int | None, typer.Option("--per-document", "-n", min=1, help="At most this many per document (default: the generator's).")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="For doc2query-t5: a Hugging Face id or a local folder.")] = None,
    folder: Annotated[Path | None, typer.Option("--output", "-o", help="Write a new BEIR folder instead of adding to the corpus.")] = None,
    read_options: ReadOptions,
    seed: Seed = 0,
    runtime: Runtime,
    output: Output,
) -> None:
    """Generate example queries from documents. They are added as train queries of kind pseudo.

    Interrupted, the same command continues where it stopped; run again, it adds nothing twice.
    """
    keywords: dict[str, Any] = {"seed": seed}
    keywords |= {"per_document": per_document} if per_document is not None else {}
    keywords |= {"model": model} if model is not None else {}
    if "device" in options_of(generator):
        from promptdsi.model.config import torch_device  # with numpy, which `--help` must not wait for

        keywords |= {"device": torch_device(runtime.device), "offline": runtime.offline, "quiet": output.quiet}
        use_threads(runtime.threads)
    writer = make_generator(generator, **keywords)
    started = time.perf_counter()
    with read_options.reader(output) as reading:
        if folder is None:
            written = add_queries(corpus, writer, progress=output.progress, **reading)
        else:
            written = _to_new_folder(Corpus.read(corpus, **reading), folder, writer, output.progress)
    seconds = time.perf_counter() - started
    if output.json:
        fields = {"generator": generator, "added": len(written.pairs), "documents": written.generated_now, "seconds": round(seconds, 3)}
        return print_json(fields | {"without": written.without})
    added = f"{counted(len(written.pairs), 'query')} added to {folder or corpus}"
    output.say(f"{added} (generated now for {counted(written.generated_now, 'document')}, {seconds:.1f} s)")
    if written.without:
        names = ", ".join(written.without[:LISTED]) + (", …" if len(written.without) > LISTED else "")
        output.say(f"{generator} gave nothing for {counted(len(written.without), 'document')}: {names}")


def _to_new_folder(corpus: Corpus, output: Path, writer: Generator, progress: Progress) -> GeneratedQueries:
    # Documents are written last: a folder with only our other files is an interrupted run, which is completed.
    if output.exists() and any(entry.name not in (CACHE_FOLDER, "qrels", "queries.jsonl") for entry in output.iterdir()):
        raise DataError("exists and is not empty", path=output)
    with exclusive_lock(output / CACHE_FOLDER):
        written = generate_queries(corpus, writer, QueryCache(output / CACHE_FOLDER, writer), progress=progress)
        with_queries(corpus, written).write(output)
    return written


def backbone(
    name: Annotated[str, typer.Argument(help="minilm (embedded), mpnet (fetched once, 404 MB), a local folder, or a Hugging Face id.")],
    *,
    offline: Offline = False,
    output: Output,
) -> None:
    """Fetch an encoder and print its properties. It is loaded and encodes a query."""
    from promptdsi.model.backbone import load_backbone
    from promptdsi.model.dsi import DSI
    from promptdsi.model.prompts import make_strategy

    loaded = load_backbone(name, offline=offline, quiet=output.quiet)
    model = DSI(loaded.encoder, make_strategy("none"), pooling=loaded.pooling).eval()
    tokens = loaded.tokenizer.pad(loaded.tokenizer.encode(["who wrote hamlet"], max_tokens=32).ids)
    model.unprompted(tokens)
    started = time.perf_counter()
    vector = model.unprompted(tokens)
    milliseconds = 1000 * (time.perf_counter() - started)
    if not bool(vector.isfinite().all()):
        output.say(f"warning: {name} gives vectors that are not finite")
    fields = loaded.description() | {"one_query_ms": round(milliseconds, 1)}
    if output.json:
        print_json(fields)
    else:
        print_table(
            f"backbone {name}",
            [{"": key.replace("_", " "), "value": f"{value:,}" if isinstance(value, int) else str(value)} for key, value in fields.items()],
        )
