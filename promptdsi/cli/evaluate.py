"""`promptdsi eval`: how well an index finds the documents of a split's queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import (
    Device,
    Json,
    MaxUnknown,
    Offline,
    OnError,
    Quiet,
    Threads,
    print_json,
    print_table,
    read_corpus,
    say,
    use_threads,
)
from promptdsi.cli.learn import CorpusPath, IndexPath
from promptdsi.cli.search import At


def evaluate(
    index: IndexPath,
    corpus: CorpusPath,
    split: Annotated[str, typer.Option("--split", help="train, dev or test.")] = "test",
    run: Annotated[Path | None, typer.Option("--run", help="Write a TREC run file.", metavar="FILE")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Documents per query in the run file.")] = 100,
    record: Annotated[bool, typer.Option("--record", help="Keep the ranks, no text, in the index, for the retention chart.")] = False,
    at: At = None,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Hits@1/5/10, MRR@10 and nDCG@10 with 95 % intervals, over all documents of the index."""
    read = read_corpus(corpus, on_error=on_error, max_unknown=max_unknown, quiet=quiet)
    use_threads(threads)
    from promptdsi.evaluation.metrics import DEFAULT, measure
    from promptdsi.index.index import Index

    opened = Index.open(index, at=at, device=device)
    asked = opened.evaluate(read, split=split, record=record, run=run, run_k=k)
    if asked.left_out:
        say(f"{asked.left_out:,} queries left out: none of their documents is in the index", quiet=quiet)
    if run is not None:
        say(f"run written to {run}", quiet=quiet)
    measured = {name: measure(name, asked.query_ranks) for name in DEFAULT}
    if json:
        figures = {name: {"value": one.value, "n": one.n, "low": one.low, "high": one.high} for name, one in measured.items()}
        print_json({"corpus": read.name, "split": split, "generation": opened.generation, "metrics": figures})
        return
    print_table(
        f"{read.name} {split}, generation {opened.generation}, {len(opened):,} documents",
        [
            {"metric": name, "value": f"{100 * one.value:.1f}", "95 %": f"{100 * one.low:.1f} – {100 * one.high:.1f}", "n": one.n}
            for name, one in measured.items()
        ],
    )
