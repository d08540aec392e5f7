"""How an index grows: create, add, tune. Each learns, writes blobs, measures, and only then commits a generation.

Nothing of an earlier corpus is opened while learning but ids, rows, prompts, tokenizer and encoder. Probes are opened after
the new blobs are on disk: what was learned cannot depend on them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from promptdsi.corpus.corpus import Corpus
from promptdsi.errors import DataError, PromptDSIError, UsageError
from promptdsi.evaluation.evaluate import load_queries, rank_queries
from promptdsi.evaluation.metrics import values
from promptdsi.index.checks import NO_PROBES, check_bound, check_corpus, check_probes, name_of, refuse_drift
from promptdsi.index.documents import STORES
from promptdsi.index.drift import measure_drift
from promptdsi.index.entries import put_entry, put_prompts, stored_corpus
from promptdsi.index.ids import content_of
from promptdsi.index.lock import writing
from promptdsi.index.manifest import Manifest, now
from promptdsi.index.options import Options
from promptdsi.index.purge import finish_purge
from promptdsi.index.report import estimate
from promptdsi.index.results import Report
from promptdsi.index.rows import put_rows
from promptdsi.index.snapshot import check_learned, ids_of, live_ids, method_of
from promptdsi.index.store import WORK, Store
from promptdsi.index.together import call_helpers
from promptdsi.methods.promptdsi import PromptDSI
from promptdsi.methods.storage import to_bytes
from promptdsi.model.backbone import load_backbone
from promptdsi.progress import Progress

AS_IT_WAS = "{} is as it was; run the same command again"
MACHINE = ("device", "offline")  # parameters of the machine, not of the index


@contextlib.contextmanager
def unharmed(said: str) -> Iterator[None]:
    """Tell whoever interrupts how things stand."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(said) from None


def create(store: Store, corpus: Corpus, method: PromptDSI, options: Options) -> Report:
    """Learn D0 and commit generation 1. Interrupted, the same call goes on from its checkpoint."""
    started = time.monotonic()
    store.check_new()
    check_corpus(corpus)
    if options.store not in STORES:
        raise UsageError(f"store={options.store!r} is none of {', '.join(STORES)}")
    name = name_of(corpus, options)
    check_probes(corpus, options)
    held = dict(method.get_params())
    # A throw-away model measures the machine's speed: training starts from the backbone itself.
    method.start(load_backbone(method.backbone, offline=method.offline))
    if options.on_start:
        options.on_start(estimate(method, corpus, first=True, train=True))
    store.begin()
    go_on = f"{store.folder} is not finished; run the same command again to go on"
    with writing(store.folder), unharmed(go_on):
        store.check_new()  # again: another create may have ended while this one looked
        store.clean_unfinished()
        call_helpers(corpus)
        try:
            method.fit(corpus, checkpoint=store.folder / WORK, progress=options.progress)
        except (PromptDSIError, OSError):
            store.abandon()
            raise
        entry = put_entry(store, corpus, method, since=1, options=options)
        manifest = Manifest(
            number=1,
            parent=None,
            kind="create",
            time=now(),
            method=method.name,
            params={key: value for key, value in held.items() if key not in MACHINE},
            config=method.model_.encoder.config.to_json(),
            encoder=store.blobs.put(to_bytes(method.model_.encoder.state_dict()), "safetensors"),
            tokenizer=store.blobs.put(method.tokenizer_.json.encode("utf-8"), "json"),
            store=options.store,
            metadata=_facts(method),
            prompts=put_prompts(store, {}, method.model_.strategy.state()),
            corpora=(replace(entry, name=name),),
        )
        report = _measured(method, corpus, Report(1, "create", name, added=len(corpus)), options.progress)
        report = replace(report, seconds=time.monotonic() - started, probes=min(options.keep_probes, report.dev_queries))
        store.commit(replace(manifest, event=report.event()))
    return report


def add(store: Store, corpus: Corpus, options: Options) -> Report:
    """Learn the next corpus and commit a generation; documents the index holds already cost nothing."""
    started = time.monotonic()
    check_corpus(corpus)
    check_bound(options)
    with store.writing(), unharmed(AS_IT_WAS.format(store.folder)):
        parent = _ready(store)
        new, replaced = _sort_out(store, parent, corpus, options)
        report = Report(parent.number, "add", corpus.name, unchanged=len(corpus) - len(new), fast=options.fast)
        report = replace(report, tunable=parent.store == "text")
        if not len(new):
            return report
        name = name_of(corpus, options)
        if name in {entry.name for entry in parent.corpora}:
            raise UsageError(f"the index has a corpus named {name!r} already; give this one another name with --name")
        check_probes(new, options)
        if options.max_drift is not None and not any(entry.probes for entry in parent.corpora):
            raise UsageError(NO_PROBES)
        method = _seeded(method_of(store, parent, device=options.device), options)
        if options.on_start:
            options.on_start(estimate(method, new, first=False, train=not options.fast))
        method.model_.rows.deleted |= replaced
        method.add(new, train=not options.fast, progress=options.progress)
        entry = put_entry(store, new, method, since=parent.number + 1, options=options)
        manifest = parent.next(
            "add",
            metadata=_facts(method),
            prompts=put_prompts(store, parent.prompts, method.model_.strategy.state()),
            corpora=(*parent.corpora, replace(entry, name=name)),
            tombstones=tuple(sorted({*parent.tombstones, *replaced})),
        )
        report = replace(report, generation=manifest.number, corpus=name, added=len(new), updated=len(replaced))
        report = _measured(method, new, report, options.progress)
        report = replace(report, drift=measure_drift(store, parent, method, device=options.device))
        refuse_drift(store, report, options.max_drift, "the index is as it was")
        report = replace(report, seconds=time.monotonic() - started, probes=min(options.keep_probes, report.dev_queries))
        store.commit(replace(manifest, event=report.event()))
    return report


def tune(store: Store, options: Options) -> list[Report]:
    """Train every corpus that was added fast, from what the index stored of it; one generation each.

    A corpus none of whose documents is left has nothing to train.
    """
    reports: list[Report] = []
    check_bound(options)
    with store.writing(), unharmed(f"{store.folder} keeps what was tuned until then; run the same command again"):
        parent = _ready(store)
        if options.max_drift is not None and not any(entry.probes for entry in parent.corpora):
            raise UsageError(NO_PROBES)
        alive = [entry.count > len(gone) for entry, gone in zip(parent.corpora, parent.deleted_positions(), strict=True)]
        for number in [place for place, entry in enumerate(parent.corpora) if entry.fast and alive[place]]:
            started = time.monotonic()
            entry = parent.corpora[number]
            corpus = stored_corpus(store, parent, number)
            method = _seeded(method_of(store, parent, device=options.device, last=number), options)
            if options.on_start:
                options.on_start(estimate(method, corpus, first=False, train=True))
            method.tune(corpus, progress=options.progress)
            rows = put_rows(store, method.model_.rows.blocks[-1].detach().cpu().numpy(), since=entry.since)
            corpora = list(parent.corpora)
            corpora[number] = replace(entry, rows=rows, fast=False)
            prompts = put_prompts(store, parent.prompts, method.model_.strategy.state())
            manifest = parent.next("tune", metadata=_facts(method), prompts=prompts, corpora=tuple(corpora))
            report = _measured(method, corpus, Report(manifest.number, "tune", entry.name), options.progress)
            report = replace(report, drift=measure_drift(store, parent, method, device=options.device, without=entry.name))
            refuse_drift(store, report, options.max_drift, "what was tuned before it stays" if reports else "the index is as it was")
            report = replace(report, seconds=time.monotonic() - started)
            store.commit(replace(manifest, event=report.event()))
            parent = store.manifest()
            reports.append(report)
    return reports


def _ready(store: Store) -> Manifest:
    """The current generation, checked as far as learning reads it, with everything a crash left behind removed."""
    manifest = finish_purge(store, store.manifest())
    check_learned(store, manifest)
    store.clean()
    return manifest


def _sort_out(store: Store, parent: Manifest, corpus: Corpus, options: Options) -> tuple[Corpus, set[int]]:
    """The documents that are new, and the rows of those that are replaced. Same docid and content: nothing to do."""
    here = live_ids(parent, ids_of(store, parent))
    marks = {document.docid: content_of(document) for document in corpus.documents}
    changed = [docid for docid, mark in marks.items() if docid in here and here[docid][1] != mark]
    if changed and not options.update:
        others = f" and {len(changed) - 1:,} others" if len(changed) > 1 else ""
        raise DataError(
            f"the document {changed[0]!r}{others} of {corpus.name} is in the index with other content; replace it with --update",
            path=store.folder,
        )
    new = {docid for docid in marks if docid not in here} | set(changed)
    return corpus.only(new), {here[docid][0] for docid in changed}


def _measured(method: PromptDSI, corpus: Corpus, report: Report, progress: Progress) -> Report:
    """Dev Hits@10 where there are dev queries, and the documents none of whose own queries finds them in ten."""
    dev = rank_queries(method, load_queries(corpus, "dev"))
    found = float(values("Hits@10", dev.query_ranks).mean()) if dev.query_ranks else None
    report = replace(report, dev_hits10=found, dev_queries=len(dev.query_ranks), truncated=method.truncated_documents_)
    if report.fast:
        return report
    asked = method.training_pairs(corpus, new=len(method.model_.rows.blocks) > 1)
    rows = method.model_.rows
    with torch.no_grad():
        vectors = method.encode([one.text for one in asked], progress=progress)
        ranks = rows.ranks(vectors, rows.numbers([one.docid for one in asked]).to(vectors.device)).tolist()
    best = {one.docid: rank for one, rank in sorted(zip(asked, ranks, strict=True), key=lambda pair: -pair[1])}
    cut = sum(method.tokenizer_.encode([one.text for one in asked], max_tokens=method.encoding.max_tokens).truncated)
    return replace(report, queries=len(asked), truncated_queries=cut, unfindable=[docid for docid, rank in best.items() if rank > 10])


def _seeded(method: PromptDSI, options: Options) -> PromptDSI:
    if options.seed is not None:
        method.seed = options.seed
    return method


def _facts(method: PromptDSI) -> dict[str, Any]:
    """What the method knows beside weights. The topic of each document is left out: only words of many documents are kept."""
    metadata = method.metadata()
    return metadata | {"topics": {"words": metadata["topics"]["words"]} if metadata.get("topics") else None}
