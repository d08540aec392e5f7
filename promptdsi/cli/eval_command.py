"""`promptdsi eval`: retrieval metrics of an index on a split's queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptdsi.cli.console import (
    At,
    CorpusPath,
    IndexPath,
    On,
    Output,
    ReadOptions,
    Runtime,
    open_index,
    print_json,
    print_table,
    use_threads,
)
from promptdsi.wording import counted


def evaluate(
    index: IndexPath,
    corpus: CorpusPath,
    *,
    split: Annotated[str, typer.Option("--split", help="train, dev or test.")] = "test",
    run: Annotated[Path | None, typer.Option("--run", help="Write a TREC run file.", metavar="FILE")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Documents per query in the run file.")] = 100,
    record: Annotated[bool, typer.Option("--record", help="Store the ranks, no text, in the index, for the retention chart.")] = False,
    at: At = None,
    on: On = None,
    read_options: ReadOptions,
    runtime: Runtime,
    output: Output,
) -> None:
    """Measure an index on queries with known answers. Hits@1/5/10, MRR@10 and nDCG@10 with 95 % intervals, over all its documents."""
    documents = read_options.read(corpus, output)
    if on is None:
        use_threads(runtime.threads)
    from promptdsi.evaluation.evaluate import DEFAULT, measure

    opened = open_index(index, check=True, at=at, device=runtime.device, on=on)
    result = opened.evaluate(documents, split=split, record=record, run=run, run_k=k)
    if result.left_out:
        output.say(f"{counted(result.left_out, 'query')} left out: no document that answers is in the index")
    if run is not None:
        output.say(f"run written to {run}")
    metrics = {name: measure(name, result.query_ranks) for name in DEFAULT}
    if output.json:
        values = {name: metric._asdict() for name, metric in metrics.items()}
        print_json({"corpus": documents.name, "split": split, "generation": opened.generation, "metrics": values})
        return
    rows = []
    for name, metric in metrics.items():
        interval = f"{100 * metric.low:.1f} – {100 * metric.high:.1f}"
        rows.append({"metric": name, "value": f"{100 * metric.value:.1f}", "95 %": interval, "n": metric.n})
    print_table(f"{documents.name} {split}, generation {opened.generation}, {counted(len(opened), 'document')}", rows)
