"""`promptdsi create`, `add` and `tune`: train a corpus, and how training is reported."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptdsi.cli.console import (
    SEEDS,
    CorpusPath,
    IndexPath,
    On,
    Output,
    ReadOptions,
    Runtime,
    Seed,
    completed,
    corrections_lost,
    merged_corpora,
    open_index,
    print_json,
    shown_folder,
    use_threads,
)
from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import UsageError
from promptdsi.wording import agreeing, counted

if TYPE_CHECKING:
    from promptdsi.index.manifest import Manifest
    from promptdsi.index.results import Report, WorkEstimate

TrainingSeed = Annotated[int | None, typer.Option("--seed", help="Random seed of this training (default: the index's).", **SEEDS)]
MaxDrift = Annotated[float | None, typer.Option("--max-drift", help="Commit nothing if Hits@10 on the probes falls by more than this.")]
# For shells to complete; not imported from where they are defined, which would load torch.
PRESETS, EFFORTS, STRATEGIES = ("best", "rows", "paper"), ("quick", "normal", "full"), ("none", "l2p", "s++", "coda", "topic")
# Parameters and options that have a flag, which would override what --set says.
FLAGS = {"preset", "effort", "method", "prompts", "backbone", "store", "keep_probes", "keep_queries", "name", "seed", "device", "offline"}


@dataclass(frozen=True)
class CorpusOptions:
    """The name of a corpus in the index, and what is stored beside its documents."""

    keep_probes: Annotated[int, typer.Option("--keep-probes", min=0, help="Store this many dev queries, to measure drift with later.")] = 0
    keep_queries: Annotated[bool, typer.Option("--keep-queries", help="Store the train queries, for search --explain.")] = False
    name: Annotated[str | None, typer.Option("--name", help="Name of the corpus in the index (default: its folder's).")] = None


def create(
    index: IndexPath,
    corpus: CorpusPath,
    *,
    preset: Annotated[
        str, typer.Option("--preset", help="best (recommended), rows (one learned row per document) or paper.", **completed(*PRESETS))
    ] = "best",
    effort: Annotated[
        str | None,
        typer.Option("--effort", help="quick (nothing is trained), normal (rows) or full (rows and encoder).", **completed(*EFFORTS)),
    ] = None,
    words: Annotated[bool, typer.Option("--words/--no-words", help="Whether words count beside learned rows.")] = True,
    method: Annotated[str, typer.Option("--method", help="promptdsi, or rows: no prompts.")] = "promptdsi",
    prompts: Annotated[str | None, typer.Option("--prompts", help="none, l2p, s++, coda or topic.", **completed(*STRATEGIES))] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="minilm, mpnet, a folder or a Hugging Face id.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other parameter of the method, such as fit.epochs=3.")
    ] = None,
    store: Annotated[str, typer.Option("--store", help="What to store of documents: text, title or none.")] = "text",
    corpus_options: CorpusOptions,
    read_options: ReadOptions,
    seed: Seed = 0,
    on: On = None,
    runtime: Runtime,
    output: Output,
) -> None:
    """Make an index of documents.

    It learns them from example queries, which are generated where the corpus has none. Interrupted, the same command continues from its
    last checkpoint.
    """
    use_threads(runtime.threads)
    if helped():
        return
    from promptdsi.index.index import Index
    from promptdsi.training.ray_helpers import leading_on

    params = parse_settings(settings or [])
    chosen = {"prompts": prompts, "backbone": backbone, "seed": seed, "device": runtime.device, "offline": runtime.offline}
    options: dict[str, Any] = chosen | {"method": method, "preset": preset, "effort": effort, "words": words}
    options |= {"params": params, "store": store} | asdict(corpus_options)
    with leading_on(on):
        created = Index.create(index, lambda: read_options.read(corpus, output), **options, **report_progress(output))
    assert created.report is not None
    show_report(created.report, index, output)


def add(
    index: IndexPath,
    corpus: CorpusPath,
    *,
    fast: Annotated[bool, typer.Option("--fast", help="Searchable at once, without training; `tune` trains later.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Replace documents whose content in the index differs.")] = False,
    max_drift: MaxDrift = None,
    corpus_options: CorpusOptions,
    read_options: ReadOptions,
    seed: TrainingSeed = None,
    on: On = None,
    runtime: Runtime,
    output: Output,
) -> None:
    """Add documents to an index. No earlier document or query is read, and nothing learned before changes."""
    if not works_alone():
        return
    opened = open_index(index, device=runtime.device, on=on)
    documents = read_options.read(corpus, output)
    _warn_of_folder(opened.manifest, corpus, documents, output)
    use_threads(runtime.threads)
    options: dict[str, Any] = {"fast": fast, "update": update, "max_drift": max_drift, "seed": seed} | asdict(corpus_options)
    report = opened.add(documents, **options, **report_progress(output))
    show_report(report, index, output)


def tune(
    index: IndexPath,
    *,
    effort: Annotated[
        str | None,
        typer.Option("--effort", help="Train the first corpus anew: normal (rows) or full (encoder too).", **completed(*EFFORTS[1:])),
    ] = None,
    max_drift: MaxDrift = None,
    seed: TrainingSeed = None,
    runtime: Runtime,
    output: Output,
) -> None:
    """Train what is not trained yet. That is what was created with --effort quick or added with --fast; one generation for each corpus."""
    use_threads(runtime.threads)
    if helped():
        return
    from promptdsi.training.distributed import leading

    with leading():
        reports = open_index(index, device=runtime.device).tune(effort=effort, max_drift=max_drift, seed=seed, **report_progress(output))
    if not reports:
        output.say("nothing to tune: no corpus was added with --fast")
    for report in reports:
        show_report(report, index, output)


def upgrade(index: IndexPath, *, output: Output) -> None:
    """Bring an index of an earlier release up to date. Words count beside its rows, from the text it stores; nothing is trained."""
    manifest = open_index(index).upgrade()
    output.result({"generation": manifest.number}, f"generation {manifest.number}: words count beside rows now")


def _warn_of_folder(manifest: Manifest, path: Path, corpus: Corpus, output: Output) -> None:
    """Files inside a folder that the index follows have another docid here than `sync` gives them."""
    from promptdsi.corpus.file_documents import is_readable  # with numpy

    resolved, are_files = path.expanduser().resolve(), corpus.source is not None or is_readable(path.name)
    entry = manifest.follows(resolved) if are_files else None
    if entry is None or entry.source is None or (entry.source == str(resolved) and not entry.prefix):
        return
    folder = shown_folder(entry.source)
    if resolved.is_relative_to(entry.source):
        output.say(f"{path} lies in {folder}, which the index follows: with `promptdsi sync` it is in the index twice")
    else:
        output.say(f"{path} contains {folder}, which the index follows: its files are in the index twice now")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parameters from `key=value` arguments; values are read as JSON where they are JSON. A dot reaches into a group.

    Examples
    --------
    >>> parse_settings(["fit.epochs=2", "prompt_options.top_k=3", "topic_engine=kmeans"])
    {'fit.epochs': 2, 'prompt_options.top_k': 3, 'topic_engine': 'kmeans'}
    """
    params: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UsageError(f"--set {pair}: expected KEY=VALUE")
        if (flag := key.partition(".")[0]) in FLAGS:
            raise UsageError(f"--set {pair}: {flag} has an option of its own, --{flag.replace('_', '-')}")
        try:
            params[key] = json.loads(value)
        except ValueError:
            params[key] = value
    return params


def is_helper() -> bool:
    """Whether torchrun started this process to help the first one, which alone locks, reads and commits."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def helped() -> bool:
    """In a helper process: train with the first one until its work has ended. False in the first process, at once."""
    helper = is_helper()  # not asked again: at the end each process works alone
    if helper:
        from promptdsi.training.shared_stages import help_training

        help_training()
    return helper


def works_alone() -> bool:
    """New rows are trained by one process: the first goes on by itself, helpers have nothing to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from promptdsi.training.distributed import work_alone

    helper = is_helper()
    work_alone()
    return not helper


def report_progress(output: Output) -> dict[str, Any]:
    """The callbacks of long work."""
    return {"progress": output.progress, "on_start": lambda work: output.say(describe_work(work))}


def describe_work(work: WorkEstimate) -> str:
    """What is about to be done, and how long it takes."""
    some = "" if work.generated == work.queries else f", {work.generated:,} of them"
    generated = f"{some} made from their text" if work.generated else ""
    truncated = f"; {agreeing(work.truncated, 'documents are longer than the model reads and are truncated')}" if work.truncated else ""
    time = f"about {duration(work.seconds)}" if work.seconds >= 10 else "a few seconds"
    training = f"learning {counted(work.documents, 'document')} from {counted(work.queries, 'example query')}{generated}"
    what = training if work.queries else f"encoding {counted(work.documents, 'document')}"
    others = ", ".join(f"{effort} {duration(seconds)}" for effort, seconds in work.efforts)
    levels = f" (--effort {others})" if others else ""
    now = "it can be searched already; " if work.searchable else ""
    return f"{now}{what}: {time} and {work.bytes / 1e9:.1f} GB of memory{levels}{truncated}"


def show_report(report: Report, index: Path, output: Output) -> None:
    """Print what create, add or tune did."""
    if output.json:
        return print_json(asdict(report))
    for sentence in report_sentences(report, index):
        output.say(sentence)


def _findable_sentence(report: Report) -> str:
    if not report.unfindable:
        which = f"each of {counted(report.examined, 'document')} drawn at random" if report.unexamined else "each document"
        return f"check: {which} is found by one of its example queries"
    names = ", ".join(report.unfindable[:5]) + (", …" if len(report.unfindable) > 5 else "")
    of = f" of {report.examined:,} drawn at random" if report.unexamined else ""
    count, (are, their) = len(report.unfindable), ("is", "its") if len(report.unfindable) == 1 else ("are", "their")
    return f"check: {counted(count, 'document')}{of} {are} not in the first ten for any of {their} example queries: {names}"


def report_sentences(report: Report, index: Path) -> list[str]:
    if report.unchanged and not report.added:
        return [f"{counted(report.unchanged, 'document')}, all in the index already with the same content: nothing to do"]
    done = {"create": "created", "add": "added", "tune": "tuned"}[report.kind]
    counts = counted(report.added, "document") + (f" ({report.updated:,} replaced)" if report.updated else "")
    what = f"{report.corpus}, {counts}" if report.added else report.corpus
    lines = [f"{index}: generation {report.generation}: {done} {what} in {duration(report.seconds)}"]
    if report.unchanged:
        lines.append(f"already in the index with the same content: {counted(report.unchanged, 'document')}")
    lines += corrections_lost(report.corrections_lost)
    if report.truncated:
        lines.append(agreeing(report.truncated, "documents are longer than the model reads and were truncated"))
    if report.dev_hits10 is not None:
        lines.append(f"dev queries of {report.corpus}: Hits@10 {100 * report.dev_hits10:.1f} (n {report.dev_queries:,})")
    if report.truncated_queries:
        lines.append(agreeing(report.truncated_queries, "queries are longer than the model reads and were truncated"))
    if report.fast:
        later = f"`promptdsi tune {index}` trains it" if report.tunable else "the index stores no text, so `tune` cannot train it later"
        lines.append(f"not trained yet; {later}")
    else:
        lines.append(_findable_sentence(report))
    if report.drift:
        before, after = 100 * report.drift.before, 100 * report.drift.after
        lines.append(f"earlier probe queries: Hits@10 {before:.1f} before, {after:.1f} now (n {report.drift.n:,})")
    return lines + merged_corpora(report)


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
