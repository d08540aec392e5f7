"""Training an index: create and add. Each trains, writes blobs, measures, and only then commits a generation."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from promptdsi.corpus.corpus import Corpus
from promptdsi.engine.postings import WordStatistics
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.index.arrivals import check_corpus, check_dev_queries, corpus_name, select_new, unique_name
from promptdsi.index.entry import Entry
from promptdsi.index.file_checks import STORES
from promptdsi.index.lock import writing
from promptdsi.index.lookup import lookup_of
from promptdsi.index.manifest import Manifest, now
from promptdsi.index.measurements import Evaluated, estimate_work, measure_drift, measure_training
from promptdsi.index.method_io import (
    load_method,
    model_blobs,
    training_blobs,
    write_corpus,
    write_prompts,
)
from promptdsi.index.old_rows import RowsInShards
from promptdsi.index.results import Drift, Report, WorkEstimate
from promptdsi.index.shards import Cluster
from promptdsi.index.store import WORK, Store
from promptdsi.index.teach import count_taught
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.methods.saving import to_bytes
from promptdsi.model.backbone import load_backbone
from promptdsi.progress import Progress, silent
from promptdsi.training.encoding import encode_once
from promptdsi.training.examples import TrainingPair

MACHINE = ("device", "offline")  # parameters of the machine, not of the index
UNCHANGED = "the index is unchanged"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keywords of `Index.create`, `add` and `tune` that are not parameters of the method."""

    name: str | None = None
    store: str = "text"
    keep_probes: int = 0
    keep_queries: bool = False
    seed: int | None = None  # of this training; by default the method's
    fast: bool = False
    update: bool = False
    max_drift: float | None = None
    prefix: str = ""  # what was put before the paths of a folder's files
    device: str = "auto"
    progress: Progress = silent
    on_start: Callable[[WorkEstimate], None] | None = None

    def __post_init__(self) -> None:
        if self.max_drift is not None and not 0 <= self.max_drift <= 1:
            raise UsageError(f"--max-drift {self.max_drift}: expected a fall in Hits@10 between 0 and 1")

    def check_probes(self, parent: Manifest) -> None:
        if self.max_drift is not None and not any(entry.probes for entry in parent.corpora):
            raise UsageError("--max-drift needs probe queries to measure with: none were kept; see --keep-probes")


def create(store: Store, corpus: Corpus, method: PromptDSI, options: Options) -> Report:
    """Train D0 and commit generation 1. Interrupted, the same call continues from its checkpoint."""
    started = time.monotonic()
    store.check_new()
    check_corpus(corpus)
    if options.store not in STORES:
        raise UsageError(f"store={options.store!r} is none of {', '.join(STORES)}")
    name = corpus_name(corpus, options.name)
    check_dev_queries(corpus, options.keep_probes)
    params = {key: value for key, value in method.get_params().items() if key not in MACHINE}
    # A throw-away model measures the machine's speed: training starts from the backbone itself.
    method.start(load_backbone(method.backbone, offline=method.offline))
    if options.store == "none":  # words as hashes: nothing of the documents can be read off the index
        method.word_salt_ = secrets.token_hex(16)
    pairs = method.training_pairs(corpus) if method.fit_options.learn != "nothing" or options.keep_queries else []
    if options.on_start:
        options.on_start(estimate_work(method, corpus, pairs, first=True))
    store.begin()
    with writing(store.folder), on_interrupt(f"{store.folder} is not finished; run the same command again to go on"):
        store.check_new()  # again: another create may have ended meanwhile
        store.clean_unfinished()
        try:
            method.fit(corpus, pairs=pairs, checkpoint=store.folder / WORK, progress=options.progress)
        except (PromptDSIError, OSError):
            store.abandon()
            raise
        facts: dict[str, Any] = {"kind": "create", "time": now(), "method": method.name, "params": params, "store": options.store}
        manifest = Manifest(number=1, parent=None, corpora=(), **facts, **changed_by_d0(store, method))
        manifest = replace(manifest, **_trained(store, manifest, corpus, method, pairs, options, name=name, since=1))
        fast, tunable = options.fast, options.store == "text"
        report = Report(1, "create", name, added=len(corpus), fast=fast, tunable=tunable)
        return commit_trained(store, manifest, method, corpus, pairs, report, started, options)


def add(store: Store, corpus: Corpus, options: Options, cluster: Cluster | None = None) -> Report:
    """Train the next corpus and commit a generation; documents that are in the index already cost nothing."""
    started = time.monotonic()
    check_corpus(corpus)
    with store.writing(), on_interrupt(f"{store.folder} is unchanged; run the same command again"), learning(store):
        parent = store.ready(training_blobs if cluster is None else model_blobs)
        lookup = lookup_of(store, parent, cluster)
        new, replaced = select_new(store.folder, lookup, corpus, update=options.update)
        report = Report(parent.number, "add", corpus.name, unchanged=len(corpus) - len(new), fast=options.fast)
        report = replace(report, tunable=parent.store == "text")
        if not len(new):
            return report
        name, names = corpus_name(corpus, options.name), parent.names
        if options.update and options.name is None:
            name = unique_name(name, names)
        if name in names:
            raise UsageError(f"the index has a corpus named {name!r} already; give this one another name with --name")
        check_dev_queries(new, options.keep_probes)
        options.check_probes(parent)
        method = load_seeded(store, parent, options, cluster=cluster)
        method.model_.rows.delete(list(replaced))
        with encode_once(method.encodes_as_d0):  # the report evaluates on the queries that were trained on
            changes, pairs = learn_corpus(store, parent, new, method, options, name=name, since=parent.number + 1)
            manifest = parent.next("add", tombstones=tuple(sorted({*parent.tombstones, *replaced.values()})), **changes)
            report = replace(report, generation=manifest.number, corpus=name, added=len(new), updated=len(replaced))
            report = replace(report, corrections_lost=count_taught(store, parent, replaced.values()))
            return commit_trained(store, manifest, method, new, pairs, report, started, options, parent=parent, cluster=cluster)


def changed_by_d0(store: Store, method: PromptDSI) -> dict[str, Any]:
    """What learning D0 changes in the manifest beside its corpus; the blobs are written."""
    return {
        "config": method.model_.encoder.config.to_json(),
        "encoder": store.blobs.put(to_bytes(method.model_.encoder.state_dict()), "safetensors"),
        "tokenizer": store.blobs.put(method.tokenizer_.json.encode("utf-8"), "json"),
        "metadata": learned_metadata(method),
        "prompts": write_prompts(store, {}, method.model_.strategy.state()),
    }


def learn_corpus(
    store: Store, manifest: Manifest, corpus: Corpus, method: PromptDSI, options: Options, *, name: str, since: int
) -> tuple[dict[str, Any], list[TrainingPair]]:
    """Train a corpus over what the manifest describes: what that changes in it, and the queries. Nothing is committed."""
    check_corpus(corpus)
    pairs = [] if options.fast and not options.keep_queries else method.training_pairs(corpus, new=True)
    if options.on_start:
        options.on_start(estimate_work(method, corpus, [] if options.fast else pairs, first=False))
    method.add(corpus, pairs=None if options.fast else pairs, train=not options.fast, progress=options.progress)
    return _trained(store, manifest, corpus, method, pairs, options, name=name, since=since), pairs


def _trained(
    store: Store,
    parent: Manifest,
    corpus: Corpus,
    method: PromptDSI,
    pairs: Sequence[TrainingPair],
    options: Options,
    *,
    name: str,
    since: int,
) -> dict[str, Any]:
    """What a corpus that was just trained changes in the manifest; its blobs are written."""
    entries = write_corpus(
        store,
        corpus,
        method,
        since=since,
        name=name,
        documents=parent.store,  # decided once, when the index is created
        keep_probes=options.keep_probes,
        kept_pairs=pairs if options.keep_queries else None,
        fast=options.fast,
    )
    entries = [replace(entry, source=corpus.source, prefix=options.prefix) for entry in entries]
    corpora = (*parent.corpora, *entries)
    prompts = write_prompts(store, parent.prompts, method.model_.strategy.state())
    statistics = method.words_.statistics if method.words_ else None
    if statistics and method.model_.rows.elsewhere is not None:
        statistics = _grown_statistics(store, parent, corpora)
    blob = store.blobs.put_statistics(statistics) if statistics else None
    return {"metadata": learned_metadata(method), "prompts": prompts, "corpora": corpora, "statistics": blob}


def _grown_statistics(store: Store, parent: Manifest, corpora: Sequence[Entry]) -> WordStatistics:
    """What words are weighted by after an addition. Old words lie in the shards: they are read here where all must be counted anew."""
    assert parent.statistics is not None
    statistics = store.blobs.statistics(parent.statistics)
    if sum(entry.row_count for entry in corpora) < 2 * statistics.passages:
        return statistics
    # Those of a folder that was synced just before are not committed yet, and were written here.
    store.check(parent, {entry.words for entry in parent.corpora if entry.words and entry.words in parent.sizes})
    return statistics.grown([store.blobs.words(entry.words) for entry in corpora if entry.words])


def commit_trained(
    store: Store,
    manifest: Manifest,
    method: PromptDSI,
    corpus: Corpus,
    pairs: Sequence[TrainingPair],
    report: Report,
    started: float,
    options: Options,
    parent: Manifest | None = None,
    without: str | None = None,
    then: str = UNCHANGED,
    cluster: Cluster | None = None,
) -> Report:
    """Measure what was trained and commit it, unless old queries drifted by more than `max_drift`."""
    after = evaluated(manifest, method, cluster)
    report = measure_training(method, after.ranker, corpus, pairs, report)
    if parent is not None:
        drift = check_drift(store, parent, after, options, what=report.corpus, without=without, then=then, cluster=cluster)
        report = replace(report, drift=drift)
    report = replace(report, seconds=time.monotonic() - started, probes=min(options.keep_probes, report.dev_queries))
    fields = asdict(report)
    event = {key: fields[key] for key in ("corpus", "added", "updated", "queries", "fast", "drift")}  # counts, never a docid; no dev metric
    store.commit(replace(manifest, event=event | {"seconds": round(report.seconds, 1)}))
    return report


def evaluated(manifest: Manifest, method: PromptDSI, cluster: Cluster | None) -> Evaluated:
    """What is measured before a generation is committed: the method that learned it, or the generation opened in the shards."""
    return Evaluated.method(method) if cluster is None else Evaluated.generation(cluster.generation(manifest))


def check_drift(
    store: Store,
    parent: Manifest,
    after: Evaluated,
    options: Options,
    *,
    what: str,
    without: str | None = None,
    then: str = UNCHANGED,
    cluster: Cluster | None = None,
) -> Drift | None:
    """How far earlier probe queries drifted; more than `max_drift` is an error, and nothing is committed."""

    def before() -> Evaluated:
        if cluster is not None:
            return Evaluated.generation(cluster.generation(parent))
        return Evaluated.method(load_method(store, parent, device=options.device))

    drift = measure_drift(store, parent, before, after, without=without)
    if options.max_drift is None or (drift is not None and drift.fall <= options.max_drift):
        return drift
    store.clean()
    if drift is None:
        raise UsageError(f"--max-drift {options.max_drift}: no document of any probe query is left to measure with; {then}")
    raise PromptDSIError(
        f"learning {what} lets Hits@10 on {drift.n} probe queries fall by {drift.fall:.3f}, "
        f"more than --max-drift {options.max_drift}: it was not committed, {then}"
    )


@contextlib.contextmanager
def on_interrupt(message: str) -> Iterator[None]:
    """Give a KeyboardInterrupt a message that tells the state of the index."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message) from None


@contextlib.contextmanager
def learning(store: Store) -> Iterator[None]:
    """What fails over rows and prompts that were read is an error of the index: somebody else may have made them."""
    try:
        yield
    except (ValueError, LookupError, ArithmeticError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"nothing can be learned over it ({reason}); run `promptdsi verify`", path=store.folder) from error


def load_seeded(store: Store, parent: Manifest, options: Options, *, last: Sequence[int] = (), cluster: Cluster | None = None) -> PromptDSI:
    """The method of a generation with the seed that was given, and on a cluster without the rows."""
    elsewhere = RowsInShards.of(cluster.generation(parent), trains=not options.fast) if cluster is not None else None
    method = load_method(store, parent, device=options.device, last=last, elsewhere=elsewhere)
    if options.seed is not None:
        method.seed = options.seed
    return method


def learned_metadata(method: PromptDSI) -> dict[str, Any]:
    """What the method learned beside weights. The topic of each document is left out: only words of many documents are stored."""
    metadata = method.metadata()
    return metadata | {"topics": {"words": metadata["topics"]["words"]} if metadata.get("topics") else None}
