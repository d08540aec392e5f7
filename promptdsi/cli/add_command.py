"""`promptdsi add` and `tune`: train the next corpus, and how training is reported."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import (
    SEEDS,
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
    Threads,
    count_documents,
    open_index,
    print_json,
    progress_for,
    read_corpus,
    say,
    use_threads,
)

if TYPE_CHECKING:
    from promptdsi.index.results import Report, WorkEstimate

TrainingSeed = Annotated[int | None, typer.Option("--seed", help="Random seed of this training (default: the index's).", **SEEDS)]
MaxDrift = Annotated[float | None, typer.Option("--max-drift", help="Commit nothing if Hits@10 on the probes falls by more than this.")]


def add(
    index: IndexPath,
    corpus: CorpusPath,
    fast: Annotated[bool, typer.Option("--fast", help="Searchable at once, without training; `tune` trains later.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Replace documents whose content in the index differs.")] = False,
    max_drift: MaxDrift = None,
    keep_probes: KeepProbes = 0,
    keep_queries: KeepQueries = False,
    name: Name = None,
    on_error: OnError = "stop",
    max_unknown: MaxUnknown = 0,
    seed: TrainingSeed = None,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train the next corpus. No earlier document or query is read, and nothing learned before changes."""
    if not works_alone():
        return
    documents = read_corpus(corpus, on_error=on_error, max_unknown=max_unknown, quiet=quiet)
    use_threads(threads)
    report = open_index(index, device=device).add(
        documents,
        name=name,
        fast=fast,
        update=update,
        max_drift=max_drift,
        keep_probes=keep_probes,
        keep_queries=keep_queries,
        seed=seed,
        **report_progress(quiet),
    )
    show_report(report, index, quiet=quiet, json=json)


def tune(
    index: IndexPath,
    max_drift: MaxDrift = None,
    seed: TrainingSeed = None,
    device: Device = "auto",
    threads: Threads = None,
    offline: Offline = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train what was added with --fast, from what the index stores of it; one generation for each corpus."""
    if not works_alone():
        return
    use_threads(threads)
    reports = open_index(index, device=device).tune(max_drift=max_drift, seed=seed, **report_progress(quiet))
    if not reports:
        say("nothing to tune: no corpus was added with --fast", quiet=quiet)
    for report in reports:
        show_report(report, index, quiet=quiet, json=json)


def is_helper() -> bool:
    """Whether torchrun started this process to help the first one, which alone locks, reads and commits."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def works_alone() -> bool:
    """New rows are trained by one process: the first goes on by itself, helpers have nothing to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from promptdsi.training.distributed import work_alone

    helper = is_helper()
    work_alone()
    return not helper


def report_progress(quiet: bool) -> dict[str, Any]:
    """The callbacks of long work."""
    return {"progress": progress_for(quiet), "on_start": lambda work: announce(work, quiet=quiet)}


def announce(work: WorkEstimate, *, quiet: bool) -> None:
    """What is about to be done, and how long it takes."""
    generated = f", {work.generated:,} of them generated" if work.generated else ""
    truncated = f"; {work.truncated:,} documents are longer than the model reads and are truncated" if work.truncated else ""
    time = f"about {duration(work.seconds)}" if work.seconds >= 10 else "a few seconds"
    training = f"training {count_documents(work.documents)} on {work.queries:,} queries{generated}"
    what = training if work.queries else f"encoding {count_documents(work.documents)}"
    say(f"{what}: {time} and {work.bytes / 1e9:.1f} GB of memory{truncated}", quiet=quiet)


def show_report(report: Report, index: Path, *, quiet: bool, json: bool) -> None:
    """Print what create, add or tune did."""
    if json:
        return print_json(asdict(report))
    for sentence in report_sentences(report, index):
        say(sentence, quiet=quiet)


def report_sentences(report: Report, index: Path) -> list[str]:
    if report.unchanged and not report.added:
        return [f"{count_documents(report.unchanged)}, all in the index already with the same content: nothing to do"]
    done = {"create": "created", "add": "added", "tune": "tuned"}[report.kind]
    counts = count_documents(report.added) + (f" ({report.updated:,} replaced)" if report.updated else "")
    what = f"{report.corpus}, {counts}" if report.added else report.corpus
    lines = [f"{index}: generation {report.generation}: {done} {what} in {duration(report.seconds)}"]
    if report.unchanged:
        lines.append(f"already in the index with the same content: {count_documents(report.unchanged)}")
    if report.truncated:
        lines.append(f"{report.truncated:,} documents are longer than the model reads and were truncated")
    if report.dev_hits10 is not None:
        lines.append(f"dev queries of {report.corpus}: Hits@10 {100 * report.dev_hits10:.1f} (n {report.dev_queries:,})")
    if report.truncated_queries:
        lines.append(f"{report.truncated_queries:,} queries are longer than the model reads and were truncated")
    if report.fast:
        later = f"`promptdsi tune {index}` trains it" if report.tunable else "the index stores no text, so `tune` cannot train it later"
        lines.append(f"not trained yet; {later}")
    elif report.unfindable:
        names = ", ".join(report.unfindable[:5]) + (", …" if len(report.unfindable) > 5 else "")
        lines.append(f"{len(report.unfindable):,} documents are not in the top 10 of any of their training queries: {names}")
    else:
        lines.append("every document is in the top 10 of one of its training queries")
    if report.drift:
        before, after = 100 * report.drift.before, 100 * report.drift.after
        lines.append(f"earlier probe queries: Hits@10 {before:.1f} before, {after:.1f} now (n {report.drift.n:,})")
    return lines


def duration(seconds: float) -> str:
    """A time span for people.

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
