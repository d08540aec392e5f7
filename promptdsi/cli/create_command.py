"""`promptdsi create`: train a new index on its first corpus."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer

from promptdsi.cli.add_command import is_helper, report_progress, show_report
from promptdsi.cli.console import (
    CorpusPath,
    Device,
    IndexPath,
    Json,
    KeepProbes,
    KeepQueries,
    MaxUnknown,
    Name,
    Offline,
    OnError,
    Quiet,
    Seed,
    Threads,
    read_corpus,
    use_threads,
)
from promptdsi.errors import UsageError

# Parameters and options that have a flag, which would override what --set says.
FLAGS = {"preset", "method", "prompts", "backbone", "store", "keep_probes", "keep_queries", "name", "seed", "device", "offline"}
FLAGS |= {"fast", "update", "max_drift", "progress", "on_start"}


def create(
    index: IndexPath,
    corpus: CorpusPath,
    preset: Annotated[str, typer.Option("--preset", help="best (recommended) or paper.")] = "best",
    method: Annotated[str, typer.Option("--method", help="promptdsi, or rows: no prompts.")] = "promptdsi",
    prompts: Annotated[str | None, typer.Option("--prompts", help="none, l2p, s++, coda or topic.")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="minilm, mpnet, a folder or a Hugging Face id.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other parameter of the method, such as fit.epochs=3.")
    ] = None,
    store: Annotated[str, typer.Option("--store", help="What to store of documents: text, title or none.")] = "text",
    keep_probes: KeepProbes = 0,
    keep_queries: KeepQueries = False,
    name: Name = None,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a new index on its first corpus, D0. Queries are generated where the corpus has none.

    Interrupted, the same command continues from its last checkpoint.
    """
    use_threads(threads)
    from promptdsi.index.index import Index

    params = parse_settings(settings or [])
    chosen: dict[str, Any] = {"prompts": prompts, "backbone": backbone, "seed": seed, "device": device, "offline": offline}
    if is_helper():
        return Index.help_create(method, preset, params | {key: value for key, value in chosen.items() if value is not None})
    documents = read_corpus(corpus, on_error=on_error, max_unknown=max_unknown, quiet=quiet)
    chosen |= {"name": name, "store": store, "keep_probes": keep_probes, "keep_queries": keep_queries} | report_progress(quiet)
    created = Index.create(index, documents, method=method, preset=preset, params=params, **chosen)
    assert created.report is not None
    show_report(created.report, index, quiet=quiet, json=json)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parameters from `key=value` arguments; values are read as JSON where they are JSON. A dot reaches into a group.

    Examples
    --------
    >>> parse_settings(["fit.epochs=2", "prompt_options.top_k=3", "topic_engine=kmeans"])
    {'fit': {'epochs': 2}, 'prompt_options': {'top_k': 3}, 'topic_engine': 'kmeans'}
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        outer, dot, inner = key.partition(".")
        if not sign or not outer or (dot and not inner):
            raise UsageError(f"--set {pair}: expected KEY=VALUE")
        if outer in FLAGS:
            raise UsageError(f"--set {pair}: {outer} has an option of its own, --{outer.replace('_', '-')}")
        try:
            parsed = json_module.loads(value)
        except ValueError:
            parsed = value
        if not inner:
            params[outer] = parsed
            continue
        group = params.setdefault(outer, {})
        if not isinstance(group, dict):
            raise UsageError(f"--set {pair}: {outer} was given a value before")
        group[inner] = parsed
    return params
