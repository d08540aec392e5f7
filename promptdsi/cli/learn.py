"""`promptdsi create`, `add` and `tune`: what makes an index learn."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import (
    SEEDS,
    Device,
    Json,
    MaxUnknown,
    Offline,
    OnError,
    Quiet,
    Seed,
    Threads,
    documents,
    print_json,
    progress_for,
    read_corpus,
    say,
    use_threads,
)
from promptdsi.errors import UsageError

if TYPE_CHECKING:
    from promptdsi.index.results import Report, WorkEstimate

IndexPath = Annotated[Path, typer.Argument(help="Folder of the index.", metavar="INDEX")]
CorpusPath = Annotated[Path, typer.Argument(help="BEIR folder, .jsonl, .tsv, or a folder of text files.", metavar="CORPUS")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the corpus in the index (default: its folder's).")]
KeepProbes = Annotated[int, typer.Option("--keep-probes", min=0, help="Keep this many dev queries, to measure drift with later.")]
KeepQueries = Annotated[bool, typer.Option("--keep-queries", help="Keep the train queries, for search --explain.")]
# Parameters and options with a flag of their own, which would overrule what --set says.
OWN_FLAGS = {"preset", "method", "prompts", "backbone", "store", "keep_probes", "keep_queries", "name", "seed", "device", "offline"}
OWN_FLAGS |= {"fast", "update", "max_drift", "progress", "on_start"}
LaterSeed = Annotated[int | None, typer.Option("--seed", help="Seed of this learning (default: the index's).", **SEEDS)]
MaxDrift = Annotated[float | None, typer.Option("--max-drift", help="Commit nothing if Hits@10 on the probes falls by more than this.")]


def create(
    index: IndexPath,
    corpus: CorpusPath,
    preset: Annotated[str, typer.Option("--preset", help="best (recommended) or paper.")] = "best",
    method: Annotated[str, typer.Option("--method", help="promptdsi, or rows: no prompts.")] = "promptdsi",
    prompts: Annotated[str | None, typer.Option("--prompts", help="none, l2p, s++, coda or topic.")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="minilm, mpnet, a folder or a Hugging Face id.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other parameter of the method.")] = None,
    store: Annotated[str, typer.Option("--store", help="What to keep of documents: text, title or none.")] = "text",
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
    """Learn D0 into a new index. Queries are generated where the corpus has none.

    Interrupted, the same command goes on from its last checkpoint.
    """
    use_threads(threads)
    params = parse_settings(settings or [])
    if is_helper():
        from promptdsi.index.index import Index

        chosen = {"prompts": prompts, "backbone": backbone, "seed": seed, "device": device, "offline": offline}
        return Index.help_create(method, preset, params | {key: value for key, value in chosen.items() if value is not None})
    read = read_corpus(corpus, on_error=on_error, max_unknown=max_unknown, quiet=quiet)
    from promptdsi.index.index import Index

    made = Index.create(
        index,
        read,
        method=method,
        preset=preset,
        prompts=prompts,
        backbone=backbone,
        params=params,
        name=name,
        store=store,
        keep_probes=keep_probes,
        keep_queries=keep_queries,
        seed=seed,
        device=device,
        offline=offline,
        **told(quiet),
    )
    assert made.report is not None
    show(made.report, index, quiet=quiet, json=json)


def add(
    index: IndexPath,
    corpus: CorpusPath,
    fast: Annotated[bool, typer.Option("--fast", help="Searchable at once, without training; `tune` trains later.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Replace documents the index holds with other content.")] = False,
    max_drift: MaxDrift = None,
    keep_probes: KeepProbes = 0,
    keep_queries: KeepQueries = False,
    name: Name = None,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    seed: LaterSeed = None,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Learn the next corpus. No earlier document or query is read, and nothing learned before changes."""
    if not works_alone():
        return
    read = read_corpus(corpus, on_error=on_error, max_unknown=max_unknown, quiet=quiet)
    use_threads(threads)
    from promptdsi.index.index import Index

    report = Index.open(index, check=False, device=device).add(
        read,
        fast=fast,
        update=update,
        max_drift=max_drift,
        keep_probes=keep_probes,
        keep_queries=keep_queries,
        name=name,
        seed=seed,
        **told(quiet),
    )
    show(report, index, quiet=quiet, json=json)


def tune(
    index: IndexPath,
    max_drift: MaxDrift = None,
    seed: LaterSeed = None,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train what was added with --fast, from what the index stored of it; one generation for each corpus."""
    if not works_alone():
        return
    use_threads(threads)
    from promptdsi.index.index import Index

    reports = Index.open(index, check=False, device=device).tune(max_drift=max_drift, seed=seed, **told(quiet))
    if not reports:
        say("nothing to tune: no corpus was added with --fast", quiet=quiet)
    for report in reports:
        show(report, index, quiet=quiet, json=json)


def is_helper() -> bool:
    """Whether torchrun started this process to help another: only the first one locks, reads and commits."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def works_alone() -> bool:
    """New rows are the work of one process: the first goes on by itself, helpers have nothing to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from promptdsi.training.distributed import work_alone

    helper = is_helper()
    work_alone()
    return not helper


def told(quiet: bool) -> dict[str, Any]:
    """How long work reports itself."""
    return {"progress": progress_for(quiet), "on_start": lambda work: announce(work, quiet=quiet)}


def announce(work: WorkEstimate, *, quiet: bool) -> None:
    """What will happen, before it does."""
    generated = f", {work.generated:,} of them generated" if work.generated else ""
    cut = f"; {work.truncated:,} documents are longer than the model may read and are cut" if work.truncated else ""
    time = f"about {duration(work.seconds)}" if work.seconds >= 10 else "a few seconds"
    needs = f"{time} and {work.bytes / 1e9:.1f} GB of memory"
    what = f"learning {documents(work.documents)} from {work.queries:,} queries{generated}"
    say(f"{what if work.queries else f'encoding {documents(work.documents)}'}: {needs}{cut}", quiet=quiet)


def show(report: Report, index: Path, *, quiet: bool, json: bool) -> None:
    """What was learned."""
    if json:
        print_json(report.to_json())
        return
    for sentence in sentences(report, index):
        say(sentence, quiet=quiet)


def sentences(report: Report, index: Path) -> list[str]:
    if report.unchanged and not report.added:
        return [f"{documents(report.unchanged)}, all in the index already with the same content: nothing to do"]
    done = {"create": "created", "add": "added", "tune": "tuned"}[report.kind]
    counts = documents(report.added) + (f" ({report.updated:,} replaced)" if report.updated else "")
    what = f"{report.corpus}, {counts}" if report.added else report.corpus
    lines = [f"{index}: generation {report.generation}: {done} {what} in {duration(report.seconds)}"]
    if report.unchanged:
        lines.append(f"there already with the same content: {documents(report.unchanged)}")
    if report.truncated:
        lines.append(f"{report.truncated:,} documents are longer than the model may read; their ends were not read")
    if report.dev_hits10 is not None:
        lines.append(f"dev queries of {report.corpus}: Hits@10 {100 * report.dev_hits10:.1f} (n {report.dev_queries:,})")
    if report.truncated_queries:
        lines.append(f"{report.truncated_queries:,} queries are longer than the model may read; their ends were not read")
    if report.fast:
        later = f"`promptdsi tune {index}` does" if report.tunable else "the index stores no text, so `tune` cannot do it later"
        lines.append(f"not trained yet; {later}")
    elif report.unfindable:
        names = ", ".join(report.unfindable[:5]) + (", …" if len(report.unfindable) > 5 else "")
        lines.append(f"{len(report.unfindable):,} documents are not in the first ten of any of their own queries: {names}")
    else:
        lines.append("every document is in the first ten of one of its own queries")
    if report.drift:
        lines.append(
            f"earlier probe queries: Hits@10 {100 * report.drift.before:.1f} before, {100 * report.drift.after:.1f} now "
            f"(n {report.drift.n:,})"
        )
    return lines


def duration(seconds: float) -> str:
    """A time a person can read.

    Examples
    --------
    >>> duration(0.4), duration(75), duration(7320)
    ('0.4 s', '75 s', '2 h 2 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """`key=value` words as parameters; values are read as JSON where they are JSON. A dot reaches into an option.

    Examples
    --------
    >>> parse_settings(["fit.epochs=2", "prompt_options.top_k=3", "topic_engine=kmeans"])
    {'fit': {'epochs': 2}, 'prompt_options': {'top_k': 3}, 'topic_engine': 'kmeans'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        outer, dot, inner = key.partition(".")
        if not sign or not outer or (dot and not inner):
            raise UsageError(f"--set {pair}: expected KEY=VALUE")
        if outer in OWN_FLAGS:
            raise UsageError(f"--set {pair}: {outer} has an option of its own, --{outer.replace('_', '-')}")
        try:
            parsed = json_module.loads(value)
        except ValueError:
            parsed = value
        if inner:
            inside = found.setdefault(outer, {})
            if not isinstance(inside, dict):
                raise UsageError(f"--set {pair}: {outer} was given a value before")
            inside[inner] = parsed
        else:
            found[outer] = parsed
    return found
