"""Levels of effort: an index answers as soon as D0 is encoded; learning D0, now or later, makes it answer better."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import UsageError
from promptdsi.index import update
from promptdsi.index.blobs import content_hash
from promptdsi.index.lookup import FileLookup
from promptdsi.index.manifest import Manifest
from promptdsi.index.measurements import estimate_work
from promptdsi.index.method_io import (
    EFFORTS,
    effort_params,
    load_method,
    method_class,
    stored_corpus,
    training_blobs,
    write_prompts,
    write_rows,
)
from promptdsi.index.results import Report
from promptdsi.index.store import WORK, Store
from promptdsi.index.update import (
    MACHINE,
    UNCHANGED,
    Options,
    changed_by_d0,
    commit_trained,
    learned_metadata,
    learning,
    load_seeded,
    on_interrupt,
)
from promptdsi.methods.options import flatten_params, merge_params
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.model.backbone import load_backbone

LEVELS = [what["learn"] for what in EFFORTS.values()]


def create(store: Store, read: Callable[[], Corpus], method: PromptDSI, effort: str | None, options: Options) -> Report:
    """Train a new index; where everything is trained it can be searched before. The corpus is read if an index may be created here."""
    if method.strategy().reselect_per_layer:
        raise UsageError("an index chooses prompts once per query; reselect_per_layer is for promptdsi bench alone, which runs it in torch")
    if effort != "full" or not _is_untrained(store):
        store.check_new()
    if effort == "full":
        return create_in_stages(store, read(), method, options)
    return update.create(store, read(), method, replace(options, fast=effort == "quick"))


def create_in_stages(store: Store, corpus: Corpus, method: PromptDSI, options: Options) -> Report:
    """Commit generation 1 untrained, so that it can be searched, and then generation 2, trained.

    Interrupted, the same call goes on: where generation 1 is there, with the training.
    """
    if not (_is_untrained(store) and _holds(store, corpus)):
        untrained = type(method).from_params(merge_params(method.get_params(), effort_params("quick")))
        update.create(store, corpus, untrained, replace(options, fast=True))
    again = f"{store.folder} answers already, but is not fully trained; run the same command again to go on"
    with store.writing(), on_interrupt(again):
        return _train(store, _d0_alone(store), corpus, method, options)


def tune(store: Store, effort: str | None, **keywords: Any) -> list[Report]:
    """Train D0 where it is the only corpus and was not trained, or more `effort` is asked for; else what was added fast.

    The keywords are those of `Options`.
    """
    manifest, options = store.manifest(), Options(**keywords)
    effort = effort or ("normal" if len(manifest.parts()) == 1 and manifest.corpora[0].fast else None)
    return [raise_effort(store, effort, options)] if effort else tune_added(store, options)


def raise_effort(store: Store, effort: str, options: Options) -> Report:
    """Train D0 anew at a higher level of effort, from what the index stores of it."""
    params = effort_params(effort)
    with store.writing(), on_interrupt(f"{store.folder} is unchanged; run the same command again to go on"), learning(store):
        parent = _d0_alone(store)
        options.check_probes(parent)
        if LEVELS.index(params["fit.learn"]) <= LEVELS.index(flatten_params(parent.params)["fit.learn"]):
            raise UsageError(f"{parent.corpora[0].name} was learned with that effort, or more, already")
        machine = {"device": options.device, "offline": True}
        method = method_class(parent.method).from_params(merge_params(parent.params, params | machine))
        method.seed = method.seed if options.seed is None else options.seed
        return _train(store, parent, stored_corpus(store, parent, parent.parts()[0]), method, options)


def tune_added(store: Store, options: Options) -> list[Report]:
    """Train every corpus after D0 that was added fast, from what the index stores of it; one generation each.

    A corpus whose documents are all deleted has nothing to train.
    """
    reports: list[Report] = []
    with store.writing(), on_interrupt(f"{store.folder} keeps what was tuned until then; run the same command again"), learning(store):
        parent = store.ready(training_blobs)
        options.check_probes(parent)
        live = [entry.count > len(deleted) for entry, deleted in zip(parent.corpora, parent.deleted_positions(), strict=True)]
        for part in [part for part in parent.parts()[1:] if parent.corpora[part.start].fast and any(live[part.start : part.stop])]:
            started = time.monotonic()
            entry = parent.corpora[part.start]
            corpus = stored_corpus(store, parent, part)
            method = load_seeded(store, parent, options, last=part)
            pairs = method.training_pairs(corpus, new=True)
            if options.on_start:
                options.on_start(estimate_work(method, corpus, pairs, first=False))
            method.tune(corpus, pairs=pairs, progress=options.progress)
            corpora = list(parent.corpora)
            corpora[part.start : part.stop] = write_rows(store, corpora[part.start : part.stop], method.model_.rows.blocks[-1])
            prompts = write_prompts(store, parent.prompts, method.model_.strategy.state())
            manifest = parent.next("tune", metadata=learned_metadata(method), prompts=prompts, corpora=tuple(corpora))
            report, then = Report(manifest.number, "tune", entry.name), "what was tuned before it stays" if reports else UNCHANGED
            reports.append(commit_trained(store, manifest, method, corpus, pairs, report, started, options, parent, entry.name, then))
            parent = store.manifest()
    return reports


def _is_untrained(store: Store) -> bool:
    """Whether the index is there with one corpus, untrained: what an interrupted create leaves."""
    if not (store.folder / "CURRENT").exists():
        return False
    manifest = store.manifest()
    return manifest.number == 1 and manifest.corpora[0].fast


def _holds(store: Store, corpus: Corpus) -> bool:
    """Whether the index holds this corpus and nothing else."""
    manifest, contents = store.manifest(), {document.docid: content_hash(document) for document in corpus.documents}
    live = FileLookup(store, manifest).live(list(contents))
    return manifest.documents == len(contents) and contents == {docid: content for docid, (_, content) in live.items()}


def _d0_alone(store: Store) -> Manifest:
    """The generation whose only corpus is to be trained; a checkpoint that a former training left stays."""
    parent = store.ready(training_blobs, clean=False)
    if len(parent.parts()) > 1:
        raise UsageError(f"{store.folder} has later corpora, which were learned over D0 as it is; create it anew with --effort")
    if parent.tombstones:
        raise UsageError(f"{store.folder} has deleted documents, whose rows would be trained; create it anew with --effort")
    return parent


def _train(store: Store, parent: Manifest, corpus: Corpus, method: PromptDSI, options: Options) -> Report:
    started, before = time.monotonic(), load_method(store, parent, device=options.device)
    method.start(load_backbone(method.backbone, offline=method.offline))
    method.word_salt_ = before.word_salt_
    pairs = method.training_pairs(corpus)
    if options.on_start:
        options.on_start(estimate_work(method, corpus, pairs, first=True)._replace(searchable=True, efforts=()))
    # Words of the queries that were there at create count on, though the queries themselves may not be stored.
    method.fit(corpus, pairs=pairs, words=before.words_, checkpoint=store.folder / WORK, progress=options.progress)
    corpora = tuple(write_rows(store, parent.corpora, method.model_.rows.blocks[0]))
    params = {key: value for key, value in method.get_params().items() if key not in MACHINE}
    changes: dict[str, Any] = {"params": params, "corpora": corpora} | changed_by_d0(store, method)
    manifest = parent.next("tune", **changes)
    report = commit_trained(store, manifest, method, corpus, pairs, Report(manifest.number, "tune", corpora[0].name), started, options)
    store.clean()
    return report
